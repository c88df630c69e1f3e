"""Whether what a reader says of stored bytes is their damage, or the trouble of whoever has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from holdfast.errors import Corrupt


def is_of_data(error: Exception) -> bool:
    """Whether an error that a reader raises is of the bytes that it was given, and not of the machine it runs on.

    Examples
    --------
    >>> is_of_data(pa.ArrowInvalid("no magic bytes")), is_of_data(pa.ArrowMemoryError("malloc failed"))
    (True, False)
    """
    if isinstance(error, MemoryError | pa.ArrowCancelled):
        return False
    return not isinstance(error, OSError) or (type(error) is OSError and error.errno is None)


@contextmanager
def damage_named(place: str) -> Iterator[None]:
    """Raise :class:`Corrupt` where what is read at a place cannot be decoded; what its file system says stays."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if not is_of_data(error):
            raise
        raise Corrupt(
            f"{place} cannot be read.",
            why=f"{error}.",
            do="restore it from a copy, or move it out: its rows are missing then.",
            participant=place,
        ) from error
