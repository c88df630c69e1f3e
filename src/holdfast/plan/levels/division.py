"""How the state of an operator is divided into buckets, and united again.

A row belongs to the bucket given by the hash of its key.  Some rows hold for all keys (a bound that was received, for
example) and are in every bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.checkpoint.manifest import StateSchema
from holdfast.errors import InvalidPipeline, invariant
from holdfast.plan.chunks import bucket_of
from holdfast.state import tables
from holdfast.state.step import ALL_KEYS, Broadcasting, StateTable, Step


@dataclass(frozen=True)
class StateDivision:
    """Which buckets hold the rows of one operator.

    Parameters
    ----------
    operator : str
        Its name.
    schema : StateSchema
        Its state tables.
    for_all_keys : mapping of str to str
        As in :class:`holdfast.state.step.Broadcasting`.
    pipeline : str
        The pipeline that has the operator.
    """

    operator: str
    schema: StateSchema
    for_all_keys: Mapping[str, str]
    pipeline: str = ""

    @classmethod
    def of(cls, operator: str, schema: StateSchema, step: Step | None, pipeline: str) -> StateDivision:
        """Return that of an operator whose step is known, or is not."""
        return cls(operator, schema, step.for_all_keys if isinstance(step, Broadcasting) else {}, pipeline)

    def united(self, name: str, table: StateTable, parts: Sequence[pa.Table]) -> pa.Table:
        """Return the rows of all buckets; those that hold for all keys once each, with the greatest values."""
        rows = tables.united(parts) if parts else table.schema.empty_table()
        is_shared = self._is_shared(name, rows)
        if not is_shared.any():
            return rows
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in rows.filter(pa.array(is_shared)).to_pylist():  # a few for each bucket
            known = found.setdefault(tuple(row[name] for name in table.key), row)
            known.update({name: _greater(known[name], row[name]) for name in row if name not in table.key})
        shared = pa.Table.from_pylist(list(found.values()), schema=table.schema)
        return tables.united([rows.filter(pa.array(~is_shared)), shared])

    def divided(self, state: Mapping[str, pa.Table], buckets: int) -> Iterator[tuple[int, dict[str, pa.Table]]]:
        """Yield every bucket that gets rows, with all tables.

        Raises
        ------
        InvalidPipeline
            If the keys of rows are unknown.
        """
        places = {}
        for table, rows in state.items():
            is_shared = self._is_shared(table, rows)
            numbers = np.zeros(rows.num_rows, np.int64)
            if not is_shared.all() and len(self.schema.key):
                numbers = bucket_of(self._keys(table, rows, buckets), self.schema.key, buckets)
            places[table] = (numbers, is_shared)
        for table, (numbers, is_shared) in places.items():
            lost = int(np.count_nonzero(((numbers < 0) | (numbers >= buckets)) & ~is_shared))
            invariant(
                not lost,
                f"{lost} rows of state table {table!r} of operator {self.operator!r} are in none of {buckets} buckets.",
                pipeline=self.pipeline,
                participant=self.operator,
            )
        for number in range(buckets):
            parts = {
                table: rows.filter(pa.array((places[table][0] == number) | places[table][1])).combine_chunks()
                for table, rows in state.items()
            }
            if any(part.num_rows for part in parts.values()):
                yield number, parts

    def _keys(self, table: str, rows: pa.Table, buckets: int) -> pa.Table:
        key = self.schema.key
        there = {column.lower(): column for column in rows.schema.names}
        missing = [column for column in key.names if column.lower() not in there]
        if missing:
            raise InvalidPipeline(
                f"state table {table!r} of operator {self.operator!r} cannot be divided into {buckets} buckets.",
                why=f"it does not hold the key column {missing[0]!r}, so the keys of its rows are unknown.",
                do="start with the buckets that there are (HOLDFAST_BUCKETS), or add the key columns to the table "
                "first.",
                pipeline=self.pipeline,
                participant=self.operator,
            )
        columns = [rows.column(there[field.name.lower()]).cast(field.type) for field in key]
        return pa.Table.from_arrays(columns, names=key.names)

    def _is_shared(self, table: str, rows: pa.Table) -> npt.NDArray[np.bool_]:
        flag = self.for_all_keys.get(table, ALL_KEYS if ALL_KEYS in rows.schema.names else None)
        if not flag:
            return np.full(rows.num_rows, flag is not None)
        return np.asarray(rows.column(flag).cast(pa.bool_()))


def _greater(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else max(one, other)
