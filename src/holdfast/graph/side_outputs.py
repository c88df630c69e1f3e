"""Side outputs: the streams that leave a source or an operator beside its rows, as a graph declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdfast.ports import REJECT_SCHEMA

if TYPE_CHECKING:
    from holdfast.graph.nodes import Shape


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
        Which of the step's outputs it is: ``late`` or ``shed``.
    """

    output: str

    @property
    def kind(self) -> str:
        """The output's name."""
        return self.output

    def arguments(self) -> Mapping[str, Any]:
        """Return none."""
        return {}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return that of the rows for ``shed``; unknown for ``late``, whose struct columns follow from the schemas."""
        return inputs[0] if self.output == "shed" else replace(inputs[0], columns=None, timestamp=None)


SIDE_OUTPUTS = {
    "late": (
        "late rows",
        "rows can be late for operators that use event time: sync, merge, aggregate over tumbling, sliding and "
        "session windows, distinct, limit_in_flight, and accumulate where its stream has a timestamp.",
        "aligned = hf.sync(...); aligned.late",
    ),
    "shed": (
        "shed rows",
        "only limit_in_flight drops rows at its entry.",
        'frames = cameras | hf.limit_in_flight(2, by="camera", ...); frames.shed',
    ),
}
"""Name -> what it holds; who has it; how it is asked for."""
