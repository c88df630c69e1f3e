"""Named checkpoints outside the checkpoint they were made in: exported, imported, copied into another pipeline's.

An exported directory holds, under the keys that they have in a checkpoint, the files of state and what each source
has recorded of its reading (without that, a position refers to no row); then the manifest; and, written last, a list of
all objects with their checksums, whose put makes it whole::

    exported.json               {"name": ..., "objects": {key: [size, sha256], ...}, "sha256": of these two}
    manifest
    snapshots/files/...
    sources/<source>/...
    shards/keys/...             which segment has the rows of which key, where that is held

Imported, the same is below ``named/<name>/``, and the manifest beside it, with the keys of the files there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from holdfast.checkpoint import named
from holdfast.checkpoint.manifest import Manifest, OperatorState, TableFile, damaged, decode, encode
from holdfast.checkpoint.named import PREFIX
from holdfast.checkpoint.snapshot import checked
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline
from holdfast.ports import Store
from holdfast.shards.keys import KEYS
from holdfast.shards.named import is_of_shards
from holdfast.shards.naming import shard_of
from holdfast.store import records
from holdfast.store.local import LocalStore
from holdfast.store.paths import checked_place, open_store
from holdfast.store.scratch import is_address

LIST = "exported.json"
MANIFEST = "manifest"
SOURCES = "sources/"


@dataclass(frozen=True)
class NamedCheckpoint:
    """A named checkpoint, wherever it is.

    Parameters
    ----------
    store : Store
        The checkpoint or exported directory that holds it.
    manifest : Manifest
        Its manifest, with keys in that store.
    below : str
        The prefix of its sources' records in the store; empty where they are as in every checkpoint.
    shown : str
        What people call it.
    own : str
        The prefix of the files that belong to this name alone: imported ones, edited ones.
    """

    store: Store
    manifest: Manifest
    below: str
    shown: str
    own: str = ""

    def workspaces(self) -> Iterator[tuple[str, bytes]]:
        """Yield what the sources remember, and what is claimed of their keys: key as in every checkpoint, bytes.

        A source that is at work merges its records, and removes them once the merged one is there: what is listed again
        after the last one was read was there all the time.
        """
        done: set[str] = set()
        prefixes = (f"{self.below}{SOURCES}", f"{self.below}{KEYS}/")
        while missing := [key for prefix in prefixes for key in self.store.keys(prefix) if key not in done]:
            for key in missing:
                done.add(key)
                data = self.store.get(key)
                if data is not None and "/aside/" not in key:
                    yield key.removeprefix(self.below), data

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files of state: key as in every checkpoint, bytes.

        Raises
        ------
        Corrupt
            At the first that is missing, cut or changed: names it.
        """
        for file in self.manifest.files:
            try:
                data = checked(self.store.get(file.key), file)
            except Corrupt as error:
                error.do = f"restore {file.key!r} from a copy; or choose another named checkpoint."
                raise
            yield file.key.removeprefix(self.own), data

    @property
    def plain(self) -> Manifest:
        """The manifest with the keys that files have in every checkpoint."""
        return _moved(self.manifest, self.own, "")


def kept(store: Store, name: str, *, is_part: bool = False) -> NamedCheckpoint:
    """Return a named checkpoint of a store.

    Parameters
    ----------
    store : Store
        The checkpoint that holds it.
    name : str
        Its name.
    is_part : bool
        Whether the part of a shard is wanted, of a checkpoint of all shards.

    Raises
    ------
    InvalidPipeline
        If there is none of that name, or only a part of one.
    Corrupt
        If its manifest is damaged.
    """
    manifest = named.read_named(store, name)
    if not is_part and (is_of_shards(store, name) or shard_of(manifest.pipeline)[1]):
        raise InvalidPipeline(
            f"checkpoint {name!r} is of a pipeline in shards.",
            why="what is here under this name is the part of one shard: the rows of the others are not in it.",
            do="use it whole: begin with it in as many shards as it has (start(shards=N), --shards N), or go back to "
            "it (holdfast rewind TARGET --to NAME). One that is of all shards cannot be exported or edited.",
        )
    is_imported = store.get(f"{below(name)}{LIST}") is not None
    return NamedCheckpoint(store, manifest, below(name) if is_imported else "", name, below(name))


def below(name: str) -> str:
    """Return the prefix of what belongs to one name alone; nothing is pruned there."""
    return f"{PREFIX}{name}/"


def taken_along(store: Store, found: NamedCheckpoint, name: str) -> Manifest:
    """Copy what belongs to one name alone to another name of the same store; return the manifest over it."""
    for key in store.keys(found.own):
        data = store.get(key)
        if data is not None:
            store.put(below(name) + key.removeprefix(found.own), data)
    return _moved(found.manifest, found.own, below(name))


