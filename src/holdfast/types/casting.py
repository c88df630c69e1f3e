"""Rows converted to the exact schema of their target: what Arrow's own cast does, and nested nulls that it refuses.

On their way through Spark, rows lose the names inside lists and what may not be null; their values stay.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.errors import InvalidPipeline


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly this schema (names inside lists and nullability may differ on the way)."""
    if batch.schema.equals(schema):
        return batch
    columns = [fitted_column(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns that are declared for them, found by name.

    Raises
    ------
    InvalidPipeline
        If one is missing, or of a type that does not become the declared one.
    """
    try:
        return fitted(batch.select(schema.names), schema)
    except (KeyError, pa.ArrowException) as error:
        raise InvalidPipeline(
            "Rows do not fit the declared columns.",
            why=str(error),
            do="compare the columns that the last operator returns with its declared schema.",
        ) from error


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


def nullable_field(field: pa.Field) -> pa.Field:
    """Return a field that may be null, as may every member of a struct in it."""
    return field.with_type(nullable_type(field.type)).with_nullable(True)


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """Return a type in which every member of a struct may be null; elements and values of a map stay as they are."""
    if pa.types.is_struct(kind):
        return pa.struct([nullable_field(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(nullable_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(nullable_type(kind.item_type)))
    return kind


def same_in(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values in another type: members by name, missing ones null, others dropped.

    Raises
    ------
    ValueError
        If a value would be another one there.

    Examples
    --------
    >>> same_in(pa.array([1.0, None]), pa.int32()).to_pylist()
    [1, None]
    >>> same_in(pa.array([{"a": 1, "b": 2}]), pa.struct({"b": pa.int64(), "c": pa.string()})).to_pylist()
    [{'b': 2, 'c': None}]
    """
    if column.type == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        given = {field.name: part for field, part in zip(column.type, column.flatten(), strict=True)}
        members = [
            same_in(given[field.name], field.type) if field.name in given else pa.nulls(len(column), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        return _with_children(column, kind, same_in(column.values, kind.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(column.type):
        pairs = [same_in(column.keys, kind.key_type), same_in(column.items, kind.item_type)]
        return _with_children(column, kind, pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field]))
    return _same_leaf(column, kind)


def _same_leaf(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        there = column.cast(kind)
        back = there.cast(column.type)
    except pa.ArrowException:
        raise ValueError("its value cannot be one of that type") from None  # Arrow's message shows the value
    if repr(back.to_pylist()) != repr(column.to_pylist()):  # as texts: NaN is the same
        raise ValueError("its value would be another one")
    return there


def _with_children(column: pa.Array, kind: pa.DataType, children: pa.Array) -> pa.Array:
    """Return a list or map of the same lengths and nulls with other elements."""
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], offset=column.offset, children=[children])
