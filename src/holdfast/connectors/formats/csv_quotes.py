"""Lines of a CSV text, each considered as the start of a record: whether it is all of it, or a quote on it is wrong.

Vector operations decide it for nearly every line.  The others (a quote in the middle of a field, a field that spans
lines) are left to the walk (:mod:`holdfast.connectors.formats.csv_records`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.connectors.formats import blocks

WHOLE, SPOILED, UNKNOWN = 0, 1, 2
"""What a line is if a record begins with it: all of that record; bad, for something else than a separator follows a
closing quote; or one that has to be examined more closely."""

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34

Verdicts = npt.NDArray[np.uint8]


class Lines(NamedTuple):
    """Contiguous lines.

    Parameters
    ----------
    ends : numpy.ndarray
        Offset in the text after each line's newline.
    verdicts : numpy.ndarray
        What each of them is, if a record begins with it.
    """

    ends: blocks.Offsets
    verdicts: Verdicts


def judged(data: bytes, start: int, end: int, separator: str, longest: int) -> Lines:
    r"""Judge the lines from one offset to another, which are the begin of a line and the end of one.

    Parameters
    ----------
    longest : int
        Bytes that a record may have, its line end not counted.

    Examples
    --------
    >>> text = b'a,"b"\na,"b"c\n"a\nb,5" pipe\n'
    >>> lines = judged(text, 0, len(text), ",", 100)
    >>> lines.ends.tolist(), lines.verdicts.tolist()
    ([6, 13, 16, 26], [0, 1, 1, 2])
    """
    view = blocks.as_bytes(data)[start:end]
    ends = blocks.line_ends(view)
    starts = np.concatenate(([0], ends[:-1]))
    verdicts = np.where(ends - 1 - starts > longest, UNKNOWN, WHOLE).astype(np.uint8)
    marks = np.flatnonzero(view == _QUOTE)
    if len(marks):
        first = np.searchsorted(marks, starts)  # of each line's marks
        count = np.diff(first, append=len(marks))
        wrong = _wrong(view, marks, first, count, separator)
        # The first wrong one decides: what follows it may be meant otherwise.
        at = np.flatnonzero(wrong)
        lines = np.searchsorted(first, at, side="right") - 1
        is_first = np.diff(lines, prepend=-1) > 0
        found = np.zeros(len(ends), np.uint8)
        found[lines[is_first]] = wrong[at[is_first]]
        is_open = np.flatnonzero((count % 2 == 1) & (found == WHOLE))
        found[is_open] = _open(view, marks, starts[is_open], (first + count)[is_open], separator, longest)
        verdicts = np.maximum(verdicts, found)
        verdicts[ends - 1 - starts > longest] = UNKNOWN
    return Lines(ends + start, verdicts)


def _wrong(
    view: blocks.Bytes, marks: blocks.Offsets, first: blocks.Offsets, count: blocks.Offsets, separator: str
) -> Verdicts:
    """Return what each quote makes of its line, if those before it on the line are well placed.

    Quotes on a line open and close alternately, a doubled one being a close and an open.
    """
    opens, closes = _tables(separator)
    is_opening = (np.arange(len(marks)) - np.repeat(first, count)) % 2 == 0
    wrong = np.where(is_opening, opens[view[marks - 1]], closes[view[marks + 1]])
    if marks[0] == 0:
        wrong[0] = WHOLE
    if (returns := np.flatnonzero(~is_opening & (view[marks + 1] == _RETURN))).size:
        wrong[returns] = np.where(view[marks[returns] + 2] == _NEWLINE, WHOLE, UNKNOWN)
    return wrong


def _open(
    view: blocks.Bytes,
    marks: blocks.Offsets,
    starts: blocks.Offsets,
    following: blocks.Offsets,
    separator: str,
    longest: int,
) -> Verdicts:
    """Judge lines that leave a quote open, by the very next quote: the usual way for one that was forgotten."""
    mark = marks[np.minimum(following, len(marks) - 1)]
    _, closes = _tables(separator)
    is_spoiled = (following < len(marks)) & (mark <= starts + longest) & (closes[view[mark + 1]] == SPOILED)
    return np.where(is_spoiled, SPOILED, UNKNOWN).astype(np.uint8)


@lru_cache(maxsize=8)
def _tables(separator: str) -> tuple[Verdicts, Verdicts]:
    """Return what a byte before an opening quote, and one after a closing quote, make of a line."""
    opens = np.full(256, UNKNOWN, np.uint8)
    opens[[ord(separator), _NEWLINE, _QUOTE]] = WHOLE
    closes = np.full(256, SPOILED, np.uint8)
    closes[[ord(separator), _NEWLINE, _QUOTE, _RETURN]] = WHOLE
    return opens, closes
