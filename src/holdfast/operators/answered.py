"""What leaves a call that rejects: rows that have an answer, and beside them rows that have none, with the reason.

Both are divided by what the call wrote into the row itself, so each row is in exactly one of them, whatever becomes of
the recorded answers meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.graph import naming
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Operator, Stream, apply
from holdfast.graph.shape import Shape


@dataclass(frozen=True)
class Unanswered:
    """Keep the rows that have no answer, with the column that says why.

    Parameters
    ----------
    answer : tuple of str
        The columns of the answer, which these rows do without.
    error : str
        The column that says why.
    """

    answer: tuple[str, ...]
    error: str
    kind: ClassVar[str] = "unanswered"
    setup: ClassVar[None] = None

    def arguments(self) -> Mapping[str, Any]:
        """Return the column that says why."""
        return {"error": self.error}

    def fn(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return those rows of a batch."""
        return batch.filter(batch.column(self.error).is_valid()).select(self.output(batch.schema).names)

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns before the call, and the reason."""
        return _without(inputs[0], self.answer)

    def output(self, before: pa.Schema) -> pa.Schema:
        """Return the schema of these rows."""
        return pa.schema([field for field in before if field.name not in self.answer])

    def offset(self, timestamp: str | None) -> None:
        """Return None: timestamps stay as they are."""


@dataclass(frozen=True)
class Answered:
    """Keep the rows that have an answer.

    Parameters
    ----------
    others : Unanswered
        What keeps those that have none.
    """

    others: Unanswered
    kind: ClassVar[str] = "answered"
    setup: ClassVar[None] = None

    def arguments(self) -> Mapping[str, Any]:
        """Return the column that is null in these rows."""
        return self.others.arguments()

    def failing(self) -> Unanswered:
        """Return what keeps the other rows."""
        return self.others

    def fn(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return those rows of a batch."""
        return batch.filter(batch.column(self.others.error).is_null()).select(self.output(batch.schema).names)

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of the call without the reason."""
        return _without(inputs[0], (self.others.error,))

    def output(self, before: pa.Schema) -> pa.Schema:
        """Return the schema of these rows."""
        return pa.schema([field for field in before if field.name != self.others.error])

    def offset(self, timestamp: str | None) -> None:
        """Return None: timestamps stay as they are."""


@dataclass(frozen=True)
class RejectingCall:
    """A call that rejects and has no input yet: what ``hf.call(..., on_fail="reject")`` returns.

    Parameters
    ----------
    asked : Operator
        The call, which gives every row with its error.
    division : Answered
        Divides them.
    name : str
        The name the user gave.
    origin : Origin
        The line of the user's code that built it.
    """

    asked: Operator
    division: Answered
    name: str
    origin: Origin

    def attach(self, stream: Stream) -> Stream:
        """Return the stream of rows that have an answer."""
        return apply(self.division, (self.asked.attach(stream),), name=self.name, built_at=self.origin)


def rejecting(spec: Any, answer: Sequence[str], error: str, name: str, origin: Origin) -> RejectingCall:
    """Return a call that rejects rows without an answer.

    Parameters
    ----------
    spec : OperatorSpec
        The call.
    answer : sequence of str
        The columns of the answer.
    error : str
        The column in which the call says why there is none.
    name : str
        Of the stream of rows that have one; the call itself is ``<name>_asked``.
    origin : Origin
        The line of the user's code that built it.
    """
    asked = Operator(spec, naming.extended(name, "asked"), origin)
    return RejectingCall(asked, Answered(Unanswered(tuple(answer), error)), name, origin)


def _without(shape: Shape, names: Sequence[str]) -> Shape:
    if shape.columns is None:
        return shape
    return replace(shape, columns=tuple(column for column in shape.columns if column not in names))
