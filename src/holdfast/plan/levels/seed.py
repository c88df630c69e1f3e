"""Seeds: a snapshot as the initial state of a new Spark directory.

A level that is called for a bucket of which the store has no record *adopts* it: the tables of the snapshot become the
bucket's base, and are written into the store in that call.  A bucket that is not called keeps its seed.  So a restart
loads the state that is needed, where it is needed, and moves none of it through the JVM before that.

How the state of an operator is divided into buckets, and united again.

A row belongs to the bucket given by the hash of its key.  Some rows hold for all keys (a bound that was received, for
example) and are in every bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.checkpoint.directory_header import FILE_NAME, read_origin
from holdfast.checkpoint.manifest import BucketState, Manifest, StateSchema, TableFile, decode
from holdfast.checkpoint.snapshot import checked, from_parquet
from holdfast.errors import InvalidPipeline, invariant
from holdfast.plan.chunks import bucket_of
from holdfast.plan.levels.store import Cells, HeldTables, Record, StatePart, pieces_of
from holdfast.state import tables
from holdfast.state.step import ALL_KEYS, Broadcasting, StateTable, Step
from holdfast.store.paths import open_store


class Seeds(Protocol):
    """The initial state of a directory.  Picklable; read in workers."""

    def bucket(self, operator: str, number: int) -> BucketState | None:
        """Return what the snapshot has of a bucket; None where it has nothing, or there is no snapshot."""

    def read(self, file: TableFile) -> bytes:
        """Return the bytes of a file, checked against the manifest."""


_read: dict[DirectorySeeds, Manifest | None] = {}
"""What this worker has read, of its last run only."""


@dataclass(frozen=True)
class DirectorySeeds:
    """The seed that the record of a Spark directory names, read when first asked for, once in a worker and run.

    Parameters
    ----------
    checkpoint : str
        Our directory, which every worker sees.
    below : str
        Spark's directory below it.
    token : str
        Unique for the run.
    """

    checkpoint: str
    below: str
    token: str

    def bucket(self, operator: str, number: int) -> BucketState | None:
        """Return what the snapshot has of a bucket."""
        manifest = self.manifest()
        of = None if manifest is None else manifest.operators.get(operator)
        return None if of is None else of.buckets.get(number)

    def read(self, file: TableFile) -> bytes:
        """Return the bytes of a file."""
        return checked(open_store(self.checkpoint).get(file.key), file)

    def manifest(self) -> Manifest | None:
        """Return :func:`seed_of` the directory."""
        if self not in _read:
            _read.clear()
            _read[self] = seed_of(Path(self.checkpoint), self.below)
        return _read[self]


def seed_of(checkpoint: Path, below: str) -> Manifest | None:
    """Return the snapshot that a Spark directory began with, with the operators that take their state from it.

    Raises
    ------
    Corrupt
        If the record of the directory, or the manifest, cannot be read.
    """
    origin = read_origin(checkpoint / below / FILE_NAME)
    if not origin.seed:
        return None
    return origin.seeding(decode(open_store(str(checkpoint)).get(origin.seed) or b"", origin.seed))


def adopted(cells: Cells, seeds: Seeds, operator: str, number: int, step: Step) -> tuple[Record, HeldTables] | None:
    """Write the seed of a bucket into the store; return its record, which is not written yet, and its tables.

    Parameters
    ----------
    cells : Cells
        The bucket's place in the store, which has no record.
    seeds : Seeds
        The initial state.
    operator : str
        The operator.
    number : int
        The bucket.
    step : Step
        The operator's step, with its state tables.

    Returns
    -------
    (Record, Held), optional
        None where there is no seed.

    Raises
    ------
    Corrupt
        If a file of the snapshot is missing or damaged.
    """
    seed = seeds.bucket(operator, number)
    if seed is None:
        return None
    invariant(
        seed.version > 0 or not seed.files,
        f"the seed of bucket {number} of operator {operator!r} has rows under version 0.",
        why="0 is the version of a bucket without state: its rows would never be read.",
        participant=operator,
    )
    state = tables_of(seed, seeds, step)
    record = Record(seed.version, seed.digest, ((seed.version, seed.digest),), (), 0, seed.feeds)
    if seed.files:
        data = tables.encode(state)
        pieces = pieces_of(data)
        for at, piece in enumerate(pieces):
            cells.put_piece(0, at, piece)
        part = StatePart(0, seed.version, len(data), len(pieces), True, sum(map(len, state.values())))
        record = Record(seed.version, seed.digest, record.recent, (part,), 1, seed.feeds)
    size = sum(table.nbytes for table in state.values())
    return record, HeldTables(seed.version, seed.digest, state, size)


def tables_of(seed: BucketState, seeds: Seeds, step: Step) -> dict[str, pa.Table]:
    """Return all tables of a bucket; those without rows have no file."""
    state: dict[str, pa.Table] = tables.empty_state(step)
    for name, file in seed.files.items():
        state[name] = from_parquet(seeds.read(file), step.tables[name].schema, file.key)
    return state


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
        return cls(operator, schema, step.for_all_keys if offers(step, Broadcasting) else {}, pipeline)

    def united(self, name: str, table: StateTable, parts: Sequence[pa.Table]) -> pa.Table:
        """Return the rows of all buckets; those that hold for all keys once each, with the greatest values."""
        rows = tables.united(parts) if parts else table.schema.empty_table()
        is_shared = self.is_shared(name, rows)
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
            is_shared = self.is_shared(table, rows)
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

    def is_shared(self, table: str, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which rows of a state table hold for all keys."""
        flag = self.for_all_keys.get(table, ALL_KEYS if ALL_KEYS in rows.schema.names else None)
        if not flag:
            return np.full(rows.num_rows, flag is not None)
        return np.asarray(rows.column(flag).cast(pa.bool_()))

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


def _greater(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else max(one, other)
