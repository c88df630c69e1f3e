"""The form of rows in Kafka: of each its topic, partition, key, value, headers and time, made column by column."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kafka.topics import is_internal
from holdfast.connectors.kit import json_lines, sql
from holdfast.errors import BadRow, InvalidPipeline, present
from holdfast.types.units import check_destinations, refused_destination

if TYPE_CHECKING:
    from holdfast.connectors.kafka.avro_writing import AvroEncoder

Format = Literal["json", "avro", "bytes"]
FORMATS: tuple[Format, ...] = ("json", "avro", "bytes")
Mode = Literal["append", "upsert"]
MODES: tuple[Mode, ...] = ("append", "upsert")

CHUNK_ROWS = 16_384
"""Rows that are described at a time."""

OVERHEAD_BYTES = 512
"""What a batch and its one record need beyond key, value and headers, generously."""

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.large_binary())]))
_NULLABLE_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.large_binary())]))


@dataclass(frozen=True)
class RecordColumns:
    """Some messages that follow each other, by columns.

    Parameters
    ----------
    topics : str or pyarrow.Array
        Where they go: all to one topic, or each to its own.
    values : pyarrow.Array, large binary
        Null: a tombstone.
    keys : pyarrow.Array, large binary, optional
        Left out: none has one.
    partitions : pyarrow.Array of int32, optional
        Where each goes; left out, or -1: its key says where.
    headers : pyarrow.ListArray, optional
        Of type :data:`HEADERS`.
    times : pyarrow.Array of int64, optional
        Milliseconds; left out, or 0: when it is sent.
    """

    topics: str | pa.Array
    values: pa.Array
    keys: pa.Array | None = None
    partitions: pa.Array | None = None
    headers: pa.Array | None = None
    times: pa.Array | None = None

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.values)

    def by_place(self) -> Iterator[tuple[str, int, RecordColumns]]:
        """Yield topic, partition (-1: their keys say where) and the messages there, in their order."""
        for topic, those in self._by(self.topics):
            column = those.partitions
            # A partition that the key says may be the same as one that the row names: none may overtake another.
            is_mixed = column is not None and 0 < column.null_count < len(column)
            for partition, found in those._in_turn(column) if is_mixed else those._by(column):
                yield topic, -1 if partition is None else partition, found

    def _by(self, column: str | pa.Array | None) -> Iterator[tuple[Any, RecordColumns]]:
        """Yield each value of a column, which may be the same for all, and the messages that have it."""
        if not isinstance(column, pa.Array):
            yield column, self
            return
        for value in pc.unique(column):
            yield value.as_py(), self._each(partial(_filter, those=pc.equal(column, value)))

    def _in_turn(self, column: pa.Array) -> Iterator[tuple[Any, RecordColumns]]:
        """Yield each run of the same value, and the messages of it."""
        runs = pc.run_end_encode(column)
        begin = 0
        for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield value, self._each(partial(_cut, begin=begin, end=end))
            begin = end

    def after(self, count: int) -> RecordColumns:
        """Return the messages behind the first ones."""
        return self._each(lambda column: column[count:])

    def _each(self, made: Callable[[pa.Array], pa.Array]) -> RecordColumns:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return RecordColumns(
            **{name: made(value) if isinstance(value, pa.Array) else value for name, value in values.items()}
        )


def _cut(column: pa.Array, begin: int, end: int) -> pa.Array:
    return column[begin:end]


def _filter(column: pa.Array, those: pa.Array) -> pa.Array:
    return column.filter(those)


@dataclass(frozen=True)
class Limits:
    """What a cluster takes, as it said when the run started.

    Parameters
    ----------
    partitions : mapping of str to int
        Topic -> how many partitions it has; those that the sink declares, and no others.
    message_bytes : int
        The largest record.
    compacted : frozenset of str
        Topics that take no record without a key.
    behind_ms, ahead_ms : int, optional
        How far a record's time may be from the clock; None: as far as it likes.
    """

    partitions: Mapping[str, int] = field(default_factory=dict)
    message_bytes: int = 1_000_000
    compacted: frozenset[str] = frozenset()
    behind_ms: int | None = None
    ahead_ms: int | None = None


@dataclass(frozen=True)
class MessageForm:
    """How a row is written: columns as in ``write.kafka``.  Picklable: tasks write rows."""

    topic: str | None
    format: Format = "json"
    mode: Mode = "append"
    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    topic_by: str | None = None
    delete: str | None = None
    avro: AvroEncoder | None = None
    """What writes values of ``format="avro"``: known when the registry was asked."""

    @property
    def columns(self) -> list[str]:
        """The columns that it names."""
        single = (self.headers, self.timestamp, self.partition, self.topic_by, self.delete)
        return [*self.key, *self.value, *(name for name in single if name is not None)]

    def check_schema(self, node: str, schema: pa.Schema) -> None:
        """Raise :class:`InvalidPipeline` if rows with these columns have no such form."""
        types = pa.types
        wanted = {
            self.headers: (_are_headers, "a map of text to bytes or text, or a list as read.kafka gives it,"),
            self.timestamp: (lambda kind: types.is_timestamp(kind), "a timestamp"),
            self.partition: (types.is_integer, "an integer"),
            self.topic_by: (_is_text, "text"),
            self.delete: (types.is_boolean, "a boolean"),
        }
        if self.format == "bytes":
            wanted[self.value[0]] = (lambda kind: _is_text(kind) or _is_bytes(kind), "bytes or text")
        for name, (is_right, words) in wanted.items():
            if name is not None and not is_right(schema.field(name).type):
                raise InvalidPipeline(
                    f"{node}: the column {name!r} has the type {schema.field(name).type}.",
                    why=f"write.kafka needs {words} there.",
                    do=f"make one before the sink: select(..., '{name}'), or name another column.",
                )

    def check(self, node: str, rows: pa.RecordBatch, limits: Limits) -> None:
        """Raise :class:`BadRow` if a row has no such form, or the cluster would not take it."""
        for low in range(0, rows.num_rows, CHUNK_ROWS):
            self._chunk(node, rows.slice(low, CHUNK_ROWS), limits)

    def messages(self, node: str, rows: pa.RecordBatch, limits: Limits) -> Iterator[RecordColumns]:
        """Yield what is sent."""
        for low in range(0, rows.num_rows, CHUNK_ROWS):
            yield self._chunk(node, rows.slice(low, CHUNK_ROWS), limits)

    def _chunk(self, node: str, rows: pa.RecordBatch, limits: Limits) -> RecordColumns:
        deleted = None if self.delete is None else pc.fill_null(rows.column(self.delete), False)
        topics = self._topics(node, rows, limits)
        keys = self._keys(node, rows)
        self._check_compacted(node, topics, keys, limits)
        values = self._values(node, rows, deleted)
        headers = self._headers(node, rows)
        self._check_size(node, [keys, values], headers, limits)
        partitions = self._partitions(node, rows, topics, limits)
        times = None if self.timestamp is None else _milliseconds(rows.column(self.timestamp))
        if times is not None:
            self._check_times(node, times, limits)
        keys = None if keys is None else keys.cast(pa.large_binary())
        return RecordColumns(topics, values.cast(pa.large_binary()), keys, partitions, headers, times)

    def _keys(self, node: str, rows: pa.RecordBatch) -> pa.Array | None:
        if not self.key:
            return None
        keys = _bytes(node, rows, self.key)
        if self.mode == "upsert" and keys.null_count:
            raise BadRow(
                f"{node}: {keys.null_count} rows have a null in the key column {self.key[0]!r}.",
                why="in a compacted topic a row is found again by its key, and Kafka takes none without one there.",
                do=f'filter such rows out before the sink: hf.filter("{self.key[0]} is not null").',
            )
        return keys

    def _check_compacted(self, node: str, topics: str | pa.Array, keys: pa.Array | None, limits: Limits) -> None:
        if keys is None or not keys.null_count or not limits.compacted:
            return
        named = pa.array([topics]) if isinstance(topics, str) else topics.filter(keys.is_null())

        def refusal(topic: str) -> str | None:
            return "a compacted topic takes none without a key" if topic in limits.compacted else None

        do = f'filter such rows out before the sink: hf.filter("{self.key[0]} is not null"); or correct key='
        check_destinations(f"{node}: {self.key[0]!r} is null", "topic", named, refusal, f"{do}.")

    def _values(self, node: str, rows: pa.RecordBatch, deleted: pa.Array | None) -> pa.Array:
        if self.format == "bytes":
            values = _bytes(node, rows, self.value)
        elif self.format == "avro":
            values = self._avro(node, rows.select(self.value_columns(rows.schema)), deleted)
        else:
            values = _json(rows.select(self.value_columns(rows.schema)))
        if deleted is not None:
            values = pc.if_else(deleted, pa.scalar(None, values.type), values)
        if self.mode == "upsert" and values.null_count > (0 if deleted is None else pc.sum(deleted).as_py() or 0):
            raise BadRow(
                f"{node}: a row has no value, and is not said to be deleted.",
                why='in a topic of mode="upsert" a record without a value is a tombstone: it deletes its key.',
                do="filter such rows out before the sink, or name a column that says which rows delete: delete=.",
            )
        return values

    def value_columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns that the value is made of."""
        beside = (self.headers, self.partition, self.topic_by, self.delete)
        return list(self.value) or [name for name in schema.names if name not in beside]

    def _avro(self, node: str, rows: pa.RecordBatch, deleted: pa.Array | None) -> pa.Array:
        encoder = present(self.avro, "the schema of a sink's rows is known before there are rows")
        written = rows if deleted is None else rows.filter(pc.invert(deleted))
        from holdfast.connectors.kafka.avro_writing import Unwritable  # its library is another extra

        try:
            values = encoder.values(written)
        except Unwritable as error:
            raise BadRow(
                f"{node}: a row cannot be written with its schema, {encoder.number} of the registry.",
                why=f"{error}.",
                do="filter such rows out before the sink, or name a schema that takes them: value_schema=.",
            ) from error
        if deleted is None:
            return values
        at = pc.subtract(pc.cumulative_sum(pc.cast(pc.invert(deleted), pa.int64())), 1)
        return values.take(pc.if_else(deleted, pa.scalar(None, pa.int64()), at))

    def _headers(self, node: str, rows: pa.RecordBatch) -> pa.Array | None:
        if self.headers is None:
            return None
        json_lines.check(rows.select([self.headers]))
        column = rows.column(self.headers)
        if pa.types.is_map(column.type):  # the same, with fields of other names
            column = column.cast(pa.map_(pa.string(), pa.large_binary())).cast(_NULLABLE_HEADERS)
        headers = column.cast(_NULLABLE_HEADERS)
        names = pc.struct_field(headers.flatten(), 0)
        if names.null_count or pc.any(pc.match_substring(names, "\0")).as_py():
            raise BadRow(
                f"{node}, column {self.headers!r}: a header has no name, or one with the character NUL.",
                why="a header of a record is a name and bytes, or a name alone.",
                do="correct or filter such rows before the sink.",
            )
        return headers.cast(HEADERS)

    def _check_size(
        self, node: str, columns: Sequence[pa.Array | None], headers: pa.Array | None, limits: Limits
    ) -> None:
        size = pa.scalar(OVERHEAD_BYTES, pa.int64())
        for column in columns:
            if column is not None:
                size = pc.add(size, pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64()))
        if headers is not None:
            size = pc.add(size, _header_bytes(headers))
        largest = pc.max(size).as_py() - OVERHEAD_BYTES
        if largest + OVERHEAD_BYTES > limits.message_bytes:
            raise BadRow(
                f"{node}: a row is a record of {largest} bytes.",
                why=f"the topic takes {limits.message_bytes} at most, with what Kafka adds (max.message.bytes).",
                do="filter such rows out before the sink, keep large values elsewhere and write where they are, or "
                "raise max.message.bytes of the topic and start again.",
            )

    def _check_times(self, node: str, times: pa.Array, limits: Limits) -> None:
        given = times.filter(pc.not_equal(times, 0))
        if not len(given) or (limits.behind_ms is None and limits.ahead_ms is None):
            return
        (low, high), now = pc.min_max(given).as_py().values(), now_ms()
        for which, limit, is_wrong in (
            ("before", limits.behind_ms, limits.behind_ms is not None and low < now - limits.behind_ms),
            ("after", limits.ahead_ms, limits.ahead_ms is not None and high > now + limits.ahead_ms),
        ):
            if is_wrong:
                raise BadRow(
                    f"{node}, column {self.timestamp!r}: a row has a time that the topic does not take.",
                    why=f"it is {which} the clock by more than {limit} ms (message.timestamp.{which}.max.ms).",
                    do="filter such rows out before the sink, or change that setting of the topic and start again.",
                )

    def _topics(self, node: str, rows: pa.RecordBatch, limits: Limits) -> str | pa.Array:
        if self.topic_by is None:
            assert self.topic is not None
            return self.topic
        topics = rows.column(self.topic_by).cast(pa.string())
        if self.topic is not None:
            topics = pc.fill_null(topics, self.topic)

        def refusal(name: str | None) -> str | None:
            if name in limits.partitions:
                return None
            return "rows go to the topics that topic=, topics= and pattern= declare, as they were at the start" + (
                "; this is one of the cluster's own" if name is not None and is_internal(name) else ""
            )

        do = "declare the topic, create it and start again; or filter such rows out before the sink."
        check_destinations(f"{node}, column {self.topic_by!r}", "topic", topics, refusal, do)
        return topics

    def _partitions(self, node: str, rows: pa.RecordBatch, topics: str | pa.Array, limits: Limits) -> pa.Array | None:
        if self.partition is None:
            return None
        partitions = pc.fill_null(pc.cast(rows.column(self.partition), pa.int64()), -1)
        named = pa.repeat(topics, rows.num_rows) if isinstance(topics, str) else topics
        pairs = pa.table({"topic": named, "partition": partitions}).group_by(["topic", "partition"]).aggregate([])
        for topic, partition in (pair.values() for pair in pairs.to_pylist()):
            if not -1 <= partition < limits.partitions.get(topic, 1):
                why = f"it has the partitions 0 to {limits.partitions.get(topic, 1) - 1}"
                do = "correct the column; null leaves the choice to the key."
                named_by = f"{node}, column {self.partition!r}"
                raise refused_destination(named_by, "partition", f"{topic}/{partition}", why, do)
        return partitions.cast(pa.int32())


