"""Regular expressions that Java (Spark) and RE2 (Arrow) surely read alike, rewritten for RE2; all others are none.

Both look for the leftmost match, and try alternatives and repetitions in the order written.  They part where a
repetition holds a group, where it can match nothing, and where a character is none of ASCII: Java sees halves of a
surrogate pair.  So such patterns are not taken.  Java's ``.`` is written for RE2 as the characters that it stands for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_DOT = r"[^\n\r\x{85}\x{2028}\x{2029}]"
"""What Java's ``.`` matches: all but its line ends."""

_PLAIN = re.compile(r"[A-Za-z0-9 !\"#%&',/:;<=>@_`~-]")
"""Characters that stand for themselves."""
_MEMBER = re.compile(r"([a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9 !\"#$%'()*+,./:;<=>?@_`{|}~]|&(?!&)|-(?=\]))")
"""One member of a class: a range, a character, or ``-`` at the end."""
GROUP = "chosen"
"""Name of the group in the rewritten pattern."""


class _OutsideSubset(Exception):
    """The pattern has something that is not taken."""


@dataclass(frozen=True)
class _Part:
    """A rewritten part of a pattern."""

    text: str
    can_be_empty: bool
    is_single: bool = False
    """Whether it is one character or class: what may be repeated without a bound."""
    has_group: bool = False


@lru_cache(maxsize=512)
def for_re2(pattern: str, group: int | None) -> str | None:
    """Return the pattern for RE2 with one named group; None when it is not in the subset.

    Parameters
    ----------
    pattern : str
        A regular expression of Java.
    group : int, optional
        Number of the group that is wanted, 0 for all that matches; None where only the match itself is asked for.

    Examples
    --------
    >>> for_re2("(&|^)id=([^&]*)", 2)
    '(?:&|^)id=(?P<chosen>[^&]*)'
    >>> for_re2("a$", 0) is None
    True
    """
    reader = _Reader(pattern, group)
    try:
        part = reader.alternatives()
    except _OutsideSubset:
        return None
    if reader.place < len(pattern) or (group is not None and group > reader.groups):
        return None
    return f"(?P<{GROUP}>{part.text})" if group == 0 else part.text


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str, group: int | None) -> None:
        self._pattern, self._group = pattern, group
        self.place = 0
        self.groups = 0

    def alternatives(self) -> _Part:
        """Read to the end, or to a closing parenthesis."""
        parts = [self._sequence()]
        while self._next("|"):
            parts.append(self._sequence())
        text = "|".join(part.text for part in parts)
        return _Part(text, any(part.can_be_empty for part in parts), has_group=any(part.has_group for part in parts))

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self.place < len(self._pattern) and self._pattern[self.place] not in "|)":
            parts.append(_Part("^", True) if self._next("^") else self._quantifier(self._atom()))
        text = "".join(part.text for part in parts)
        return _Part(text, all(part.can_be_empty for part in parts), has_group=any(part.has_group for part in parts))

    def _quantifier(self, atom: _Part) -> _Part:
        sign = next((sign for sign in "*+?" if self._next(sign)), "")
        if not sign:
            return atom
        if atom.has_group or atom.can_be_empty or not (atom.is_single or sign == "?"):
            raise _OutsideSubset
        lazy = "?" if self._next("?") else ""
        return _Part(f"{atom.text}{sign}{lazy}", sign != "+")

    def _atom(self) -> _Part:
        if self._next("."):
            return _Part(_DOT, False, is_single=True)
        if self._next("["):
            return self._class()
        if self._next("("):
            return self._parenthesis()
        one = _PLAIN.match(self._pattern, self.place)
        if one is None:
            raise _OutsideSubset
        self.place = one.end()
        return _Part(one.group(), False, is_single=True)

    def _class(self) -> _Part:
        negated = "^" if self._next("^") else ""
        members = []
        while not self._next("]"):
            one = _MEMBER.match(self._pattern, self.place)
            if one is None or (len(one.group()) == 3 and one.group()[0] > one.group()[2]):
                raise _OutsideSubset
            self.place = one.end()
            members.append(one.group())
        if not members:
            raise _OutsideSubset
        return _Part(f"[{negated}{''.join(members)}]", False, is_single=True)

    def _parenthesis(self) -> _Part:
        captures = not self._next("?:")
        number = self.groups = self.groups + captures
        inner = self.alternatives()
        if not self._next(")"):
            raise _OutsideSubset
        opened = f"(?P<{GROUP}>" if captures and number == self._group else "(?:"
        return _Part(f"{opened}{inner.text})", inner.can_be_empty, has_group=captures or inner.has_group)

    def _next(self, text: str) -> bool:
        """Go on where the pattern has this text next."""
        if not self._pattern.startswith(text, self.place):
            return False
        self.place += len(text)
        return True
