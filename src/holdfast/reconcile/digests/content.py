"""What a stand-in that keeps no rows is asked: digests of all of them, or the rows of the buckets that are wanted."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.ports import HASH_COLUMN, NO_LOSSES, PLACE_COLUMN, Held, Losses
from holdfast.reconcile.digests import tables
from holdfast.reconcile.digests.reduction import Reduction
from holdfast.types import canonical
from holdfast.types.canonical import Digests, is_wanted

_ORDER = "__holdfast_order"


class DigestContent:
    """See :class:`holdfast.ports.Content`: digests of all rows, or the rows of the buckets that are wanted."""

    def __init__(self, connection: sqlite3.Connection, held: Held, schema: pa.Schema, reduction: Reduction) -> None:
        self.held = held
        self.schema = schema
        self.key = reduction.mode.key
        self.losses = reduction.losses
        self._connection = connection
        self._reduction = reduction

    def row_count(self) -> int:
        """Count them."""
        return int(self._digests.counts.sum())

    def digests(self, bits: int, losses: Losses = NO_LOSSES, by: Collection[str] = ()) -> Digests:
        """Return those that are kept, in at most so many buckets."""
        self._check(losses, by)
        return self._digests.coarser(bits)

    def rows(
        self, bits: int, buckets: Collection[int], losses: Losses = NO_LOSSES, by: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some of the buckets that are kept."""
        self._check(losses, by)
        wanted = is_wanted(buckets, bits)
        for batch in self._last(wanted, bits) if self.key else self._kept():
            hashes, divided = self._reduction.hashes(batch)
            places = pa.array([b""] * batch.num_rows, pa.binary())
            whole = batch.append_column(PLACE_COLUMN, places).append_column(HASH_COLUMN, pa.array(hashes))
            yield whole.filter(pa.array(wanted[canonical.buckets(divided, bits)]))

    @cached_property
    def _digests(self) -> Digests:
        return tables.read(self._connection)

    def _kept(self) -> Iterator[pa.RecordBatch]:
        for (packed,) in self._connection.execute("SELECT batch FROM rows ORDER BY rowid"):
            yield from pa.ipc.open_stream(packed)

    def _last(self, wanted: np.ndarray, bits: int) -> Iterator[pa.RecordBatch]:
        """Yield of each key of some buckets the last row, unless that deletes it."""
        parts = [
            batch.filter(pa.array(wanted[canonical.buckets(self._reduction.hashes(batch)[1], bits)]))
            for batch in self._kept()
        ]
        if not parts:
            return
        rows = pa.Table.from_batches(parts)
        ordered = rows.select(list(self.key)).append_column(_ORDER, pa.array(np.arange(rows.num_rows)))
        last = ordered.group_by(list(self.key)).aggregate([(_ORDER, "max")])[f"{_ORDER}_max"]
        found = rows.take(last)
        found = found.filter(pa.array(~self._reduction.is_deleted(found)))
        yield from found.select(self.schema.names).combine_chunks().to_batches()

    def _check(self, losses: Losses, by: Collection[str]) -> None:
        known = self._reduction
        if losses - known.losses or tuple(by) != known.by:
            more = ", ".join(f"{loss.column}: {loss.kind.value}" for loss in losses - known.losses)
            raise InvalidPipeline(
                "what a sink should hold was computed for another form of its columns.",
                why=f"its table has changed since: {more or 'rows have another id'}. Digests are of the former form.",
                do="remove the directory in which it was computed: it is computed again.",
            )
