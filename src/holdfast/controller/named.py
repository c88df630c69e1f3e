"""Named checkpoints of all shards: one of each shard under one name (design/0048, 8).

Invariants: the name exists once every shard has its part, all made under one layout; a part belongs to the checkpoint
whose record has its digest.

Durable writes: 1. that the name was begun; 2. the part of each shard; 3. the record, put if absent, which makes the
checkpoint.  Dead before 3: who makes or deletes one of that name, and each start of all shards, first decides that it
is none (the same key, so a slow maker finds it decided), and removes the parts.  A deletion begins with that decision,
too.  After 3 it is looked whether the parts are there and the layout still holds: who removes them, or moves segments,
may have been faster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint import named
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline, Unavailable
from holdfast.ports import Store
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.shards.named import (
    NamedShards,
    begin_name,
    begun_names,
    forget_name,
    is_of_shards,
    put_record,
    put_void,
    read_record,
    record_names,
)


@dataclass(frozen=True)
class ShardNames:
    """The named checkpoints of a pipeline in shards.

    Parameters
    ----------
    pipeline : str
        The user's name; empty where it is not known.
    stores : sequence of Store
        The checkpoints of all shards, by their numbers, also of those that were given up.
    """

    pipeline: str
    stores: Sequence[Store]

    @property
    def store(self) -> Store:
        """The checkpoint of the pipeline, which is that of shard 0, too."""
        return self.stores[0]

    def names(self) -> list[str]:
        """Return the names of all checkpoints of all shards."""
        return record_names(self.store)

    def of_one_run(self) -> list[str]:
        """Return the names that the pipeline was given while it ran without shards."""
        return [name for name in named.names(self.store) if not is_of_shards(self.store, name)]

    def remains(self) -> list[str]:
        """Return the names of which there are parts, and no checkpoint of all shards."""
        parts = {name for store in self.stores[1:] for name in (*named.names(store), *named.remains(store))}
        return sorted({*begun_names(self.store), *parts}.difference(self.names()))

    def read(self, name: str) -> NamedShards:
        """Return the record of a checkpoint of all shards, whose parts are there.

        Raises
        ------
        InvalidPipeline
            If there is none of that name.
        Corrupt
            If it is damaged, or one of its parts is another one.
        """
        found = read_record(self.store, named.checked_name(name))
        if found is None:
            raise InvalidPipeline(
                f"there is no checkpoint of all shards named {name!r}.",
                why=f"named are: {', '.join(self.names()) or 'none'}."
                + (f" {name!r} is of the pipeline when it ran without shards." if name in self.of_one_run() else ""),
                do="name one of those; holdfast checkpoint create makes one.",
                pipeline=self.pipeline,
            )
        for shard, digest in found.parts.items():
            if digest != self._digest(shard, name):
                raise Corrupt(
                    f"the part of shard {shard} of checkpoint {name!r} is "
                    + ("missing." if not self._digest(shard, name) else "another one than was put with the others."),
                    why="a checkpoint of all shards counts only as a whole.",
                    do=f"restore the file from a copy of the checkpoint; or delete it: holdfast checkpoint delete "
                    f"{name}.",
                    pipeline=self.pipeline,
                    participant=named.key_of(name),
                )
        return found

    def manifests(self, name: str) -> dict[int, Manifest]:
        """Return the parts of a checkpoint, by their shards; without shards that had not finished an epoch.

        Raises
        ------
        HoldfastError
            As :meth:`read`, or if a part is damaged.
        """
        parts = self.read(name).parts
        return {shard: named.read_named(self.stores[shard], name) for shard, digest in parts.items() if digest}

    def make(self, name: str, layout: ShardLayout, put_part: Callable[[int], bool]) -> NamedShards:
        """Make a checkpoint of all shards.

        Parameters
        ----------
        name : str
            Its name.
        layout : ShardLayout
            The layout under which the shards run, or stand still.
        put_part : callable
            Given the number of a shard, puts its part under the name; returns False where it has not finished an epoch.

        Raises
        ------
        InvalidPipeline
            If the name is taken, or is none.
        Unavailable
            If another process makes or removes one of that name, or has moved segments meanwhile.
        HoldfastError
            Whatever making a part raises.  Nothing has the name then.
        """
        if named.new_name(name) in (*self.names(), *self.of_one_run()):
            raise named.taken_name(name)
        if name in self.remains():
            self._remove(name)
        if not begin_name(self.store, name):
            raise self._not_made(name, "another process is making or removing one of that name.")
        is_ours = False
        try:
            parts: dict[int, str] = {}
            for shard in range(layout.shard_count):
                parts[shard] = self._digest(shard, name) if put_part(shard) else ""
            if not any(parts.values()):
                raise self._nothing_finished()
            made = NamedShards(layout, parts)
            is_ours = put_record(self.store, name, made)
            if not is_ours:
                raise self._not_made(name, "another process has removed its parts meanwhile: it makes one, or starts.")
            self._look(name, made)
        except BaseException:
            with suppress(HoldfastError):  # the first error says more; who comes next removes the rest
                self._remove(name, is_whole=is_ours)
            raise
        return made

    def delete(self, name: str) -> None:
        """Delete a checkpoint of all shards, a damaged one, too, or what is left of one.

        Raises
        ------
        InvalidPipeline
            If there is none of that name.
        """
        if named.checked_name(name) in (*self.of_one_run(), *named.remains(self.store)):
            named.delete_named(self.store, name)
        elif name in (*self.names(), *self.remains()):
            self._remove(name, is_whole=True)
        else:
            self.read(name)  # raises, and says which there are

    def sweep(self) -> None:
        """Remove what is left of checkpoints that were not completed: before the shards start."""
        for name in begun_names(self.store):
            self._remove(name)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _look(self, name: str, made: NamedShards) -> None:
        """Refuse a checkpoint whose parts were removed, or under whose feet segments were moved, before its record."""
        holds = newest_layout(self.store)
        if holds is None or holds.number != made.layout.number:
            raise self._not_made(name, "another start has changed which shard has which segments meanwhile.")
        if any(digest != self._digest(shard, name) for shard, digest in made.parts.items()):
            raise self._not_made(name, "another process has removed a part of it.")

    def _remove(self, name: str, *, is_whole: bool = False) -> None:
        if not put_void(self.store, name, replaces=is_whole):
            raise named.taken_name(name)  # whoever was at it has completed it
        for store in self.stores:
            named.delete_named(store, name)
        forget_name(self.store, name)

    def _digest(self, shard: int, name: str) -> str:
        data = self.stores[shard].get(named.key_of(name)) if shard < len(self.stores) else None
        return "" if data is None else hashlib.sha256(data).hexdigest()

    def _nothing_finished(self) -> InvalidPipeline:
        return InvalidPipeline(
            f"no shard of pipeline {self.pipeline!r} has finished an epoch to make a checkpoint of.",
            why="they have read nothing yet.",
            do="run it first.",
            pipeline=self.pipeline,
        )

    def _not_made(self, name: str, why: str) -> Unavailable:
        return Unavailable(
            f"no checkpoint {name!r} was made.",
            why=why,
            do="look (holdfast checkpoint list), and make it again.",
            pipeline=self.pipeline,
        )
