"""How shards begin that do not begin at the beginning: each at its part of a named checkpoint, or at a time.

Durable writes: 1. what the sources of the checkpoint remember, for all shards; 2. ``shards/beginning.json``: from here
on all shards begin there; 3. the layout, of a fork that of the checkpoint; 4. each shard's own (``starts/fork.py``).
Dead after 2: shards that have not begun yet begin so with the next start, which has to ask for the same; a shard that
began at the beginning instead would read again what the others were given state for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.checkpoint.directory_header import DirectoryHeader, newest_directory, noted_beginning
from holdfast.checkpoint.portable import LIST, NamedCheckpoint
from holdfast.controller.checks import check_key
from holdfast.controller.layouts.found_shards import ask_shards, has_begun
from holdfast.controller.layouts.graph import ShardGraphs, dealt
from holdfast.controller.named import ShardNames
from holdfast.controller.named_parts import shard_stores
from holdfast.errors import InvalidPipeline
from holdfast.ports import Store
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.shards.moves import Stand, note_beginnings
from holdfast.shards.naming import shard_checkpoint
from holdfast.starts.start_at import StartAt
from holdfast.store import records, sealed
from holdfast.store.paths import checkpoint_directory, open_store
from holdfast.store.scratch import is_address

BEGINNING = "shards/beginning.json"


@dataclass(frozen=True)
class _NotedBeginning:
    noted: str
    parts: tuple[int, ...]


@dataclass(frozen=True)
class ShardsBeginning:
    """Where the shards of a pipeline begin.

    Parameters
    ----------
    graphs : ShardGraphs
        Of the pipeline.
    directory : Path
        Its checkpoint.
    begins : StartAt
        What the start is asked for.
    """

    graphs: ShardGraphs
    directory: Path
    begins: StartAt

    def first_layout(self, shard_count: int, by: str) -> ShardLayout | None:
        """Note where the shards begin, if none has; return the layout with which they do, None where any will do.

        Parameters
        ----------
        shard_count : int
            How many shards are asked for; 0: as many as there are.
        by : str
            What they keep state apart by.

        Raises
        ------
        InvalidPipeline
            If a shard has begun otherwise, or the checkpoint is not one of so many shards with the same key.
        Corrupt
            If the checkpoint is damaged.
        """
        noted = self._note()
        if noted is None and not self.begins:
            return None
        if noted is not None and self._have_begun():
            if self.begins and noted[0] != self.begins.noted:
                raise self.begins.refused(self._name, (noted[0], DirectoryHeader(1)))
            return None
        if noted is not None and noted[0] != self.begins.noted:
            raise InvalidPipeline(
                f"pipeline {self._name!r} began with {noted[0]}, and some of its shards have not begun yet.",
                why=f"its first start was interrupted; this one asks for {self.begins.noted or 'nothing of the kind'}.",
                do="start it once more with what it began with; or begin with a new checkpoint and new targets.",
                pipeline=self._name,
            )
        if noted is None and (newest_layout(self._store) is not None or _has_begun(self._store)):
            raise self.begins.refused(self._name, noted_beginning(self._store))
        found = None if self.begins.where is None else self._names_at(self.begins.where)
        layout = None if found is None else self._layout_of(*found, shard_count, by)
        if noted is None:
            self._check_sinks()
            self._put_note(found)
        return layout

    def of_shard(self, shard: int) -> StartAt:
        """Return what the start of a shard is asked for, of those that were noted to begin so."""
        noted = self._note()
        if self.begins.where is None or noted is None:
            return self.begins
        if shard not in noted[1]:
            return replace(self.begins, where=None)
        return replace(self.begins, where=place_of(self.begins.where, shard), is_part=True)

    def check_noted(self) -> None:
        """Refuse to begin one shard alone where a start of all has not noted how they begin.

        Raises
        ------
        InvalidPipeline
            If it has not, or otherwise.
        """
        noted = self._note()
        if (noted is None and self.begins) or (noted is not None and not self._have_begun()):
            raise InvalidPipeline(
                f"not all shards of pipeline {self._name!r} have begun"
                + (
                    f" with {self.begins}." if noted is None else f" with {noted[0]}, as its first start was asked for."
                ),
                why="a shard that is started alone goes on; all of them begin together.",
                do="start all shards once, with the same options and without --only-shard.",
                pipeline=self._name,
            )

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self.graphs.pipeline.name

    def _check_sinks(self) -> None:
        """Refuse to begin so where sinks hold rows: by one run, or by shards whose checkpoint is lost."""
        sinks = {node.name: node.spec for node in self.graphs.pipeline.sinks}
        if has_begun(ask_shards(sinks, self._name)):
            raise InvalidPipeline(
                f"pipeline {self._name!r} is to begin with {self.begins}, and its sinks hold rows already.",
                why="rows between that and where the sinks are would be lost to them, or doubled.",
                do="go on from the sinks: start without that option; or begin anew, with another name and new sinks.",
                pipeline=self._name,
            )

    @property
    def _store(self) -> Store:
        return open_store(str(self.directory))

    def _stores(self) -> Sequence[Store]:
        layout = newest_layout(self._store)
        return [self._store] if layout is None else shard_stores(self.directory, layout)[: layout.shard_count]

    def _have_begun(self) -> bool:
        return newest_layout(self._store) is not None and all(map(_has_begun, self._stores()))

    def _note(self) -> tuple[str, list[int]] | None:
        """Return how the shards begin, and which of them have a part of a named checkpoint."""
        data = self._store.get(BEGINNING)
        if data is None:
            return None
        says = "it says where the shards of the pipeline begin"
        do = "restore it from a copy of the checkpoint."
        found = records.load(_NotedBeginning, data, key=BEGINNING, says=says, do=do)
        return found.noted, [*found.parts]

    def _put_note(self, found: tuple[ShardNames, str] | None) -> None:
        parts: list[int] = []
        if found is not None:
            names, name = found
            manifests = names.manifests(name)
            parts = [*manifests]
            whole = NamedCheckpoint(names.store, next(iter(manifests.values())), "", name)
            for key, data in whole.workspaces():
                self._store.put(key, data)
        self._store.put_if_absent(
            BEGINNING, sealed.dump(records.plain(_NotedBeginning(self.begins.noted, tuple(parts))))
        )

    def _names_at(self, where: str) -> tuple[ShardNames, str]:
        """Return the named checkpoint of all shards that a user refers to."""
        if "/" not in where and os.sep not in where:
            place, name = self.directory, where
        elif is_address(where):
            address, _, name = where.rstrip("/").rpartition("/")
            place = checkpoint_directory(address)
        else:
            path = Path(where).expanduser().absolute()
            place, name = path.parent, path.name
            if (path / LIST).is_file():
                raise self._is_of_one_run(where)
        layout = newest_layout(open_store(str(place)))
        if layout is None:
            raise self._is_of_one_run(where)
        names = ShardNames(self._name, shard_stores(place, layout))
        if name in names.of_one_run():
            raise self._is_of_one_run(where)
        return names, name

    def _is_of_one_run(self, where: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"pipeline {self._name!r} is to begin in shards with {where!r}, which is of no pipeline in shards.",
            why="which shard would have which of its segments and keys is not known.",
            do="begin with it as one run, without shards; then start again with as many shards as you want.",
            pipeline=self._name,
        )

    def _layout_of(self, names: ShardNames, name: str, shard_count: int, by: str) -> ShardLayout:
        """Return the layout of the checkpoint, with what its shards had begun to read; segments of now are dealt."""
        found = names.read(name).layout
        if shard_count not in (0, found.shard_count):
            raise InvalidPipeline(
                f"checkpoint {name!r} is of {found.shard_count} shards, and pipeline {self._name!r} is to begin with "
                f"it in {shard_count}.",
                why="each shard begins with the state and the positions of one.",
                do=f"begin in {found.shard_count} shards, and change the number at the next start.",
                pipeline=self._name,
            )
        check_key(self._name, found, by)
        stands = {shard: Stand(0, part.ended.positions) for shard, part in names.manifests(name).items()}
        noted = note_beginnings(found.assignment, stands, self.graphs.unit_of(found))
        fresh = replace(found, assignment=noted, number=0, moves={})
        return dealt(fresh, self.graphs.all_units(fresh))


def place_of(where: str, shard: int) -> str:
    """Return where the part of a shard is, of a named checkpoint that a user refers to.

    Examples
    --------
    >>> place_of("ckpt/trips/before", 2), place_of("before", 2)
    ('ckpt/trips/shards/2/before', 'before')
    """
    checkpoint, separator, name = where.rstrip("/").rpartition("/")
    return f"{shard_checkpoint(checkpoint, shard)}/{name}" if separator else where


def _has_begun(store: Store) -> bool:
    return newest_directory(store) > 0 or noted_beginning(store) is not None
