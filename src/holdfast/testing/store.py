"""A checkpoint in memory, with what a power loss does to it; and a wrapper that makes any store fail."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.ports import Store
from holdfast.testing.failures import Failures, NoFailures, failing
from holdfast.testing.simulation.process import Process


class SimulatedStore:
    """A store whose writes are durable when they return, like the real ones.

    Deletions are the exception, as on real file systems: a power loss may bring back what was deleted after the last
    write.  Survives the processes that use it; each wraps it in a :class:`FaultyStore` of its own.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._deleted: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""
        return self.objects.get(key)

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object."""
        self.objects[key] = data
        self._deleted.clear()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists."""
        if key in self.objects:
            return False
        self.put(key, data)
        return True

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""
        data = self.objects.pop(key, None)
        if data is not None:
            self._deleted[key] = data

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        return sorted(key for key in self.objects if key.startswith(prefix))

    def lose_power(self, comes_back: Callable[[str], bool]) -> None:
        """Bring back those of the latest deletions that ``comes_back`` says."""
        for key, data in self._deleted.items():
            if comes_back(key):
                self.objects.setdefault(key, data)
        self._deleted.clear()

    def damage(self, key: str, *, keep: int | None = None, flip: int | None = None) -> None:
        """Truncate an object to its first ``keep`` bytes, or flip a bit of byte ``flip``."""
        data = bytearray(self.objects[key])
        if keep is not None:
            del data[keep:]
        if flip is not None:
            data[flip] ^= 1
        self.objects[key] = bytes(data)


class FaultyStore:
    """Any store, as one process sees it: its writes are places to die, and its calls can fail.

    Parameters
    ----------
    inner : Store
        The durable one.
    process : Process
        The life that uses it.
    failures : Failures, optional
        How calls fail; the participant is called ``store``.
    """

    def __init__(self, inner: Store, process: Process, failures: Failures | None = None) -> None:
        self._inner = inner
        self._process = process
        self._failures: Failures = failures or NoFailures()

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""
        self._process.check()
        return self._inner.get(key)

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object."""
        failure = self._failures("store", "put")
        write = f"store put {key}"
        failing(failure, "store", "put", lambda: self._process.write(write, lambda: self._inner.put(key, data)))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists."""
        write = f"store put_if_absent {key}"
        return failing(
            self._failures("store", "put_if_absent"),
            "store",
            "put_if_absent",
            lambda: self._process.write(write, lambda: self._inner.put_if_absent(key, data)),
        )

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""
        self._process.write(f"store delete {key}", lambda: self._inner.delete(key))

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        self._process.check()
        return self._inner.keys(prefix)
