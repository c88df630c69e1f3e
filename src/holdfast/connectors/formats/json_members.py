"""Members of JSON objects that a schema has no column for: which ones, and what they hold.

Names are compared as they are written: ``Tip`` is no ``tip``.  Null is a value like any other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
from pydantic_core import from_json, to_json

from holdfast.types.schema import is_list

_REFUSED = "it has the member "
_DIGITS = frozenset("0123456789")
_DEEPEST = 200
"""Levels of objects and arrays within each other that are written; what reads them quickly takes as many."""
_TOO_DEEP = f"objects and arrays are within each other more than {_DEEPEST} times"


def refusal(content: bytes, schema: pa.Schema) -> str:
    """Say which member of an object is no column; empty if each is one, or the text is none of JSON.

    Examples
    --------
    >>> refusal(b'{"id": 1, "tip": null}', pa.schema([("id", pa.int64())]))
    "it has the member 'tip', which is no column of schema="
    >>> refusal(b'{"id": 1}', pa.schema([("id", pa.int64()), ("tip", pa.int64())]))
    ''
    """
    try:
        path = _unknown(from_json(content), schema, "")
    except ValueError:
        return ""
    return f"{_REFUSED}{path!r}, which is no column of schema=" if path is not None else ""


def is_refusal(reason: str) -> bool:
    """Return whether a record is bad for a member that is no column."""
    return reason.startswith(_REFUSED)


def new_values(contents: Iterable[bytes], schema: pa.Schema) -> dict[str, list[Any]]:
    """Return the members of objects for which there could be a column more, with their values.

    One whose name is that of a column, or of one before it, but for its case is none, nor is what is within a column.

    Examples
    --------
    >>> new_values([b'{"id": 1, "tip": 5, "ID": 2}', b'{"tip": null}'], pa.schema([("id", pa.int64())]))
    {'tip': [5, None]}
    """
    names = {name.lower() for name in schema.names}
    written: dict[str, str] = {}
    found: dict[str, list[Any]] = {}
    for content in contents:
        try:
            value = from_json(content)
        except ValueError:
            continue
        for name, member in value.items() if isinstance(value, dict) else ():
            if name and name.lower() not in names and written.setdefault(name.lower(), name) == name:
                found.setdefault(name, []).append(member)
    return found


def _unknown(value: Any, fields: Iterable[pa.Field], path: str) -> str | None:
    """Return the path of the first member that is no field; None if there is none, or it is no object."""
    if not isinstance(value, dict):
        return None
    types = {field.name: field.type for field in fields}
    for name, member in value.items():
        if name not in types:
            return f"{path}{name}"
        if (found := _within(member, types[name], f"{path}{name}.")) is not None:
            return found
    return None


def _within(value: Any, data_type: pa.DataType, path: str) -> str | None:
    if pa.types.is_struct(data_type):
        return _unknown(value, data_type, path)
    if is_list(data_type) and isinstance(value, list):
        found = (_within(each, data_type.value_type, path) for each in value)
        return next((one for one in found if one is not None), None)
    return None


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=_Number, parse_constant=_Number)


def names_in(texts: pa.Array, columns: Collection[str]) -> list[tuple[str, int]]:
    """Return which members texts of :func:`rest_of` have, with how many of these; what is in a column as ``name.*``.

    Examples
    --------
    >>> names_in(pa.array(['{"tip":1}', '{"tip":2,"place":{"y":1.0}}']), ["id", "place"])
    [('tip', 2), ('place.*', 1)]
    """
    found: Counter[str] = Counter()
    for text in texts.to_pylist():
        try:
            members = from_json(text)
        except ValueError:  # a column of this name that somebody else has written
            continue
        found.update(list(members) if isinstance(members, dict) else ())
    return [(f"{name}.*" if name in columns else name, count) for name, count in found.items()]


_Shape = dict[str, Any]
"""Name of a column -> what may have members within it: the same of a struct, a list of one shape of a list, else None.
"""


def rest_of(contents: Sequence[bytes], schema: pa.Schema) -> list[str | None]:
    """Return the members of objects that are no column, of each object as JSON text; None where it has none.

    Parameters
    ----------
    contents : sequence of bytes
        Objects that Arrow's reader takes, members that are no column left out.
    schema : pyarrow.Schema
        The columns.

    Raises
    ------
    ValueError
        If one holds a number that JSON has not (``Inf``), or objects too deep within each other.

    Notes
    -----
    What is within a column has its place: an object in it the name, and an array an element for each of its own, null
    where nothing is to be said of it.  The text depends on nothing but the object's own, and has the numbers as they
    are written; of a member that is there twice it has the last.

    Examples
    --------
    >>> schema = pa.schema([("id", pa.int64()), ("stops", pa.list_(pa.struct([("name", pa.string())])))])
    >>> rest_of([b'{"id": 1, "tip": 5.10}', b'{"id": 2}'], schema)
    ['{"tip":5.10}', None]
    >>> rest_of([b'{"stops": [{"name": "a"}, {"name": "b", "pier": null}]}'], schema)
    ['{"stops":[null,{"pier":null}]}']
    """
    shape = _shape_of(schema)
    return [_rest_text(content, shape) for content in contents]


def _shape_of(fields: Iterable[pa.Field]) -> _Shape:
    return {field.name: _shape_within(field.type) for field in fields}


def _shape_within(data_type: pa.DataType) -> Any:
    if pa.types.is_struct(data_type):
        return _shape_of(data_type)
    if is_list(data_type):
        inner = _shape_within(data_type.value_type)
        return None if inner is None else [inner]
    return None


def _rest_text(content: bytes, shape: _Shape) -> str | None:
    try:
        rest = _rest(from_json(content), shape)
    except ValueError:  # a spelling of infinity, or half surrogates
        rest = 0.0
    if rest is None:
        return None
    if _has_float(rest):  # its digits count: a FLOAT of Python's has seventeen
        rest = _rest(_exact(content), shape)
        return None if rest is None else _as_text(rest, 0)
    return to_json(rest).decode()


def _exact(content: bytes) -> Any:
    try:
        return _DECODER.decode(content.decode())
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error


def _rest(value: Any, shape: Any) -> Any:
    """Return what is no column of a value; None if there is nothing."""
    if shape is None:
        return None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return None
        within = [_rest(each, shape[0]) for each in value]
        return within if any(each is not None for each in within) else None
    if not isinstance(value, dict):
        return None
    rest = {}
    for name, member in value.items():
        if name not in shape:
            rest[name] = member
        elif (inner := shape[name]) is not None and (found := _rest(member, inner)) is not None:
            rest[name] = found
    return rest or None


def _has_float(value: Any) -> bool:
    if type(value) is dict:
        return any(map(_has_float, value.values()))
    return any(map(_has_float, value)) if type(value) is list else type(value) is float


def _as_text(value: Any, depth: int) -> str:
    """Return a value as JSON text, as ``to_json`` writes it; numbers as they were written, ``NaN`` as a text."""
    if depth > _DEEPEST:
        raise ValueError(_TOO_DEEP)
    if type(value) is _Number:
        return value if value[-1] in _DIGITS else f'"{value}"'
    if type(value) is dict:
        members = [f"{encode_basestring(name)}:{_as_text(one, depth + 1)}" for name, one in value.items()]
        return "{" + ",".join(members) + "}"
    if type(value) is list:
        return "[" + ",".join([_as_text(one, depth + 1) for one in value]) + "]"
    return encode_basestring(value) if type(value) is str else json.dumps(value)
