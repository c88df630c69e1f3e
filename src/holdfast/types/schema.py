"""Schemas, however the user wrote them, as Arrow schemas of types that Spark knows; no JVM, no pyspark."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.types import ddl, schema_files

RESERVED_PREFIX = "__holdfast"
"""Columns that begin with this are Holdfast's own."""

_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def to_arrow(schema: Any, *, argument: str = "schema") -> pa.Schema:
    """Return a schema as an Arrow schema, with the types that PySpark itself would choose.

    Parameters
    ----------
    schema : str, path, StructType or pyarrow.Schema
        A DDL string, the path of a schema file (:mod:`holdfast.types.schema_files`), a Spark ``StructType`` (known by
        its ``jsonValue()``), or an Arrow schema; types of Arrow and of files are converted to the nearest ones that
        Spark has (``uint16`` -> ``int32``, nanoseconds -> microseconds).
    argument : str
        The argument's name, for the error.

    Returns
    -------
    pyarrow.Schema
        TIMESTAMP is ``timestamp("us", tz="UTC")``, TIMESTAMP_NTZ is ``timestamp("us")``.

    Raises
    ------
    InvalidPipeline
        If it cannot be read, has no column, names a column twice (Spark does not distinguish ``a`` and ``A``) or uses a
        reserved name.

    Examples
    --------
    >>> to_arrow("a INT, b STRING NOT NULL").names
    ['a', 'b']
    """
    if schema_files.is_file(schema):
        found = _spark_fields(schema_files.fields(schema, argument=argument))
    elif isinstance(schema, str):
        found = ddl.fields(schema)
    elif isinstance(schema, pa.Schema):
        found = _spark_fields(schema)
    elif callable(getattr(schema, "jsonValue", None)):
        value = schema.jsonValue()
        if not isinstance(value, Mapping) or value.get("type") != "struct":
            raise _no_schema(schema, argument)
        found = [_json_field(member, path="") for member in value["fields"]]
    else:
        raise _no_schema(schema, argument)
    _check_names([field.name for field in found], argument)
    return pa.schema(found)


def _spark_fields(found: Iterable[pa.Field]) -> list[pa.Field]:
    return [field.with_type(_spark_type(field.type, field.name)).remove_metadata() for field in found]


def _no_schema(schema: Any, argument: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{argument}={schema!r} is not a schema.",
        why=f"it is of type {type(schema).__name__}, not a DDL string, a path, a Spark StructType or an Arrow schema.",
        do=f'write for instance {argument}="a INT, b STRING NOT NULL".',
    )


