"""Reads what segments sinks have written, sealed and growing: a directory's content at one version of its manifests.

A version is the last entry of each manifest: everything up to an epoch's end, and nothing of later ones, whatever is
sealed meanwhile.  Files that are read are opened, or mapped, before anything is returned; where one was removed since
its manifest was read, the manifest has moved on, and is read again.

The rows of a segments sink at one entry of its manifest: in sealed files, in the journal, in files of others.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.kit.compared_columns import FoundRows
from holdfast.connectors.kit.files.content import FileFormat, FilesContent
from holdfast.connectors.kit.files.existing import ATTEMPTS, changing, linked, other_tags, tag_in, view_directory
from holdfast.connectors.kit.files.own_files import visible_paths
from holdfast.connectors.segments.entries import SealedSegment
from holdfast.connectors.segments.holdings import Holdings
from holdfast.connectors.segments.journal import PiecesReader
from holdfast.connectors.segments.manifest import SegmentsManifest
from holdfast.connectors.segments.places import OWN_DIRECTORY, Places, fitting
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.ports import Held
from holdfast.store import durable
from holdfast.store.sealed import damage_named
from holdfast.types.partition import partition_values
from holdfast.types.schema import decode_schema, unite_schemas

_ATTEMPTS = 20


@dataclass(frozen=True)
class GrowingFile:
    """A journal file with rows that are not sealed.

    Parameters
    ----------
    path : str
        The file.
    row_count, size_bytes : int
        Of the whole file.
    sealed : frozenset of str
        Partitions whose rows in it are in sealed files, too.
    """

    path: str
    row_count: int
    size_bytes: int
    sealed: frozenset[str]


@dataclass(frozen=True)
class SegmentsContent:
    """What the sinks of one directory hold, at one version of each manifest.

    Parameters
    ----------
    directory : str
        Absolute.
    schema : pyarrow.Schema
        Columns of the rows, partition columns included.
    held : mapping of str to Held
        For each ``<pipeline>/<sink>``: epoch and positions of the version.
    sealed : tuple of SealedSegment
        Sealed segments, in the order in which they were sealed.
    growing : tuple of GrowingFile
        Journal files, in the order of epochs.
    """

    directory: str
    schema: pa.Schema
    held: Mapping[str, Held]
    sealed: tuple[SealedSegment, ...]
    growing: tuple[GrowingFile, ...]


class SegmentsDataset:
    """The content of a directory that ``hf.write.segments`` writes; each reading is of the newest version.

    Parameters
    ----------
    path : str
        The sink's directory.
    pipeline, sink : str, optional
        Only what these have written.
    """

    def __init__(self, path: str, pipeline: str | None = None, sink: str | None = None) -> None:
        self._path = path
        self._pipeline = pipeline
        self._sink = sink

    def __repr__(self) -> str:
        return f"SegmentsDataset({self._path!r})"

    def content(self) -> SegmentsContent:
        """Return what is there now: files, and what they hold."""
        return content(self._path, self._pipeline, self._sink)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows, partition columns included."""
        return self.content().schema

    def to_arrow(self, *, columns: Sequence[str] | None = None, growing: bool = True) -> pa.Table:
        """Return the rows.

        Parameters
        ----------
        columns : sequence of str, optional
            Only these.
        growing : bool
            Whether rows count that are in no sealed file yet.
        """
        for attempt in range(_ATTEMPTS):
            found = self.content()
            schema = found.schema if columns is None else pa.schema([found.schema.field(name) for name in columns])
            try:
                return pa.Table.from_batches(list(batches(found, schema, growing=growing)), schema)
            except FileNotFoundError as error:
                if attempt == _ATTEMPTS - 1:
                    raise _gone(self._path, error) from error
        raise AssertionError("unreachable")

    def to_pandas(self, *, columns: Sequence[str] | None = None, growing: bool = True) -> Any:
        """Return the rows as a DataFrame of pandas; parameters as :meth:`to_arrow`."""
        return self.to_arrow(columns=columns, growing=growing).to_pandas()


def open(path: str | os.PathLike[str], *, pipeline: str | None = None, sink: str | None = None) -> SegmentsDataset:
    """Return what reads a directory of ``hf.write.segments`` outside of a pipeline, with what grows.

    Parameters
    ----------
    path : str or path
        The sink's directory.
    pipeline, sink : str, optional
        Only what these have written; by default all that any has.

    Examples
    --------
    ::

        rows = hf.segments.open("out/flights").to_arrow()                    # up to the last epoch
        files = hf.segments.open("out/flights").to_pandas(growing=False)     # as ordinary readers see it
    """
    return SegmentsDataset(durable.local_directory(path, "segments.open"), pipeline, sink)


