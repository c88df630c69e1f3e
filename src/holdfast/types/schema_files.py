"""Schemas that are files: an Avro record, a JSON Schema, or columns in SQL's words.

A file is known by how its name ends, so no DDL text is ever taken for one: none can end like that.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline, invariant
from holdfast.types import avro_columns, ddl

_PIECE = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/|.", re.DOTALL)
_CREATE = re.compile(
    r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:EXTERNAL\s+|TEMPORARY\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?:`(?:[^`]|``)*`|[^(`])*\(",
    re.IGNORECASE,
)

_SIMPLE = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS = {
    ("string", "date"): pa.date32(),
    ("string", "date-time"): pa.timestamp("us", tz="UTC"),
    ("integer", "int32"): pa.int32(),
    ("number", "float"): pa.float32(),
}
"""Type and format of JSON Schema -> Arrow type, where the format says more than the type."""


def is_file(schema: Any) -> bool:
    """Whether a schema is the path of a file.

    Examples
    --------
    >>> is_file("schemas/rides.avsc"), is_file("a INT, b STRING")
    (True, False)
    """
    if isinstance(schema, os.PathLike):
        return True
    return isinstance(schema, str) and os.path.splitext(schema)[1].lower() in _READERS


def reader_of(path: str) -> Callable[[str], list[pa.Field]]:
    """Return what reads the text of a schema file; it raises ``ValueError`` or ``InvalidPipeline`` if it is none."""
    return _READERS[os.path.splitext(path)[1].lower()]


def fields(path: str | os.PathLike[str], *, argument: str = "schema") -> list[pa.Field]:
    """Read the columns of a schema file.

    Parameters
    ----------
    path : str or path
        Ends in ``.avsc`` (a record of Avro), ``.json`` (JSON Schema of an object), ``.ddl`` or ``.sql`` (columns as in
        a DDL string, or one CREATE TABLE).  Relative to the working directory.
    argument : str
        The argument's name, for the error.

    Returns
    -------
    list of pyarrow.Field
        With Arrow's types, some of which Spark may not have.

    Raises
    ------
    InvalidPipeline
        If the file cannot be read, or is no schema whose members are columns.
    """
    name = os.fspath(path)
    reader = _READERS.get(os.path.splitext(name)[1].lower())
    if reader is None:
        raise InvalidPipeline(
            f"{argument}={name!r} is not a schema file.",
            why=f"its name does not end in {', '.join(_READERS)}.",
            do=f'name a file of Avro, JSON Schema or DDL: {argument}="rides.avsc".',
        )
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError) as error:
        raise InvalidPipeline(
            f"{argument}={name!r} cannot be read: {error}.",
            why=f"paths are relative to the working directory, {os.getcwd()!r}.",
            do="correct the path.",
        ) from error
    try:
        return reader(text)
    except InvalidPipeline:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise InvalidPipeline(
            f"{argument}={name!r} is not a schema of columns: {reason}.",
            do=f'correct the file, or write the columns themselves: {argument}="a INT, b STRING NOT NULL".',
        ) from error


def _of_avro(text: str) -> list[pa.Field]:
    record = avro_columns.parsed(text)
    columns = avro_columns.columns_of(record)
    found = []
    for field in record["fields"]:
        name, data_type = field["name"], columns[field["name"]]
        if data_type is None or pa.types.is_null(data_type):
            raise ValueError(f"field {name!r} has no type of a column (a union of several, or a type within itself)")
        may_be_missing = "default" in field or (isinstance(field["type"], list) and "null" in field["type"])
        found.append(pa.field(name, data_type, nullable=may_be_missing))
    return found


def _of_json_schema(text: str) -> list[pa.Field]:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    return _members(columns_in(schema), schema, "", ())


def columns_in(schema: Any) -> Mapping[str, Any]:
    """Return the object of a JSON Schema whose properties are the columns."""
    of, _ = _follow(schema, schema, "the schema", ())
    if of.get("type") != "object" or not isinstance(of.get("properties"), dict):
        raise ValueError('it is not of "type": "object" with "properties", which could be columns')
    return of


def _members(of: Mapping[str, Any], root: Mapping[str, Any], path: str, within: tuple[str, ...]) -> list[pa.Field]:
    required = of.get("required", ())
    found = []
    for name, member in of["properties"].items():
        data_type, may_be_null = _json_type(member, root, f"{path}.{name}" if path else name, within)
        found.append(pa.field(name, data_type, nullable=may_be_null or name not in required))
    return found


def _json_type(of: Any, root: Mapping[str, Any], path: str, within: tuple[str, ...]) -> tuple[pa.DataType, bool]:
    """Return the type of a property, and whether null is one of its values."""
    of, within = _follow(of, root, f"property {path!r}", within)
    kinds = of.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    may_be_null = "null" in kinds
    kinds = [kind for kind in kinds if kind != "null"]
    if kinds == [None]:
        branches = of.get("anyOf", of.get("oneOf"))
        others = [each for each in branches if each != {"type": "null"}] if isinstance(branches, list) else []
        if len(others) == 1 and isinstance(branches, list):
            data_type, inner = _json_type(others[0], root, path, within)
            return data_type, inner or len(branches) > 1
        values = [each for each in of.get("enum", ()) if each is not None]
        if values and all(isinstance(each, str) for each in values):
            return pa.string(), None in of["enum"]
        raise ValueError(f"property {path!r} has no single type")
    if len(kinds) != 1:
        raise ValueError(f"property {path!r} has no single type")
    kind = kinds[0]
    if kind == "array" and "items" in of:
        element, has_null = _json_type(of["items"], root, f"{path}.items", within)
        return pa.list_(pa.field("element", element, nullable=has_null)), may_be_null
    if kind == "object" and isinstance(of.get("properties"), dict):
        return pa.struct(_members(of, root, path, within)), may_be_null
    if kind in _SIMPLE:
        return _FORMATS.get((kind, of.get("format")), _SIMPLE[kind]), may_be_null
    raise ValueError(f"property {path!r} is of type {kind!r}, and what it holds is not said")


def _follow(
    of: Any, root: Mapping[str, Any], what: str, within: tuple[str, ...]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Follow references into the same file; return also which ones led here."""
    while isinstance(of, dict) and "$ref" in of:
        reference = of["$ref"]
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise ValueError(f"{what} refers to {reference!r}, which is not in this file")
        if reference in within:
            raise ValueError(f"{what} contains itself, by {reference!r}")
        within = (*within, reference)
        of = root
        for step in reference.removeprefix("#/").split("/"):
            of = of.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(of, dict) else None
    if isinstance(of, dict):
        return of, within
    raise ValueError(f"{what} is no object")


