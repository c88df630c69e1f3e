"""JSON lines from Arrow columns, without touching single rows where the type allows it."""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRow

# NB no value is made while this module is loaded: pyarrow imports pandas for the first one, 0.3 s in every worker.
_TEXT = pa.large_string()
_TO_ESCAPE = r'["\\\x00-\x1f]'


def encode(rows: pa.Table | pa.RecordBatch) -> bytes:
    r"""Return rows as JSON lines, UTF-8, every column in every line.

    Nulls, NaN and infinities are ``null``; timestamps are ISO 8601, with ``Z`` where they are instants; decimals are
    numbers; binary values are base64.

    Examples
    --------
    >>> encode(pa.table({"a": [1, None], "b": ['x"y', "z"]}))
    b'{"a":1,"b":"x\\"y"}\n{"a":null,"b":"z"}\n'
    """
    return b"".join(_lines(batch) for batch in _batches(rows) if batch.num_rows)


def decode(data: bytes, schema: pa.Schema) -> pa.Table:
    r"""Return the rows of lines that :func:`encode` has made; NaN and infinities, which lines do not keep, are null.

    Notes
    -----
    Arrow reads the lines where it knows how all types were written; else each is read by itself, in Python.

    Examples
    --------
    >>> decode(b'{"a":1,"at":"2026-01-02"}\n', pa.schema([("a", pa.int8()), ("at", pa.date32())])).to_pylist()
    [{'a': 1, 'at': datetime.date(2026, 1, 2)}]
    """
    if not data.strip() or not all(pa.types.is_date(kind) or _is_read_by_arrow(kind) for kind in schema.types):
        rows = (json.loads(line, parse_float=Decimal) for line in data.splitlines())
        return pa.Table.from_pylist([_typed(row, pa.struct(list(schema))) for row in rows], schema)
    read = [field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in schema]
    from pyarrow import json as pa_json

    found = pa_json.read_json(
        pa.BufferReader(data),
        read_options=pa_json.ReadOptions(block_size=len(data) + 1),
        parse_options=pa_json.ParseOptions(explicit_schema=pa.schema(read), unexpected_field_behavior="ignore"),
    )
    return found.select(schema.names).cast(schema)


def check(batch: pa.RecordBatch) -> None:
    """Raise :class:`BadRow` if a column has a value that JSON cannot say: text that is not UTF-8, a time too far."""
    check_text(batch)
    for name, column in _not_plain(batch):
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            with _explained(name):
                _texts(column)


def check_text(batch: pa.RecordBatch) -> None:
    """Raise :class:`BadRow` if a text is not UTF-8: it would be written as it is."""
    for name, column in _not_plain(batch):
        with _explained(name):
            column.validate(full=True)


def _not_plain(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """Return the columns but those of numbers: each of them has its text."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = column.type
        if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            yield name, column


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise BadRow(
            f"column {name!r} holds a value that cannot be written as JSON.",
            why=f"{error}.",
            do="correct or filter such rows before the sink.",
        ) from error


def _batches(rows: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    return [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches(max_chunksize=65_536)


def _lines(batch: pa.RecordBatch) -> bytes:
    text = _joined([(name, _texts(column)) for name, column in zip(batch.schema.names, batch.columns, strict=True)])
    lines = pc.binary_join_element_wise(text, pa.scalar("\n", _TEXT), pa.scalar("", _TEXT))
    # The values of an array are contiguous: its data buffer is the file's content.
    ends = memoryview(lines.buffers()[1]).cast("q")
    return bytes(lines.buffers()[2][ends[lines.offset] : ends[lines.offset + len(lines)]])


def _joined(members: list[tuple[str, pa.Array]]) -> pa.Array:
    pieces: list[Any] = []
    for number, (name, texts) in enumerate(members):
        pieces += [pa.scalar(("," if number else "{") + json.dumps(name, ensure_ascii=False) + ":", _TEXT), texts]
    return pc.binary_join_element_wise(*pieces, pa.scalar("}", _TEXT), pa.scalar("", _TEXT))


def _texts(column: pa.Array) -> pa.Array:
    """Return the JSON text of every value; no nulls."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return pc.fill_null(_encoder(column.type)(column), pa.scalar("null", _TEXT))


def _encoder(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_null(kind):
        return _plain
    if types.is_floating(kind):
        return _floats
    if types.is_string(kind) or types.is_large_string(kind):
        return _strings
    if types.is_date(kind) or types.is_time(kind):
        return lambda column: _quoted(_plain(column))
    if types.is_timestamp(kind):
        return _timestamps
    if types.is_struct(kind):
        return _structs
    return _one_by_one


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(_TEXT)


def _floats(column: pa.Array) -> pa.Array:
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    texts = _plain(column)
    # 1.0 is cast to "1": the point shows readers that guess types from the first lines that this is not an integer.
    texts = pc.if_else(pc.match_substring_regex(texts, r"[.e]"), texts, _added(texts, after=".0"))
    return pc.if_else(pc.is_finite(column), texts, pa.scalar(None, _TEXT))


def _strings(column: pa.Array) -> pa.Array:
    texts = column.cast(_TEXT)
    quoted = _quoted(texts)
    special = pc.fill_null(pc.match_substring_regex(texts, _TO_ESCAPE), False)
    if not pc.any(special).as_py():
        return quoted
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, _TEXT))


