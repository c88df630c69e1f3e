"""Joins small files of a files sink in the background: of epochs that no rewind can withdraw, by an entry of its log.

Invariants.  One round at a time; the log is written under the sink's lock only.  Until the entry is durable nothing has
changed but files below ``joining/``, and a failure removes these.  A joined file holds whole epochs, in the order of
the names that it replaces (design/0005).

Writes one file with the rows of several, in their order.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.files.sink.log import FilesLog, LogEntry
from holdfast.connectors.kit.files.own_files import (
    EpochFiles,
    OwnFile,
    SmallNeighbours,
    by_epoch,
    joined_name,
    own_file,
    own_files,
    together,
)
from holdfast.connectors.kit.files.rows import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from holdfast.errors import HoldfastError, InDoubt, Unavailable, invariant
from holdfast.store import durable

log = logging.getLogger("holdfast.connectors.files")

TARGET = "128 MB"
"""Size of a joined file where ``compact=True``."""

GROUP_FILES = 64
GROUP_REMOVALS = 1000
GROUP_BYTES = 256 * 2**20
"""Of one round and entry at most, give or take one file: an epoch may have to wait for its renames and removals."""

_NEVER = sys.maxsize
"""In the place of an epoch: nothing of a partition is joined."""

_DIRECTORY = re.compile(r"(\d+)-[0-9a-f]+")


class CompactionHost(Protocol):
    """The sink, as its compaction sees it."""

    name: str

    @property
    def lock(self) -> threading.RLock:
        """Orders appends."""

    @property
    def entries(self) -> FilesLog:
        """Its log."""

    def follow(self) -> LogEntry:
        """Return the last entry, if it is this run's, with its renames done; under :attr:`lock`."""

    def check_destinations(self, paths: Iterable[str]) -> None:
        """Raise if files cannot be renamed to these paths."""

    def append_joins(self, entry: LogEntry, last: LogEntry) -> bool:
        """Append an entry and carry it out; False if the number was taken; under :attr:`lock`."""

    def fenced_out(self) -> None:
        """Raise why an append found its number taken."""


@dataclass(frozen=True)
class Joining:
    """Where joined files are written, and how.

    Parameters
    ----------
    directory : str
        The sink's, absolute.
    own : str
        What is the sink's own, relative to it.
    tag, format, compression
        As of staged files.
    target_bytes : int, optional
        Size that a file is to have; None: nothing is joined.
    """

    directory: str
    own: str
    tag: str
    format: str
    compression: str | None
    target_bytes: int | None

    @property
    def above(self) -> str:
        """The directory of what is not visible yet, relative to the sink's."""
        return os.path.join(self.own, "joining")

    def sweep(self, generation: int) -> None:
        """Remove what dead runs wrote and no entry names; with the renames of the last entry done."""
        above = os.path.join(self.directory, self.above)
        with suppress(OSError):
            for name in os.listdir(above):
                match = _DIRECTORY.fullmatch(name)
                if match and int(match[1]) < generation:
                    shutil.rmtree(os.path.join(above, name), ignore_errors=True)


@dataclass(frozen=True)
class _Join:
    """A joined file that is written: where it is, where it belongs, and what it replaces."""

    staged: str
    final: str
    run: list[EpochFiles]
    files: EpochFiles


