"""Whether what a reader says of stored bytes is their damage, or the trouble of whoever has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from holdfast.errors import Corrupt, Unavailable

_OF_S3 = "AWS Error "
"""In all that Arrow says of a request to S3 that failed, a kind of OSError without a number as for damage."""


def is_of_data(error: Exception) -> bool:
    """Whether an error that a reader raises is of the bytes that it was given, and not of the machine it runs on.

    Examples
    --------
    >>> is_of_data(pa.ArrowInvalid("no magic bytes")), is_of_data(pa.ArrowMemoryError("malloc failed"))
    (True, False)
    """
    if isinstance(error, MemoryError | pa.ArrowCancelled) or _is_of_s3(error):
        return False
    return not isinstance(error, OSError) or (type(error) is OSError and error.errno is None)


def _is_of_s3(error: Exception) -> bool:
    return type(error) is OSError and _OF_S3 in str(error)


@contextmanager
def damage_named(place: str) -> Iterator[None]:
    """Raise :class:`Corrupt` where what is read at a place cannot be decoded, :class:`Unavailable` where a bucket does
    not give it; what a file system says stays.
    """
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if _is_of_s3(error):
            raise Unavailable(
                f"{place} cannot be read.",
                why=f"{error}.",
                do="try again; if it stays so, look at the network, the endpoint and the rights of the credentials.",
                participant=place,
            ) from error
        if not is_of_data(error):
            raise
        raise Corrupt(
            f"{place} cannot be read.",
            why=f"{error}.",
            do="restore it from a copy, or move it out: its rows are missing then.",
            participant=place,
        ) from error
