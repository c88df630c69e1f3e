"""The record of a named checkpoint of all shards: under which layout it was made, and which part of it each shard has.

For each name there are, in the checkpoint of the pipeline::

    shards/named/<name>.begun    put if absent: parts of the shards with this name belong together
    shards/named/<name>.json     put if absent, last: the checkpoint exists; or that it is not to exist any more

Each part is a named checkpoint in the checkpoint of its shard.  A digest of each is in the record, so that parts of two
checkpoints are never taken for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import Corrupt
from holdfast.ports import Store
from holdfast.shards.layout import ShardLayout
from holdfast.store import sealed

NAMED = "shards/named/"
_BEGUN, _RECORD = ".begun", ".json"
_VOID = {"void": True}


@dataclass(frozen=True)
class NamedShards:
    """A named checkpoint of all shards.

    Parameters
    ----------
    layout : ShardLayout
        The layout that held when it was made.
    parts : mapping of int to str
        Shard -> digest of its part; empty for a shard that had not finished an epoch yet.
    """

    layout: ShardLayout
    parts: Mapping[int, str]


def record_names(store: Store) -> list[str]:
    """Return the names of all checkpoints of all shards that exist, damaged ones too."""
    return [name for name in _names(store, _RECORD) if not is_void(store, name)]


def begun_names(store: Store) -> list[str]:
    """Return the names that were begun, or are being deleted, and are no checkpoint: another process may be at it."""
    known = {*_names(store, _BEGUN), *_names(store, _RECORD)}
    return sorted(known.difference(record_names(store)))


def is_of_shards(store: Store, name: str) -> bool:
    """Return whether what has a name in the checkpoint of a pipeline is, or was to be, a part of one of all shards."""
    return store.get(f"{NAMED}{name}{_BEGUN}") is not None or store.get(_key(name)) is not None


def read_record(store: Store, name: str) -> NamedShards | None:
    """Return the record of a name; None where there is no such checkpoint of all shards.

    Raises
    ------
    Corrupt
        If it is damaged.
    """
    data = store.get(_key(name))
    if data is None or is_void(store, name):
        return None
    try:
        value = sealed.load(data)
        parts = {int(shard): str(digest) for shard, digest in value["parts"].items()}
        return NamedShards(ShardLayout.from_json(value["layout"], int(value["number"])), parts)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{_key(name)!r} in the checkpoint cannot be read.",
            why=f"{error}; it says which parts of the shards are the checkpoint {name!r}.",
            do=f"restore the file from a copy of the checkpoint; or delete it: holdfast checkpoint delete {name}.",
            participant=_key(name),
        ) from error


def begin_name(store: Store, name: str) -> bool:
    """Note that parts with a name belong together; return False where another process has."""
    return store.put_if_absent(f"{NAMED}{name}{_BEGUN}", b"{}")


def put_record(store: Store, name: str, made: NamedShards) -> bool:
    """Make a checkpoint of all shards of its parts; return False where another process has decided otherwise."""
    parts = {str(shard): digest for shard, digest in made.parts.items()}
    value = {"layout": made.layout.to_json(), "number": made.layout.number, "parts": parts}
    return store.put_if_absent(_key(name), sealed.dump(value))


def put_void(store: Store, name: str, *, replaces: bool) -> bool:
    """Note that a name is no checkpoint; return False where it is one, and is not to be replaced."""
    if replaces:
        store.put(_key(name), sealed.dump(_VOID))
        return True
    return store.put_if_absent(_key(name), sealed.dump(_VOID)) or is_void(store, name)


def forget_name(store: Store, name: str) -> None:
    """Remove what is noted of a name, whose parts are gone."""
    store.delete(f"{NAMED}{name}{_BEGUN}")
    store.delete(_key(name))


def is_void(store: Store, name: str) -> bool:
    """Return whether it was decided of a name that it is no checkpoint."""
    return store.get(_key(name)) == sealed.dump(_VOID)


def _key(name: str) -> str:
    return f"{NAMED}{name}{_RECORD}"


def _names(store: Store, suffix: str) -> list[str]:
    return [key[len(NAMED) : -len(suffix)] for key in store.keys(NAMED) if key.endswith(suffix)]
