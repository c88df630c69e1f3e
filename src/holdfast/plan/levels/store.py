"""One bucket's state: base and deltas in the journal, decoded tables cached in the process.

Under a bucket's key are stored a *record* (JSON) and *parts* (binary): one base, which is the tables at some epoch, and
deltas, each the changes of some epochs.  An epoch writes one delta.  A delta is merged with the one before
it unless that is more than twice as large, and with the base once it has the base's size: so there are few parts, and
a row is written anew about as often as the state has doublings, not in every epoch.  Large parts stay as they are while
they are few and most of their rows are still those of the state: where rows only come, each is written once.  Of which
an epoch deletes at least half, as windows that close do, that is written whole: each row that goes pays for one.

A worker caches the latest tables that it had of a bucket.  They are used only if the record's list of recent versions
has their version with their *token*, a digest over all that was ever written, which a retried task, a replayed epoch
or another run does not reproduce.  What they lack is read from the deltas; so it does not matter that Spark gives the
next epoch's task to another worker.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any, Protocol

import pyarrow as pa

from holdfast.errors import Corrupt, invariant
from holdfast.state import tables
from holdfast.state.step import Change, StateTable

PIECE_BYTES = 8 * 2**20
"""A part is stored in pieces up to this size, each with a checksum of its own."""

CACHE_BYTES = 2**30
"""Tables that one worker caches; beyond it the least recently used bucket is dropped and read again."""

_STAY_BYTES = 64 * 2**20
_STAY_MAX = 8
"""A part above that size is written anew only if there are so many parts, or a third of all rows in them is past."""

_RECENT = 64
_CHUNKS_MAX = 64
_LARGE = 16
"""A chunk with more than a 16th of the rows is not put together with others."""


class Cells(Protocol):
    """Where a bucket's state is kept: Spark's state variables, or a dictionary in a test."""

    def record(self) -> str | None:
        """Return the record; None when there is none."""

    def put_record(self, record: str) -> None:
        """Replace the record."""

    def piece(self, part: int, number: int) -> bytes | pa.Buffer:
        """Return a piece of a part."""

    def put_piece(self, part: int, number: int, data: pa.Buffer) -> None:
        """Store a piece of a part: a view of all of it."""

    def drop_piece(self, part: int, number: int) -> None:
        """Remove a piece of a part."""


@dataclass(frozen=True)
class StatePart:
    """A base or a delta.

    Parameters
    ----------
    serial : int
        Its key in the store.
    last : int
        The version that it leads to.
    size_bytes, pieces : int
        Its size.
    is_base : bool
        Whether it is whole tables.
    row_count : int, optional
        Rows that it sets or deletes; None where an earlier version has written it.
    """

    serial: int
    last: int
    size_bytes: int
    pieces: int
    is_base: bool
    row_count: int | None = None


@dataclass(frozen=True)
class Record:
    """What is known about a bucket without reading its tables.

    Parameters
    ----------
    version : int
        The epoch that last changed it; 0 when there was none.
    token : str
        Digest over everything written so far.
    recent : tuple of (int, str)
        The latest versions with their tokens.
    parts : tuple of StatePart
        Base first.
    serial : int
        Of the next part.
    feeds : mapping of str to mapping of str to int
        Input -> where its rows come from -> bound for all keys.
    """

    version: int = 0
    token: str = ""
    recent: tuple[tuple[int, str], ...] = ()
    parts: tuple[StatePart, ...] = ()
    serial: int = 0
    feeds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Size of the stored state."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def pieces(self) -> frozenset[tuple[int, int]]:
        """The pieces of its parts, by their parts' serials and their numbers."""
        return frozenset((part.serial, piece) for part in self.parts for piece in range(part.pieces))

    def to_json(self) -> str:
        """Return the record as it is stored."""
        parts = [[p.serial, p.last, p.size_bytes, p.pieces, p.is_base] for p in self.parts]
        rows = [part.row_count for part in self.parts]
        value = {"format": 1, "version": self.version, "token": self.token, "recent": self.recent, "parts": parts}
        return json.dumps({**value, "rows": rows, "serial": self.serial, "feeds": self.feeds})

    @staticmethod
    def from_json(text: str | None) -> Record:
        """Return the record that :meth:`to_json` wrote; the first one for None."""
        if text is None:
            return Record()
        value: dict[str, Any] = json.loads(text)
        if value["format"] != 1:
            raise Corrupt(
                f"stored state has the format {value['format']}.",
                why="this version of Holdfast knows format 1.",
                do="start with the version that wrote the checkpoint.",
            )
        counts = value.get("rows") or [None] * len(value["parts"])
        return Record(
            value["version"],
            value["token"],
            tuple((version, token) for version, token in value["recent"]),
            tuple(starmap(StatePart, ((*part, rows) for part, rows in zip(value["parts"], counts, strict=True)))),
            value["serial"],
            value["feeds"],
        )


