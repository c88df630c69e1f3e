"""Control rows of a segments sink: an epoch's rows cut at the commands, in journal files of one version of the columns.

The grain of what the manifest folds stays the epoch.  Rows that a later command of the same entry drops are not written
at all; what epochs before brought is dropped by the entry (design/0020).

Requests to seal segments now: small files that anybody may put beside a manifest, and the run that is alive obeys.

Nothing depends on them but when a segment is sealed: one that is lost, or obeyed twice, changes no row.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from holdfast.connectors.control.columns import Awaited, Columns, ControlColumns, pieces
from holdfast.connectors.control.commands import AddColumn, Command, DropPartition, text_of, wrong
from holdfast.connectors.kit.files.staged import ArrowStaging, unchecked
from holdfast.connectors.kit.refusals import TableRows
from holdfast.connectors.segments.entries import JournalFile, SealedSegment
from holdfast.connectors.segments.holdings import Holdings
from holdfast.connectors.segments.journal import JournalStaging, JournalWriter, file_of
from holdfast.connectors.segments.places import OWN_DIRECTORY
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.graph.building import names_of
from holdfast.ports import Carried, EpochRecord, Part, Publication, Task
from holdfast.positions import covers_all
from holdfast.store import durable
from holdfast.types.partition import partition_names
from holdfast.types.schema import encode_schema


@dataclass(frozen=True)
class CutEpochs:
    """What an entry says of epochs: their files, and what commands among their rows did.

    Parameters
    ----------
    files : list of JournalFile
        In the order of their rows.
    controls, dropped, removed, schema
        As in :class:`~holdfast.connectors.segments.entries.SegmentsEntry`.
    """

    files: list[JournalFile]
    controls: tuple[tuple[int, str], ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    schema: str = ""


class SegmentsControl:
    """What a sink does with control rows.

    Parameters
    ----------
    sink, pipeline : str
        Identity.
    own : str
        The sink's own directory.
    columns : ControlColumns
        Which columns of the rows are not data.
    declared : pyarrow.Schema
        Those that are.
    journal : JournalStaging
        Where and how rows are written.
    """

    def __init__(
        self,
        sink: str,
        pipeline: str,
        own: str,
        columns: ControlColumns,
        declared: pa.Schema,
        journal: JournalStaging,
    ) -> None:
        self.staging = ArrowStaging(os.path.join(own, "arriving"), pipeline, sink, unchecked)
        self._columns = columns
        self._declared = declared
        self._journal = journal
        self._pipeline = pipeline
        self._awaited = Awaited(columns)

    def columns(self, changes: Iterable[tuple[int, str]]) -> Columns:
        """Return the columns behind the schema changes that a manifest notes."""
        return Columns(self._declared, frozenset(self._journal.partition_by)).noted(text for _, text in changes)

    # --- before the decision ------------------------------------------------------------------------------------

    def admit(self, publication: Publication, holdings: Holdings) -> bool:
        """Go through an epoch without writing, behind those that wait."""
        if not any(part.row_count for part in publication.parts):
            self._awaited.forget(publication.record.epoch)
            return False
        columns = self.columns(holdings.changes)
        for each in (*self._awaited.before(publication.record.epoch, holdings.last.epoch), publication):
            for batch in self._batches([each]):
                columns = self._passed(columns, batch)
        self._awaited.note(publication, self._batches([publication]))
        return True

    def rows_of(self, part: Part, before: list[Columns]) -> TableRows:
        """Return the rows of a part, to be tried; ``before`` has the columns, and is changed."""
        batches = list(self._of(part))
        rows = pa.Table.from_batches(batches) if batches else pa.table({})

        def refusal(low: int, high: int) -> BadRow | None:
            (columns,) = before
            try:
                for batch in rows.slice(low, high - low).to_batches():
                    columns = self._passed(columns, batch)
            except BadRow as error:
                return error
            before[:] = [columns]
            return None

        return TableRows(part, rows, refusal)

    def _passed(self, columns: Columns, rows: pa.RecordBatch) -> Columns:
        for piece in pieces(rows, self._columns):
            if isinstance(piece, pa.RecordBatch):
                self._journal_of(columns).check(pa.Table.from_batches([columns.conformed(piece, self._columns)]))
            else:
                columns = self._after(columns, piece)
        return columns

    def _after(self, columns: Columns, command: Command) -> Columns:
        partition_by = self._journal.partition_by
        if isinstance(command, DropPartition) and not set(command.values) <= set(partition_by):
            named = ", ".join(partition_by)
            raise wrong(text_of(command), f"the sink is partitioned by {named}" if named else "it is not partitioned")
        if isinstance(command, AddColumn) and command.column in partition_by:
            raise wrong(text_of(command), f"{command.column!r} is a partition column")
        return columns.after(command)

    # --- publish ------------------------------------------------------------------------------------------------

    def prepare(
        self, new: Sequence[Publication], holdings: Holdings, sealed: Iterable[SealedSegment], written: list[str]
    ) -> CutEpochs:
        """Write the journal files of epochs; return what their entry says.

        Parameters
        ----------
        new : sequence of Publication
            The epochs.
        holdings : Holdings
            What is held before them.
        sealed : iterable of SealedSegment
            Read where a partition is dropped.
        written : list of str
            Receives the names of files, so that they can be removed after a failure.
        """
        commands = [
            (publication.record, piece)
            for publication in new
            for batch in self._batches([publication])
            for piece in pieces(batch, self._columns)
            if not isinstance(piece, pa.RecordBatch)
        ]
        files, columns, done = [], self.columns(holdings.changes), list[tuple[int, str]]()
        generation, number = new[0].record.generation, 0
        for publication in new:
            epoch = publication.record.epoch
            out = _Files(self._pipeline, generation, epoch, written)
            for batch in self._batches([publication]):
                for piece in pieces(batch, self._columns):
                    if isinstance(piece, pa.RecordBatch):
                        rows = columns.conformed(piece, self._columns)
                        for _, command in commands[number:]:
                            if isinstance(command, DropPartition):
                                rows = rows.filter(pa.array(~self._matches(columns, command, rows)))
                        out.write(self._journal_of(columns), columns.version, rows)
                        continue
                    number += 1
                    before, columns = columns, self._after(columns, piece)
                    if columns is not before or isinstance(piece, DropPartition):
                        done.append((epoch, text_of(piece)))
            files += out.staged()
        drops = [(record, each) for record, each in commands if isinstance(each, DropPartition)]
        dropped = self._dropped(columns, drops, holdings, [*holdings.growing]) if drops else set()
        gone = list(sealed) if drops else []
        everything = {segment.partition for segment in gone}
        hidden = self._dropped(columns, drops, holdings, everything) if drops else set()
        is_changed = columns.version != len(holdings.changes)
        return CutEpochs(
            files,
            tuple(done),
            dict.fromkeys(sorted(dropped), holdings.last.epoch),
            {segment.path: segment.size_bytes for segment in gone if segment.partition in hidden},
            encode_schema(columns.schema) if is_changed else "",
        )

    def _dropped(
        self,
        columns: Columns,
        drops: Sequence[tuple[EpochRecord, DropPartition]],
        holdings: Holdings,
        partitions: Collection[str],
    ) -> set[str]:
        """Return those of some partitions that commands drop; not again what a lost journal did not have."""
        refill, found = holdings.refill, set[str]()
        for record, command in drops:
            wanted = self._directories(columns, command)
            for partition in partitions:
                if not wanted <= set(partition.split("/")):
                    continue
                # Sealed files have the whole epoch of this partition: it has seen the command before.
                is_done = refill is not None and covers_all(
                    refill.segments.get(partition, refill.positions), record.positions
                )
                if not is_done:
                    found.add(partition)
        return found

    def _directories(self, columns: Columns, command: DropPartition) -> set[str]:
        """Return the names of the directories that a partition which a command drops lies in."""
        found = set()
        for name in command.values:
            value = columns.value_of(command, name)
            found |= set(partition_names(name, pa.array([value.as_py()], value.type)))
        return found

    def _matches(
        self, columns: Columns, command: DropPartition, rows: pa.RecordBatch
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which rows are in directories that a command drops: null and an empty text are in one."""
        wanted = self._directories(columns, command)
        matches = np.ones(rows.num_rows, dtype=bool)
        for name in command.values:
            code = rows.column(name).dictionary_encode(null_encoding="encode")
            is_wanted = np.array([each in wanted for each in partition_names(name, code.dictionary)], dtype=bool)
            matches &= is_wanted[code.indices.to_numpy()]
        return matches

    def _journal_of(self, columns: Columns) -> JournalStaging:
        return replace(self._journal, schema=columns.schema)

    def _batches(self, publications: Sequence[Publication]) -> Iterator[pa.RecordBatch]:
        for publication in publications:
            for part in publication.parts:
                yield from self._of(part)

    def _of(self, part: Part) -> Iterator[pa.RecordBatch]:
        if isinstance(part, Carried):
            yield from part.rows.to_batches()
        else:
            yield from self.staging.batches(part)