def content(directory: str, pipeline: str | None = None, sink: str | None = None) -> SegmentsContent:
    """Return what the sinks of a directory hold.

    Raises
    ------
    InvalidPipeline
        If no segments sink has written there.
    Corrupt
        If a manifest is damaged.
    """
    parts = [glob.escape(pipeline) if pipeline else "*", glob.escape(sink) if sink else "*"]
    owns = sorted(glob.glob(os.path.join(glob.escape(directory), OWN_DIRECTORY, *parts)))
    owns = [own for own in owns if os.path.isdir(os.path.join(own, "manifest"))]
    schema: pa.Schema | None = None
    held: dict[str, Held] = {}
    sealed: list[SealedSegment] = []
    growing: list[GrowingFile] = []
    for own in owns:
        manifest = SegmentsManifest(os.path.join(own, "manifest"))
        holdings = manifest.holdings()
        if not holdings.schema:
            continue
        found = decode_schema(holdings.schema)
        schema = found if schema is None else unite_schemas([schema, found])
        held[os.path.relpath(own, os.path.join(directory, OWN_DIRECTORY))] = holdings.last.held()
        sealed += manifest.sealed(holdings)
        growing += _growing(holdings, os.path.join(own, "journal"))
    if schema is None:
        raise InvalidPipeline(
            f"No segments sink has written to {directory}.",
            why=f"there is no manifest below {os.path.join(directory, OWN_DIRECTORY)}.",
            do="name the directory that hf.write.segments has; ordinary files are read by hf.read.files.",
            participant=directory,
        )
    return SegmentsContent(directory, schema, held, tuple(sealed), tuple(growing))


def _growing(holdings: Holdings, journal: str) -> Iterator[GrowingFile]:
    for file in holdings.files.values():
        sealed = (name for name, epoch in holdings.sealed_through.items() if epoch >= file.epoch)
        yield GrowingFile(os.path.join(journal, file.name), file.row_count, file.size_bytes, frozenset(sealed))


