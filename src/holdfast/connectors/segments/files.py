"""Writes the file of a segment that is sealed: Parquet with statistics, in row groups that readers can share out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.types.schema import unite_schemas

ROW_GROUP_ROWS = 1_048_576
ROW_GROUP_BYTES = 32 * 2**20
"""A row group ends at either: a file of the default size has some that several readers can scan at once."""


def write_file(
    path: str,
    pieces: Sequence[pa.RecordBatch],
    schema: pa.Schema,
    *,
    sort_by: Sequence[str],
    compression: str | None,
) -> int:
    """Write rows as one Parquet file, durably but for its directory; return its size in bytes.

    Parameters
    ----------
    path : str
        The file; it must not be there.
    pieces : sequence of pyarrow.RecordBatch
        Rows in their order, perhaps of earlier schemas: columns that they lack are null.
    schema : pyarrow.Schema
        Of the file; columns that only earlier rows have follow.
    sort_by : sequence of str
        Columns; rows that are equal in them keep their order.
    """
    schema = unite_schemas([schema, *(piece.schema for piece in pieces)])
    rows = pa.Table.from_batches([fitting(piece, schema) for piece in pieces], schema)
    if sort_by:
        rows = rows.sort_by([(column, "ascending") for column in sort_by])
    group_rows = max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES * rows.num_rows // max(1, rows.nbytes)))
    file: BinaryIO
    with open(path, "xb", 2**20) as file:
        pq.write_table(rows, file, compression=compression or "none", row_group_size=group_rows)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def rows_of(path: str) -> list[pa.RecordBatch]:
    """Return the rows of a file; raise FileNotFoundError when it is not there."""
    with pq.ParquetFile(path) as file:
        batches: list[pa.RecordBatch] = file.read().to_batches()
        return batches


def fitting(piece: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of an earlier schema in a later one: what they lack is null, and types are widened."""
    if piece.schema.equals(schema):
        return piece
    columns = []
    for field in schema:
        place = piece.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(piece.num_rows, field.type))
        else:
            column = piece.column(place)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
