"""What operators that call a function of the user declare alike: whose rows it is given, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import require_columns
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import check_offset, offset_ticks
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
    timestamp_offset : str or int, optional
        How far below the bounds of its input its rows may lie.
    """

    by: tuple[str, ...]
    schema: pa.Schema
    forget_after: str | None = None
    timestamp: str | None = None
    timestamp_offset: str | int | None = None

    @classmethod
    def of(
        cls,
        by: str | Sequence[str],
        schema: Any,
        forget_after: str | None,
        timestamp: str | None,
        timestamp_offset: str | int | None = None,
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
        check_offset(timestamp_offset)
        if timestamp_offset is not None and timestamp is None:
            raise InvalidPipeline(
                f"timestamp_offset={timestamp_offset!r} is given, and no timestamp=.",
                why="it says how far the timestamps of the output lie from those of the input.",
                do='declare the column of schema= that holds event time: timestamp="...".',
            )
        made = cls(keys, out, forget_after, timestamp, timestamp_offset)
        _ = made.offset  # checks its unit
        return made

    @property
    def offset(self) -> int | None:
        """``timestamp_offset`` in ticks; None: nothing is promised."""
        if self.timestamp_offset is None or self.timestamp is None:
            return None
        return offset_ticks(self.timestamp_offset, self.schema.field(self.timestamp).type)

    @property
    def promise(self) -> Mapping[str, Any]:
        """``timestamp_offset`` as an argument for display and fingerprint, where it is given."""
        return {} if self.timestamp_offset is None else {"timestamp_offset": self.timestamp_offset}

    @property
    def forget_us(self) -> int | None:
        """``forget_after`` in microseconds."""
        return None if self.forget_after is None else units.duration_us(self.forget_after)

    @property
    def time_columns(self) -> tuple[str | None, ...]:
        """``timestamp``: where the rows that came go by another, nothing is known of bounds but the end.

        With ``timestamp_offset`` it is known, whatever the column of the input is called.
        """
        return (self.timestamp if self.timestamp_offset is None else None,)

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of the schema, after checking the key columns."""
        require_columns(self.by, inputs[0].columns, "by=")
        if self.timestamp_offset is not None and inputs[0].timestamp is None:
            raise InvalidPipeline(
                f"timestamp_offset={self.timestamp_offset!r} has no timestamp to be about: the stream has none.",
                do='write timestamp="..." where the source is built, or leave timestamp_offset= out.',
            )
        return Shape(tuple(self.schema.names), self.timestamp)

    def bounds_end(self, how: str) -> str | None:
        """Return why no bound of the input holds downstream of it; ``how`` it gives its own."""
        if self.timestamp is None:
            return "it declares no timestamp"
        if self.timestamp_offset is not None:
            return None
        return f"timestamp_offset= would pass on those of its input; it gives its own by {how}"
