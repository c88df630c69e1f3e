"""Rows converted to the exact schema of their target: what Arrow's own cast does, and nested nulls that it refuses.

On their way through Spark, rows lose the names inside lists and what may not be null; their values stay.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.types.canonical import is_text
from holdfast.types.conversion import is_text_or_bytes
from holdfast.types.from_text import from_text


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
    """Return the table with exactly this schema; columns are found by their names (:func:`declared`)."""
    return pa.Table.from_batches([declared(batch, schema) for batch in table.to_batches()], schema)


def fitted_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column with exactly this type; members of structs are found by their names.

    Arrow's own cast refuses a struct that is null when a member may not be: it takes the null below for a value.
    """
    if column.type == kind:
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type) and _members(kind) == _members(column.type) != []:
        members = [fitted_column(column.field(field.name), field.type) for field in kind]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        return _with_children(column, kind, fitted_column(column.values, kind.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(column.type):
        pairs = [fitted_column(column.keys, kind.key_type), fitted_column(column.items, kind.item_type)]
        return _with_children(column, kind, pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field]))
    if is_text(column.type) and not is_text_or_bytes(kind):
        return from_text(column, kind)
    return column.cast(kind)


def by_name(schema: pa.Schema) -> pa.Schema:
    """Return a schema with its columns, and the members of structs in them, in the order of their names.

    Examples
    --------
    >>> by_name(pa.schema([("b", pa.struct([("y", pa.int8()), ("x", pa.int8())])), ("a", pa.int8())]))
    a: int8
    b: struct<x: int8, y: int8>
      child 0, x: int8
      child 1, y: int8
    """
    return pa.schema(_fields_by_name(schema))


def _fields_by_name(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return [field.with_type(_type_by_name(field.type)) for field in sorted(fields, key=lambda field: field.name)]


def _type_by_name(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_fields_by_name(kind))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_by_name(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_type_by_name(kind.item_type)))
    return kind


def _members(kind: pa.DataType) -> list[str]:
    return sorted(field.name for field in kind)


def united_field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    """Return a field for values of two, null where they may be so in either; None where they are of other types.

    Examples
    --------
    >>> required = pa.field("x", pa.struct([pa.field("a", pa.int8(), nullable=False)]), nullable=False)
    >>> united_field(required, pa.field("x", pa.struct([("a", pa.int8())])))
    pyarrow.Field<x: struct<a: int8>>
    >>> united_field(required, pa.field("x", pa.int8())) is None
    True
    """
    nullable, kind, theirs = one.nullable or other.nullable, one.type, other.type
    if pa.types.is_struct(kind) and pa.types.is_struct(theirs) and kind.num_fields == theirs.num_fields:
        members = [united_field(ours, theirs.field(at)) for at, ours in enumerate(kind)]
        is_one = all(member is not None for member in members)
        return pa.field(one.name, pa.struct(members), nullable) if is_one else None
    if pa.types.is_list(kind) and pa.types.is_list(theirs):
        item = united_field(kind.value_field, theirs.value_field)
        return None if item is None else pa.field(one.name, pa.list_(item), nullable)
    return one.with_nullable(nullable) if (one.name, kind) == (other.name, theirs) else None


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
