"""Sources whose rows are held to one segment for each key (design/0048, section 7).

The rows between two positions are cut by units of segments, so who reads a span knows the unit of its rows: what their
segments share with those of other sources.  The keys of a batch are claimed for that unit before the batch is given.
Rows of a key that another unit has are rejected, with both named; where the source has no rejects, they end the run.
So the verdict on a row is the same in every process that reads it, and whenever it is read again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.reading.bounds import MarkedSpec, marks_of
from holdfast.connectors.reading.parts import divisible, is_divided
from holdfast.connectors.reading.wrapped import WrappedSource, WrappedSpec
from holdfast.errors import BadRow
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE, Source, SourceSpec, Span
from holdfast.positions import SourcePositions
from holdfast.shards.keys import HASHED, KeyTable, ShardKey
from holdfast.types.row_ids import lanes_of_columns

ELSEWHERE = "its key is of another segment"
"""The reason of such a rejected row, as it is counted; in the row the key and both segments follow."""


@dataclass(frozen=True)
class KeyedSpec(WrappedSpec):
    """Declaration of a source whose rows are held to one unit of segments for each key.

    Parameters
    ----------
    given : SourceSpec
        The source.
    key : ShardKey
        By which column, and where the claims are.
    marker : str, optional
        The column that marks bound rows, which have no key.
    """

    key: ShardKey
    marker: str | None = None

    def open(self, name: str, workspace: str) -> Source:
        """Open the source."""
        return cast("Source", KeyedSource(self.given.open(name, workspace), self, name))

    def columns_inside(self, columns: Collection[str]) -> Collection[str]:
        """Return the columns that are needed: the key, too."""
        return {*columns, self.key.by}


def hold_to_key(spec: SourceSpec, key: ShardKey | None) -> SourceSpec:
    """Return the declaration of a source that is held to a key, inside what leaves its bound rows out.

    Itself where its segments are not told apart yet: claims would be of no use once they are.
    """
    if key is None or (divisible(spec) is not None and not is_divided(spec)):
        return spec
    if isinstance(spec, MarkedSpec):
        return cast("SourceSpec", replace(spec, given=KeyedSpec(spec.given, key, spec.marker)))
    return cast("SourceSpec", KeyedSpec(spec, key))


class OfUnits(NamedTuple):
    """Value of a span: the source's own spans, each with the unit of its rows; None for those without a key."""

    several: Sequence[tuple[str | None, Span]]


