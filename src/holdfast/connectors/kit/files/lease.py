"""A lease in a directory: one sealed object for each beat, named by its number, created put-if-absent.

There is no clock that all machines share: who watches measures on its own how long no beat has come.
"""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast.connectors.kit.lease_text import dumped, loaded
from holdfast.ports import Lease, SeenLease
from holdfast.store import sealed

KEPT = 3
"""Objects that stay: a reader that has listed the directory still finds one of them."""
_READ_TRIES = 20


class DirectoryLease:
    """The lease in one directory, which belongs to it alone.

    Parameters
    ----------
    directory : str
        Local or mounted; created when the lease is first written.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._is_prepared = False

    def read(self) -> SeenLease | None:
        """Return the newest beat."""
        for _ in range(_READ_TRIES):
            beats = self._beats()
            if not beats:
                return None
            text = sealed.read_sealed(self._path(beats[-1]))
            if text is not None:  # else newer ones have come meanwhile, and it was removed
                return SeenLease(beats[-1], loaded(text.decode()))
        return None

    def write(self, seen: SeenLease | None, lease: Lease) -> bool:
        """Create the next beat; only one that saw the newest can."""
        if not self._is_prepared:
            sealed.prepare(self._directory)
            self._is_prepared = True
        before = 0 if seen is None else seen.beat
        if self._beats()[-1:] != ([before] if before else []):
            return False  # a number that was removed is free again, and must not be created
        if not sealed.put_if_absent(self._path(before + 1), dumped(lease).encode()):
            return False
        if self._beats()[-1] > before + KEPT:  # we were stopped between the look and the write
            with suppress(FileNotFoundError):
                os.unlink(self._path(before + 1))
            return False
        for number in [number for number in self._beats() if number <= before + 1 - KEPT]:
            with suppress(FileNotFoundError):
                os.unlink(self._path(number))
        return True

    def close(self) -> None:
        """Nothing is held open."""

    def _beats(self) -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{number:012d}.json")
