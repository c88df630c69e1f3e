"""What was received and is not in the journal yet: bounded, so that a slow disk slows the camera's connection down."""

from __future__ import annotations

from threading import Condition
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Hands values from one thread to another, all that wait at once.

    Parameters
    ----------
    limit_bytes : int
        So much waits at most, or one value.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._values: list[T] = []
        self._size = 0
        self._is_closed = False
        self._changed = Condition()

    def put(self, value: T, size_bytes: int) -> bool:
        """Add a value; waits while there is no room.  False: the inbox is closed, and it was not taken."""
        with self._changed:
            while self._values and self._size + size_bytes > self._limit and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return False
            self._values.append(value)
            self._size += size_bytes
            self._changed.notify_all()
            return True

    def take(self) -> list[T]:
        """Return all values that wait; waits for one.  Empty: the inbox is closed, and nothing is left."""
        with self._changed:
            while not self._values and not self._is_closed:
                self._changed.wait()
            values, self._values, self._size = self._values, [], 0
            self._changed.notify_all()
            return values

    def close(self) -> None:
        """Take nothing more; what waits can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
