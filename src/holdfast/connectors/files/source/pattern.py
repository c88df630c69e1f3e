"""A glob as states: which directories it leads into, and which files it takes.

A state is the set of the pattern's parts that may follow.  Walking with states visits each directory once, however
many ways of the pattern lead there, and enters none that it does not name.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from functools import lru_cache

ANY_DEPTH = "**"
HIDDEN = ("_", ".")
"""How names begin that are never read, nor are files below them."""
_ESCAPED = re.compile(r"\[([*?[])\]")

State = frozenset[int]


class Pattern:
    """A glob relative to a directory; an empty one means the files in the directory itself.

    Parameters
    ----------
    text : str
        ``*``, ``?`` and ``[...]`` within a part; ``**`` for any depth, as last part for every file below.

    Examples
    --------
    >>> pattern = Pattern("**/x/*.json")
    >>> inside = pattern.into(pattern.into(pattern.start, "a"), "x")
    >>> pattern.takes(inside, "1.json"), pattern.takes(pattern.start, "1.json")
    (True, False)
    """

    def __init__(self, text: str) -> None:
        self._parts = [part for part in text.split("/") if part] or ["*"]
        self.start: State = self._closed({0})

    @property
    def is_flat(self) -> bool:
        """Whether it takes files of the directory itself alone."""
        return len(self._parts) == 1 and self._parts != [ANY_DEPTH]

    @property
    def is_one_name(self) -> bool:
        """Whether it is the name of one file of the directory itself."""
        return self.is_flat and literal(self._parts[0]) is not None

    def into(self, state: State, name: str) -> State:
        """Return the state within a directory of this name; an empty one: nothing is looked for there."""
        if name.startswith(HIDDEN):
            return frozenset()
        reached = set()
        for at in state:
            if self._parts[at] == ANY_DEPTH:
                reached.add(at)
            elif at + 1 < len(self._parts) and _matches(self._parts[at], name):
                reached.add(at + 1)
        return self._closed(reached)

    def takes(self, state: State, name: str) -> bool:
        """Return whether a file of this name is one that it names."""
        last = len(self._parts) - 1
        return last in state and (self._parts[last] == ANY_DEPTH or _matches(self._parts[last], name))

    def at(self, path: str) -> State:
        """Return the state within a directory by its path relative to the beginning; ``.`` is the beginning."""
        state = self.start
        for name in path.split("/"):
            state = state if name == "." else self.into(state, name)
        return state

    def names(self, state: State) -> list[str] | None:
        """Return the only names that can follow; None where they must be searched."""
        known = {literal(self._parts[at]) for at in state}
        return None if None in known else sorted(name for name in known if name is not None)

    def _closed(self, state: set[int]) -> State:
        """Add the parts after each ``**`` of the state: it may match nothing."""
        for at in sorted(state):
            while self._parts[at] == ANY_DEPTH and at + 1 < len(self._parts):
                at += 1
                state.add(at)
        return frozenset(state)


def literal(part: str) -> str | None:
    """Return the one name that a part of a pattern matches, or None.

    Examples
    --------
    >>> literal("a[[]1].json"), literal("a[1].json")
    ('a[1].json', None)
    """
    name = _ESCAPED.sub(r"\1", part)
    return name if glob.escape(name) == part else None


def _matches(part: str, name: str) -> bool:
    return _compile(part).match(name) is not None


@lru_cache(maxsize=256)
def _compile(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))
