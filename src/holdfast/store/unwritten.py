"""A store as it is, for a trial: what is written to it goes nowhere."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.ports import Store


@dataclass(frozen=True)
class UnwrittenStore:
    """Reads another store, and leaves it as it is.

    Parameters
    ----------
    store : Store
        The other one.

    Examples
    --------
    >>> from holdfast.testing.store import SimulatedStore
    >>> store = SimulatedStore()
    >>> store.put("a", b"1")
    >>> trial = UnwrittenStore(store)
    >>> trial.put("b", b"2"), trial.put_if_absent("a", b"3"), trial.delete("a")
    (None, False, None)
    >>> trial.keys(""), trial.get("a"), trial.get("b")
    (['a'], b'1', None)
    """

    store: Store

    def get(self, key: str) -> bytes | None:
        """Return what the other store has."""
        return self.store.get(key)

    def put(self, key: str, data: bytes) -> None:
        """Write nothing."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write nothing; tell whether the object would have been created."""
        return self.store.get(key) is None

    def delete(self, key: str) -> None:
        """Remove nothing."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys of the other store."""
        return self.store.keys(prefix)
