"""The rows of an epoch, numbered: those among which the search looks for what makes the epoch fail."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from holdfast.checkpoint.spark_log import plain
from holdfast.positions import Positions
from holdfast.quarantine.mask import LETTERS, Address, GivenRows, LetteredSource, Passing, low_in, one_row, segments_of


class EpochRows:
    """The rows of an epoch, numbered: by source, by segment, by position, in the order in which they are read.

    Parameters
    ----------
    sources : mapping of str to LetteredSource
        Opened, with what is sent again.
    start, end : Positions
        Of the epoch.
    retired : Positions
        Where a source that was put back begins.
    """

    def __init__(
        self, sources: Mapping[str, LetteredSource], start: Positions, end: Positions, retired: Positions
    ) -> None:
        self.sources = sources
        self._units: list[tuple[str, str, int]] = []
        counts: list[int] = []
        for name, source in sources.items():
            if name not in end:
                continue
            first = start.get(name) or retired.get(name) or source.initial()
            begin, until = plain(first)[0], plain(end[name])[0]
            initial = source.initial()
            for segment in (*segments_of(until), LETTERS):
                low = low_in(segment, begin, initial) if segment != LETTERS else int(begin.get(LETTERS, 0))
                for position in range(low, int(until.get(segment, 0))):
                    self._units.append((name, segment, position))
                    counts.append(sum(batch.num_rows for batch in source.rows_at(segment, position)))
        self._begins = [0, *accumulate(counts)]

    @property
    def count(self) -> int:
        """How many there are."""
        return self._begins[-1]

    def at(self, number: int) -> tuple[str, Address]:
        """Return the source and the address of a row."""
        unit = bisect_right(self._begins, number) - 1
        source, segment, position = self._units[unit]
        return source, Address(segment, position, number - self._begins[unit])

    def row(self, number: int) -> bytes:
        """Return a row."""
        name, (segment, position, ordinal) = self.at(number)
        for batch in self.sources[name].rows_at(segment, position):
            if ordinal < batch.num_rows:
                return one_row(batch, ordinal)
            ordinal -= batch.num_rows
        raise IndexError(number)

    def window(self, source: str, low: int, high: int) -> tuple[Address, Address]:
        """Return the borders, in one source, of the rows from ``low`` to below ``high``."""
        mine = [(index, unit) for index, unit in enumerate(self._units) if unit[0] == source]
        if not mine:
            return Address("", 0, 0), Address("", 0, 0)
        (begin, first), (end, last) = mine[0], mine[-1]
        low, high = max(low, self._begins[begin]), min(high, self._begins[end + 1])
        if low >= high:
            nothing = Address(first[1], first[2], 0)
            return nothing, nothing
        after_last = Address(last[1], last[2] + 1, 0)
        return self.at(low)[1], self.at(high)[1] if high < self._begins[end + 1] else after_last


class LevelRows:
    """The rows that the operators of one level give in an epoch, numbered: operator by operator, outlet by outlet.

    Parameters
    ----------
    level : int
        The level.
    operators : sequence of str
        Those of it, in their order.
    given : mapping of str to GivenRows
        What each outlet gives, of all levels.
    """

    def __init__(self, level: int, operators: Sequence[str], given: Mapping[str, GivenRows]) -> None:
        self._level = level
        mine = [outlet for outlet in sorted(given, key=_by_bucket) if outlet.partition("/")[0] in operators]
        self._outlets = sorted(mine, key=lambda outlet: operators.index(outlet.partition("/")[0]))
        self._begins = [0, *accumulate(given[outlet].count for outlet in self._outlets)]

    @property
    def count(self) -> int:
        """How many there are."""
        return self._begins[-1]

    def at(self, number: int) -> tuple[str, int]:
        """Return the outlet and the ordinal of a row."""
        outlet = bisect_right(self._begins, number) - 1
        return self._outlets[outlet], number - self._begins[outlet]

    def until(self, number: int, of_epoch: Passing) -> Passing:
        """Return what passes where only the first rows do, and those that are dead letters do not."""
        spans = zip(self._outlets, self._begins, self._begins[1:], strict=False)
        until = {outlet: min(end, number) - begin for outlet, begin, end in spans if begin < number}
        return replace(of_epoch, level=self._level, until=until)


def _by_bucket(outlet: str) -> tuple[str, int]:
    name, _, bucket = outlet.rpartition("-")
    return name, int(bucket)
