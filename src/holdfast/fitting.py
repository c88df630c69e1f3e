"""Rows brought to the exact schema of where they go: what Arrow's own cast does, and nested nulls that it refuses.

On their way through Spark, rows lose the names inside lists and what may not be null; their values stay.
"""

from __future__ import annotations

import pyarrow as pa


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly this schema (names inside lists and nullability may differ on the way)."""
    if batch.schema.equals(schema):
        return batch
    columns = [fitted_column(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fitted_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with exactly this schema."""
    return pa.Table.from_batches([fitted(batch, schema) for batch in table.to_batches()], schema)


def fitted_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column with exactly this type.

    Arrow's own cast refuses a struct that is null when a member may not be: it takes the null below for a value.
    """
    if column.type == kind:
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type) and kind.num_fields == column.type.num_fields > 0:
        members = [fitted_column(column.field(index), field.type) for index, field in enumerate(kind)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        return _with_children(column, kind, fitted_column(column.values, kind.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(column.type):
        pairs = [fitted_column(column.keys, kind.key_type), fitted_column(column.items, kind.item_type)]
        return _with_children(column, kind, pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field]))
    return column.cast(kind)


def _with_children(column: pa.Array, kind: pa.DataType, children: pa.Array) -> pa.Array:
    """Return a list or map of the same lengths and nulls with other elements."""
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], offset=column.offset, children=[children])