def _timestamps(column: pa.Array) -> pa.Array:
    local = column.cast(pa.timestamp(column.type.unit))
    texts = pc.strftime(local, format="%Y-%m-%dT%H:%M:%S").cast(_TEXT)
    return _quoted(_added(texts, after="Z") if column.type.tz else texts)


def _structs(column: pa.Array) -> pa.Array:
    names = [field.name for field in column.type]
    if not names:
        return pc.if_else(column.is_valid(), pa.scalar("{}", _TEXT), pa.scalar(None, _TEXT))
    text = _joined([(name, _texts(member)) for name, member in zip(names, column.flatten(), strict=True)])
    return pc.if_else(column.is_valid(), text, pa.scalar(None, _TEXT))


def _one_by_one(column: pa.Array) -> pa.Array:
    # Lists, maps, binary values, durations: rare in files of lines, and no column function writes them.
    values = (_json(value, column.type) for value in column.to_pylist())
    return pa.array([None if value is None else json.dumps(value, ensure_ascii=False) for value in values], _TEXT)


def _json(value: Any, kind: pa.DataType) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    if pa.types.is_map(kind):
        return {str(key): _json(member, kind.item_type) for key, member in value}
    if isinstance(value, dict):
        return {field.name: _json(value[field.name], field.type) for field in kind}
    if isinstance(value, list):
        return [_json(member, kind.value_type) for member in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat()
        return f"{text}Z" if value.tzinfo else text
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value)


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar('"', _TEXT), texts, pa.scalar('"', _TEXT), pa.scalar("", _TEXT))


def _added(texts: pa.Array, *, after: str) -> pa.Array:
    return pc.binary_join_element_wise(texts, pa.scalar(after, _TEXT), pa.scalar("", _TEXT))


def _is_read_by_arrow(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_read_by_arrow(member.type) for member in kind)
    if types.is_list(kind):
        return _is_read_by_arrow(kind.value_type)
    if types.is_decimal128(kind):
        return bool(kind.precision + kind.scale <= 38)  # else it reads other numbers
    plain = (types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_timestamp)
    return any(test(kind) for test in plain) and not types.is_float16(kind)


def _typed(value: Any, kind: pa.DataType) -> Any:
    """Return a value that JSON has as one of its type."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        return {field.name: _typed(value.get(field.name), field.type) for field in kind}
    if types.is_map(kind):
        return [(_typed_key(key, kind.key_type), _typed(item, kind.item_type)) for key, item in value.items()]
    if types.is_nested(kind):
        return [_typed(each, kind.value_type) for each in value]
    if types.is_floating(kind):
        return float(value)
    if types.is_decimal(kind):
        return Decimal(value)
    if types.is_timestamp(kind):
        return datetime.datetime.fromisoformat(value)
    if types.is_date(kind):
        return datetime.date.fromisoformat(value)
    if types.is_time(kind):
        return datetime.time.fromisoformat(value)
    if types.is_duration(kind):
        return datetime.timedelta(microseconds=round(value * 1_000_000))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return value
    return base64.b64decode(value)


def _typed_key(key: str, kind: pa.DataType) -> Any:
    """Return a key of a map, which is a text in JSON."""
    return key if pa.types.is_string(kind) else pa.scalar(key.lower()).cast(kind).as_py()
