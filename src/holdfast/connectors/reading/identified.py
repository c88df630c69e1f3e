"""Sources whose rows have an id, made of their position (design/0022).

What numbers its rows says so in its declaration (:class:`NumberedSpec`), and yields with each batch the *place* that
its rows are in and their numbers there.  At a place a number is one row for ever, however spans and batches are cut,
whatever else is read with it, and in whichever order places are found.

The ids are a column that is added where the source reads: inside whatever leaves rows out, so that each reader counts
the same rows.

Where a source of byte streams begins and ends: recorded once in its workspace, and then never looked up again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa

from holdfast.capabilities import offers, optional
from holdfast.connectors.reading.wrapped import WrappedSource, WrappedSpec
from holdfast.errors import Corrupt, invariant
from holdfast.ports import (
    REJECT_COLUMN,
    SeekableSpec,
    Source,
    SourceSpec,
    Span,
)
from holdfast.positions import SourcePositions
from holdfast.store import sealed
from holdfast.types.row_ids import U64, Key, ids_of_numbers, key_of

ROWS_MAX = 1 << 32
"""More rows than a place can have: the end of its numbers, where it is not known."""


class PlaceRun(NamedTuple):
    """Rows of one place that follow each other in a batch: their numbers there."""

    place: str
    numbers: U64

    @classmethod
    def of(cls, place: str, first: int, count: int) -> PlaceRun:
        """Return rows that follow each other at the place, too."""
        return cls(place, np.arange(first, first + count, dtype=np.uint64))


class Numbered(NamedTuple):
    """Rows, and where they are from: runs of as many rows together."""

    runs: Sequence[PlaceRun]
    batch: pa.RecordBatch


@optional(SourceSpec)
class NumberedSpec(Protocol):
    """What a source's declaration says beyond :class:`~holdfast.ports.SourceSpec` if its rows have numbers."""

    numbering: str
    """What of a row its number is, for users: ``"file and row"``."""


class KnownPlace(NamedTuple):
    """A place of rows that a source has given.

    Parameters
    ----------
    place : str
        Its name, as part of ids.
    begin, end : int
        Numbers that its rows may have.
    segment : str
        The segment of the source's positions.
    position : int, optional
        The position at which its rows are; None: a row's number is its position, with ``shift`` added.
    shown : str
        The place, for users.
    since, before : int, optional
        Only its rows of this time are there; the others are at other positions.
    shift : int
        What the position of a row is above its number.
    """

    place: str
    begin: int
    end: int
    segment: str
    position: int | None
    shown: str
    since: int | None = None
    before: int | None = None
    shift: int = 0


@optional(SourceSpec)
class TraceableSpec(Protocol):
    """What the declaration of a :class:`NumberedSpec` offers besides: to tell its places."""

    def places(self, name: str, workspace: str, until: SourcePositions) -> Iterator[KnownPlace]:
        """Yield the places of all rows before some positions.  Creates and changes nothing."""


class NumberedSource(Protocol):
    """What the source of a :class:`NumberedSpec` offers beyond :class:`~holdfast.ports.Source`."""

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield the rows of a span as :meth:`~holdfast.ports.Source.read` does, with their numbers."""


def numbered(place: str, first: int, batch: pa.RecordBatch) -> Numbered:
    """Return rows that follow each other at a place, with their numbers from the first one on."""
    return Numbered((PlaceRun.of(place, first, batch.num_rows),), batch)


@dataclass(frozen=True)
class IdentifiedSpec(WrappedSpec):
    """Declaration of a source whose rows have an id.

    Parameters
    ----------
    given : SourceSpec
        The source without; a :class:`NumberedSpec`.
    column : str
        The column that is added: the last one.
    id_time : str, optional
        The column that the time of an id is taken from; None: ids have no time.
    """

    column: str
    id_time: str | None

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self.given.schema.append(pa.field(self.column, pa.string(), nullable=False))

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        time = {} if self.id_time == self.timestamp else {"row_id_timestamp": self.id_time or False}
        return {**self.given.arguments(), "row_id": self.column, **time}

    def columns_inside(self, columns: Collection[str]) -> Collection[str]:
        """Return the columns that are needed: that of the ids' time, too."""
        return columns if self.id_time is None else {*columns, self.id_time}

    def open(self, name: str, workspace: str) -> Source:
        """Open the source."""
        return cast("Source", IdentifiedSource(self.given.open(name, workspace), self, name))

    def from_time(self, at_us: int) -> IdentifiedSpec:
        """Return the declaration of the same source that begins at a time; the ids stay."""
        assert offers(self.given, SeekableSpec)
        return replace(self, given=self.given.from_time(at_us))


