"""Columns of a file as those that the sink writes: somebody may have written others under the same names.

How a repair ends that finds other rows than those it was made for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ports import HASH_COLUMN, PLACE_COLUMN
from holdfast.types import canonical
from holdfast.types.lookup3 import Hashes
from holdfast.values import Losses, LossKind


@dataclass(frozen=True)
class FoundColumn:
    """A column of some rows.

    Parameters
    ----------
    field : pa.Field
        As the sink writes it.
    values : pa.Array or pa.Scalar
        What was found; a scalar stands for all rows.
    is_foreign : bool
        Whether the values are of a type that no sink writes there.
    """

    field: pa.Field
    values: pa.Array | pa.Scalar
    is_foreign: bool

    def hashes(self, row_count: int, lost: Collection[LossKind]) -> Hashes:
        """Return the hash of each value."""
        name = self.field.name
        if isinstance(self.values, pa.Scalar):
            one = FoundColumn(self.field, pa.array([self.values]), self.is_foreign)
            return np.repeat(one.hashes(1, lost), row_count)
        if self.is_foreign:
            is_null = pc.is_null(self.values).to_numpy(zero_copy_only=False)
            return np.where(is_null, np.uint64(0), np.uint64(canonical.unreadable(name)))
        return canonical.column_hashes(self.values, name, lost)

    def taken(self, chosen: pa.Array) -> FoundColumn:
        """Return the column of some of the rows."""
        is_constant = isinstance(self.values, pa.Scalar)
        return self if is_constant else FoundColumn(self.field, self.values.take(chosen), self.is_foreign)

    def typed(self, row_count: int) -> pa.Array:
        """Return the values, of the column's type; null where they are none of it."""
        kind = self.field.type
        if self.is_foreign:
            return pa.nulls(row_count, kind)
        if isinstance(self.values, pa.Scalar):
            return pa.repeat(self.values, row_count).cast(kind)
        try:
            return self.values.cast(kind)
        except pa.ArrowException:
            return pa.concat_arrays([_one(self.values[at : at + 1], kind) for at in range(row_count)])


def _one(value: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return value.cast(kind)
    except pa.ArrowException:
        return pa.nulls(1, kind)


@dataclass(frozen=True)
class FoundRows:
    """Some rows, by the columns of a schema."""

    columns: Sequence[FoundColumn]
    row_count: int

    @classmethod
    def of(cls, batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar | None]) -> FoundRows:
        """Return rows of a file.

        Parameters
        ----------
        batch : pa.RecordBatch
            As they are in it.
        schema : pa.Schema
            Columns that the sink writes.
        constants : mapping of str to pa.Scalar
            Values that the path of the file says; None: what it says is no value.
        """
        return cls([_column(batch, field, constants) for field in schema], batch.num_rows)

    def hashes(self, losses: Losses, by: Collection[str] = ()) -> tuple[Hashes, Hashes]:
        """Return the hash of each row, and that of its bucket."""
        of_by, of_others = self._joined(losses, by, True), self._joined(losses, by, False)
        whole = canonical.row_hash(of_by ^ of_others)
        return whole, canonical.bucket_hash(of_by) if by else whole

    def within(self, wanted: np.ndarray, bits: int, losses: Losses, by: Collection[str]) -> np.ndarray:
        """Return which of the rows, ascending, lie in buckets of which an array says that they are wanted."""
        hashes = canonical.bucket_hash(self._joined(losses, by, True)) if by else self.hashes(losses)[0]
        chosen: np.ndarray = np.flatnonzero(wanted[canonical.buckets(hashes, bits)])
        return chosen

    def _joined(self, losses: Losses, by: Collection[str], is_by: bool) -> Hashes:
        """Return the exclusive or of the hashes of the columns that are, or are not, among some."""
        found = np.zeros(self.row_count, np.uint64)
        for column in self.columns:
            name = column.field.name
            if (name in by) == is_by:
                found ^= column.hashes(self.row_count, canonical.losses_of(name, losses))
        return found

    def taken(self, chosen: np.ndarray) -> FoundRows:
        """Return some of the rows."""
        indexes = pa.array(chosen)
        return FoundRows([column.taken(indexes) for column in self.columns], len(chosen))

    def rows(self, losses: Losses, places: Sequence[bytes]) -> pa.RecordBatch:
        """Return the rows as ``Content.rows`` does."""
        arrays = [column.typed(self.row_count) for column in self.columns]
        arrays += [pa.array(places, pa.binary()), pa.array(self.hashes(losses)[0])]
        fields = [column.field for column in self.columns]
        schema = pa.schema([*fields, pa.field(PLACE_COLUMN, pa.binary()), pa.field(HASH_COLUMN, pa.uint64())])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field, constants: Mapping[str, pa.Scalar | None]) -> FoundColumn:
    if field.name in constants:
        value = constants[field.name]
        return FoundColumn(field, pa.scalar(True) if value is None else value, value is None)
    if field.name not in batch.schema.names:
        return FoundColumn(field, pa.scalar(None, field.type), False)
    values = batch.column(field.name)
    if not canonical.is_alike(values.type, field.type):
        return FoundColumn(field, values, True)
    if pa.types.is_decimal(values.type) and values.type != field.type:
        try:
            return FoundColumn(field, values.cast(field.type), False)
        except pa.ArrowException:
            return FoundColumn(field, values, True)
    return FoundColumn(field, values, False)


class Moved(Exception):
    """A row is not where it was, or not what it was: nothing is to be changed."""
