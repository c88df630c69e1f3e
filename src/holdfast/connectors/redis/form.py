"""The form of rows in Redis: entries of a stream, a hash for each row, or fields of one hash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import json_lines, sql
from holdfast.errors import BadRow, InvalidPipeline

Kind = Literal["stream", "hash", "fields"]
KINDS: tuple[Kind, ...] = ("stream", "hash", "fields")

CHUNK_ROWS = 500
CHUNK_BYTES = 1 << 20
"""A chunk ends at either: the server writes one in a few milliseconds, and serves nobody else meanwhile."""

ROW_BYTES_MAX = 256 << 20
"""The server takes no value above 512 MB (``proto-max-bulk-len``)."""

COLUMNS_MAX = 1_000
"""More arguments of one command than this the server's Lua has no room for."""

NAMED = 1 << 31
"""Added to the number of columns of a chunk that has their names.  One that an earlier version staged has none, and its
columns are taken for those of now, in their order; or it has them without saying so: the lengths in it tell which."""

_TYPES = {"stream": "stream", "hash": "", "fields": "hash"}


def is_within(kind: str, key: str, other: str) -> bool:
    """Return whether a row of a sink could have a key that is another sink's, or begins as its rows do.

    Examples
    --------
    >>> is_within("hash", "orders", "orders:eu"), is_within("stream", "orders", "orders:eu")
    (True, False)
    """
    return kind == "hash" and other.startswith(f"{key}:")


