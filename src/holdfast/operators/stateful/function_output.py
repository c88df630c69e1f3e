"""What operators that call a function of the user declare alike: whose rows it is given, and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.graph.checks import require_columns
from holdfast.graph.nodes import Shape
from holdfast.state import keyed
from holdfast.types import units
from holdfast.types.schema import to_arrow


@dataclass(frozen=True)
class FunctionOutput:
    """The key, and the rows that come out.

    Parameters
    ----------
    by : tuple of str
        Key columns of the rows that come in.
    schema : pa.Schema
        Of what the function gives.
    forget_after : str, optional
        How long untouched state is remembered, in logged batch time.
    timestamp : str, optional
        The column of ``schema`` that holds event time.
    """

    by: tuple[str, ...]
    schema: pa.Schema
    forget_after: str | None = None
    timestamp: str | None = None

    @classmethod
    def of(
        cls, by: str | Sequence[str], schema: Any, forget_after: str | None, timestamp: str | None
    ) -> FunctionOutput:
        """Return it from arguments as users write them.

        Raises
        ------
        InvalidPipeline
            If one of them cannot be read.
        """
        keys, out = keyed.key_names(by), to_arrow(schema)
        if forget_after is not None:
            units.duration_us(forget_after, argument="forget_after")
        if timestamp is not None:
            timestamp = keyed.time_field(out, timestamp).name
        return cls(keys, out, forget_after, timestamp)

    @property
    def forget_us(self) -> int | None:
        """``forget_after`` in microseconds."""
        return None if self.forget_after is None else units.duration_us(self.forget_after)

    @property
    def time_columns(self) -> tuple[str | None, ...]:
        """``timestamp``: where the rows that came go by another, nothing is known of bounds but the end."""
        return (self.timestamp,)

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of the schema, after checking the key columns."""
        require_columns(self.by, inputs[0].columns, "by=")
        return Shape(tuple(self.schema.names), self.timestamp)
