"""Avro schemas as columns: a record's fields, and the Arrow type of what each holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

AvroType = Any
"""What the JSON of an Avro schema may hold: a name, an object, or a list of branches."""

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
"""Logical type -> its Arrow type."""

_OF = {"date": "int", "time-millis": "int"}
"""Logical type -> what it is a reading of, where that is not ``long``; of another it means nothing (the specification
has it ignored)."""


def parsed(text: str) -> Mapping[str, Any]:
    """Return a schema that is a record.

    Raises
    ------
    ValueError
        If it is none.

    Examples
    --------
    >>> parsed('{"type": "record", "name": "Ride", "fields": []}')["name"]
    'Ride'
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        raise ValueError("it is no record, whose fields could be columns")
    return schema


def columns_of(schema: Mapping[str, Any]) -> dict[str, pa.DataType | None]:
    """Return field -> Arrow type of what a writer's schema holds; None where Arrow has none.

    Examples
    --------
    >>> columns_of({"type": "record", "name": "R", "fields": [{"name": "km", "type": ["null", "long"]}]})
    {'km': DataType(int64)}
    """
    names: dict[str, AvroType] = {}
    return {field["name"]: _arrow(field["type"], names, ()) for field in schema["fields"]}


def _arrow(of: AvroType, names: dict[str, AvroType], within: tuple[str, ...]) -> pa.DataType | None:
    """Return the type; ``names`` are those of types that were defined before, ``within`` those this one is part of."""
    if isinstance(of, list):
        branches = [each for each in of if each != "null"]
        return _arrow(branches[0], names, within) if len(branches) == 1 else None
    if isinstance(of, str):
        if of in _PRIMITIVES:
            return _PRIMITIVES[of]
        known = names.get(of.rpartition(".")[2])
        return None if known is None or of.rpartition(".")[2] in within else _arrow(known, names, within)
    kind = of["type"]
    if not isinstance(kind, str) or kind not in _COMPLEX:
        return _arrow_of_logical(of) or _arrow(kind, names, within)
    if "name" in of:
        name = of["name"].rpartition(".")[2]
        names[name] = of
        within = (*within, name)
    if kind == "array":
        items = _arrow(of["items"], names, within)
        return None if items is None else pa.list_(items)
    if kind == "map":
        values = _arrow(of["values"], names, within)
        return None if values is None else pa.map_(pa.string(), values)
    if kind == "enum":
        return pa.string()
    if kind == "fixed":
        return _arrow_of_logical(of) or pa.binary()
    members = [(field["name"], _arrow(field["type"], names, within)) for field in of["fields"]]
    return None if any(each is None for _, each in members) else pa.struct(members)


_COMPLEX = frozenset(("record", "enum", "array", "map", "fixed"))


def _arrow_of_logical(of: Mapping[str, Any]) -> pa.DataType | None:
    logical = of.get("logicalType")
    if logical == "decimal" and of["type"] in ("bytes", "fixed"):
        return pa.decimal128(int(of["precision"]), int(of.get("scale", 0))) if int(of["precision"]) <= 38 else None
    if logical in LOGICAL and of["type"] == _OF.get(logical, "long"):
        return LOGICAL[logical]
    return None
