"""The libraries of the extra ``video``: imported where they are used, and one error where they are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import InvalidPipeline


@contextmanager
def extra(what: str) -> Iterator[None]:
    """Import a library of the extra in this block.

    Parameters
    ----------
    what : str
        What needs it: ``"hf.video.decode"``.

    Raises
    ------
    InvalidPipeline
        If it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise InvalidPipeline(
            f"{what} needs PyAV, and {error.name or 'a part of it'} cannot be imported.",
            why=f"{error}.",
            do="pip install 'holdfast[video]'.",
        ) from error