def now_ms() -> int:
    """Return the clock, in milliseconds of Unix time."""
    return time.time_ns() // 1_000_000


def check_names(form: MessageForm, columns: Collection[str] | None) -> None:
    """Raise :class:`InvalidPipeline` if a column that the form names is not there."""
    for name in form.columns:
        if columns is not None and name not in columns:
            raise InvalidPipeline(
                f"write.kafka: there is no column {name!r}.",
                why=f"the rows have the columns {', '.join(sorted(columns)[:20])}.",
                do="correct the name, or add the column with select(...) before the sink.",
            )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _are_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        key, value = kind.key_type, kind.item_type
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type):
        fields = list(kind.value_type)
        if [field.name for field in fields] != ["key", "value"]:
            return False
        key, value = (field.type for field in fields)
    else:
        return False
    return _is_text(key) and (_is_text(value) or _is_bytes(value))


def _bytes(node: str, rows: pa.RecordBatch, names: tuple[str, ...]) -> pa.Array:
    """Return text and bytes as they are, anything else as JSON; several columns as one JSON object."""
    if len(names) > 1:
        return _json(rows.select(list(names)))
    (name,) = names
    values = sql.flat(rows.column(name))
    if _is_bytes(values.type):
        return values.cast(pa.large_binary())
    if _is_text(values.type):
        json_lines.check(rows.select([name]))
        return values.cast(pa.large_binary())
    first = len(json.dumps({name: 0}, ensure_ascii=False, separators=(",", ":")).encode()) - 2  # {"name":
    texts = pa.array([line[first:-1] for line in _lines(rows.select([name]))], pa.large_binary())
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, texts.type))


def _json(rows: pa.RecordBatch) -> pa.Array:
    return pa.array(_lines(rows), pa.large_binary())


def _lines(rows: pa.RecordBatch) -> list[bytes]:
    if not rows.num_columns:
        return [b"{}"] * rows.num_rows
    json_lines.check(rows)
    return json_lines.encode(rows).split(b"\n")[:-1]


def _header_bytes(headers: pa.Array) -> pa.Array:
    """Return the bytes of the headers of each row."""
    each = headers.flatten()
    name, content = (pc.fill_null(pc.binary_length(pc.struct_field(each, at)).cast(pa.int64()), 0) for at in (0, 1))
    so_far = np.r_[0, np.cumsum(np.asarray(pc.add(name, content)))]
    counts = np.asarray(pc.fill_null(pc.list_value_length(headers), 0))
    ends = np.cumsum(counts)
    return pa.array(so_far[ends] - so_far[ends - counts])


def _milliseconds(column: pa.Array) -> pa.Array:
    local = column.cast(pa.timestamp(column.type.unit))
    return pc.fill_null(local.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()), 0)
