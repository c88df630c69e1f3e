"""JSON lines from Arrow columns, without touching single rows where the type allows it."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRow
from holdfast.types.canonical import is_text
from holdfast.types.conversion import check_range, list_offsets, map_entries
from holdfast.types.plain import flat
from holdfast.types.schema import is_list

# NB no value is made while this module is loaded: pyarrow imports pandas for the first one, 0.3 s in every worker.
_TEXT = pa.large_string()
_TO_ESCAPE = r'["\\\x00-\x1f]'


def encode(rows: pa.Table | pa.RecordBatch) -> bytes:
    r"""Return rows, which :func:`check` passes, as JSON lines, UTF-8, every column in every line.

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
    """Raise :class:`BadRow` if a column has a value that JSON cannot say, or that readers could not read.

    Text that is not UTF-8 (it would be written as it is), a time outside of the years 1 to 9999, a map with keys that
    have no text.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
            check_range(column)
            if column.null_count < len(column):
                _check_keys(column.type)
        except (pa.ArrowException, ValueError) as error:
            raise BadRow(
                f"column {name!r} holds a value that cannot be written as JSON.",
                why=f"{error}.",
                do="correct or filter such rows before the sink.",
            ) from error


def _check_keys(kind: pa.DataType) -> None:
    if pa.types.is_map(kind) and not _is_word(kind.key_type):
        raise ValueError(f"the keys of a map are texts there, and those of {kind} have none")
    for place in range(kind.num_fields):
        _check_keys(kind.field(place).type)


def _batches(rows: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    return [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches(max_chunksize=65_536)


def _lines(batch: pa.RecordBatch) -> bytes:
    text = _join([(name, _texts(column)) for name, column in zip(batch.schema.names, batch.columns, strict=True)])
    lines = pc.binary_join_element_wise(text, pa.scalar("\n", _TEXT), pa.scalar("", _TEXT))
    # The values of an array are contiguous: its data buffer is the file's content.
    ends = memoryview(lines.buffers()[1]).cast("q")
    return bytes(lines.buffers()[2][ends[lines.offset] : ends[lines.offset + len(lines)]])


def _join(members: list[tuple[str, pa.Array]]) -> pa.Array:
    pieces: list[Any] = []
    for number, (name, texts) in enumerate(members):
        pieces += [pa.scalar(("," if number else "{") + json.dumps(name, ensure_ascii=False) + ":", _TEXT), texts]
    return pc.binary_join_element_wise(*pieces, pa.scalar("}", _TEXT), pa.scalar("", _TEXT))


def _texts(column: pa.Array) -> pa.Array:
    """Return the JSON text of every value; no nulls."""
    column = flat(column)
    return pc.fill_null(_encoder(column.type)(column), pa.scalar("null", _TEXT))


def _encoder(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_null(kind):
        return _plain
    if types.is_floating(kind):
        return _floats
    if is_text(kind):
        return _strings
    if types.is_date(kind) or types.is_time(kind):
        return lambda column: _quote(_plain(column))
    if types.is_timestamp(kind):
        return _timestamps
    if types.is_struct(kind):
        return _structs
    if types.is_map(kind):
        return _maps
    if is_list(kind):
        return _lists
    if types.is_duration(kind):
        return _durations
    return _one_by_one


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(_TEXT)


def _floats(column: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_finite(column), _float_texts(column), pa.scalar(None, _TEXT))


def _float_texts(column: pa.Array) -> pa.Array:
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    texts = _plain(column)
    # 1.0 is cast to "1": the point shows readers that guess types from the first lines that this is not an integer.
    return pc.if_else(pc.match_substring_regex(texts, r"[.en]"), texts, _added(texts, after=".0"))


def _strings(column: pa.Array) -> pa.Array:
    texts = column.cast(_TEXT)
    quoted = _quote(texts)
    special = pc.fill_null(pc.match_substring_regex(texts, _TO_ESCAPE), False)
    if not pc.any(special).as_py():
        return quoted
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, _TEXT))


def _timestamps(column: pa.Array) -> pa.Array:
    local = column.cast(pa.timestamp(column.type.unit))
    texts = pc.strftime(local, format="%Y-%m-%dT%H:%M:%S").cast(_TEXT)
    return _quote(_added(texts, after="Z") if column.type.tz else texts)


def _structs(column: pa.Array) -> pa.Array:
    names = [field.name for field in column.type]
    if not names:
        return pc.if_else(column.is_valid(), pa.scalar("{}", _TEXT), pa.scalar(None, _TEXT))
    text = _join([(name, _texts(member)) for name, member in zip(names, column.flatten(), strict=True)])
    return pc.if_else(column.is_valid(), text, pa.scalar(None, _TEXT))


def _lists(column: pa.Array) -> pa.Array:
    return _enclosed("[", column, _texts(column.flatten()), "]")


def _maps(column: pa.Array) -> pa.Array:
    entries = map_entries(column)
    keys, items = entries.flatten().flatten()
    members = pc.binary_join_element_wise(_key_texts(flat(keys)), _texts(items), pa.scalar(":", _TEXT))
    return _enclosed("{", entries, members, "}")


def _key_texts(keys: pa.Array) -> pa.Array:
    if is_text(keys.type) or pa.types.is_timestamp(keys.type):
        return _texts(keys)
    return _quote(_float_texts(keys) if pa.types.is_floating(keys.type) else _plain(keys))


def _enclosed(first: str, lists: pa.Array, members: pa.Array, last: str) -> pa.Array:
    """Return the texts of lists, whose members have these."""
    grouped = pa.ListArray.from_arrays(list_offsets(lists), members, mask=lists.is_null())
    joined = pc.binary_join(grouped, pa.scalar(",", _TEXT))
    return pc.binary_join_element_wise(pa.scalar(first, _TEXT), joined, pa.scalar(last, _TEXT), pa.scalar("", _TEXT))


def _durations(column: pa.Array) -> pa.Array:
    micros = column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.decimal128(19, 0))
    return _plain(pc.multiply(micros, pa.scalar(Decimal("0.000001"))))


def _one_by_one(column: pa.Array) -> pa.Array:
    # Binary values: rare in files of lines, and no column function writes them.
    values = (base64.b64encode(value).decode() if isinstance(value, bytes) else value for value in column.to_pylist())
    return pa.array([None if value is None else json.dumps(str(value), ensure_ascii=False) for value in values], _TEXT)


def _quote(texts: pa.Array) -> pa.Array:
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
    if pa.types.is_temporal(kind):
        return _typed(key, kind)
    return key if is_text(kind) else pa.scalar(key.lower()).cast(kind).as_py()


def _is_word(kind: pa.DataType) -> bool:
    """Return whether values of a type can be keys in JSON."""
    types = pa.types
    words = (is_text, types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
    times = (types.is_date, types.is_time, types.is_timestamp)
    return any(test(kind) for test in (*words, *times))
