"""An expression in the form that Arrow evaluates: what workers get of :mod:`holdfast.expressions.compile`."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import BadRow
from holdfast.expressions.kernels import Expression, Fault, Reference, references


@dataclass(frozen=True)
class Columnar:
    """An expression that Arrow evaluates with Spark's result, type and errors (ANSI mode, time zone UTC).

    Parameters
    ----------
    type : pyarrow.DataType
        As PySpark maps the type that Spark assigns to the expression.
    nullable : bool
        As Spark declares it.
    node : Expression
        The bound expression.
    expression : str
        Its text, for errors.

    Notes
    -----
    Survives pickling; runs where the rows are.
    """

    type: pa.DataType
    nullable: bool
    node: Expression
    expression: str

    @property
    def can_raise(self) -> bool:
        """Whether a row can be an error; Spark leaves it out where nothing reads the value, this does not."""
        return self.node.can_raise

    @property
    def reads(self) -> frozenset[str]:
        """Columns that it reads, by their names in the schema."""
        return references(self.node)

    @property
    def reference(self) -> str | None:
        """The column that it passes on as it is; None where it computes."""
        return self.node.name if isinstance(self.node, Reference) else None

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the expression's values, one for each row of the batch.

        Raises
        ------
        BadRow
            Where Spark would raise: an integer overflows, or a divisor is zero.
        """
        try:
            values = self.node.compute(batch)
        except Fault as fault:
            raise BadRow(
                f"the expression {self.expression!r} has no value for a row: {fault}.",
                why="Spark's ANSI mode makes this an error instead of a wrong or missing value.",
                do="leave such rows out with a filter before, or compute in a wider type: CAST(... AS BIGINT)"
                if "OVERFLOW" in str(fault)
                else "leave such rows out with a filter before, or write nullif(divisor, 0).",
            ) from fault
        return pa.repeat(values, batch.num_rows) if isinstance(values, pa.Scalar) else values
