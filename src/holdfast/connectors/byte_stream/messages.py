"""Messages on their way into a store: from rows to columns of numbers and payloads, in the order of the stream.

The messages of an epoch in the order in which their streams get them: by timestamp, then by arrival.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.byte_stream.data_file import damaged
from holdfast.connectors.byte_stream.manifest import NAME_MAX, Times, directory_name
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.types.casting import declared
from holdfast.types.units import check_destinations

ONLY_STREAM = "main"
"""Name of the stream where no column names one."""

WINDOW_BYTES = 4 * 2**20
"""Read at once of what tasks staged."""


@dataclass(frozen=True)
class MessageColumns:
    """Which columns a sink takes, and what they are.

    Parameters
    ----------
    timestamp, data : str
        Columns of the rows.
    stream, key : str, optional
        Columns that name the stream, and mark random access points.
    """

    timestamp: str
    data: str
    stream: str | None = None
    key: str | None = None

    def names(self) -> list[str]:
        """Return the columns that are stored."""
        return [name for name in (self.stream, self.timestamp, self.key, self.data) if name is not None]

    def times(self, schema: pa.Schema) -> Times:
        """Return what timestamps of this type are."""
        return "time" if pa.types.is_timestamp(schema.field(self.timestamp).type) else "ticks"


@dataclass(frozen=True)
class Messages:
    """Messages in the order of their arrival; all arrays are of one length.

    Parameters
    ----------
    streams : tuple of str
        Names.
    codes : array of int32
        Which of these names.
    timestamps : array of int64
        Nanoseconds of Unix time, or ticks.
    keys : array of bool
        Whether a row is marked as a random access point.
    lengths, offsets : array of int64
        Where the payload lies.
    checksums : array of uint32
        CRC-32 of each payload.
    arrival : array of int64
        Number of each row in its part.
    """

    streams: tuple[str, ...]
    codes: np.ndarray
    timestamps: np.ndarray
    keys: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray
    checksums: np.ndarray
    arrival: np.ndarray

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.timestamps)


class Payloads(Protocol):
    """Where payloads lie."""

    def views(self, begins: Sequence[int], ends: Sequence[int]) -> Iterable[memoryview]:
        """Return some of them, each from its first byte to below its last one."""


class HeldPayloads:
    """Payloads in the driver's memory."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def views(self, begins: Sequence[int], ends: Sequence[int]) -> Iterable[memoryview]:
        """Return some of them."""
        data = self._data
        return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]