class Compaction:
    """What joins the files of one sink.

    Parameters
    ----------
    host : CompactionHost
        The sink.
    joining : Joining
        With a target.
    """

    what = "joining small files"

    def __init__(self, host: CompactionHost, joining: Joining) -> None:
        assert joining.target_bytes is not None
        self._host = host
        self._joining = joining
        self._target_bytes = joining.target_bytes
        self._round = threading.Lock()
        self._generation = 0
        self._came: list[str] = []
        self._is_new = False
        """Whether an epoch was published since the last round: only then there is something to look for."""
        self._is_changed = False
        """Whether what is known of the files is no longer so."""
        self._waiting: dict[str, OwnFile] | None = None
        """Files of epochs that a rewind may withdraw; None before the directory was walked."""
        self._small: SmallNeighbours[EpochFiles] = SmallNeighbours(self._target_bytes)
        self._reached: dict[str, int] = {}
        """Partition -> last epoch of what is known of it."""

    # --- called by the sink, under its lock -------------------------------------------------------------------------

    def begin(self, generation: int) -> None:
        """Start from what the directory has."""
        self._generation = generation
        self._came = []
        self._is_new = True
        self._is_changed = False
        self._waiting = None
        self._small = SmallNeighbours(self._target_bytes)
        self._reached = {}

    def came(self, paths: Iterable[str]) -> None:
        """Note the files of an epoch."""
        self._came += paths
        self._is_new = True

    def changed(self) -> None:
        """Note that files were replaced by others: the next round looks at all of them again."""
        self._is_changed = self._is_new = True

    # --- a round ----------------------------------------------------------------------------------------------------

    def tend(self) -> int:
        """Join what belongs together, as much as one entry takes; return how many files were made."""
        with self._round:
            try:
                self._look()
                return self._join()
            except BaseException:
                self._begin_again()
                raise

    def _begin_again(self) -> None:
        with self._host.lock:
            self.begin(self._generation)

    def _look(self) -> None:
        """Find what can be joined since the last time."""
        with self._host.lock:
            if not self._is_new:
                return
            if self._is_changed:
                self.begin(self._generation)
            self._host.follow()  # no file of the last entry is left where it was
            settled = self._settled()
            came, self._came = self._came, []
            self._is_new = False
        if self._waiting is None:
            with durable.explained(f"reading {self._joining.directory}"):
                self._waiting = {file.path: file for file in own_files(self._joining.directory, self._joining.tag)}
        new = (own_file(path, self._joining.tag) for path in came)
        self._waiting |= {file.path: file for file in new if file is not None}
        due = [file for file in self._waiting.values() if file.last_epoch <= settled]
        for file in due:
            del self._waiting[file.path]
        for files in by_epoch(self._joining.directory, due):
            self._take(files)

    def _take(self, files: EpochFiles) -> None:
        """Note files, unless others of their epochs are known: somebody has put these back."""
        reached = self._reached.get(files.partition, 0)
        if files.first_epoch > reached:
            self._small.add([files])
        elif reached != _NEVER:
            log.warning(
                "sink %s: %s and another file have rows of the same epochs; nothing in %s is joined",
                self._host.name,
                files.path,
                files.partition or "its directory",
            )
            self._small.forget(files.partition)
        self._reached[files.partition] = files.last_epoch if files.first_epoch > reached else _NEVER

    def _settled(self) -> int:
        """Return the last epoch that no rewind can withdraw; under the sink's lock, since an epoch prunes the log."""
        entries = self._host.entries
        with durable.explained(f"reading the log of sink {self._host.name!r}"):
            return entries.read(entries.numbers()[0]).epoch

    def _join(self) -> int:
        joins: list[_Join] = []
        is_sent = False
        try:
            for join in self._written():
                joins.append(join)
            if not joins:
                return 0
            with self._host.lock:
                last = self._host.follow()
                self._check_there(joins)
                entry = dataclasses.replace(
                    last,
                    number=last.number + 1,
                    after_epoch=last.epoch,
                    renames=tuple((join.staged, join.final) for join in joins),
                    removals=tuple(path for join in joins for path in together(join.run).paths),
                    back_to=None,
                    is_repair=False,
                    explanations=(),
                )
                is_sent = True
                if not self._host.append_joins(entry, last):
                    self._host.fenced_out()
        except Exception as error:
            # Else the entry may be in place, and what it names must stay.
            if not is_sent or (isinstance(error, HoldfastError) and not isinstance(error, InDoubt)):
                self._drop(joins)
            raise
        for join in joins:
            log.info("sink %s: joined %d files to %s", self._host.name, len(together(join.run).paths), join.final)
        return len(joins)

    def _written(self) -> Iterator[_Join]:
        """Yield joined files as they are written; their directories are synced."""
        size_bytes = removed = 0
        written: set[str] = set()
        while len(written) < GROUP_FILES and removed < GROUP_REMOVALS and size_bytes < GROUP_BYTES:
            run = self._small.due()
            if not run or not written.isdisjoint(each.path for each in run):  # these are not visible yet
                return
            try:
                found = self._write(run)
            except FileNotFoundError:  # removed since it was found
                self._begin_again()
                return
            if found is None:
                self._small.forget(run[0].partition)
                continue
            self._small.joined(run, found.files)
            yield found
            written.add(found.final)
            removed += len(together(run).paths)
            size_bytes += found.files.size_bytes

    def _write(self, run: list[EpochFiles]) -> _Join | None:
        """Write one file; None, with a word in the log, where these cannot be joined.

        Raises
        ------
        FileNotFoundError
            If one of them is gone.
        """
        joining, files = self._joining, together(run)
        token = uuid.uuid4().hex[:12]
        final = joined_name(files, joining.tag, token, joining.format)
        name = os.path.join(joining.above, f"{self._generation}-{token}")
        staged = os.path.join(name, f"{final}.staged")
        path = os.path.join(joining.directory, staged)
        self._host.check_destinations([final])
        sources = [os.path.join(joining.directory, each) for each in files.paths]
        why: object = "their columns differ"
        try:
            with durable.explained(f"joining files of sink {self._host.name!r}"):
                durable.make_directory(os.path.dirname(path))
                size_bytes = write_joined(path, sources, compression=joining.compression)
                if size_bytes is not None:
                    durable.sync_directory(os.path.dirname(path))
                    kept = EpochFiles(files.partition, (final,), files.first_epoch, files.last_epoch, size_bytes)
                    return _Join(staged, final, run, kept)
        except pa.ArrowException as error:
            why = error
        except BaseException as error:
            self._remove(name)
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise
        self._remove(name)
        log.warning("sink %s: %s and the files after it are not joined: %s", self._host.name, files.path, why)
        return None

    def _check_there(self, joins: Sequence[_Join]) -> None:
        """Raise if a file was removed since it was read: its rows are not to come back."""
        for path in (path for join in joins for path in together(join.run).paths):
            if not os.path.lexists(os.path.join(self._joining.directory, path)):
                raise Unavailable(f"{path} was removed while it was joined.", do="nothing: it is tried again.")

    def _drop(self, joins: Sequence[_Join]) -> None:
        for join in joins:
            self._remove(os.sep.join(join.staged.split(os.sep)[:5]))

    def _remove(self, name: str) -> None:
        shutil.rmtree(os.path.join(self._joining.directory, name), ignore_errors=True)


