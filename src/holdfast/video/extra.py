"""PyAV and OpenCV: imported where they are first used, since importing Holdfast must not need them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

NANO = Fraction(1, 10**9)
"""The unit of all times, for PyAV."""

PIXELS_MAX = 1 << 26
"""Pixels of a picture that a decoder makes room for: 8192 x 8192.  A damaged header must not ask for all memory."""


@contextmanager
def extra(what: str) -> Iterator[None]:
    """Import a library of the extra in the block.

    Parameters
    ----------
    what : str
        What needs it, for the error.

    Raises
    ------
    InvalidPipeline
        If it is not installed.
    """
    try:
        yield
    except ImportError as error:
        from holdfast.errors import InvalidPipeline

        raise InvalidPipeline(
            f"{what} needs libraries that are not installed.",
            why=f"{error}.",
            do="pip install 'holdfast[video]'",
        ) from error
