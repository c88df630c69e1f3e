"""Columns of a file as those that the sink writes: somebody may have written others under the same names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ports import HASH_COLUMN, PLACE_COLUMN
from holdfast.types import canonical, lookup3
from holdfast.types.lookup3 import Hashes
from holdfast.values import Losses


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

    def hashes(self, row_count: int, lost: Collection[str]) -> Hashes:
        """Return the hash of each value."""
        name = self.field.name
        if isinstance(self.values, pa.Scalar):
            one = FoundColumn(self.field, pa.array([self.values]), self.is_foreign)
            return np.repeat(one.hashes(1, lost), row_count)
        if self.is_foreign:
            is_null = pc.is_null(self.values).to_numpy(zero_copy_only=False)
            return np.where(is_null, np.uint64(0), np.uint64(canonical.unreadable(name)))
        return canonical.column_hashes(self.values, name, lost)

    def typed(self, chosen: pa.Array) -> pa.Array:
        """Return some values, of the column's type; null where they are none of it."""
        kind = self.field.type
        if self.is_foreign:
            return pa.nulls(len(chosen), kind)
        if isinstance(self.values, pa.Scalar):
            return pa.repeat(self.values, len(chosen)).cast(kind)
        values = self.values.take(chosen)
        try:
            return values.cast(kind)
        except pa.ArrowException:
            return pa.concat_arrays([_one(values[at : at + 1], kind) for at in range(len(values))])


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

    def hashes(self, key: Collection[str], losses: Losses) -> tuple[Hashes, Hashes]:
        """Return the hash of each row, and that of its bucket."""
        of_key, of_others = np.zeros(self.row_count, np.uint64), np.zeros(self.row_count, np.uint64)
        for column in self.columns:
            name = column.field.name
            joined = of_key if name in key else of_others
            joined ^= column.hashes(self.row_count, canonical.losses_of(name, losses))
        whole = lookup3.mixed(of_key ^ of_others, canonical.ROW)
        return whole, lookup3.mixed(of_key, canonical.KEY) if key else whole

    def rows(self, chosen: np.ndarray[Any, Any], hashes: Hashes, places: Sequence[bytes]) -> pa.RecordBatch:
        """Return some of the rows as ``Content.rows`` does."""
        indexes = pa.array(chosen)
        arrays = [column.typed(indexes) for column in self.columns]
        arrays += [pa.array(places, pa.binary()), pa.array(hashes[chosen])]
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
