"""The rows of simulated pipelines: numbered, so that an auditor can tell lost, doubled and reordered ones.

How a simulated engine makes the rows of an epoch: numbered rows by default, or a whole graph with state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

from holdfast.testing.simulation.process import Process

SCHEMA = pa.schema([("id", pa.int64()), ("segment", pa.string()), ("seq", pa.int64()), ("value", pa.float64())])
"""Columns of every simulated row.  ``value`` is random: another evaluation gives another one."""

SEGMENTS = 2
ROW_US = 1_000
"""Timestamp of row n: n times this, microseconds."""


def is_for(sink_index: int, row_id: int) -> bool:
    """Tell whether the row with this id goes to the sink with this index: all to the first, a share to the others."""
    return sink_index == 0 or row_id % (sink_index + 1) != 1


def rows_between(start: int, end: int, sink_index: int, luck: float) -> pa.Table:
    """Evaluate rows ``start`` to ``end`` (exclusive) for one sink; ``luck`` is the random part of their value.

    Examples
    --------
    >>> rows_between(2, 5, 0, 0.5)["id"].to_pylist()
    [2, 3, 4]
    """
    ids, fixed = _fixed_columns(start, end, sink_index)
    return pa.Table.from_arrays([*fixed, pa.array([row_id + luck for row_id in ids], pa.float64())], schema=SCHEMA)


@lru_cache(maxsize=4096)
def _fixed_columns(start: int, end: int, sink_index: int) -> tuple[list[int], list[pa.Array]]:
    # The same few ranges come again and again in 10 000 seeds.
    ids = [row_id for row_id in range(start, end) if is_for(sink_index, row_id)]
    columns = [ids, [f"segment{row_id % SEGMENTS}" for row_id in ids], [row_id // SEGMENTS for row_id in ids]]
    return ids, list(map(pa.array, columns, SCHEMA.types[:3]))


def audit_rows(
    sink_index: int, row_count: int, rows: Sequence[Sequence[object]], *, is_ordered: bool = True
) -> list[str]:
    """Compare what a sink shows with what it should hold; returns the problems in words.

    Examples
    --------
    >>> audit_rows(0, 2, [(0, "segment0", 0, 0.5), (0, "segment0", 0, 0.5)])
    ['lost: 1', 'doubled: 0']
    """
    problems = []
    wanted = {row_id for row_id in range(row_count) if is_for(sink_index, row_id)}
    ids = [row[0] for row in rows]
    seen: set[object] = set()
    doubled = sorted({str(i) for i in ids if i in seen or seen.add(i)})  # type: ignore[func-returns-value]
    lost, foreign = sorted(wanted - seen), sorted(map(str, seen - wanted))
    problems += [f"lost: {', '.join(map(str, lost))}"] if lost else []
    problems += [f"doubled: {', '.join(doubled)}"] if doubled else []
    problems += [f"foreign: {', '.join(foreign)}"] if foreign else []
    if is_ordered and not doubled:
        for segment in sorted({str(row[1]) for row in rows}):
            sequence = [int(str(row[2])) for row in rows if row[1] == segment]
            if sequence != sorted(sequence):
                problems.append(f"{segment} out of order: {sequence}")
    return problems


def audit_values(several: Sequence[Sequence[Sequence[object]]]) -> list[str]:
    """Check that a random value is the same in every sink that has the row."""
    first: dict[object, object] = {}
    problems = []
    for rows in several:
        for row in rows:
            if first.setdefault(row[0], row[3]) != row[3]:
                problems.append(f"row {row[0]} has two values: {first[row[0]]} and {row[3]}")
    return problems


TaskRun = Callable[[frozenset[str]], Mapping[str, pa.Table]]
"""One task of an epoch: called once per attempt with the sinks that lack the epoch, it returns the rows of each."""


class SimulatedEvaluation(Protocol):
    """Makes the rows of epochs; one for each driver.

    An epoch is the events ``start`` (inclusive) to ``end`` (exclusive) of the engine's source.
    """

    def tasks(self, epoch: int, start: int, end: int) -> Sequence[TaskRun]:
        """Lay an epoch out anew and return its tasks; what runs before the writers' tasks has then run."""

    def carry(self, epoch: int, start: int, end: int, sinks: frozenset[str]) -> Mapping[str, pa.Table]:
        """Evaluate an epoch once for all sinks, and bring it to the driver."""

    def keep(self, epoch: int, rows: Mapping[str, int]) -> None:
        """Keep what an epoch changed of state, before it is decided; its sinks were given so many rows."""

    def mute(self, epoch: int, start: int, end: int) -> None:
        """Evaluate an epoch that every sink holds: for the state's sake alone."""

    def pts(self, end: int) -> int | None:
        """Return the pts of the epoch that was evaluated last, which ends there."""


class Workload(Protocol):
    """What the engine of a world runs, and how its sinks are judged."""

    def evaluation(self, process: Process, random_: random.Random, epochs_done: int) -> SimulatedEvaluation:
        """Return the evaluation of a new driver, given the number of epochs in the engine's commit log."""

    def audit(self, visible: Mapping[str, Sequence[Sequence[object]]]) -> list[str]:
        """Compare what each sink shows with what it should hold; returns the problems in words."""


class NumberedRows:
    """The rows of :mod:`holdfast.testing.simulation.rows`; another evaluation gives other values.

    Parameters
    ----------
    sinks : sequence of str
        In the order in which :func:`holdfast.testing.simulation.rows.is_for` counts them.
    random_ : random.Random
        Decides layouts and values.
    """

    def __init__(self, sinks: Sequence[str], random_: random.Random) -> None:
        self._indices = {name: index for index, name in enumerate(sinks)}
        self._random = random_

    def tasks(self, epoch: int, start: int, end: int) -> Sequence[TaskRun]:
        """Cut the range into one to three tasks."""
        cuts = sorted({start, end, *(self._random.randint(start, end) for _ in range(self._random.randint(0, 2)))})
        return [partial(self.carry, epoch, first, last) for first, last in pairwise(cuts)]

    def carry(self, epoch: int, start: int, end: int, sinks: frozenset[str]) -> Mapping[str, pa.Table]:
        """Evaluate a range: one random value, whichever sink gets it."""
        luck = self._random.random()
        return {name: rows_between(start, end, index, luck) for name, index in self._indices.items() if name in sinks}

    def keep(self, epoch: int, rows: Mapping[str, int]) -> None:
        """Do nothing: there is no state."""

    def mute(self, epoch: int, start: int, end: int) -> None:
        """Do nothing: there is no state."""

    def pts(self, end: int) -> int | None:
        """Return the timestamp of the last row."""
        return (end - 1) * ROW_US
