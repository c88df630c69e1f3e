"""Where a sink on a file system keeps the copies of what its positions mean: a directory of sealed objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from holdfast.connectors.kit.kept_explanations import KeptExplanations
from holdfast.store import durable, sealed
from holdfast.store.local import LocalStore


def explanations_in(directory: str, node: str) -> KeptExplanations:
    """Return the explanations that are kept in a directory, which is created when it is first needed."""
    return KeptExplanations(_SealedObjects(directory), node)


class _SealedObjects:
    """Objects in one directory for each source: ``<first>-<last>.json``, or ``<number>.json``."""

    def __init__(self, directory: str) -> None:
        self.address = directory
        self._files = LocalStore(directory)

    def get(self, key: str) -> bytes | None:
        return sealed.read_sealed(self._path(key))

    def put(self, key: str, data: bytes) -> None:
        self._files.put(_name(key), sealed.seal(data))

    def keys(self, prefix: str) -> list[str]:
        stems = (name.removesuffix(".json") for name in self._files.keys(prefix) if name.endswith(".json"))
        return [stem if "-" in os.path.basename(stem) else f"{stem}-{os.path.basename(stem)}" for stem in stems]

    def delete_several(self, keys: Sequence[str]) -> None:
        for path in map(self._path, keys):
            with durable.explained(f"removing {path}"), suppress(FileNotFoundError):
                os.unlink(path)

    def _path(self, key: str) -> str:
        return os.path.join(self.address, _name(key))


def _name(key: str) -> str:
    first, _, last = key.rpartition("-")
    return f"{first}.json" if os.path.basename(first) == last else f"{key}.json"
