"""CSV records of which some are malformed, walked over in time linear in the text.

A quote in the middle of a field is an ordinary character.  A quoted field that is not closed, or is followed by
something other than a separator, spoils the line on which it opens; the walk continues at the next line.

Notes
-----
Only for texts that vector operations found unclean: one call of a regular expression for a record on one line, Python
for each quoted field of the others.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from holdfast.connectors.formats import blocks, csv_quotes
from holdfast.connectors.formats.blocks import too_long

OPEN = "a quote is opened and never closed"
FOLLOWED = "a closing quote is followed by neither a separator nor the end of the line"

_QUOTE = ord('"')
_GOOD, _JUNK, _OPENED = 1, 2, 3  # groups of what matches the fields of a line
_SHORT = 8  # quoted fields that may as well be sought again
_FIRST_LINES, _LINES = 1 << 12, 1 << 18  # bytes of lines that are judged in one go: at first, and later
_NO_LINES = csv_quotes.Lines(np.zeros(0, np.int64), np.zeros(0, np.uint8))
_RUNS_KEPT = 3  # two different searches join at the next quote, so there are never many


class _Run:
    """Quoted fields of a record that could not be ended, and where the search stopped.

    A record that begins on a later line, and reaches one of these opening quotes, continues in the same way from there
    on: what is known of it is not sought again.  Otherwise lines such as ``b","x``, each of which leaves a quote open
    in its own way, would cost the square of their number.
    """

    def __init__(self) -> None:
        self.openings = array("q")  # ascending
        self.problem = ""  # final, wherever the record began
        self.is_inside = True
        self.at = 0
        self._joined: _Run | None = None

    def holds(self, opening: int) -> bool:
        """Whether one of its quoted fields opens there."""
        at = bisect_left(self.openings, opening)
        return at < len(self.openings) and self.openings[at] == opening

    def join(self, other: _Run) -> None:
        """Go the way of another one from here on."""
        self._joined = other

    @property
    def last(self) -> _Run:
        """The run that knows the continuation."""
        run = self
        while run._joined is not None:
            run = run._joined
        return run


class Walk:
    """The records of a text, in order.

    Parameters
    ----------
    data : bytes
        Begins with a record.
    separator : str
        One ASCII character.
    longest : int
        Bytes that a record may have, its line end not counted.
    is_whole : bool
        Whether the text ends with ``data``; otherwise the walk ends before the first record that needs more of it.
    """

    def __init__(self, data: bytes, separator: str, *, longest: int, is_whole: bool = True) -> None:
        self._data = data
        self._separator = separator
        self._sep = separator.encode()
        self._opens = self._sep + b'"'
        self._longest = longest
        self._is_whole = is_whole
        self._runs: list[_Run] = []

    def records(self) -> Iterator[tuple[int, int, str]]:
        """Yield (start, end, what is wrong or an empty text); a record's end is after its line end."""
        start = 0
        for ends, problems in self.batches():
            for at, end in enumerate(ends.tolist()):
                yield start, end, problems.get(at, "")
                start = end

    def batches(self) -> Iterator[tuple[blocks.Offsets, dict[int, str]]]:
        """Yield the ends of records, and by their indices what is wrong with some; each begins where one ends."""
        data, size, at, looked_at = self._data, len(self._data), 0, _FIRST_LINES
        while at < size:
            end = data.rfind(b"\n", at, at + looked_at) + 1
            lines = csv_quotes.judged(data, at, end, self._separator, self._longest) if end else _NO_LINES
            ends, problems = self._of_lines(at, lines)
            if not len(ends):
                return  # more must be read
            yield ends, problems
            at = int(ends[-1])
            looked_at = min(2 * looked_at, _LINES)

    def _of_lines(self, start: int, lines: csv_quotes.Lines) -> tuple[blocks.Offsets, dict[int, str]]:
        """Return the records that begin on some lines, or on the one that begins there, as in :meth:`batches`."""
        data, longest, fields_of = self._data, self._longest, _on_one_line(self._sep).match
        ends, verdicts = lines
        line_ends = ends.tolist()
        is_end = np.ones(len(ends), np.bool_)
        problems: dict[int, str] = {}  # line -> what is wrong with the record that ends there
        behind = []  # the end of a record that ends on none of these lines
        at = 0
        for line in np.flatnonzero(verdicts == csv_quotes.UNKNOWN).tolist() if line_ends else [0]:
            if line < at:
                continue  # within the record before
            begin = line_ends[line - 1] if line else start
            if line_ends and line_ends[line] - 1 - begin <= longest:
                fields = fields_of(data, begin, line_ends[line] - 1)
                if fields is not None and fields.lastindex == _GOOD:
                    continue  # the usual way for a quote in the middle of a field
            found = self._record(begin)
            if found is None:
                is_end[line:] = False
                break
            end, problem = found
            last = bisect_left(line_ends, end, line)
            is_end[line:last] = False
            verdicts[line : last + 1] = csv_quotes.WHOLE
            if problem:
                problems[last] = problem
            if last == len(line_ends):
                behind = [end]
                break
            at = last + 1
        problems.update(dict.fromkeys(np.flatnonzero(is_end & (verdicts == csv_quotes.SPOILED)).tolist(), FOLLOWED))
        if not is_end.all():
            numbers = np.cumsum(np.append(True, is_end)) - 1
            problems = {int(numbers[line]): problem for line, problem in problems.items()}
        return np.append(ends[is_end], np.array(behind, np.int64)), problems

    def _record(self, at: int) -> tuple[int, str] | None:
        """Return the end of the record that begins there, and what is wrong with it; None: more must be read."""
        data, longest = self._data, self._longest
        line_end = data.find(b"\n", at)
        if line_end < 0:
            if not self._is_whole:
                return None
            line_end = len(data)
        end, problem = line_end, ""
        if line_end - at > longest:
            problem = too_long(longest)
        elif data.find(b'"', at, line_end) >= 0:
            fields = _on_one_line(self._sep).match(data, at, line_end)
            how = fields.lastindex if fields else None
            opened = fields.start(_OPENED) if fields and how == _OPENED else at
            if how == _JUNK or (how == _OPENED and self._is_followed(opened, at + longest)):
                problem = FOLLOWED
            elif how != _GOOD:
                found = self._quoted(at, line_end, opened)
                if found is None:
                    return None
                end, problem = found
        return min(end + 1, len(data)), problem

    def _is_followed(self, opening: int, limit: int) -> bool:
        """Whether the very next quote spoils the record: the usual way for a quote that was left open."""
        closing = self._data.find(b'"', opening + 1, limit + 1)
        behind = self._data[closing + 1 : closing + 2]
        return closing >= 0 and behind not in (b"", b"\n", b"\r", b'"', self._sep)

    def _quoted(self, start: int, first_end: int, at: int) -> tuple[int, str] | None:
        """Return the end of a record with quotes, or of its first line and what is wrong; None: more must be read.

        ``at`` is where the first of its fields begins that may not end on the first line.
        """
        data, limit = self._data, start + self._longest
        run, line_end, is_inside = _Run(), first_end, False
        while True:
            if not is_inside:
                opening = at if data.startswith(b'"', at) else data.find(self._opens, at, line_end)
                if opening < 0:
                    return (line_end, "") if line_end <= limit else (first_end, self._stopped(run, at, is_inside))
                opening += data[opening] != _QUOTE
                if (known := self._known(opening)) is None:
                    run.openings.append(opening)
                    at, is_inside = opening + 1, True
                else:
                    run.join(known)
                    self._remember(run)
                    run, at, is_inside = known, known.at, known.is_inside
                    if run.problem:
                        return first_end, run.problem
                    if not is_inside and (line_end := self._line_end(at, limit)) < 0:
                        return None
                    continue
            closing = data.find(b'"', at, limit + 1)
            if closing < 0:
                if limit < len(data):
                    return first_end, self._stopped(run, max(at, limit + 1), is_inside)
                return (first_end, self._failed(run, OPEN)) if self._is_whole else None
            behind = data[closing + 1 : closing + 2]
            if not behind and not self._is_whole:
                return None
            if behind == b'"':
                at = closing + 2
                continue
            if behind not in (b"", b"\n", b"\r", self._sep):
                return first_end, self._failed(run, FOLLOWED)
            if line_end < closing and (line_end := self._line_end(closing, limit)) < 0:
                return None
            at, is_inside = closing + 1 if behind == self._sep else line_end, False

    def _line_end(self, at: int, limit: int) -> int:
        """Return the next line end; -1: more must be read, which is not so where it is surely after the limit."""
        found = self._data.find(b"\n", at)
        return len(self._data) if found < 0 and (self._is_whole or limit < len(self._data)) else found

    def _known(self, opening: int) -> _Run | None:
        return next((run.last for run in self._runs if run.holds(opening)), None)

    def _remember(self, run: _Run) -> None:
        if len(run.openings) > _SHORT and run not in self._runs:
            self._runs = [run, *self._runs[:_RUNS_KEPT]]

    def _failed(self, run: _Run, problem: str) -> str:
        run.problem = problem
        self._remember(run)
        return problem

    def _stopped(self, run: _Run, at: int, is_inside: bool) -> str:
        """Record where the search of a record that is too long stopped: one that begins later may go further."""
        run.at, run.is_inside = at, is_inside
        self._remember(run)
        return f"a quote is opened and not closed within max_record_size ({self._longest:,} bytes)"


@lru_cache(maxsize=8)
def _on_one_line(sep: bytes) -> re.Pattern[bytes]:
    """Return what matches the fields of a record on its first line, in one go and without trying twice.

    After them: the end of the line, or what may not follow a closing quote, or a quote that is not closed here.
    """
    sep = re.escape(sep)
    field = rb'(?:"(?:[^"\n]++|"")*+"|[^"' + sep + rb"\n][^" + sep + rb"\n]*+|)"
    return re.compile(field + rb"(?:" + sep + field + rb")*+(?:(\r?\Z)|([^" + sep + rb'\r\n"])|("))')
