"""What is simulated in tests: the store of small durable objects, and the clock."""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """Small durable objects under keys (``a/b/c``): local directory, object store, or simulated.

    Every write is atomic and durable when it returns: a reader sees the old or the new object, never a part.
    """

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists.  Exactly one of several callers wins."""

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""


class Clock(Protocol):
    """Clock time and waiting; simulated in tests."""

    def now_us(self) -> int:
        """Microseconds of Unix time."""

    def sleep_s(self, seconds: float) -> None:
        """Wait."""
