"""Sources around a source: what one of them does not do itself, the source inside does."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from holdfast.ports import Source


@runtime_checkable
class Wrapping(Protocol):
    """What a source is that reads another one, and passes on whatever else it is asked."""

    source: Source
    """The source inside."""


def innermost(source: Source) -> Source:
    """Return the source itself, out of all that is around it: whom to ask what it may offer besides.

    ``isinstance`` does not see what ``__getattr__`` passes on (from Python 3.12 on).
    """
    while isinstance(source, Wrapping):
        source = source.source
    return source