@dataclass(frozen=True)
class HeldTables:
    """Tables of a bucket at one version."""

    version: int
    token: str
    state: Mapping[str, pa.Table]
    size_bytes: int


class Cache:
    """The tables that this worker has, by bucket."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[tuple[str, ...], HeldTables] = OrderedDict()

    def get(self, key: tuple[str, ...]) -> HeldTables | None:
        """Return what is held for a bucket."""
        return self._held.get(key)

    def put(self, key: tuple[str, ...], held: HeldTables) -> None:
        """Hold tables for a bucket; the oldest are dropped beyond the limit."""
        self._held[key] = held
        self._held.move_to_end(key)
        while sum(each.size_bytes for each in self._held.values()) > self._limit and len(self._held) > 1:
            self._held.popitem(last=False)

    def drop_others(self, run: str) -> None:
        """Drop what older runs left in this worker."""
        for key in [key for key in self._held if key[0] != run]:
            del self._held[key]


class Keeps(Protocol):
    """As much of a step as loading its state takes."""

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """Name -> state table."""


def load(cells: Cells, record: Record, step: Keeps, held: HeldTables | None) -> dict[str, pa.Table]:
    """Return a bucket's tables as the record says.

    Parameters
    ----------
    cells : Cells
        The store.
    record : Record
        What it says.
    step : Keeps
        The operator.
    held : HeldTables, optional
        The tables of the bucket that this worker has cached.

    Raises
    ------
    Corrupt
        If stored bytes cannot be read.
    """
    state: dict[str, pa.Table] = {name: tables.empty(table.schema) for name, table in step.tables.items()}
    version = 0
    is_usable = held is not None and (held.version, held.token) in record.recent
    base = next((part for part in record.parts if part.is_base), None)
    if held is not None and is_usable and (base is None or base.last <= held.version):
        state, version = dict(held.state), held.version
    for part in record.parts:
        if part.last <= version:
            continue
        data = _read(cells, part)
        if part.is_base:
            stored = tables.decode(data)
            state = {name: tables.fitted(stored[name], table.schema) for name, table in step.tables.items()}
        else:
            # A delta that began before the cached version is right as well: it has the last value of each key.
            state = tables.apply_changes(state, step.tables, tables.decode_changes(data))
        version = part.last
    invariant(
        not record.parts or version == record.version,
        f"the parts of a bucket lead to version {version}, and its record says {record.version}.",
        story=lambda: f"(serial, last, is_base): {[(part.serial, part.last, part.is_base) for part in record.parts]}",
    )
    return state


def advance(
    cells: Cells,
    record: Record,
    declared: Mapping[str, StateTable],
    changes: Mapping[str, Change],
    state: Mapping[str, pa.Table],
    version: int,
) -> Record:
    """Write an epoch's changes and return the new record, which is not written yet.

    Parameters
    ----------
    cells : Cells
        The store.
    record : Record
        The bucket's record so far.
    declared : mapping of str to StateTable
        The operator's tables.
    changes : mapping of str to Change
        What the epoch changed; not empty.
    state : mapping of str to pa.Table
        The tables after it.
    version : int
        The epoch.
    """
    invariant(
        version > record.version,
        f"epoch {version} is to change a bucket that epoch {record.version} has changed.",
        why="versions of a bucket ascend: a worker knows its tables by them.",
        epoch=version,
    )
    data = tables.encode_changes(changes)
    token = hashlib.sha256(record.token.encode() + b":" + hashlib.sha256(data).digest()).hexdigest()[:16]
    parts = list(record.parts)
    row_count = _rows_of(changes)
    # Decided by numbers that a replay finds again: a delta that is merged into the base is neither read nor written.
    if sum(len(change.deletes) for change in changes.values()) >= sum(map(len, state.values())):
        gone, is_base = parts, True
    else:
        gone, is_base = _in_place_of(parts, len(data), is_wasteful=_is_wasteful(parts, row_count, state))
    if is_base:
        data = tables.encode(state)
        row_count = sum(table.num_rows for table in state.values())
    elif gone:
        merged: Mapping[str, Change] = changes
        for part in gone:
            merged = _merge(tables.decode_changes(_read(cells, part)), merged, declared)
        data, row_count = tables.encode_changes(merged), _rows_of(merged)
    for part in gone:
        _drop(cells, part)
    parts = [part for part in parts if part not in gone]
    pieces = pieces_of(data)
    for number, piece in enumerate(pieces):
        cells.put_piece(record.serial, number, piece)
    parts.append(StatePart(record.serial, version, len(data), len(pieces), is_base, row_count))
    recent = (*record.recent, (version, token))[-_RECENT:]
    return replace(record, version=version, token=token, recent=recent, parts=tuple(parts), serial=record.serial + 1)


def _in_place_of(parts: Sequence[StatePart], size: int, *, is_wasteful: bool) -> tuple[list[StatePart], bool]:
    """Return the parts that a delta of a size takes the place of, the newest first, and whether it is the base then."""
    joining: list[StatePart] = []
    for last in reversed(parts):
        if last.size_bytes > (size if last.is_base else 2 * size):
            return joining, False
        if last.size_bytes > _STAY_BYTES and not is_wasteful and len(parts) < _STAY_MAX:
            return joining, False
        if last.is_base:
            break
        joining.append(last)
        size += last.size_bytes
    return list(parts), True


def _is_wasteful(parts: Sequence[StatePart], more: int, state: Mapping[str, pa.Table]) -> bool:
    """Return whether more than a third of the rows in parts, and some more, are not those of the state any more."""
    stored = [part.row_count for part in parts]
    return None in stored or 2 * (sum(filter(None, stored)) + more) > 3 * sum(map(len, state.values()))


def _rows_of(changes: Mapping[str, Change]) -> int:
    return sum(len(change.upserts) + len(change.deletes) for change in changes.values())


def pieces_of(data: pa.Buffer) -> list[pa.Buffer]:
    """Return a part in the pieces that are stored: views, nothing is copied."""
    return [data.slice(start, min(PIECE_BYTES, len(data) - start)) for start in range(0, len(data), PIECE_BYTES)]


def compacted(state: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return tables in few chunks: each epoch adds one, and every scan reads all."""
    return {
        name: _in_fewer_chunks(table) if _chunk_count(table) > _CHUNKS_MAX else table for name, table in state.items()
    }


