"""What makes a directory of files hold what it should: files that change are written anew.

One entry of the log puts them in the place of the former ones, as it does joined files
(:mod:`holdfast.connectors.files.sink.compaction`).  Rows that are missing go into the newest file of their partition,
so that no
two files of a partition have rows of the same epochs: these would not be joined.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast import faults
from holdfast.connectors.files.sink.compaction import Joining
from holdfast.connectors.files.sink.log import LogEntry
from holdfast.connectors.kit.compared_columns import FoundRows, Moved
from holdfast.connectors.kit.expected import is_moved
from holdfast.connectors.kit.files.content import BATCH_ROWS, FileFormat, parsed_place
from holdfast.connectors.kit.files.own_files import EpochFiles, OwnFile, joined_name, own_file, visible_paths
from holdfast.connectors.kit.files.rows import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN, Held, Repair
from holdfast.store import durable
from holdfast.types import canonical, partition
from holdfast.types.casting import declared
from holdfast.values import Losses

logger = logging.getLogger("holdfast.connectors.files")


class RepairHost(Protocol):
    """The sink, as its repair sees it."""

    name: str

    @property
    def lock(self) -> threading.RLock:
        """Orders appends."""

    def follow(self) -> LogEntry:
        """Return the last entry, which is this run's, with its renames done; under :attr:`lock`."""

    def check_destinations(self, paths: Iterable[str]) -> None:
        """Raise if files cannot be renamed to these paths."""

    def append_joins(self, entry: LogEntry, last: LogEntry) -> bool:
        """Append an entry and carry it out; False if the number was taken; under :attr:`lock`."""


@dataclass
class _Touched:
    """What becomes of a file: rows that go, by number, with their hashes, and rows that come."""

    removed: dict[int, int] = field(default_factory=dict)
    written: list[pa.RecordBatch] = field(default_factory=list)


@dataclass(frozen=True)
class Rewritten:
    """Files that are written and not visible yet.

    Parameters
    ----------
    above : str
        The directory that they are in, relative to the sink's.
    renames : tuple of (str, str)
        Where they are, and where they belong.
    removals : tuple of str
        What they replace.
    """

    above: str
    renames: tuple[tuple[str, str], ...]
    removals: tuple[str, ...]