def batches(found: SegmentsContent, schema: pa.Schema, *, growing: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version, with these of its columns.

    Raises
    ------
    FileNotFoundError
        If a file has been removed since: the manifest has moved on.
    """
    # Mapped first of all: these are removed when their rows are sealed, and stay readable then.
    journal = [(PiecesReader(file.path), file.sealed) for file in found.growing] if growing else []
    for segment in found.sealed:
        yield from sealed_rows(place_of(found.directory, segment), segment.partition, schema)
    known: dict[str, dict[str, Any]] = {}
    for reader, sealed in journal:
        yield from growing_rows(reader, sealed, schema, known)


def place_of(directory: str, segment: SealedSegment) -> str:
    """Return where a sealed file is: where it belongs, or, if a crash came before the rename, where it was written."""
    path, staged = os.path.join(directory, segment.path), os.path.join(directory, segment.staged)
    return path if os.path.lexists(path) or not os.path.lexists(staged) else staged


def sealed_rows(path: str, partition: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a sealed file, with these columns; raise :class:`Corrupt` where it is damaged."""
    with damage_named(path), pq.ParquetFile(path) as file:
        known = set(file.schema_arrow.names)
        for batch in file.iter_batches(columns=[name for name in schema.names if name in known]):
            yield with_partition(batch, partition, schema)


def growing_rows(
    reader: PiecesReader, sealed: frozenset[str], schema: pa.Schema, known: dict[str, dict[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a journal file that are not sealed, with these columns.

    ``known`` keeps what the names of partitions tell, from one file to the next.
    """
    for index, rows in reader.batches():
        names, counts = index["partition"].to_pylist(), index["rows"].to_numpy()
        is_growing = np.array([name not in sealed for name in names], dtype=bool)
        if not is_growing.all():
            rows = rows.filter(pa.array(np.repeat(is_growing, counts)))
            names, counts = [name for name in names if name not in sealed], counts[is_growing]
        for name in names:
            if name not in known:
                known[name] = {column: value.as_py() for column, value in partition_values(name, schema).items()}
        place = pa.array(np.repeat(np.arange(len(names)), counts))
        for column in known[names[0]] if names else ():
            values = pa.array([known[name][column] for name in names], schema.field(column).type)
            rows = rows.append_column(column, values.take(place))
        yield fitting(rows, schema)


def with_partition(batch: pa.RecordBatch, partition: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns that their directory's name tells, in the order of a schema."""
    for name, value in partition_values(partition, schema).items():
        batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
    return fitting(batch, schema)


def _gone(path: str, error: FileNotFoundError) -> Unavailable:
    return Unavailable(
        f"The files of {path} change faster than they can be read.",
        why=f"{error.filename or error} was removed while it was read, {_ATTEMPTS} times in a row.",
        do="try again; if it is always the same file, somebody removed it: restore it.",
        participant=path,
    )


JOURNAL = ".rows"
"""How the names of journal files end."""


@dataclass(frozen=True)
class SegmentsView:
    """The files of one moment.

    Parameters
    ----------
    held : Held
        What the manifest says.
    paths : mapping of str to str
        Path of each file, relative to the sink's directory, and where it is read.
    sealed : mapping of str to frozenset of str
        By path of a journal file: partitions whose rows in it are in sealed files.
    """

    held: Held
    paths: Mapping[str, str]
    sealed: Mapping[str, frozenset[str]]


@contextmanager
def opened(places: Places, format: FileFormat) -> Iterator[FilesContent]:
    """Open a view of the rows.

    Raises
    ------
    Unavailable
        If rows of a lost journal are still to come, or files are gone before they can be linked.
    """
    with view_directory(places.own) as place:
        for _ in range(ATTEMPTS):
            view = _viewed(places, place)
            if view is not None:
                yield FilesContent(format, view.paths, view.held, _Reading(format, view.sealed))
                return
        raise changing(places.directory)


@dataclass(frozen=True)
class _Reading:
    """Reads a file of a view."""

    format: FileFormat
    sealed: Mapping[str, frozenset[str]]

    def __call__(self, path: str, place: str) -> Iterator[FoundRows]:
        if path not in self.sealed:
            yield from self.format.read(path, place)
            return
        schema = self.format.schema
        known: dict[str, dict[str, Any]] = {}
        for batch in growing_rows(PiecesReader(place), self.sealed[path], schema, known):
            yield FoundRows.of(batch, schema, {})


def _viewed(places: Places, place: str) -> SegmentsView | None:
    manifest = SegmentsManifest(places.manifest)
    with durable.explained(f"reading {places.directory}"):
        others = other_tags(places.directory, places.own)
        # Before the manifest: whatever a run makes visible, an entry has named before.
        seen = [path for path in visible_paths(places.directory) if path.endswith(".parquet")]
        try:
            holdings = manifest.holdings()
            segments = list(manifest.sealed(holdings))
        except FileNotFoundError:
            return None
        paths: dict[str, str] = {}
        sealed: dict[str, frozenset[str]] = {}
        for segment in segments:
            try:
                paths[segment.path] = linked(place_of(places.directory, segment), place)
            except FileNotFoundError:
                if manifest.last().number != holdings.last.number:
                    return None  # joined with others since; else somebody has removed it
        above = os.path.relpath(places.journal, places.directory)
        for name, gone in growing_files(holdings):
            path = os.path.join(above, name)
            try:
                paths[path] = linked(places.path(path), place)
            except FileNotFoundError as error:
                if manifest.last().number != holdings.last.number:
                    return None
                raise lost(places, error.filename) from error
            sealed[path] = gone
        if holdings.refill is not None:
            raise lost(places, "a part of it")
        known = {segment.path for segment in segments} | {*holdings.last.removed}
        for path in seen:
            if path not in known and tag_in(path) not in others:
                try:
                    paths[path] = linked(places.path(path), place)
                except FileNotFoundError:
                    continue
    return SegmentsView(holdings.held(), paths, sealed)


def growing_files(holdings: Holdings) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the journal's files, each with the partitions whose rows in it are in sealed files."""
    for file in holdings.files.values():
        gone = (partition for partition, epoch in holdings.sealed_through.items() if epoch >= file.epoch)
        yield file.name, frozenset(gone)


def lost(places: Places, what: object) -> Unavailable:
    """Return the error of a journal that is not whole: positions do not say which rows are there."""
    return Unavailable(
        f"The journal in {places.journal} is not whole: {what} is gone, and its rows come again in the next run.",
        why="until they have come, some partitions hold more than others.",
        do="start the pipeline, and compare when it has caught up.",
        participant=places.directory,
    )
