"""DDL schemas (``"a INT, b STRUCT<x: DOUBLE> NOT NULL"``) as Arrow fields, read without a JVM."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

from holdfast.errors import InvalidPipeline

# The dialect's general SQL parsers accept "a INT b STRING" and forget what they do not know; a schema must not
# silently lose a column, so its small grammar is read here, token by token, to the end.
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)*`)
      | (?P<word>\w+)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<mark>[<>(),:])
      | (?P<odd>\S)
    )""",
    re.VERBOSE,
)

SIMPLE_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Spark's name of a type -> its Arrow type, as PySpark converts it."""

_DECIMALS = ("decimal", "dec", "numeric")
_SLIPS = {
    "text": "STRING",
    "str": "STRING",
    "datetime": "TIMESTAMP",
    "timestamptz": "TIMESTAMP",
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "bytes": "BINARY",
    "list": "ARRAY",
}


def fields(text: str) -> list[pa.Field]:
    """Read a DDL schema.

    Parameters
    ----------
    text : str
        Columns separated by commas, each ``name TYPE [NOT NULL] [COMMENT '...']``; a colon may be between name
        and type, and a name that is not a plain word is in backticks.

    Raises
    ------
    InvalidPipeline
        If the text does not follow the grammar to its end, naming the column.

    Examples
    --------
    >>> [str(field) for field in fields("a INT, b ARRAY<STRING> NOT NULL")]
    ['pyarrow.Field<a: int32>', 'pyarrow.Field<b: list<element: string> not null>']
    """
    tokens = _Tokens(text)
    found = [_field(tokens, path="")]
    while tokens.take(","):
        found.append(_field(tokens, path=""))
    if not tokens.at_end:
        raise tokens.wrong(found[-1].name, f"{tokens.next!r} is where a comma or the end is expected")
    return found


class _Tokens:
    """The words of a DDL text, and how far they have been read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._matches = list(_TOKEN.finditer(text))
        self._index = 0

    @property
    def at_end(self) -> bool:
        return self._index >= len(self._matches)

    @property
    def next(self) -> str:
        return "the end" if self.at_end else self._matches[self._index].group().strip()

    def take(self, *words: str) -> bool:
        """Read these words if they are the next ones."""
        upcoming = [match.group().strip().upper() for match in self._matches[self._index : self._index + len(words)]]
        if upcoming != [word.upper() for word in words]:
            return False
        self._index += len(words)
        return True

    def kind(self) -> str:
        return "" if self.at_end else str(self._matches[self._index].lastgroup)

    def read(self) -> str:
        word = self.next
        self._index += 1
        return word

    def wrong(self, column: str, why: str) -> InvalidPipeline:
        shortened = self.text if len(self.text) <= 200 else self.text[:197] + "..."
        return InvalidPipeline(
            f"the schema {shortened!r} cannot be read at column {column or self.next!r}.",
            why=f"{why}.",
            do='write columns as "name TYPE [NOT NULL]", separated by commas, for instance '
            '"a INT, b STRING NOT NULL, c ARRAY<DOUBLE>"; names that are not plain words must be in `backticks`.',
        )


def _field(tokens: _Tokens, *, path: str) -> pa.Field:
    if tokens.kind() not in ("word", "quoted"):
        raise tokens.wrong(path, f"{tokens.next!r} is where a column name is expected")
    quoted = tokens.kind() == "quoted"
    word = tokens.read()
    name = word[1:-1].replace("``", "`") if quoted else word
    column = f"{path}.{name}" if path else name
    tokens.take(":")
    data_type = _type(tokens, column)
    nullable = not tokens.take("NOT", "NULL")
    if tokens.take("COMMENT"):
        if tokens.kind() != "text":
            raise tokens.wrong(column, "COMMENT is not followed by a quoted text")
        tokens.read()
    return pa.field(name, data_type, nullable=nullable)


def _type(tokens: _Tokens, column: str) -> pa.DataType:
    if tokens.kind() != "word":
        raise tokens.wrong(column, f"{tokens.next!r} is where a type is expected")
    name = tokens.read().lower()
    if name in _NESTED:
        return _NESTED[name](tokens, column)
    if name in _DECIMALS:
        precision, scale = _numbers(tokens, column) if tokens.next == "(" else [10, 0]
        return pa.decimal128(precision, scale)
    if name in SIMPLE_TYPES:
        if name in ("char", "varchar"):
            _numbers(tokens, column)
        return SIMPLE_TYPES[name]
    if name == "interval":
        return _interval(tokens, column)
    cure = f"; Spark's word for it is {_SLIPS[name]}" if name in _SLIPS else ""
    raise tokens.wrong(column, f"{name!r} is not a type that Spark and Arrow share{cure}")


def _array(tokens: _Tokens, column: str) -> pa.DataType:
    _expect(tokens, "<", column)
    element = _type(tokens, f"{column}.element")
    _expect(tokens, ">", column)
    return pa.list_(pa.field("element", element))


def _map(tokens: _Tokens, column: str) -> pa.DataType:
    _expect(tokens, "<", column)
    key = _type(tokens, f"{column}.key")
    _expect(tokens, ",", column)
    value = _type(tokens, f"{column}.value")
    _expect(tokens, ">", column)
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))


def _struct(tokens: _Tokens, column: str) -> pa.DataType:
    _expect(tokens, "<", column)
    members = [_field(tokens, path=column)]
    while tokens.take(","):
        members.append(_field(tokens, path=column))
    _expect(tokens, ">", column)
    return pa.struct(members)


_NESTED: dict[str, Callable[[_Tokens, str], pa.DataType]] = {"array": _array, "map": _map, "struct": _struct}


def _interval(tokens: _Tokens, column: str) -> pa.DataType:
    units = [tokens.read().lower()]
    if tokens.take("TO"):
        units.append(tokens.read().lower())
    if not set(units) <= {"day", "hour", "minute", "second"}:
        raise tokens.wrong(column, "Arrow knows intervals of days to seconds only")
    return pa.duration("us")


def _numbers(tokens: _Tokens, column: str) -> list[int]:
    _expect(tokens, "(", column)
    found = [_number(tokens, column)]
    if tokens.take(","):
        found.append(_number(tokens, column))
    _expect(tokens, ")", column)
    return found if len(found) == 2 else [*found, 0]


def _number(tokens: _Tokens, column: str) -> int:
    word = tokens.read()
    if not word.isdigit():
        raise tokens.wrong(column, f"{word!r} is where a number is expected")
    return int(word)


def _expect(tokens: _Tokens, mark: str, column: str) -> None:
    if not tokens.take(mark):
        raise tokens.wrong(column, f"{tokens.next!r} stands where {mark!r} is expected")
