"""The gate before the sinks of a pipeline that commits at pts: what stands in the graph for it (design/0015).

Nobody writes it: ``Pipeline(..., commit_at="pts")`` puts it there (:mod:`holdfast.plan.gating`).  Its inputs are the
rows of every sink, and a *clock* of every source and of every operator by event time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.shape import Shape
from holdfast.operators.stateful.gate_step import GateStep, InputClock
from holdfast.ports import SideRows
from holdfast.state import keyed

NAME = "commit_at_pts"
"""Name of the gate in every pipeline that has one: the identity of its state."""


@dataclass(frozen=True)
class ClockSpec:
    """The latest times of a source or an operator, and nothing else of its rows.

    Parameters
    ----------
    column : str
        Its timestamp column.
    is_silent : bool
        Whether its rows are not used, only its bounds.
    """

    column: str
    is_silent: bool
    kind: ClassVar[str] = "clock"

    @property
    def items(self) -> tuple[str, ...]:
        """The column, as a select list."""
        return (f"`{self.column}`",)

    def arguments(self) -> Mapping[str, Any]:
        """Return the column."""
        return {"column": self.column}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the one column."""
        return Shape((self.column,), self.column)


@dataclass(frozen=True)
class ClockArguments:
    """How a clock goes, as the user said it.

    Parameters
    ----------
    column : str
        Timestamp column.
    disorder : str or int
        Of a source without bound rows.
    by_rows : bool
        Whether it is one.
    below : int
        Ticks by which rows of a sink may be below its bounds, where a function between them declares so.
    """

    column: str
    disorder: str | int
    by_rows: bool
    below: int = 0


@dataclass(frozen=True)
class Gate:
    """Keep the rows of every sink until pts has passed them.

    Parameters
    ----------
    times : mapping of str to str, optional
        Sink -> timestamp column of its rows; None: rows without a time.
    clocks : mapping of str to ClockArguments
        Source or operator -> how its bound is known.
    max_waiting_rows : int
        How many rows may wait.
    """

    times: Mapping[str, str | None]
    clocks: Mapping[str, ClockArguments]
    max_waiting_rows: int
    kind: ClassVar[str] = "gate"
    side_outputs: ClassVar[Mapping[str, SideRows]] = {}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The sinks, then the clocks."""
        return (*self.times, *self.clocks)

    @property
    def time_columns(self) -> tuple[str | None, ...]:
        """The timestamp of each input."""
        return (*self.times.values(), *(clock.column for clock in self.clocks.values()))

    def arguments(self) -> Mapping[str, Any]:
        """Return the inputs that it waits for, and how far their rows may be out of order."""
        disorder = {name: clock.disorder for name, clock in self.clocks.items() if clock.disorder}
        below = {name: clock.below for name, clock in self.clocks.items() if clock.below}
        return {
            "times": dict(self.times),
            "clocks": list(self.clocks),
            "disorder": disorder,
            "max_waiting_rows": self.max_waiting_rows,
            **({"below": below} if below else {}),
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return nothing that is known: rows leave it for each sink apart."""
        return Shape()

    def step(self, inputs: Mapping[str, pa.Schema]) -> GateStep:
        """Return the step for inputs of these schemas."""
        columns = {name: time for name, time in self.times.items() if time is not None}
        columns |= {name: clock.column for name, clock in self.clocks.items()}
        fields = {name: keyed.time_field(inputs[name], column) for name, column in columns.items()}
        in_ticks = [name for name, found in fields.items() if found.type == pa.int64()]
        other = next((name for name in fields if name not in in_ticks), None)
        if in_ticks and other is not None:
            raise InvalidPipeline(
                f"pts has no unit: {in_ticks[0]!r} has BIGINT ticks, {other!r} TIMESTAMPs.",
                why="pts is the minimum over all inputs, and these have no unit in common.",
                do="bring all timestamps to TIMESTAMP, or all to BIGINT ticks of one unit; or leave commit_at out.",
            )
        times = {name: None if time is None else fields[name].name for name, time in self.times.items()}
        clocks = {
            name: InputClock(fields[name].name, _ticks(clock.disorder, fields[name]), clock.by_rows, clock.below)
            for name, clock in self.clocks.items()
        }
        return GateStep(dict(inputs), times, clocks, self.max_waiting_rows)


@dataclass(frozen=True)
class Released:
    """The rows of one sink that the gate lets go.

    Parameters
    ----------
    output : str
        That of the gate.
    columns : tuple of str, optional
        As before the gate.
    timestamp : str, optional
        As before the gate.
    """

    output: str
    columns: tuple[str, ...] | None
    timestamp: str | None
    kind: ClassVar[str] = "released"

    def arguments(self) -> Mapping[str, Any]:
        """Return none."""
        return {}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return what is known of the rows before the gate."""
        return Shape(self.columns, self.timestamp)


def _ticks(disorder: str | int, time: pa.Field) -> int:
    return 0 if disorder == 0 else keyed.duration_ticks(disorder, time, "disorder")
