"""How a simulated engine makes the rows of an epoch: numbered rows by default, or a whole graph with state."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.rows import ROW_US, rows_between

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
