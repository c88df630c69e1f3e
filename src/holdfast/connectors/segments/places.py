"""Where a segments sink keeps what, and what its entries do there: renames, and the removal of what is not needed.

Writes the file of a segment that is sealed: Parquet with statistics, in row groups that readers can share out.

How many rows of which partitions a journal file has: as columns, since it may be of ten thousand partitions.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast import faults
from holdfast.connectors.kit.files.own_files import tag_of, visible_paths
from holdfast.connectors.segments.entries import SegmentsEntry
from holdfast.errors import InDoubt, InvalidPipeline
from holdfast.shards.naming import user_pipeline
from holdfast.store import durable
from holdfast.types.schema import unite_schemas

log = logging.getLogger("holdfast.connectors.segments")

OWN_DIRECTORY = "_holdfast"
"""Everything of ours is below it.  Readers skip names that begin with an underscore."""

_STAGED = re.compile(r"(\d+)-[0-9a-f]+\.staged")


class Places:
    """The directories of one sink.

    Parameters
    ----------
    directory : str
        The sink's, absolute.
    pipeline, sink : str
        Identity.
    """

    def __init__(self, directory: str, pipeline: str, sink: str) -> None:
        self.directory = directory
        self.own = os.path.join(directory, OWN_DIRECTORY, pipeline, sink)
        self.aside = os.path.join(self.own, "writing")
        self.manifest = os.path.join(self.own, "manifest")
        self.journal = os.path.join(self.own, "journal")
        self.sealing = os.path.join(self.own, "sealing")
        self.explanations = os.path.join(self.own, "positions")
        self._pipeline, self._sink = pipeline, sink
        self._tag = tag_of(pipeline, sink)
        self._finished = 0
        """Number of the last entry whose renames are known to be done."""

    def new_file(self, generation: int, partition: str, first_epoch: int, last_epoch: int) -> tuple[str, str]:
        """Return where a segment's file is written and where it belongs, relative to the sink's directory."""
        token = uuid.uuid4().hex[:12]
        staged = os.path.join(os.path.relpath(self.sealing, self.directory), f"{generation}-{token}.staged")
        name = f"segment-{first_epoch:012}-{last_epoch:012}-{self._tag}-{token}.parquet"
        return staged, os.path.join(partition, name)

    def sealed(self) -> list[str]:
        """Return the paths of the sink's visible files, whatever the manifest says."""
        ours = re.compile(rf"segment-\d+-\d+-{self._tag}-[0-9a-f]+\.parquet")
        paths = visible_paths(self.directory)
        return [self.path(path) for path in paths if ours.fullmatch(os.path.basename(path))]

    def tags_of_shards(self) -> set[str]:
        """Return what the names of the files have that the pipeline's other shards, and its backfills, seal here."""
        with durable.explained(f"reading {self.directory}"):
            names = os.listdir(os.path.join(self.directory, OWN_DIRECTORY))
        pipeline = user_pipeline(self._pipeline)
        others = (name for name in names if user_pipeline(name) == pipeline and name != self._pipeline)
        return {tag_of(name, self._sink) for name in others}

    def path(self, relative: str) -> str:
        """Return an absolute path."""
        return os.path.join(self.directory, relative)

    def make_room(self, path: str, sink: str) -> None:
        """Create the directory of a sealed file and see that a file can be renamed into it."""
        directory = os.path.dirname(self.path(path))
        with durable.explained(f"creating {directory}"):
            durable.make_directory(directory, is_published=True)
        is_writable = os.access(directory, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
        if not is_writable or os.stat(directory).st_dev != os.stat(self.own).st_dev:
            raise InvalidPipeline(
                f"Sink {sink!r} cannot rename files into {directory}.",
                why="this user has no permission, or it is on another file system.",
                do="give this user write permission, and mount the whole directory, not a part of it.",
                participant=sink,
            )

    def is_finished(self, entry: SegmentsEntry) -> bool:
        """Return whether an entry is known to be carried out."""
        return entry.number == self._finished

    def finish(self, entry: SegmentsEntry, pipeline: str, sink: str) -> None:
        """Carry out an entry: rename what it seals, remove what is not needed any more.  Idempotent.

        Raises
        ------
        InDoubt
            If a file could not be renamed: it is sealed, and not visible.
        """
        if self.is_finished(entry):
            return
        try:
            for segment in entry.renamed:
                self._rename(segment.staged, segment.path)
                faults.reach("publish-begun", entry.epoch, pipeline)
            for directory in sorted({os.path.dirname(segment.path) for segment in entry.renamed}):
                with suppress(FileNotFoundError):  # removed meanwhile, with our file in it
                    durable.sync_directory(self.path(directory))
        except OSError as error:
            raise InDoubt(
                f"Segments are sealed in sink {sink!r}, but not all of their files are visible.",
                why=f"{error.filename or self.directory}: {error.strerror}.",
                do="repair the file system and start again: opening the sink finishes it.",
                pipeline=pipeline,
                participant=sink,
                epoch=entry.epoch,
                generation=entry.generation,
            ) from error
        for path in [*(os.path.join(self.journal, name) for name in entry.freed), *map(self.path, entry.removed)]:
            with suppress(OSError):  # tidying: what stays of the journal is swept by name
                os.unlink(path)
        self._finished = entry.number

    def sweep_sealing(self, generation: int) -> None:
        """Remove files that dead runs wrote and no entry named; with the renames of the last entry done."""
        with suppress(OSError):
            for name in os.listdir(self.sealing):
                match = _STAGED.fullmatch(name)
                if match and int(match[1]) < generation:
                    os.unlink(os.path.join(self.sealing, name))

    def _rename(self, staged: str, final: str) -> None:
        source, target = self.path(staged), self.path(final)
        try:
            os.rename(source, target)
        except FileNotFoundError:  # done already: before a crash, or by who opens the sink at the same time
            if os.path.lexists(source):  # it is not: the target's directory is gone
                durable.make_directory(os.path.dirname(target), is_published=True)
                os.rename(source, target)
            elif not os.path.lexists(target):
                log.warning("%s was sealed and has been removed", target)


ROW_GROUP_ROWS = 1_048_576
ROW_GROUP_BYTES = 32 * 2**20
"""A row group ends at either: a file of the default size has some that several readers can scan at once."""


def write_file(
    path: str,
    pieces: Sequence[pa.RecordBatch],
    schema: pa.Schema,
    *,
    sort_by: Sequence[str],
    compression: str | None,
) -> int:
    """Write rows as one Parquet file, durably but for its directory; return its size in bytes.

    Parameters
    ----------
    path : str
        The file; it must not be there.
    pieces : sequence of pyarrow.RecordBatch
        Rows in their order, perhaps of earlier schemas: columns that they lack are null.
    schema : pyarrow.Schema
        Of the file; columns that only earlier rows have follow.
    sort_by : sequence of str
        Columns; rows that are equal in them keep their order.
    """
    schema = unite_schemas([schema, *(piece.schema for piece in pieces)])
    rows = pa.Table.from_batches([fitting(piece, schema) for piece in pieces], schema)
    if sort_by:
        rows = rows.sort_by([(column, "ascending") for column in sort_by])
    group_rows = max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES * rows.num_rows // max(1, rows.nbytes)))
    file: BinaryIO
    with open(path, "xb", 2**20) as file:
        pq.write_table(rows, file, compression=compression or "none", row_group_size=group_rows)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def rows_of(path: str) -> list[pa.RecordBatch]:
    """Return the rows of a file; raise FileNotFoundError when it is not there."""
    with pq.ParquetFile(path) as file:
        batches: list[pa.RecordBatch] = file.read().to_batches()
        return batches


def fitting(piece: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of an earlier schema in a later one: what they lack is null, and types are widened."""
    if piece.schema.equals(schema):
        return piece
    columns = []
    for field in schema:
        place = piece.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(piece.num_rows, field.type))
        else:
            column = piece.column(place)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_FEW = 16
"""A lookup in a dict costs about as much as this many rows of a column, which are hashed first."""


@dataclass(frozen=True)
class PartitionRows:
    """Rows by partition.

    Parameters
    ----------
    partitions : pyarrow.StringArray
        Directories of partitions.  One is there several times where it is in several record batches, and where null and
        the empty text, which share a directory, both occur.
    rows : numpy.ndarray
        How many rows each has, at least one.
    """

    partitions: pa.StringArray
    rows: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.partitions)

    def without(self, partitions: Collection[str]) -> PartitionRows:
        """Return it without some partitions."""
        if not partitions:
            return self
        others = pc.invert(self._is_among(partitions))
        return PartitionRows(self.partitions.filter(others), self.rows[others.to_numpy(zero_copy_only=False)])

    def among(self, partitions: Collection[str]) -> list[str]:
        """Return which of some partitions it has, some perhaps several times."""
        found: list[str] = self.partitions.filter(self._is_among(partitions)).to_pylist()
        return found

    def unknown(self, known: Mapping[str, Any], names: pa.StringArray) -> list[str]:
        """Return the partitions that are not known, some perhaps several times; ``names`` are the keys of ``known``."""
        found: list[str]
        if len(self) * _FEW < len(names):
            found = [partition for partition in self.partitions.to_pylist() if partition not in known]
        else:
            found = self.partitions.filter(pc.invert(pc.is_in(self.partitions, names))).to_pylist()
        return found

    def _is_among(self, partitions: Collection[str]) -> pa.BooleanArray:
        return pc.is_in(self.partitions, pa.array(partitions, pa.string()))


def partition_rows(index: pa.Table) -> PartitionRows:
    """Return what the index of a journal file says."""
    partitions, rows = (index[name].combine_chunks() for name in ("partition", "rows"))
    return PartitionRows(partitions, rows.to_numpy().astype(np.int64))
