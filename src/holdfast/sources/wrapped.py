"""Sources around a source: what one of them does not do itself is delegated to the source inside."""

from __future__ import annotations

from typing import Any

from holdfast.ports import Source


class WrappedSource:
    """A source that reads another one, and passes on whatever else it is asked.  Who wraps a source is one of these.

    Parameters
    ----------
    source : Source
        The source inside.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "source" not in self.__dict__:  # while it is unpickled there is no source yet
            raise AttributeError(name)
        return getattr(self.source, name)


def innermost(source: Source) -> Source:
    """Return the innermost source of all wrappers: the one to ask for optional protocols.

    ``isinstance`` does not see what ``__getattr__`` passes on (from Python 3.12 on).
    """
    while isinstance(source, WrappedSource):
        source = source.source
    return source