class StagedPayloads:
    """Payloads in a staged file, read some megabytes ahead."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._begin = 0
        self._window = memoryview(b"")

    def views(self, begins: Sequence[int], ends: Sequence[int]) -> Iterable[memoryview]:
        """Yield some of them: not all are held at the same time."""
        for begin, end in zip(begins, ends, strict=True):
            yield self._view(begin, end - begin)

    def _view(self, offset: int, length: int) -> memoryview:
        within = offset - self._begin
        if within < 0 or within + length > len(self._window):
            self._window = memoryview(os.pread(self._fd, max(length, WINDOW_BYTES), offset))
            self._begin, within = offset, 0
            if len(self._window) < length:
                raise damaged(self._path, offset + len(self._window), "staged messages should go on there")
        return self._window[within : within + length]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def messages_of(columns: MessageColumns, schema: pa.Schema, batch: pa.RecordBatch) -> tuple[Messages, HeldPayloads]:
    """Return the messages of rows, checked.

    Raises
    ------
    BadRow
        If a row has no timestamp, payload or stream, or one that cannot be stored.
    """
    rows = declared(batch, schema)
    _check_nulls(columns, rows)
    offsets, data = _payloads(rows.column(columns.data))
    lengths = np.diff(offsets)
    streams, codes = _streams(columns, rows)
    checksums = [
        zlib.crc32(data[begin:end]) for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]
    found = Messages(
        streams,
        codes,
        _timestamps(columns, rows),
        _keys(columns, rows),
        lengths,
        offsets[:-1],
        np.array(checksums, np.uint32),
        np.arange(rows.num_rows, dtype=np.int64),
    )
    return found, HeldPayloads(data)


def check(columns: MessageColumns, schema: pa.Schema, batch: pa.RecordBatch) -> None:
    """Raise what :func:`messages_of` would, without looking at payloads."""
    rows = declared(batch, schema)
    _check_nulls(columns, rows)
    _streams(columns, rows)
    _timestamps(columns, rows)


def check_schema(node: str, columns: MessageColumns, schema: pa.Schema) -> None:
    """Raise :class:`InvalidPipeline` where a column is missing, of another type, or would not be stored."""
    kinds = {
        columns.timestamp: (
            "TIMESTAMP, or BIGINT for ticks",
            lambda kind: pa.types.is_timestamp(kind) or kind == pa.int64(),
        ),
        columns.data: ("BINARY or STRING", lambda kind: _is_text(kind) or _is_binary(kind)),
        columns.stream: ("STRING", _is_text),
        columns.key: ("BOOLEAN", pa.types.is_boolean),
    }
    for column, (wanted, fits) in kinds.items():
        if column is not None and (column not in schema.names or not fits(schema.field(column).type)):
            found = schema.field(column).type if column in schema.names else "not there"
            raise InvalidPipeline(
                f"Sink {node!r} needs a column {column!r} of type {wanted}; it is {found}.",
                why="a message has a timestamp and a payload, and may have a stream and a mark.",
                do="name or cast the columns: hf.select(...) before the sink.",
                participant=node,
            )
    others = [name for name in schema.names if name not in kinds]
    if others:
        raise InvalidPipeline(
            f"Sink {node!r} would not store column {others[0]!r}.",
            why=f"a message has nothing but {', '.join(map(repr, columns.names()))}.",
            do="leave other columns out with hf.select(...) before the sink, or put them into the payload.",
            participant=node,
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _check_nulls(columns: MessageColumns, rows: pa.RecordBatch) -> None:
    for column in (columns.timestamp, columns.data, columns.stream):
        if column is not None and rows.column(column).null_count:
            raise BadRow(
                f"{rows.column(column).null_count} rows have a null in column {column!r}.",
                why="a message of a byte stream has a timestamp, a payload and a stream.",
                do=f'filter such rows out before the sink: hf.filter("{column} is not null"); or fill the column.',
            )


def _payloads(data: pa.Array) -> tuple[np.ndarray, memoryview]:
    """Return the borders of payloads in a buffer, and the buffer."""
    is_large = pa.types.is_large_binary(data.type) or pa.types.is_large_string(data.type)
    _, borders, values = data.buffers()
    if not len(data):
        return np.zeros(1, np.int64), memoryview(b"")
    offsets = np.frombuffer(borders, np.int64 if is_large else np.int32)[data.offset : data.offset + len(data) + 1]
    return offsets.astype(np.int64), memoryview(b"" if values is None else values).cast("B")


def _timestamps(columns: MessageColumns, rows: pa.RecordBatch) -> np.ndarray:
    values = rows.column(columns.timestamp)
    if pa.types.is_timestamp(values.type):
        try:
            values = values.cast(pa.timestamp("ns", values.type.tz))
        except pa.ArrowInvalid as error:
            raise BadRow(
                f"A time in column {columns.timestamp!r} cannot be stored in nanoseconds.",
                why=f"{error}: 64 bits reach from 1677 to 2262.",
                do="filter such rows out before the sink.",
            ) from error
    return np.asarray(pc.fill_null(values.cast(pa.int64()), 0))


def _keys(columns: MessageColumns, rows: pa.RecordBatch) -> np.ndarray:
    if columns.key is None:
        return np.zeros(rows.num_rows, bool)
    return np.asarray(pc.fill_null(rows.column(columns.key), False))


def _streams(columns: MessageColumns, rows: pa.RecordBatch) -> tuple[tuple[str, ...], np.ndarray]:
    if columns.stream is None:
        return (ONLY_STREAM,), np.zeros(rows.num_rows, np.int32)
    coded = rows.column(columns.stream).dictionary_encode()
    check_destinations(
        f"column {columns.stream!r}", "stream", coded.dictionary, _refusal, "give streams other names before the sink."
    )
    return tuple(coded.dictionary.to_pylist()), np.asarray(pc.fill_null(coded.indices, 0), np.int32)


def _refusal(name: str) -> str | None:
    is_right = 0 < len(directory_name(name)) <= NAME_MAX and "\0" not in name
    return None if is_right else f"it becomes a directory's name: 1 to {NAME_MAX} bytes, percent-encoded"


@dataclass(frozen=True)
class StreamMessages:
    """What one stream gets, in its order; all arrays are of one length.

    Parameters
    ----------
    timestamps, keys, lengths, offsets, checksums, arrival
        As of :class:`~holdfast.connectors.byte_stream.messages.Messages`.
    parts : array of int64
        Where each payload lies: a number in ``payloads``.
    payloads : sequence of Payloads
        Of all parts.
    """

    timestamps: np.ndarray
    keys: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray
    checksums: np.ndarray
    arrival: np.ndarray
    parts: np.ndarray
    payloads: Sequence[Payloads]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.timestamps)

    def between(self, first: int, last: int) -> StreamMessages:
        """Return the messages from ``first`` to below ``last``."""
        return StreamMessages(
            self.timestamps[first:last],
            self.keys[first:last],
            self.lengths[first:last],
            self.offsets[first:last],
            self.checksums[first:last],
            self.arrival[first:last],
            self.parts[first:last],
            self.payloads,
        )

    def views(self, first: int, last: int) -> Iterator[memoryview]:
        """Yield the payloads from ``first`` to below ``last``."""
        parts, begins = self.parts[first:last], self.offsets[first:last].tolist()
        ends = (self.offsets[first:last] + self.lengths[first:last]).tolist()
        borders = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
        for low, high in pairwise(borders):
            if low < high:
                yield from self.payloads[int(parts[low])].views(begins[low:high], ends[low:high])


@dataclass(frozen=True)
class MessagePart:
    """The messages of one part of an epoch."""

    epoch: int
    messages: Messages
    payloads: Payloads


def by_stream(parts: Sequence[MessagePart]) -> dict[str, StreamMessages]:
    """Return what each stream gets: epoch by epoch, in it by timestamp, then in the order of parts and rows."""
    parts = [part for part in parts if part.messages.count]
    if not parts:
        return {}
    names = sorted({name for part in parts for name in part.messages.streams})
    numbers = {name: number for number, name in enumerate(names)}
    streams = np.concatenate(
        [np.array([numbers[name] for name in part.messages.streams])[part.messages.codes] for part in parts]
    )
    sizes = [part.messages.count for part in parts]
    epochs = np.repeat([part.epoch for part in parts], sizes)
    places = np.repeat(np.arange(len(parts)), sizes)

    def joined(field: str) -> np.ndarray:
        return np.concatenate([getattr(part.messages, field) for part in parts])

    order = np.lexsort((joined("arrival"), places, joined("timestamps"), epochs, streams))
    every = StreamMessages(
        joined("timestamps")[order],
        joined("keys")[order],
        joined("lengths")[order],
        joined("offsets")[order],
        joined("checksums")[order],
        joined("arrival")[order],
        places[order],
        [part.payloads for part in parts],
    )
    borders = np.searchsorted(streams[order], np.arange(len(names) + 1)).tolist()
    return {name: every.between(first, last) for name, (first, last) in zip(names, pairwise(borders), strict=True)}