def end_of_columns(text: str) -> int:
    """Return where the last column ends, in a text in SQL's words: comments and the end of a statement are behind it.

    Examples
    --------
    >>> end_of_columns("a INT -- first"), end_of_columns("CREATE TABLE t (a INT ) USING json;")
    (5, 21)
    """
    created = _CREATE.match(text.lstrip())
    at = created.end() + len(text) - len(text.lstrip()) if created else 0
    end, depth = at, 1
    for found in _PIECE.finditer(text, at):
        piece = found[0]
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if depth == 0:
            break
        if not (piece.isspace() or piece == ";" or piece.startswith(("--", "/*"))):
            end = found.end()
    return end


def _of_ddl(text: str) -> list[pa.Field]:
    """Read columns, or those of one CREATE TABLE; what follows its columns (USING, LOCATION) is not about them."""
    pieces = [found[0] for found in _PIECE.finditer(text)]
    invariant("".join(pieces) == text, "a schema in SQL's words was read with a gap, where a column may be.")
    plain = ["" if piece.startswith("--") else " " if piece.startswith("/*") else piece for piece in pieces]
    content = "".join(plain).strip().removesuffix(";")
    created = _CREATE.match(content)
    if created is None:
        return ddl.fields(content)
    depth, columns = 1, ""
    for found in _PIECE.finditer(content, created.end()):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return ddl.fields(columns)
        columns += found[0]
    raise ValueError("the columns of CREATE TABLE have no end")


_READERS: dict[str, Callable[[str], list[pa.Field]]] = {
    ".avsc": _of_avro,
    ".json": _of_json_schema,
    ".ddl": _of_ddl,
    ".sql": _of_ddl,
}