class KeyedSource(WrappedSource):
    """A source whose :meth:`read` holds rows to their segments; all that is not about rows is the source itself.

    Parameters
    ----------
    source : Source
        The source.
    spec : KeyedSpec
        Its declaration.
    name : str
        The source's name.
    """

    def __init__(self, source: Source, spec: KeyedSpec, name: str) -> None:
        super().__init__(source)
        self.spec = spec
        self.name = name
        self._divided = divisible(spec)
        self._table: KeyTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    @property
    def table(self) -> KeyTable:
        """The claims, as far as this process knows them."""
        if self._table is None:
            self._table = self.spec.key.open()
        return self._table

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Cut the rows between two positions by units, then as the source does; at most as many as it would give."""
        plain = {segment: at for segment, at in start.items() if not segment.startswith("@")}
        units: dict[str, dict[str, int | str]] = {}
        for segment, at in end.items():
            if not segment.startswith("@") and plain.get(segment) != at:
                units.setdefault(self.unit_of(segment), {})[segment] = at
        share = -(-parallelism // max(1, len(units)))
        found = [
            (unit, span)
            for unit, until in sorted(units.items())
            for span in self.source.spans(plain, until, parallelism=share)
        ]  # fmt: skip
        return [*_gather(found, parallelism), *self._marks(start, end)]

    def unit_of(self, segment: str) -> str:
        """Return the unit that a segment is of: what it shares with those of other sources, or the source's name."""
        return self.name if self._divided is None else self._divided.group_of(segment)

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span.

        Raises
        ------
        BadRow
            If the key of a row is of another unit, and the source has no rejects.
        """
        of: OfUnits = span.value
        for unit, inner in of.several:
            for batch in self.source.read(inner):
                yield batch if unit is None else self._hold(batch, unit)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _marks(self, start: SourcePositions, end: SourcePositions) -> Iterator[Span]:
        """Yield the spans of what is no row: a bound, for instance."""
        at = {segment: place for segment, place in end.items() if not segment.startswith("@")}
        said, until = ({name: at for name, at in of.items() if name.startswith("@")} for of in (start, end))
        if said != until:
            for span in self.source.spans({**at, **said}, {**at, **until}, parallelism=1):
                yield replace(span, value=OfUnits(((None, span),)))

    def _hold(self, batch: pa.RecordBatch, unit: str) -> pa.RecordBatch:
        """Return a batch with the rows of other units' keys rejected."""
        values, is_row = batch.column(self.spec.key.by), self._rows_of(batch)
        keys = pc.unique(values if is_row is None else values.filter(is_row))
        if not len(keys):
            return batch
        owners, own = self.table.claim(lanes_of_columns(HASHED, [keys]), unit), self.table.code(unit)
        if (owners == own).all():
            return batch
        others = np.flatnonzero(owners != own)
        reasons = [
            f"{ELSEWHERE}: {key!r} of {self.spec.key.by!r} is of segment {self.table.units[owners[at]]!r}, and came in "
            f"segment {unit!r}"
            for at, key in zip(others.tolist(), keys.take(pa.array(others)).to_pylist(), strict=True)
        ]
        if not self.spec.rejects:
            raise self._refusal(reasons[0])
        places = pc.index_in(values, value_set=keys.take(pa.array(others)))
        if is_row is not None:
            places = pc.if_else(is_row, places, None)
        return self._reject(batch, places, pa.array(reasons), unit)

    def _rows_of(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Return which rows have a key: neither bound rows nor rejected ones; None where all do."""
        found = None
        if self.spec.marker is not None:
            found = pc.invert(marks_of(batch, self.spec.marker))
        if REJECT_COLUMN in batch.schema.names and batch.column(REJECT_COLUMN).null_count < batch.num_rows:
            is_good = pc.is_null(batch.column(REJECT_COLUMN))
            found = is_good if found is None else pc.and_(found, is_good)
        return found

    def _reject(
        self, batch: pa.RecordBatch, places: pa.Int32Array, reasons: pa.StringArray, unit: str
    ) -> pa.RecordBatch:
        """Return a batch whose rows with a place among the reasons are rejected: nothing else is left of them."""
        gone = pc.is_valid(places)
        columns = [name for name in batch.schema.names if name != REJECT_COLUMN]
        rows = pa.Table.from_batches([batch.select(columns)]).filter(gone).to_pylist()
        raw = pa.array([json.dumps(row, default=str, ensure_ascii=False) for row in rows], pa.string())
        found = pa.StructArray.from_arrays(
            [reasons.take(places.drop_null()), raw, pa.array([f"{self.name}:{unit}"] * len(rows), pa.string())],
            fields=list(REJECT_TYPE),
        )
        arrays = [
            _with(batch.column(each.name), gone, found)
            if each.name == REJECT_COLUMN
            else pc.if_else(gone, pa.scalar(None, each.type), batch.column(each.name))
            for each in batch.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)

    def _refusal(self, reason: str) -> BadRow:
        return BadRow(
            f"source {self.name!r} has a row that cannot be in its segment: {reason}.",
            why=f"shard_by={self.spec.key.by!r} says that all rows of one value are in one segment; those of this one "
            "would be in two shards.",
            do='correct how rows are assigned to segments; or write on_bad_row="reject" where the source is built, and '
            "such rows leave by its rejects.",
            participant=self.name,
        )


def _with(column: pa.Array, gone: pa.BooleanArray, found: pa.StructArray) -> pa.Array:
    """Return a column with others' values where rows are gone."""
    both = pa.concat_arrays([column, found])
    at = np.arange(len(column))
    at[np.asarray(gone)] = len(column) + np.arange(len(found))
    return both.take(pa.array(at))


def _gather(found: Sequence[tuple[str, Span]], most: int) -> Iterator[Span]:
    """Yield spans of units, neighbours together where there are more than so many: each of about the same size."""
    weights = np.array([max(1, span.size_bytes or span.row_count or 1) for _, span in found], np.int64)
    by_size = (np.cumsum(weights) - weights) * most // max(1, weights.sum())
    numbers = by_size if len(found) > most else np.arange(len(found))
    for number in np.unique(numbers).tolist():
        several = [found[at] for at in np.flatnonzero(numbers == number).tolist()]
        yield Span(
            OfUnits(several), _sum(span.row_count for _, span in several), _sum(span.size_bytes for _, span in several)
        )


def _sum(counts: Iterator[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)