class _Files:
    """The journal files of one epoch: another one where the columns change."""

    def __init__(self, pipeline: str, generation: int, epoch: int, written: list[str]) -> None:
        self._task = (pipeline, generation, epoch)
        self._written = written
        self._version = 0
        self._writer: JournalWriter | None = None
        self._found: list[JournalFile] = []

    def write(self, journal: JournalStaging, version: int, rows: pa.RecordBatch) -> None:
        if self._writer is None or version != self._version:
            self._end()
            self._version = version
            self._writer = journal(Task(*self._task, len(self._found), 0))
        self._writer.write(rows)

    def staged(self) -> list[JournalFile]:
        self._end()
        return self._found

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            file = file_of(writer.stage())
        except BaseException:
            writer.abort()
            raise
        if file is not None:
            self._written.append(file.name)
            self._found.append(replace(file, version=self._version))


@dataclass(frozen=True)
class FlushRequest:
    """Somebody's wish that segments be sealed; of these partitions, or None for all."""

    path: str
    partitions: tuple[str, ...] | None


def ask(own: str, partitions: Iterable[str] | None = None) -> FlushRequest:
    """Ask whoever writes the sink with this directory of its own to seal what grows."""
    names = None if partitions is None else tuple(partitions)
    directory = os.path.join(own, "flush")
    path = os.path.join(directory, f"{uuid.uuid4().hex}.json")
    with durable.explained(f"writing {path}"):
        durable.make_directory(directory)
        durable.create(path, json.dumps(names).encode(), aside=os.path.join(own, "writing"))
    return FlushRequest(path, names)


