"""Side outputs: the streams that leave a source or an operator beside its rows, as a graph declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.graph.naming import Origin
from holdfast.graph.shape import Shape
from holdfast.ports import REJECT_SCHEMA, SideRows


@dataclass(frozen=True)
class Rejects:
    """The malformed rows of a source, as rows of their own."""

    kind: str = field(default="rejects", init=False)

    def arguments(self) -> Mapping[str, Any]:
        """Return none."""
        return {}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Reason, raw text and position, whatever the source's columns are."""
        return replace(inputs[0], columns=tuple(REJECT_SCHEMA.names), timestamp=None)


@dataclass(frozen=True)
class SideOutput:
    """A side output of a stateful operator.

    Parameters
    ----------
    output : str
        Which of the step's outputs it is: ``late``, ``shed``, ``unmatched``, or an output of a flowgraph.
    rows : SideRows
        What the operator's declaration says of it.
    """

    output: str
    rows: SideRows

    @property
    def kind(self) -> str:
        """The output's name; of one that the user has named, ``output``."""
        return self.output if self.output in SIDE_OUTPUTS else "output"

    def arguments(self) -> Mapping[str, Any]:
        """Return the name that the user has given."""
        return {} if self.output in SIDE_OUTPUTS else {"output": self.output}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns that are declared, with their timestamp; or those of the rows."""
        columns = self.rows.columns
        return inputs[0] if columns is None else replace(inputs[0], columns=columns, timestamp=self.rows.timestamp)

    def changes(self, inputs: Sequence[Shape]) -> None:
        """Return none: a row leaves here once, whatever the operator's rows do."""

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound of the operator holds for these rows."""
        if self.rows.keeps_bounds:
            return None
        what = SIDE_OUTPUTS.get(self.output, (self.output,))[0]
        return f"{what} can have any timestamp; downstream operators go by disorder=, idle_after="


SIDE_OUTPUTS = {
    "late": (
        "late rows",
        "rows can be late for operators that use event time: sync, merge, join, aggregate over tumbling, sliding and "
        "session windows, over, distinct, limit_in_flight, and accumulate where its stream has a timestamp.",
        "aligned = hf.sync(...); aligned.late",
    ),
    "shed": (
        "shed rows",
        "only limit_in_flight drops rows at its entry.",
        'frames = cameras | hf.limit_in_flight(2, by="camera", ...); frames.shed',
    ),
    "unmatched": (
        "unmatched rows",
        "only join, sync and merge put rows of several inputs together.",
        'aligned = hf.sync({"camera": cameras, "radar": radars}, ...); aligned.unmatched',
    ),
}
"""Name -> what it holds; who has it; how it is asked for."""


def no_rejects(kind: str, name: str, origin: Origin, built_at: Origin, *, is_source: bool) -> InvalidPipeline:
    """Return the error for a stream that is asked for rejects and has none."""
    if is_source:
        return InvalidPipeline(
            f"source {name!r}, built at {origin}, has no rejects; asked for at {built_at}.",
            why="it stops at the first malformed row.",
            do='write on_bad_row="reject" where the source is built.',
            participant=name,
        )
    return InvalidPipeline(
        f"{kind} {name!r} has no rejects; asked for at {built_at}.",
        why='malformed rows leave at the source; else only hf.expect and hf.call with on_fail="reject" have rejects.',
        do='ask the source for it: flights = hf.read.files(..., on_bad_row="reject"); flights.rejects',
        participant=name,
    )
