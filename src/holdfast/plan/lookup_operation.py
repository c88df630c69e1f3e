"""What a look-up does to a batch; which version it sees, it reads where the driver has pinned it.

Invariant: within one call of :meth:`LookUp.apply` all rows see one version.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from holdfast.errors import REPORT, Corrupt, InternalError, InvalidPipeline, crossing
from holdfast.operators.lookup.spec import Index, Ints
from holdfast.plan.operation import Batches, Made

FOLDER = "lookups"
"""Of a checkpoint: records, versions and pins."""


class Versions(Protocol):
    """Where a look-up finds the version of its table that counts now.  Picklable where workers need it."""

    def current(self, look_up: str) -> str:
        """Return the name of the version; the same in all tasks of an epoch."""

    def rows(self, look_up: str, version: str) -> pa.Table:
        """Return its rows."""


def pins_key(token: str) -> str:
    """Return the key of the pins of a run."""
    return f"{FOLDER}/now-{token}.json"


def version_key(look_up: str, version: str) -> str:
    """Return the key of a version."""
    return f"{FOLDER}/{look_up}/{version}.arrow"


@dataclass(frozen=True)
class Pinned:
    """The versions that a run's driver has pinned in the checkpoint.

    Parameters
    ----------
    checkpoint : str
        Our directory, which every worker sees.
    token : str
        Of the run.
    """

    checkpoint: str
    token: str

    def current(self, look_up: str) -> str:
        """Return the version that is pinned."""
        try:
            with open(os.path.join(self.checkpoint, pins_key(self.token)), "rb") as file:
                version: str = json.load(file)[look_up]
        except (OSError, ValueError, KeyError) as error:
            raise InternalError(
                f"lookup {look_up!r} has no version in this epoch.",
                why=f"the driver pins one before anything is evaluated: {type(error).__name__} {error}.",
                do=REPORT,
                participant=look_up,
            ) from error
        return version

    def rows(self, look_up: str, version: str) -> pa.Table:
        """Map a version into memory.

        Raises
        ------
        Corrupt
            If it is not what was written.
        """
        path = os.path.join(self.checkpoint, version_key(look_up, version))
        try:
            source = pa.memory_map(path)
            if hashlib.sha256(source.read_buffer()).hexdigest() != version:
                raise ValueError("its checksum does not match")
            source.seek(0)
            found: pa.Table = pa.ipc.open_file(source).read_all()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Corrupt(
                f"{path} cannot be read.",
                why=f"{error}; it holds the rows that lookup {look_up!r} saw.",
                do="restore it from a copy of the checkpoint.",
                participant=look_up,
            ) from error
        return found


@dataclass(frozen=True)
class LoadedHere:
    """The table as it is when it is first needed: where nothing is replayed, and no worker takes part.

    Parameters
    ----------
    spec : TableLookup
        The look-up.
    columns : tuple of str
        Those of the table that it uses.
    """

    spec: Any
    columns: tuple[str, ...]

    def current(self, look_up: str) -> str:
        """Return a name for what this object loads."""
        return f"here {id(self)}"

    def rows(self, look_up: str, version: str) -> pa.Table:
        """Load the table."""
        found: pa.Table = self.spec.checked(self.spec.table.load(self.columns))
        return found


_places: dict[str, Versions] = {}
"""Run -> where its look-ups find their tables; in the driver, which builds them."""


def pinned_in(token: str, checkpoint: str) -> None:
    """Let the look-ups that are built for a run find their versions in a checkpoint, and not load their tables."""
    _places[token] = Pinned(checkpoint, token)


class _Opened(NamedTuple):
    version: str
    keys: Index
    columns: tuple[pa.Array, ...]


_opened: dict[str, _Opened] = {}
"""Look-up of a run -> the version that this process saw last: workers are reused from epoch to epoch."""


@dataclass(frozen=True)
class LookUp:
    """Add columns of a table to rows, by key.

    Parameters
    ----------
    name : str
        The look-up.
    token : str
        Of the run.
    on : tuple of (str, pa.Field)
        Column of the stream, and the key column of the table with the type in which they are compared.
    how : str
        ``left``, ``inner``, ``semi`` or ``anti``.
    added : tuple of pa.Field
        Columns of the table that are added.
    schema : pa.Schema
        Of the rows that leave.
    versions : Versions
        Where it finds the table.
    """

    name: str
    token: str
    on: tuple[tuple[str, pa.Field], ...]
    how: str
    added: tuple[pa.Field, ...]
    schema: pa.Schema
    versions: Versions

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        batches = [batch for batch in inputs[0] if batch.num_rows]
        if not batches:
            return Made([], 0)
        table = self._table()
        made, due = [], 0
        for batch in batches:
            keys = [batch.column(ours).cast(field.type) for ours, field in self.on]
            rows, found = table.keys.pairs(keys)
            result, count = self._joined(batch, table, rows, found)
            made.append(result)
            due += count
        return Made(made, due)

    def _joined(self, batch: pa.RecordBatch, table: _Opened, rows: Ints, found: Ints) -> tuple[pa.RecordBatch, int]:
        """Return what leaves for a batch whose ``rows`` match the rows ``found``, and how many rows that must be."""
        if self.how in ("semi", "anti"):
            mask = np.zeros(batch.num_rows, bool)
            mask[rows] = True
            mask = mask if self.how == "semi" else ~mask
            return batch.filter(pa.array(mask)), int(mask.sum())
        if self.how == "left":
            alone = np.ones(batch.num_rows, bool)
            alone[rows] = False
            lonely = np.flatnonzero(alone)
            if len(lonely):
                rows, found = np.concatenate([rows, lonely]), np.concatenate([found, np.full(len(lonely), -1)])
                order = np.argsort(rows, kind="stable")
                rows, found = rows[order], found[order]
        is_same = len(rows) == batch.num_rows and bool((rows == np.arange(len(rows))).all())
        kept = batch if is_same else batch.take(pa.array(rows))
        places = pa.array(found, mask=found < 0)
        columns = [*kept.columns, *(column.take(places) for column in table.columns)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), len(rows)

    def _table(self) -> _Opened:
        version = self.versions.current(self.name)
        place = f"{self.token}/{self.name}"
        known = _opened.get(place)
        if known is None or known.version != version:
            rows = self.versions.rows(self.name, version)
            index = Index([self._fitted(rows, field) for _, field in self.on])
            columns = tuple(_one(self._fitted(rows, field), field.type) for field in self.added)
            known = _opened[place] = _Opened(version, index, columns)
        return known

    def _fitted(self, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        """Return a column of a version in the type of this run; nulls where that version has none."""
        if field.name not in rows.schema.names:  # it was planned before the table had this column
            return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        column = rows.column(field.name)
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise InvalidPipeline(
                f"column {field.name!r} of the table of lookup {self.name!r} is {column.type}, and was {field.type} "
                "when the run began.",
                why=f"its values do not become {field.type}: {error}.",
                do="give the column its type back; or start the run again, which takes the new one.",
                participant=self.name,
            ) from error


def _one(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], kind)


def forget(run: str) -> None:
    """Drop what a run has in this process."""
    _places.pop(run, None)
    for place in [place for place in (*_opened,) if place.startswith(f"{run}/")]:
        del _opened[place]


@dataclass(frozen=True)
class LookUpFunction:
    """A look-up in Spark's plan.  Picklable; called by ``mapInArrow``.

    Parameters
    ----------
    operation : LookUp
        What it does.
    """

    operation: LookUp

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that leave."""
        return self.operation.schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of every batch with those of the table."""
        with crossing():
            for batch in batches:
                yield from self.apply(batch)

    def apply(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch with those of the table."""
        yield from self.operation.apply([[batch]]).batches


def look_up_of(node: Any, before: pa.Schema, token: str, normal: Any) -> LookUp:
    """Return what the look-up of a node does to rows of a schema.

    It finds its table where :func:`pinned_in` says so for the run, and else loads it.

    Parameters
    ----------
    node : Node
        The look-up.
    before : pa.Schema
        Of the rows that it takes.
    token : str
        Of the run.
    normal : callable
        Returns a schema as it comes back from Spark.
    """
    spec = node.spec
    used, output = spec.used(before)
    output = normal(output)
    on = tuple((ours, used.field(theirs)) for ours, theirs in spec.on)
    added: tuple[pa.Field, ...] = ()
    if len(output) > len(before):
        there = spec.table.schema()
        new = [output.field(at) for at in range(len(before), len(output))]
        sources = spec.sources_of_added(there.names)
        added = tuple(pa.field(theirs, field.type) for theirs, field in zip(sources, new, strict=True))
    versions = _places.get(token) or LoadedHere(spec, tuple(used.names))
    return LookUp(node.name, token, on, spec.how, added, output, versions)