class IdentifiedSource(WrappedSource):
    """A source whose :meth:`read` adds the ids; all else is the source itself.

    Parameters
    ----------
    source : Source
        Numbers its rows.
    spec : IdentifiedSpec
        Where the ids go, and where their time is.
    name : str
        The source's name: part of every id.
    """

    def __init__(self, source: Source, spec: IdentifiedSpec, name: str) -> None:
        super().__init__(source)
        self.column = spec.column
        self.id_time = spec.id_time
        self.name = name

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span with their ids."""
        for runs, batch in cast("NumberedSource", self.source).read_numbered(span):
            count = sum(len(run.numbers) for run in runs)
            invariant(
                count == batch.num_rows,
                f"source {self.name!r} gives {count} numbers for {batch.num_rows} rows.",
                participant=self.name,
            )
            times = None if self.id_time is None else batch.column(self.id_time)
            last = batch.num_columns - (REJECT_COLUMN in batch.schema.names)
            field = pa.field(self.column, pa.string(), nullable=last < batch.num_columns)
            yield batch.add_column(last, field, self._ids(runs, times))

    def _ids(self, runs: Sequence[PlaceRun], times: pa.Array | None) -> pa.StringArray:
        if len(runs) == 1:
            return ids_of_numbers(position_key(self.name, runs[0].place), runs[0].numbers, times)
        counts = [len(run.numbers) for run in runs]
        keys = np.array([position_key(self.name, run.place) for run in runs], np.uint64).repeat(counts, axis=0)
        return ids_of_numbers((keys[:, 0], keys[:, 1]), np.concatenate([run.numbers for run in runs]), times)


@lru_cache(maxsize=64)
def position_key(source: str, place: str) -> Key:
    """Return the key of the ids of a place of a source."""
    return key_of("position", source, place)


_START = "start"
_END = "end"


class Recorded:
    """What one source has recorded.

    Parameters
    ----------
    workspace : str
        Directory below the checkpoint that belongs to the source alone.
    name : str
        The source, for errors.
    """

    def __init__(self, workspace: str, name: str) -> None:
        self._directory = sealed.local_directory(workspace, participant=name)

    @property
    def has_start(self) -> bool:
        """Whether it has begun."""
        return self._read(_START) is not None

    @property
    def start(self) -> dict[str, int]:
        """Segment -> position where reading begins; a stream that is not named appeared later."""
        return self._read(_START) or {}

    @property
    def end(self) -> dict[str, int] | None:
        """Segment -> position where it ends; None while that is not known, or never is."""
        return self._read(_END)

    def put_start(self, positions: Mapping[str, int]) -> None:
        """Record the beginning, unless another process has."""
        self._put(_START, positions)

    def put_end(self, positions: Mapping[str, int]) -> None:
        """Record the end, unless another process has."""
        self._put(_END, positions)

    def texts(self) -> list[str]:
        """Return what is recorded, as it is: the beginning, then the end, as far as they are."""
        found = [sealed.read_sealed(os.path.join(self._directory, kind)) for kind in (_START, _END)]
        return [data.decode() for data in takewhile(lambda data: data is not None, found) if data is not None]

    def restore(self, number: int, text: str) -> bool:
        """Record one of :meth:`texts` again, by its place from 1; return False where something else is recorded."""
        path = os.path.join(self._directory, (_START, _END)[number - 1])
        sealed.prepare(self._directory)
        sealed.put_if_absent(path, text.encode())
        return sealed.read_sealed(path) == text.encode()

    def _put(self, kind: str, positions: Mapping[str, int]) -> None:
        sealed.prepare(self._directory)
        sealed.put_if_absent(os.path.join(self._directory, kind), json.dumps(dict(positions)).encode())

    def _read(self, kind: str) -> dict[str, int] | None:
        path = os.path.join(self._directory, kind)
        data = sealed.read_sealed(path)
        if data is None:
            return None
        try:
            return {str(segment): int(at) for segment, at in json.loads(data).items()}
        except (ValueError, AttributeError) as error:
            raise Corrupt(
                f"{path} does not say where reading {kind}s.",
                why=f"{error}.",
                do="restore it from a copy of the checkpoint.",
                participant=path,
            ) from error