def find(store: Store, where: str, *, is_part: bool = False) -> NamedCheckpoint:
    """Return the named checkpoint that a user refers to.

    Parameters
    ----------
    store : Store
        The checkpoint in which a plain name is looked up.
    where : str
        A name; or ``<checkpoint>/<name>``, its directory or address; or an exported directory.
    is_part : bool
        As for :func:`kept`.
    """
    if "/" not in where and os.sep not in where:
        return kept(store, where, is_part=is_part)
    if is_address(where):
        checkpoint, _, name = where.rstrip("/").rpartition("/")
        return replace(kept(open_store(checkpoint), name, is_part=is_part), shown=where)
    path = Path(where).expanduser().absolute()
    if (path / LIST).is_file():
        return exported(path)
    if not path.parent.is_dir():
        raise InvalidPipeline(
            f"there is no checkpoint {where!r}.",
            why=f"{path.parent} is not a directory, and {path} was not made by an export.",
            do="give a name, <checkpoint directory>/<name>, or the directory of an export.",
        )
    return replace(kept(LocalStore(str(path.parent)), path.name, is_part=is_part), shown=where)


def exported(directory: Path) -> NamedCheckpoint:
    """Return the contents of an exported directory, whose list is complete.

    Raises
    ------
    InvalidPipeline
        If the directory is none.
    Corrupt
        If its list or its manifest is damaged.
    """
    if not (directory / LIST).is_file():
        raise InvalidPipeline(
            f"{directory} holds no exported checkpoint.",
            why=f"there is no {LIST} in it: it is another directory, or the export was not completed.",
            do="export it again, into an empty directory.",
        )
    store = LocalStore(str(directory))
    _list(store)
    return NamedCheckpoint(store, decode(store.get(MANIFEST) or b"", MANIFEST), "", str(directory))


def export(store: Store, name: str, directory: Path) -> NamedCheckpoint:
    """Write a named checkpoint into a directory that needs nothing else.

    Raises
    ------
    InvalidPipeline
        If the directory is not empty, or is a file.
    Corrupt
        If a file of the checkpoint is damaged: names it.
    """
    found = kept(store, name)
    if checked_place(directory, "an export").exists() and any(directory.iterdir()):
        raise InvalidPipeline(
            f"{directory} is not empty.",
            why="an export holds one checkpoint and nothing else.",
            do="name a directory that is empty or missing.",
        )
    target = LocalStore(str(directory))
    objects: dict[str, tuple[int, str]] = {}

    def put(key: str, data: bytes) -> None:
        target.put(key, data)
        objects[key] = (len(data), hashlib.sha256(data).hexdigest())

    for key, data in chain(found.files(), found.workspaces()):
        put(key, data)
    put(MANIFEST, encode(found.plain))
    target.put(LIST, _seal(name, objects))
    return exported(directory)


def import_from(store: Store, directory: Path, name: str | None) -> str:
    """Take an exported checkpoint in, under its own name or another; return the name.

    Raises
    ------
    InvalidPipeline
        If the directory is none, or the name is taken.
    Corrupt
        If an object is missing or damaged: names it.

    Notes
    -----
    What a failed one has written is removed; what a killed one has written, ``named.remains`` finds.
    """
    found = exported(directory)
    listed = _list(found.store)
    name = name or listed.name
    named.claim(store, name)
    try:
        _import_claimed(store, directory, name, found, listed)
    except BaseException:
        with suppress(HoldfastError):  # of the two the first says more; and the files are listed
            named.discard(store, name)
        raise
    return name


def _import_claimed(store: Store, directory: Path, name: str, found: NamedCheckpoint, listed: _List) -> None:
    place = below(name)
    for key, (size, digest) in sorted(listed.objects.items()):
        data = found.store.get(key)
        if data is None or len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise damaged(str(directory / key), "it is missing" if data is None else "its checksum does not match")
        if key != MANIFEST:
            store.put(f"{place}{key}", data)
    missing = [file.key for file in found.manifest.files if file.key not in listed.objects]
    if missing:
        raise damaged(str(directory / missing[0]), f"the manifest names it, and {LIST} does not")
    store.put(f"{place}{LIST}", found.store.get(LIST) or b"")
    named.put_claimed(store, name, _moved(found.manifest, "", place))


def _moved(manifest: Manifest, before: str, after: str) -> Manifest:
    """Return a manifest whose files are elsewhere."""

    def moved(file: TableFile) -> TableFile:
        return replace(file, key=after + file.key.removeprefix(before)) if file.key.startswith(before) else file

    operators = {
        name: OperatorState(
            of.schema,
            {
                number: replace(bucket, files={table: moved(file) for table, file in bucket.files.items()})
                for number, bucket in of.buckets.items()
            },
        )
        for name, of in manifest.operators.items()
    }
    return replace(manifest, operators=operators)


@dataclass(frozen=True)
class _List:
    name: str
    objects: Mapping[str, tuple[int, str]]


def _list(store: Store) -> _List:
    try:
        data = store.get(LIST) or b""
        found = records.read(_List, json.loads(data))
        if _seal(found.name, found.objects) != data:
            raise ValueError("its checksum does not match")
    except ValueError as error:
        raise Corrupt(
            f"{LIST} of the exported checkpoint cannot be read.",
            why=f"{error}; it lists what belongs to the checkpoint.",
            do="export it again, or restore the directory from a copy.",
            participant=LIST,
        ) from error
    return found


def _seal(name: str, objects: Mapping[str, tuple[int, str]]) -> bytes:
    value = {"name": name, "objects": objects}
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    return json.dumps({**value, "sha256": digest}, sort_keys=True).encode()
