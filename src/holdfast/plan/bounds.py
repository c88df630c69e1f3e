"""Bound rows of sources on their way to stateful operators: their place among the rows, and the inputs they hold for.

A bound may be sent after rows that follow it in the source as long as none of these is below it.  So rows and bounds
are separated only where a row is below a bound, and the result is the same as if each bound had kept its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.reading.bounds import marks_of
from holdfast.errors import BadRow
from holdfast.plan.chunks import divided
from holdfast.state import joins, tables
from holdfast.state.step import ALL_KEYS, BOUND
from holdfast.state.timeline import CLOSED, UNBOUNDED, bounds_before, shifted

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class BoundTarget:
    """An input that the bound rows of a source hold for.

    Parameters
    ----------
    number : int
        The target.
    key : tuple of str, optional
        The columns of the source that are its key columns, in their order; None where a key column is computed
        upstream: then only bounds for all keys hold.
    is_direct : bool
        Whether bounds keep their places among rows.  Not where another stage packs rows again, which loses their order
        relative to bounds, nor where the source gives the bounds itself: there they follow all rows of the epoch.
    offset : int
        Ticks by which bounds are shifted upstream of the input.
    """

    number: int
    key: tuple[str, ...] | None
    is_direct: bool = True
    offset: int = 0


@dataclass(frozen=True)
class Bounding:
    """How the bound rows of one source are read.  Picklable.

    Parameters
    ----------
    marker, timestamp : str
        The column that marks them, and the one that holds the bound.
    targets : tuple of BoundTarget
        The inputs that they hold for.
    scope : tuple of str
        Columns that restrict a bound where they are not null: the key columns of all these inputs.
    """

    marker: str
    timestamp: str
    targets: tuple[BoundTarget, ...]
    scope: tuple[str, ...]

    def cut(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
        """Yield (rows, bound rows that follow them): one pair, unless a row is below an earlier bound.

        Raises
        ------
        BadRow
            If a bound row has no timestamp.
        """
        marks = np.asarray(marks_of(batch, self.marker))
        plain = batch.drop_columns([self.marker])
        if not marks.any():
            yield plain, None
            return
        start = 0
        for end in [*self._cuts(batch, marks), batch.num_rows]:
            mask, part = marks[start:end], plain.slice(start, end - start)
            yield part.filter(pa.array(~mask)), part.filter(pa.array(mask))
            start = end

    def check(self, bounds: pa.RecordBatch) -> None:
        """Check bound rows.

        Raises
        ------
        BadRow
            If one has no timestamp.
        """
        if bounds.column(self.timestamp).null_count:
            raise BadRow(
                f"a bound row has no {self.timestamp!r}.",
                why=f"where {self.marker!r} is true, the timestamp is the bound.",
                do="give it a timestamp.",
            )

    def lowest(self, rows: pa.RecordBatch) -> int:
        """Return the lowest timestamp of rows; CLOSED without any."""
        found = pc.min(rows.column(self.timestamp).cast(pa.int64())).as_py()
        return CLOSED if found is None else int(found)

    def highest(self, bounds: pa.RecordBatch) -> int:
        """Return the highest bound of bound rows."""
        return int(pc.max(bounds.column(self.timestamp).cast(pa.int64())).as_py())

    def for_target(
        self, bounds: Sequence[pa.RecordBatch], target: BoundTarget, key: pa.Schema, buckets: int
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield (bucket, bounds) of bound rows for one target: the highest for each key, and for all keys."""
        for bucket, part in self._unmoved(bounds, target, key, buckets):
            yield bucket, moved(part, target.offset)

    def _unmoved(
        self, bounds: Sequence[pa.RecordBatch], target: BoundTarget, key: pa.Schema, buckets: int
    ) -> Iterator[tuple[int, pa.Table]]:
        rows = pa.Table.from_batches(bounds)
        schema = tables.bounds_schema(key)
        restricting = [np.asarray(pc.is_valid(rows.column(name))) for name in self.scope]
        is_free = ~np.logical_or.reduce(restricting) if restricting else np.ones(rows.num_rows, bool)
        ticks = rows.column(self.timestamp).cast(pa.int64())
        if is_free.any():
            highest = pc.max(ticks.filter(pa.array(is_free)))
            nulls = [pa.nulls(1, field.type) for field in key]
            everywhere = pa.Table.from_arrays([*nulls, pa.array([True]), pa.array([highest.as_py()])], schema=schema)
            for bucket in range(buckets):
                yield bucket, everywhere
        if not target.key:
            return
        is_keyed = np.ones(rows.num_rows, bool)
        for name, is_given in zip(self.scope, restricting, strict=True):
            is_keyed &= is_given == (name in target.key)
        if is_keyed.any():
            chosen = rows.filter(pa.array(is_keyed))
            columns = [chosen.column(name).cast(field.type) for name, field in zip(target.key, key, strict=True)]
            keyed = pa.Table.from_arrays(
                [*columns, chosen.column(self.timestamp).cast(pa.int64())], names=[*key.names, BOUND]
            )
            most = keyed.group_by(key.names, use_threads=False).aggregate([(BOUND, "max")])
            arrays = [most.column(name) for name in key.names]
            is_for_all = pa.array(np.zeros(most.num_rows, bool))
            highest_of = pa.Table.from_arrays([*arrays, is_for_all, most.column(f"{BOUND}_max")], schema=schema)
            yield from divided(highest_of.select([*key.names, ALL_KEYS, BOUND]), key, buckets)

    def _cuts(self, batch: pa.RecordBatch, marks: Bools) -> list[int]:
        """Return the rows that bounds must precede: each is below an earlier bound."""
        times = batch.column(self.timestamp).cast(pa.int64())
        self.check(batch.filter(pa.array(marks)))
        ticks = np.asarray(pc.fill_null(times, CLOSED))
        given = [np.asarray(pc.is_valid(batch.column(name))) for name in self.scope]
        is_whole = np.logical_and.reduce(given) if given else np.zeros(batch.num_rows, bool)
        # A bound that restricts only some of the columns counts here for all rows: an unnecessary cut does no harm.
        everywhere = np.where(marks & ~is_whole, ticks, UNBOUNDED)
        before = np.r_[np.int64(UNBOUNDED), np.maximum.accumulate(everywhere)[:-1]]
        if (marks & is_whole).any():
            codes = joins.key_codes(pa.Table.from_batches([batch.select(list(self.scope))]), self.scope)
            order = np.argsort(codes, kind="stable")
            values = np.where(marks & is_whole, ticks, UNBOUNDED)[order]
            keyed = np.empty_like(ticks)
            keyed[order] = bounds_before(codes[order], values, np.full(len(order), UNBOUNDED))
            before = np.maximum(before, keyed)
        cuts: list[int] = []
        bounds_so_far = np.cumsum(marks)
        for row in np.flatnonzero(~marks & (ticks < before)).tolist():
            if bounds_so_far[row] > (bounds_so_far[cuts[-1]] if cuts else 0):
                cuts.append(row)
        return cuts


def moved(bounds: pa.Table, offset: int) -> pa.Table:
    """Return bounds shifted by some ticks; that of the end stays."""
    if not offset or not bounds.num_rows:
        return bounds
    ticks = shifted(np.asarray(bounds.column(BOUND)), offset)
    return bounds.set_column(bounds.schema.get_field_index(BOUND), bounds.schema.field(BOUND), pa.array(ticks))


def all_keys(key: pa.Schema, bound: int) -> pa.Table:
    """Return one bound row that holds for all keys."""
    row: dict[str, Any] = dict.fromkeys(key.names)
    return pa.Table.from_pylist([{**row, ALL_KEYS: True, BOUND: bound}], schema=tables.bounds_schema(key))
