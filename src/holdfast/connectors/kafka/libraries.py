"""The client libraries of Kafka, which are installed by those who use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import InvalidPipeline


@contextmanager
def libraries_for(node: str, extra: str = "kafka") -> Iterator[None]:
    """Import what needs the client libraries in the block; say so where they are not installed.

    Parameters
    ----------
    node : str
        Whose they are: ``source 'flights'``.
    extra : str
        What brings them.
    """
    try:
        yield
    except ImportError as error:
        raise InvalidPipeline(
            f"{node}: the Kafka client libraries are not installed.",
            why=f"{error}.",
            do=f"pip install 'holdfast[{extra}]'",
        ) from error
