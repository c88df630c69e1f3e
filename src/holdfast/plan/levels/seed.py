"""Seeds: a snapshot as the initial state of a new Spark directory.

A level that is called for a bucket of which the store has no record *adopts* it: the tables of the snapshot become the
bucket's base, and are written into the store in that call.  A bucket that is not called keeps its seed.  So a restart
loads the state that is needed, where it is needed, and moves none of it through the JVM before that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from holdfast.checkpoint.manifest import BucketState, Manifest, TableFile, decode
from holdfast.checkpoint.snapshot import checked, from_parquet
from holdfast.errors import invariant
from holdfast.plan.levels.store import PIECE_BYTES, Cells, HeldTables, Record, StatePart
from holdfast.resume.directory_header import FILE_NAME, read_origin
from holdfast.state import encoding, tables
from holdfast.state.step import Step
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
        data = encoding.encode(state)
        pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
        for at, piece in enumerate(pieces):
            cells.put_piece(0, at, piece)
        part = StatePart(0, seed.version, len(data), len(pieces), True)
        record = Record(seed.version, seed.digest, record.recent, (part,), 1, seed.feeds)
    size = sum(table.nbytes for table in state.values())
    return record, HeldTables(seed.version, seed.digest, state, size)


def tables_of(seed: BucketState, seeds: Seeds, step: Step) -> dict[str, pa.Table]:
    """Return all tables of a bucket; those without rows have no file."""
    state: dict[str, pa.Table] = tables.empty_state(step)
    for name, file in seed.files.items():
        state[name] = from_parquet(seeds.read(file), step.tables[name].schema, file.key)
    return state