def pending(own: str) -> list[FlushRequest]:
    """Return the requests that nobody has obeyed: what cannot be read is one for all partitions."""
    directory = os.path.join(own, "flush")
    found = []
    with suppress(OSError):
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            with suppress(FileNotFoundError):  # somebody else has obeyed it
                found.append(FlushRequest(path, _partitions(path)))
    return found


def _partitions(path: str) -> tuple[str, ...] | None:
    try:
        with open(path, "rb") as file:
            names = json.load(file)
    except ValueError:
        return None
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def wanted(requests: Sequence[FlushRequest]) -> set[str] | None:
    """Return the partitions that are asked for; None for all."""
    if any(request.partitions is None for request in requests):
        return None
    return {partition for request in requests for partition in request.partitions or ()}


def obeyed(requests: Iterable[FlushRequest]) -> None:
    """Remove requests: what they wanted is sealed."""
    for request in requests:
        with suppress(OSError):
            os.unlink(request.path)


def flush(
    path: str | os.PathLike[str], partitions: str | Iterable[str] | None = None, *, pipeline: str, sink: str
) -> FlushRequest:
    """Ask the run that writes a directory of ``hf.write.segments`` to seal what grows, at the end of an epoch.

    Returns at once.  Where no run is alive, the next one obeys.

    Parameters
    ----------
    path : str or path
        The sink's directory.
    partitions : str or iterable of str, optional
        Directories of partitions (``"origin=JFK"``); by default all.
    pipeline, sink : str
        Their names.

    Raises
    ------
    InvalidPipeline
        If that sink has written nothing there.

    Examples
    --------
    ::

        hf.segments.flush("out/flights", ["origin=JFK"], pipeline="flights", sink="flights")
    """
    directory = durable.local_directory(path, "segments.flush")
    own = os.path.join(directory, OWN_DIRECTORY, pipeline, sink)
    if not os.path.isdir(os.path.join(own, "manifest")):
        raise InvalidPipeline(
            f"Sink {sink!r} of pipeline {pipeline!r} has written no segments to {directory}.",
            why=f"there is no manifest in {own}.",
            do="name the directory, the pipeline and the sink as the program does.",
            participant=sink,
        )
    return ask(own, None if partitions is None else names_of(partitions))