def _in_fewer_chunks(table: pa.Table) -> pa.Table:
    """Return a table whose small chunks are put together; large ones stay, so that a row is copied a few times only."""
    least = table.num_rows // _LARGE
    groups: list[list[pa.RecordBatch]] = [[]]
    for batch in table.to_batches():
        if groups[-1] and (batch.num_rows > least or sum(each.num_rows for each in groups[-1]) > least):
            groups.append([])
        groups[-1].append(batch)
    parts = [(group, pa.Table.from_batches(group, table.schema)) for group in groups]
    return tables.united([part if len(group) == 1 else part.combine_chunks() for group, part in parts], table.schema)


def _chunk_count(table: pa.Table) -> int:
    return max((column.num_chunks for column in table.columns), default=0)


def _read(cells: Cells, part: StatePart) -> bytes | pa.Buffer:
    pieces = [cells.piece(part.serial, number) for number in range(part.pieces)]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _drop(cells: Cells, part: StatePart) -> None:
    for number in range(part.pieces):
        cells.drop_piece(part.serial, number)


def _merge(
    first: Mapping[str, Change], then: Mapping[str, Change], declared: Mapping[str, StateTable]
) -> dict[str, Change]:
    both = {**first, **then}
    for name in first.keys() & then.keys():
        both[name] = tables.merged_change(first[name], then[name], declared[name])
    names: Sequence[str] = [name for name in declared if name in both]
    return {name: both[name] for name in names}