_BUFFER_BYTES = 2**20


def write_joined(path: str, sources: Sequence[str], *, compression: str | None) -> int | None:
    """Write a file, durably but for its directory; return its size in bytes.

    Parameters
    ----------
    path : str
        The file; it must not be there.
    sources : sequence of str
        Files of one format, which their names tell.
    compression : str or None
        Of Parquet.

    Returns
    -------
    int or None
        None where the columns of these files differ: nothing is written.

    Raises
    ------
    FileNotFoundError
        If one of them is gone.
    """
    if not sources[0].endswith(".parquet"):
        return _write_lines(path, sources)
    schema = pq.read_schema(sources[0]).remove_metadata()
    if any(not pq.read_schema(source).equals(schema) for source in sources[1:]):
        return None
    return _write_parquet(path, sources, schema, compression)


def _write_parquet(path: str, sources: Sequence[str], schema: pa.Schema, compression: str | None) -> int:
    row_count = 0
    file: BinaryIO
    with open(path, "xb", _BUFFER_BYTES) as file:
        with pq.ParquetWriter(file, schema, compression=compression or "none") as writer:
            for rows in _row_groups(sources, schema):
                writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
                row_count += rows.num_rows
        size_bytes = _finished(file)
    expected = sum(pq.read_metadata(source).num_rows for source in sources)
    invariant(row_count == expected, f"{row_count} rows were written to {path}, of {expected} that were read.")
    return size_bytes


def _row_groups(sources: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows in tables of a good size, however small the files are."""
    held: list[pa.Table] = []
    row_count = size_bytes = 0
    for source in sources:
        with pq.ParquetFile(source) as file:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number).cast(schema)
                if held and (size_bytes + rows.nbytes > ROW_GROUP_BYTES or row_count + rows.num_rows > ROW_GROUP_ROWS):
                    yield pa.concat_tables(held)
                    held, row_count, size_bytes = [], 0, 0
                held.append(rows)
                row_count += rows.num_rows
                size_bytes += rows.nbytes
    if held:
        yield pa.concat_tables(held)


def _write_lines(path: str, sources: Sequence[str]) -> int:
    file: BinaryIO
    with open(path, "xb", _BUFFER_BYTES) as file:
        for source in sources:
            with open(source, "rb") as lines:
                shutil.copyfileobj(lines, file, _BUFFER_BYTES)
        size_bytes = _finished(file)
    expected = sum(os.path.getsize(source) for source in sources)
    invariant(size_bytes == expected, f"{size_bytes} bytes were written to {path}, of {expected} that were read.")
    return size_bytes


def _finished(file: BinaryIO) -> int:
    file.flush()
    os.fsync(file.fileno())
    return file.tell()