def _check_names(names: Iterable[str], argument: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.lower().startswith(RESERVED_PREFIX):
            raise InvalidPipeline(
                f"column {name!r} in {argument} has a reserved name.",
                why=f"names that begin with {RESERVED_PREFIX!r} are Holdfast's own.",
                do="give the column another name.",
            )
        if name.lower() in seen:
            raise InvalidPipeline(
                f"{argument} has the column {name!r} twice.",
                why=f"Spark does not distinguish {seen[name.lower()]!r} and {name!r}.",
                do="give one of them another name.",
            )
        seen[name.lower()] = name
    if not seen:
        raise InvalidPipeline(
            f"{argument} has no column.", do=f'write for instance {argument}="a INT, b STRING NOT NULL".'
        )


def _json_field(member: Mapping[str, Any], *, path: str) -> pa.Field:
    name = member["name"]
    column = f"{path}.{name}" if path else name
    return pa.field(name, _json_type(member["type"], column), nullable=bool(member.get("nullable", True)))


def _json_type(value: Any, column: str) -> pa.DataType:
    """Read the JSON form of a Spark type: a name, or an object for a nested type."""
    if isinstance(value, Mapping):
        match value.get("type"):
            case "struct":
                return pa.struct([_json_field(member, path=column) for member in value["fields"]])
            case "array":
                element = _json_type(value["elementType"], f"{column}.element")
                return pa.list_(pa.field("element", element, nullable=bool(value.get("containsNull", True))))
            case "map":
                key = _json_type(value["keyType"], f"{column}.key")
                item = _json_type(value["valueType"], f"{column}.value")
                return pa.map_(
                    pa.field("key", key, nullable=False),
                    pa.field("value", item, nullable=bool(value.get("valueContainsNull", True))),
                )
            case "udt" if "sqlType" in value:
                return _json_type(value["sqlType"], column)
    name = str(value).lower()
    if decimal := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if name.startswith("interval ") and not {"year", "month"} & set(name.split()):
        return pa.duration("us")
    simple = name.partition("(")[0].partition(" ")[0]  # varchar(3); string collate UTF8_LCASE
    if simple in ddl.SIMPLE_TYPES:
        return ddl.SIMPLE_TYPES[simple]
    raise InvalidPipeline(
        f"column {column!r} has the type {json.dumps(value)}, which Arrow and the sinks do not know.",
        do="cast it to a plain type before it enters the pipeline, for instance to STRING.",
    )


_NARROW = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
"""Arrow types that Spark lacks -> the narrowest one it has that holds every value."""


def _spark_type(data_type: pa.DataType, column: str) -> pa.DataType:
    """Return the nearest type that Spark has and that holds every value (of times: to the microsecond)."""
    kinds = pa.types
    if data_type in _NARROW:
        return _NARROW[data_type]
    if isinstance(data_type, pa.BaseExtensionType):
        return pa.string() if isinstance(data_type, pa.UuidType) else _spark_type(data_type.storage_type, column)
    if kinds.is_timestamp(data_type):
        return pa.timestamp("us", tz="UTC") if data_type.tz else pa.timestamp("us")
    if kinds.is_duration(data_type):
        return pa.duration("us")
    if kinds.is_dictionary(data_type):
        return _spark_type(data_type.value_type, column)
    if kinds.is_fixed_size_binary(data_type):
        return pa.binary()
    if kinds.is_decimal(data_type) and data_type.precision <= 38:
        return pa.decimal128(data_type.precision, data_type.scale)
    if kinds.is_struct(data_type):
        return pa.struct([_spark_field(field, f"{column}.{field.name}") for field in data_type])
    if is_list(data_type):
        element = _spark_type(data_type.value_type, f"{column}.element")
        return pa.list_(pa.field("element", element, nullable=data_type.value_field.nullable))
    if kinds.is_map(data_type):
        key = _spark_type(data_type.key_type, f"{column}.key")
        item = _spark_type(data_type.item_type, f"{column}.value")
        return pa.map_(
            pa.field("key", key, nullable=False), pa.field("value", item, nullable=data_type.item_field.nullable)
        )
    if data_type in ddl.SIMPLE_TYPES.values():
        return data_type
    raise InvalidPipeline(
        f"column {column!r} has the Arrow type {data_type}, which Spark does not know.",
        do="cast it to a type that Spark has, for instance to string or timestamp.",
    )


def is_list(data_type: pa.DataType) -> bool:
    """Return whether values are lists, in whichever of Arrow's forms.

    Examples
    --------
    >>> is_list(pa.list_(pa.float32(), 3)), is_list(pa.map_(pa.string(), pa.int64()))
    (True, False)
    """
    kinds = pa.types
    tests = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(test(data_type) for test in tests)


def _spark_field(field: pa.Field, column: str) -> pa.Field:
    return pa.field(field.name, _spark_type(field.type, column), nullable=field.nullable)


def encode_schema(schema: pa.Schema) -> str:
    """Return a schema as a text, as logs and manifests note it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Return what :func:`encode_schema` was given."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def unite_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return a schema with the columns of all, in the order in which they first come; types are widened.

    Raises
    ------
    pyarrow.ArrowException
        If two types of a column have no common one.

    Examples
    --------
    >>> both = unite_schemas([pa.schema([("a", pa.int64())]), pa.schema([("b", pa.string()), ("a", pa.int32())])])
    >>> both.names
    ['a', 'b']
    """
    several = list(schemas)
    if all(schema.equals(several[0]) for schema in several):
        return several[0]
    open_ = [pa.schema([field.with_nullable(True) for field in schema]) for schema in several]
    return pa.unify_schemas(open_, promote_options="permissive")