@dataclass(frozen=True)
class Form:
    """How a row is kept.  Picklable: tasks pack rows.

    Parameters
    ----------
    key : str
        The stream, the one hash, or what the keys of the hashes begin with.
    kind : {"stream", "hash", "fields"}
        An entry of a stream, a hash of its own, a field of one hash.
    id : str, optional
        The column that identifies a row; None only for a stream.
    max_length : int, optional
        Entries that a stream keeps.
    expire_ms : int, optional
        How long the hash of a row lives.
    """

    key: str
    kind: Kind
    id: str | None = None
    max_length: int | None = None
    expire_ms: int | None = None

    @property
    def type(self) -> str:
        """The type that the server must give for the key; empty where the key itself is not used."""
        return _TYPES[self.kind]

    def check_schema(self, node: str, schema: pa.Schema) -> None:
        """Raise :class:`InvalidPipeline` if rows with these columns have no such form."""
        if len(set(schema.names)) < len(schema.names) or not 0 < len(schema) <= COLUMNS_MAX:
            raise InvalidPipeline(
                f"{node}: rows with the columns {', '.join(schema.names[:20]) or '(none)'} cannot be written.",
                why=f"a row needs distinct columns, at least one and at most {COLUMNS_MAX}.",
                do="rename or leave out columns with select(...) before the sink.",
            )

    def instructions(self, schema: pa.Schema) -> str:
        """Return what the server's script must know of the form."""
        fields = [] if self.kind == "fields" else schema.names
        said: dict[str, Any] = {"kind": self.kind, "fields": fields, "named": NAMED, "type": self.type}
        if self.max_length is not None:
            said["max_length"] = self.max_length
        if self.expire_ms is not None:
            said["expire_ms"] = str(self.expire_ms)
        if self.id is not None and self.kind == "stream":
            said["id"] = self.id
        return json.dumps(said)

    def check(self, node: str, rows: pa.RecordBatch) -> None:
        """Raise :class:`BadRow` if a row has no such form."""
        for _ in self.chunks(node, rows):
            pass

    def chunks(self, node: str, rows: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        """Yield rows as the server's script takes them: how many, and their bytes.

        Notes
        -----
        Little-endian.  Rows and columns as u32, ``NAMED`` added to these.  For each column the bytes of its name as
        u32, the name, the bytes of its values as u32, the length of each value as i32 (-1 for null), and the values.
        So what was staged can be shown by a run whose rows name their columns in another order.  In front of the
        columns of a hash, or of a field, stands the id.
        """
        if not rows.num_rows:
            return
        if self.id is not None and rows.column(self.id).null_count:
            raise BadRow(
                f"{node}: {rows.column(self.id).null_count} rows have a null in the id column {self.id!r}.",
                why="a row is found again by its id.",
                do=f'filter such rows out before the sink: hf.filter("{self.id} is not null").',
            )
        columns = self._columns(node, rows)
        if self.id is None:
            _check_not_empty(node, [values for _, values in columns])
        yield from _cut(node, columns)

    def _columns(self, node: str, rows: pa.RecordBatch) -> list[tuple[str, pa.Array]]:
        ids = []
        if self.id is not None and self.kind != "stream":
            ids = [(self.id, _bytes(node, self.id, rows.column(self.id)))]
        if self.kind == "fields":
            json_lines.check(rows)
            lines = json_lines.encode(rows).splitlines()
            return [*ids, ("", pa.array(lines, pa.large_binary()))]
        return [*ids, *((name, _bytes(node, name, rows.column(name))) for name in rows.schema.names)]


def _check_not_empty(node: str, columns: list[pa.Array]) -> None:
    has_value = columns[0].is_valid()
    for column in columns[1:]:
        has_value = pc.or_(has_value, column.is_valid())
    if not pc.all(has_value).as_py():
        raise BadRow(
            f"{node}: a row has nothing but nulls.",
            why="a null is a field that is absent, and Redis has no entry without fields.",
            do="filter such rows out before the sink, or give rows an id: hf.row_id().",
        )


def _cut(node: str, columns: list[tuple[str, pa.Array]]) -> Iterator[tuple[int, bytes]]:
    count = len(columns[0][1])
    waiting = [(low, min(low + CHUNK_ROWS, count)) for low in range(0, count, CHUNK_ROWS)][::-1]
    while waiting:
        low, high = waiting.pop()
        packed = _pack([(name, values.slice(low, high - low)) for name, values in columns])
        if len(packed) <= CHUNK_BYTES or (high - low == 1 and len(packed) <= ROW_BYTES_MAX):
            yield high - low, packed
        elif high - low == 1:
            raise BadRow(
                f"{node}: a row has {len(packed)} bytes.",
                why=f"more than {ROW_BYTES_MAX} are not sent: the server refuses large values.",
                do="filter such rows out before the sink, or keep large values elsewhere and write where they are.",
            )
        else:
            middle = (low + high) // 2
            waiting += [(middle, high), (low, middle)]


def _pack(columns: list[tuple[str, pa.Array]]) -> bytes:
    pieces = [np.array([len(columns[0][1]), NAMED + len(columns)], "<u4").tobytes()]
    for name, column in columns:
        called = name.encode()
        lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy(zero_copy_only=False).astype("<i4")
        values = _contiguous(column)
        pieces += [np.array([len(called)], "<u4").tobytes(), called, np.array([len(values)], "<u4").tobytes()]
        pieces += [lengths.tobytes(), values]
    return b"".join(pieces)


def _contiguous(column: pa.Array) -> bytes:
    values = pc.fill_null(column, b"")
    if values.buffers()[2] is None:
        return b""
    ends = np.frombuffer(values.buffers()[1], "<i8")
    return bytes(values.buffers()[2][ends[values.offset] : ends[values.offset + len(values)]])


def _bytes(node: str, name: str, column: pa.Array) -> pa.Array:
    """Return the values as the server keeps them; nulls stay."""
    values = sql.flat(column)
    kind = values.type
    try:
        return _texts(node, name, values, kind).cast(pa.large_binary())
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise sql.unkept_value(node, name, "Redis", error) from error


def _texts(node: str, name: str, values: pa.Array, kind: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_string(kind) or types.is_large_string(kind):
        return values
    if types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    if types.is_null(kind):
        return values.cast(pa.large_string())
    if types.is_nested(kind):
        sql.check_nested(node, name, values, "Redis")
        return sql.json_text(values)
    if types.is_timestamp(kind):
        texts = pc.strftime(values.cast(pa.timestamp(kind.unit)), format="%Y-%m-%dT%H:%M:%S").cast(pa.large_string())
        zone, none = pa.scalar("Z" if kind.tz else "", pa.large_string()), pa.scalar("", pa.large_string())
        return pc.binary_join_element_wise(texts, zone, none)
    if types.is_duration(kind):
        return pc.cast(pc.cast(values, pa.duration("us"), safe=False), pa.int64()).cast(pa.large_string())
    return (values.cast(pa.float32()) if types.is_float16(kind) else values).cast(pa.large_string())
