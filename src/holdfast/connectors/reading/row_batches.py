"""Rows of Python as Arrow batches of a declared schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.types.conversion import check_range
from holdfast.types.units import time_us

Row = Mapping[str, Any]


def to_batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows given as dicts as an Arrow batch of a schema.

    Raises
    ------
    InvalidPipeline
        If a row has a key that is not a column, lacks one that is NOT NULL, or has a value that does not fit.
    """
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidPipeline(f"row {number} is a {type(row).__name__}.", do='write each row as {"column": value}.')
        if unknown := [key for key in row if key not in schema.names]:
            raise InvalidPipeline(
                f"row {number} has the key {unknown[0]!r}, which is no column.",
                do=f"use the columns of the schema: {', '.join(map(repr, schema.names))}.",
            )
    columns = []
    for column in schema:
        values = [row.get(column.name) for row in rows]
        try:
            if pa.types.is_timestamp(column.type):
                values = [_moment(each, column.name) if isinstance(each, str) else each for each in values]
            array = pa.array(values, column.type)
            check_range(array)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InvalidPipeline(
                f"column {column.name!r} cannot be made of the rows: {error}.",
                why=f"it is declared {column.type}.",
                do="correct the values or the schema.",
            ) from error
        if not column.nullable and array.null_count:
            raise InvalidPipeline(
                f"row {values.index(None)} lacks column {column.name!r}.",
                why="the schema declares it NOT NULL.",
                do="give it a value.",
            )
        columns.append(array)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _moment(text: str, column: str) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us(text, argument=column))
