"""The version of a segments store that a source reads: the list of its files, fixed once, and links to them.

The sink removes files when their rows are elsewhere; links keep them until they are read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.connectors.segments import dataset
from holdfast.connectors.segments.journal import PiecesReader
from holdfast.errors import Unavailable
from holdfast.store import durable, sealed
from holdfast.store.time_ranges import TimeRange, of_groups, united

UNPARTITIONED = "."
"""The segment of rows that are in no partition."""
_CONTENT = "content"
_ATTEMPTS = 20


@dataclass(frozen=True)
class FileOfVersion:
    """A file of the version: sealed (with its partition), or of the journal (with what is sealed of it)."""

    path: str
    size_bytes: int
    row_count: int | None
    partition: str | None
    sealed: tuple[str, ...] = ()
    lowest: int | None = None
    """A time that no row of it is below, where rows have times and it is known."""
    highest: int | None = None
    """A time that no row of it is above, where that is known."""
    growing: tuple[str, ...] = ()
    """Of the journal: the partitions of its rows that are not sealed."""

    @property
    def name(self) -> str:
        """What distinguishes it."""
        return self.path

    @property
    def partitions(self) -> Sequence[str]:
        """Those that it has rows of, as segments."""
        names = self.growing if self.partition is None else (self.partition,)
        return [name or UNPARTITIONED for name in names]


class Wanted(NamedTuple):
    """What a source wants of a store: the columns, their timestamp, what grows, and no row before a time."""

    path: str
    schema: pa.Schema
    timestamp: str | None
    growing: bool
    since: int | None


def fix_version(wanted: Wanted, name: str, workspace: str) -> Sequence[FileOfVersion]:
    """Fix the newest version, unless another process has; return the files of the one that is fixed.

    Raises
    ------
    Unavailable
        If the journal changes faster than its files can be linked.
    """
    sealed.prepare(workspace)
    for attempt in range(_ATTEMPTS):
        try:
            files = _find(wanted, workspace)
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS - 1:
                raise Unavailable(
                    f"The journal of {wanted.path} changes faster than it can be linked.",
                    why=f"{error.filename} was removed.",
                    do="start again.",
                    participant=name,
                ) from error
        else:
            body = [
                [
                    *(file.path, file.size_bytes, file.row_count, file.partition),
                    *(list(file.sealed), file.lowest, file.growing, file.highest),
                ]
                for file in files
            ]
            sealed.put_if_absent(os.path.join(workspace, _CONTENT), json.dumps(body).encode())
            break
    return read_version(workspace) or ()


def _find(wanted: Wanted, workspace: str) -> list[FileOfVersion]:
    """Return the files of the newest version, each linked: the sink may remove it before it is read."""
    found = dataset.content(wanted.path)
    links = os.path.join(workspace, "files")
    durable.make_directory(links)
    files = []
    for segment in found.sealed:
        path = _link(dataset.place_of(found.directory, segment), links, is_copied=False)
        times = _times_of(wanted, path)
        if times is not None and wanted.since is not None and times.high < wanted.since:
            continue
        whole = FileOfVersion(path, segment.size_bytes, segment.row_count, segment.partition)
        files.append(whole if times is None else replace(whole, lowest=times.low, highest=times.high))
    for file in found.growing if wanted.growing else ():
        path = _link(file.path, links, is_copied=True)
        count = None if file.sealed else file.row_count
        left = tuple(each for each in growing_of(path) if each not in file.sealed)
        unsealed = FileOfVersion(path, file.size_bytes, count, None, tuple(sorted(file.sealed)), growing=left)
        times = _times_in(wanted, unsealed)
        files.append(unsealed if times is None else replace(unsealed, lowest=times.low, highest=times.high))
    durable.sync_directory(links)
    # In the order of time, as far as files have one: the bound that holds after each rises soonest so.
    return sorted(files, key=lambda file: (file.lowest is not None, file.lowest or 0))


def _times_of(wanted: Wanted, path: str) -> TimeRange | None:
    """Return the range of the timestamps of a sealed file, by its statistics; None where it is not known."""
    column = wanted.timestamp
    if column is None:
        return None
    try:
        with pq.ParquetFile(path) as file:
            return united(range_ for _, _, range_ in of_groups(file, wanted.schema.field(column)))
    except pa.ArrowException:
        return None  # who reads it says what is wrong


def _times_in(wanted: Wanted, unsealed: FileOfVersion) -> TimeRange | None:
    """Return the range of the timestamps of a file of the journal: it has no statistics, and few rows."""
    column = wanted.timestamp
    if column is None:
        return None
    rows = dataset.growing_rows(PiecesReader(unsealed.path), frozenset(unsealed.sealed), wanted.schema, {})
    ends = [pc.min_max(batch.column(column).cast(pa.int64())) for batch in rows]
    return united(TimeRange(each["min"].as_py(), each["max"].as_py()) for each in ends if each["min"].is_valid)


def _link(path: str, directory: str, *, is_copied: bool) -> str:
    """Return a link to a file; on another file system a copy, or the file itself."""
    link = os.path.join(directory, os.path.basename(path))
    try:
        os.link(path, link)
    except FileExistsError:
        return link
    except FileNotFoundError:
        raise
    except OSError:
        if not is_copied:
            return path
        shutil.copyfile(path, link)
    return link


def read_version(workspace: str) -> list[FileOfVersion] | None:
    """Return the files of the version; None while it is not fixed."""
    data = sealed.read_sealed(os.path.join(workspace, _CONTENT))
    if data is None:
        return None
    return [
        FileOfVersion(
            path,
            size,
            rows,
            partition,
            tuple(of),
            lowest,
            more[1] if more[1:] else None,
            tuple(more[0] if more else ()),
        )
        for path, size, rows, partition, of, lowest, *more in json.loads(data)
    ]


def growing_of(path: str) -> list[str]:
    """Return the partitions that a file of the journal has rows of."""
    return sorted({str(each) for each in PiecesReader(path).index["partition"].to_pylist()})
