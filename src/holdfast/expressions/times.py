"""Parts of dates and times in a columnar expression: truncated, taken out, or cast, as Spark does in UTC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.kernels import Expression

TIMESTAMP = pa.timestamp("us", tz="UTC")
_INT, _DATE, _BIGINT = pa.int32(), pa.date32(), pa.int64()

UNITS = {
    "MICROSECOND": "microsecond",
    "MILLISECOND": "millisecond",
    "SECOND": "second",
    "MINUTE": "minute",
    "HOUR": "hour",
    **dict.fromkeys(("DAY", "DD"), "day"),
    "WEEK": "week",
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    "QUARTER": "quarter",
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
}
"""How Spark names a unit of ``date_trunc``, in capitals -> how Arrow does."""

PARTS: dict[str, Callable[[Any], Any]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
}
"""What can be taken out of a time; the first four of a date, too."""


@dataclass(frozen=True)
class Truncated:
    """``date_trunc(unit, timestamp)``."""

    unit: str
    of: Expression
    type: pa.DataType = TIMESTAMP
    nullable: bool = True
    """Spark declares it, whatever the timestamp."""

    @property
    def can_raise(self) -> bool:
        """Whether the timestamp can."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the beginnings of the units, weeks from Monday on."""
        return pc.floor_temporal(self.of.compute(batch), unit=self.unit)


@dataclass(frozen=True)
class PartOfTime:
    """``hour(timestamp)`` and its like."""

    part: str
    of: Expression
    type: pa.DataType = _INT

    @property
    def nullable(self) -> bool:
        """Whether the time is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """Whether the time can."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the numbers."""
        return pc.cast(PARTS[self.part](self.of.compute(batch)), pa.int32())


@dataclass(frozen=True)
class DayOf:
    """``CAST(timestamp AS DATE)``."""

    of: Expression
    type: pa.DataType = _DATE

    @property
    def nullable(self) -> bool:
        """Whether the timestamp is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """Whether the timestamp can."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the days."""
        return pc.cast(pc.floor_temporal(self.of.compute(batch), unit="day"), pa.date32())


@dataclass(frozen=True)
class SecondsOf:
    """``CAST(timestamp AS BIGINT)``: whole seconds since 1970, rounded down."""

    of: Expression
    type: pa.DataType = _BIGINT

    @property
    def nullable(self) -> bool:
        """Whether the timestamp is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """Whether the timestamp can."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the seconds."""
        whole = pc.floor_temporal(self.of.compute(batch), unit="second")
        return pc.divide(pc.cast(whole, pa.int64()), pa.scalar(1_000_000, pa.int64()))