@dataclass(frozen=True)
class Rewriting:
    """What writes the files of one repair.

    Parameters
    ----------
    format : FileFormat
        How rows lie in files.
    joining : Joining
        Where files are written before they are visible.
    held : Held
        What the log says.
    """

    format: FileFormat
    joining: Joining
    held: Held

    def write(self, repair: Repair) -> Rewritten:
        """Write the files; their directories are synced.

        Raises
        ------
        Moved
            If a row that is to be removed is no longer there.  Nothing is left then.
        """
        above = os.path.join(self.joining.above, f"{self.held.generation}-{_token()}")
        renames = []
        touched = self._touched(repair)
        try:
            for path, changes in touched.items():
                final = self._final(path)
                staged = os.path.join(above, f"{final}.staged")
                if self._rewrite(
                    path, os.path.join(self.joining.directory, staged), changes, repair.losses | self.format.losses
                ):
                    renames.append((staged, final))
            self._sync(above)
        except FileNotFoundError as error:
            self.drop(above)
            raise Moved from error
        except BaseException:
            self.drop(above)
            raise
        here = [path for path in touched if os.path.lexists(os.path.join(self.joining.directory, path))]
        return Rewritten(above, tuple(renames), tuple(here))

    def drop(self, above: str) -> None:
        """Remove what was written."""
        shutil.rmtree(os.path.join(self.joining.directory, above), ignore_errors=True)

    def _touched(self, repair: Repair) -> Mapping[str, _Touched]:
        found: defaultdict[str, _Touched] = defaultdict(_Touched)
        if repair.removed.num_rows:
            places, hashes = (repair.removed.column(name).to_pylist() for name in (PLACE_COLUMN, HASH_COLUMN))
            for place, hash_ in zip(places, hashes, strict=True):
                path, number = parsed_place(place)
                found[path].removed[number] = hash_
        newest = self._newest() if repair.written.num_rows else {}
        for batch in repair.written.select(self.format.schema.names).to_batches():
            rows = declared(batch, self.format.schema)
            for directory, of_partition in partition.split(rows, self.format.partition_by):
                path, fitting = self._taking(newest, directory, of_partition)
                found[path].written.append(fitting)
        return found

    def _newest(self) -> dict[str, OwnFile]:
        """Return the newest own file of each partition."""
        found: dict[str, OwnFile] = {}
        for path in visible_paths(self.joining.directory):
            file = own_file(path, self.joining.tag)
            if file is not None:
                found[file.partition] = max(file, found.get(file.partition, file), key=_age)
        return found

    def _taking(self, newest: dict[str, OwnFile], directory: str, rows: pa.RecordBatch) -> tuple[str, pa.RecordBatch]:
        """Return the file that takes rows of a partition, one that is there or one that will be, and them as its."""
        file = newest.get(directory)
        if file is not None:
            place = os.path.join(self.joining.directory, file.path)
            fitting = _fitting(rows, pq.read_schema(place).remove_metadata()) if os.path.lexists(place) else rows
            if fitting is not None:
                return file.path, fitting
        epoch = self.held.epoch
        path = joined_name(EpochFiles(directory, (), epoch, epoch, 0), self.joining.tag, _token(), "parquet")
        newest[directory] = OwnFile(path, directory, epoch, epoch)
        return path, rows

    def _final(self, path: str) -> str:
        """Return the path of what takes the place of a file; its own where there is none yet."""
        if not os.path.lexists(os.path.join(self.joining.directory, path)):
            return path
        file = own_file(path, self.joining.tag)
        if file is None:
            return f"{path.removesuffix('.parquet')}-{_token()}.parquet"
        files = EpochFiles(file.partition, (), file.first_epoch, file.last_epoch, 0)
        return joined_name(files, self.joining.tag, _token(), "parquet")

    def _rewrite(self, path: str, target: str, changes: _Touched, losses: Losses) -> bool:
        """Write a file anew; False, with nothing written, if no row is left."""
        tables = _row_groups(self._left(path, changes, losses))
        first = next(tables, None)
        if first is None:
            return False
        durable.make_directory(os.path.dirname(target), is_synced=False)
        with open(target, "xb", 2**20) as file:
            with pq.ParquetWriter(file, first.schema, compression=self.joining.compression or "none") as writer:
                for table in chain([first], tables):
                    writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            file.flush()
            os.fsync(file.fileno())
        return True

    def _left(self, path: str, changes: _Touched, losses: Losses) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a file is to have."""
        place = os.path.join(self.joining.directory, path)
        if changes.removed or os.path.lexists(place):
            numbers = np.array(sorted(changes.removed), np.int64)
            constants = self.format.constants(path)
            first = 0
            with pq.ParquetFile(place) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    batch = batch.replace_schema_metadata(None)
                    here = numbers[(numbers >= first) & (numbers < first + batch.num_rows)] - first
                    if len(here):
                        rows = FoundRows.of(batch.take(pa.array(here)), self.format.schema, constants)
                        hashes = [changes.removed[first + at] for at in here.tolist()]
                        if rows.hashes(losses)[0].tolist() != hashes:
                            raise Moved
                    is_kept = np.ones(batch.num_rows, bool)
                    is_kept[here] = False
                    first += batch.num_rows
                    yield batch.filter(pa.array(is_kept)) if len(here) else batch
            if len(numbers) and numbers[-1] >= first:
                raise Moved
        yield from changes.written

    def _sync(self, above: str) -> None:
        place = os.path.join(self.joining.directory, above)
        for directory, _, _ in os.walk(place):
            durable.sync_directory(directory)
        if os.path.lexists(place):
            durable.sync_directory(os.path.dirname(place))


def repaired(host: RepairHost, format: FileFormat, joining: Joining, repair: Repair) -> int | None:
    """Remove and write rows; return how many, or None where the directory or its log has moved.

    Durable writes: 1. the files that are written anew, below ``joining/``; after a crash the next start removes them.
    2. the entry of the log: after it the renames and removals will be done, by whoever opens the sink next.
    """
    with host.lock:
        last = host.follow()
        if is_moved(last.held(), repair.held):
            return None
        if not repair.removed.num_rows and not repair.written.num_rows:
            return 0
        rewriting = Rewriting(format, joining, repair.held)
        try:
            rewritten = rewriting.write(repair)
        except Moved:
            return None
        try:
            host.check_destinations(final for _, final in rewritten.renames)
        except Exception:
            rewriting.drop(rewritten.above)
            raise
        faults.reach("repair-uncommitted", last.epoch)
        entry = replace(
            last,
            number=last.number + 1,
            after_epoch=last.epoch,
            renames=rewritten.renames,
            removals=rewritten.removals,
            back_to=None,
            is_repair=True,
            explanations=(),
        )
        if not host.append_joins(entry, last):
            rewriting.drop(rewritten.above)
            return None
    count = int(repair.removed.num_rows + repair.written.num_rows)
    logger.info("sink %s: repaired: %d rows in %d files", host.name, count, len(rewritten.removals))
    return count


def _age(file: OwnFile) -> tuple[int, int, str]:
    return file.last_epoch, file.first_epoch, file.path


def _token() -> str:
    return uuid.uuid4().hex[:12]


def _fitting(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return rows with the columns of a file; None where it would keep other values."""
    if set(rows.schema.names) != set(schema.names):
        return None
    try:
        fitting = rows.select(schema.names).cast(schema)
    except pa.ArrowException:
        return None
    one, other = (canonical.row_hashes(each, schema.names) for each in (rows, fitting))
    return fitting if np.array_equal(one, other) else None


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield rows in tables of a good size."""
    held: list[pa.RecordBatch] = []
    row_count = size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        row_count += batch.num_rows
        size_bytes += batch.nbytes
        if size_bytes >= ROW_GROUP_BYTES or row_count >= ROW_GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held, row_count, size_bytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)
