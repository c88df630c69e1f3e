"""Avro schemas and Arrow types: which values fit a column, and the schema that columns are written with.

A value is read with the schema it was written with, and its fields become columns by their names.  What does not have
the column's type is promoted as Avro promotes (int to long, float, double), or the schema does not fit.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from holdfast.types.avro_columns import LOGICAL, AvroType

_WIDER = {
    pa.int32(): (pa.int64(), pa.float32(), pa.float64()),
    pa.int64(): (pa.float32(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.binary(),),
    pa.binary(): (pa.string(),),
}
"""Avro's promotions."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def plainer(of: AvroType) -> AvroType:
    """Return a schema without the logical types that are none here: what is under them is the value.

    Examples
    --------
    >>> plainer(["null", {"type": "string", "logicalType": "uuid"}])
    ['null', {'type': 'string'}]
    """
    if isinstance(of, list):
        return [plainer(each) for each in of]
    if not isinstance(of, dict):
        return of
    is_known = of.get("logicalType") in LOGICAL or of.get("logicalType") == "decimal"
    return {
        name: plainer(part) if name in ("type", "items", "values", "fields") else part
        for name, part in of.items()
        if is_known or name != "logicalType"
    }


def misfit(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a writer's type cannot become those of a column.

    Examples
    --------
    >>> misfit(pa.int32(), pa.float64()), misfit(pa.string(), pa.int64())
    (False, True)
    """
    kinds = pa.types
    if found == wanted or kinds.is_null(found) or wanted in _WIDER.get(found, ()):
        return False
    if kinds.is_timestamp(found) and kinds.is_timestamp(wanted):
        return bool((found.tz is None) != (wanted.tz is None))
    if kinds.is_decimal(found) and kinds.is_decimal(wanted):
        return bool(found.scale > wanted.scale or found.precision - found.scale > wanted.precision - wanted.scale)
    if kinds.is_list(found) and kinds.is_list(wanted):
        return misfit(found.value_type, wanted.value_type)
    if kinds.is_map(found) and kinds.is_map(wanted):
        return misfit(found.key_type, wanted.key_type) or misfit(found.item_type, wanted.item_type)
    if kinds.is_struct(found) and kinds.is_struct(wanted):
        members = {field.name: field.type for field in found}
        return any(field.name in members and misfit(members[field.name], field.type) for field in wanted)
    return True


def conformed(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return values as those of a column that they fit (:func:`misfit`): members of structs by their names."""
    kinds = pa.types
    if kinds.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if kinds.is_large_list(values.type):
        values = values.cast(pa.list_(values.type.value_type))
    if values.type == wanted:
        return values
    if kinds.is_list(wanted) and kinds.is_list(values.type):
        items = conformed(values.values, wanted.value_type)
        return pa.Array.from_buffers(
            wanted, len(values), values.buffers()[:2], values.null_count, values.offset, [items]
        )
    if kinds.is_struct(wanted) and kinds.is_struct(values.type):
        at = {field.name: place for place, field in enumerate(values.type)}
        columns = [
            conformed(values.field(at[field.name]), field.type)
            if field.name in at
            else pa.nulls(len(values), field.type)
            for field in wanted
        ]
        return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=values.is_null())
    return values.cast(wanted)


# --- of columns ---------------------------------------------------------------------------------------------------


def schema_of(columns: pa.Schema, name: str) -> dict[str, Any]:
    """Return the Avro schema that columns are written with: each may be null, and is null where it is not known.

    Raises
    ------
    ValueError
        If Avro has no type or no name for a column.

    Examples
    --------
    >>> schema_of(pa.schema([("km", pa.int64())]), "rides")["fields"]
    [{'name': 'km', 'type': ['null', 'long'], 'default': None}]
    """
    return _record(list(columns), re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII), ())


def _record(fields: list[pa.Field], name: str, path: tuple[str, ...]) -> dict[str, Any]:
    found = []
    for field in fields:
        where = ".".join((*path, field.name))
        if not _NAME.fullmatch(field.name):
            raise ValueError(f"the column {where!r} has a name that Avro does not take: letters, digits and _ only")
        kind = _avro(field.type, f"{name}_{field.name}", (*path, field.name))
        if field.nullable:
            found.append({"name": field.name, "type": ["null", kind], "default": None})
        else:
            found.append({"name": field.name, "type": kind})
    return {"type": "record", "name": name, "fields": found}


def _avro(of: pa.DataType, name: str, path: tuple[str, ...]) -> AvroType:
    kinds = pa.types
    if kinds.is_list(of) or kinds.is_large_list(of):
        return {"type": "array", "items": ["null", _avro(of.value_type, name, path)]}
    if kinds.is_map(of) and kinds.is_string(of.key_type):
        return {"type": "map", "values": ["null", _avro(of.item_type, name, path)]}
    if kinds.is_struct(of):
        return _record(list(of), name, path)
    if kinds.is_decimal(of):
        return {"type": "bytes", "logicalType": "decimal", "precision": of.precision, "scale": of.scale}
    if kinds.is_timestamp(of):
        return {"type": "long", "logicalType": f"{'' if of.tz else 'local-'}timestamp-micros"}
    for is_one, kind in (
        (kinds.is_boolean, "boolean"),
        (kinds.is_int64, "long"),
        (kinds.is_signed_integer, "int"),
        (kinds.is_float32, "float"),
        (kinds.is_float64, "double"),
        (lambda each: kinds.is_string(each) or kinds.is_large_string(each), "string"),
        (lambda each: kinds.is_binary(each) or kinds.is_large_binary(each), "bytes"),
        (kinds.is_date32, {"type": "int", "logicalType": "date"}),
    ):
        if is_one(of):
            return kind
    raise ValueError(f"the column {'.'.join(path)!r} has the type {of}, for which Avro has none")
