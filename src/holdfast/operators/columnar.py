"""SQL expressions as Arrow computes them, where that is exactly what Spark does (being written)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Columnar:
    """One expression."""

    type: pa.DataType
    nullable: bool

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the values."""
        raise NotImplementedError


def columnar(expression: str, schema: pa.Schema) -> Columnar | None:
    """Return None: Spark evaluates it."""
    return None


def columnar_items(items: Sequence[str], schema: pa.Schema) -> list[tuple[str, Columnar]] | None:
    """Return None: Spark evaluates them."""
    return None
