"""Reads a directory of files sinks outside of a pipeline: each row once, whatever is being renamed or removed.

The log of a sink decides what its entries name; what no entry since the listing began has named has not changed since.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.files.sink.log import FilesLog, LogEntry
from holdfast.connectors.files.sink.tables import FilesTable, schema_of
from holdfast.connectors.kit.files.own_files import visible_paths
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.store import durable

ATTEMPTS = 100

_FORMATS = ("parquet", "json")


@dataclass(frozen=True)
class FilesDataset:
    """The content of a directory that ``hf.write.files`` writes; each reading is of the newest version.

    Parameters
    ----------
    path : str
        The directory, absolute.
    """

    path: str

    def paths(self) -> list[str]:
        """Return the files that have every published row once, absolute, in the order of their names.

        One that is joined with others later, or that you remove, is gone then: ask again.
        """
        return self._version()[0]

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows, as they were written, partition columns included."""
        return schema_of(self.path, self._version()[1])

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows.

        Parameters
        ----------
        columns : sequence of str, optional
            Only these.
        """
        for _ in range(ATTEMPTS):
            try:
                return self.table().to_table(columns)
            except FileNotFoundError:
                continue  # joined with others since
        raise changing(self.path)

    def to_pandas(self, *, columns: Sequence[str] | None = None) -> Any:
        """Return the rows as a DataFrame of pandas; parameters as :meth:`to_arrow`."""
        return self.to_arrow(columns=columns).to_pandas()

    def table(self) -> FilesTable:
        """Return the files of one moment as a table."""
        paths, noted = self._version()
        return FilesTable(tuple(paths), self.path, schema_of(self.path, noted))

    def _version(self) -> tuple[list[str], list[str]]:
        """Return the files of one moment, and the columns that the logs note."""
        for _ in range(ATTEMPTS):
            listed = self._listed()
            if listed is not None:
                found, entries = listed
                paths = [os.path.join(self.path, found[path]) for path in sorted(found, key=_name)]
                return paths, [entry.schema for entry in entries]
        raise changing(self.path)

    def _listed(self) -> tuple[dict[str, str], list[LogEntry]] | None:
        """Return where each file belongs, and where it is, and the last entries; None where that passed too quickly."""
        logs = list(_logs(self.path))
        with durable.explained(f"reading {self.path}"):
            since = [max(each.numbers(), default=0) for each in logs]
            found = {path: path for path in visible_paths(self.path) if path.endswith(_FORMATS)}
            last = [carried_out(each, first, found, self.path) for each, first in zip(logs, since, strict=True)]
        entries = [entry for entry in last if entry is not None]
        return (found, entries) if len(entries) == len(last) else None


def _logs(directory: str) -> Iterator[FilesLog]:
    found = sorted(glob.glob(os.path.join(glob.escape(directory), "_holdfast", "*", "*", "log")))
    if not found:
        raise InvalidPipeline(
            f"No files sink has written to {directory}.",
            why=f"there is no log below {os.path.join(directory, '_holdfast')}.",
            do="name the directory that hf.write.files has; other directories are read by any reader of files.",
            participant=directory,
        )
    for each in found:
        yield FilesLog(each, aside="")


def carried_out(log: FilesLog, first: int, found: dict[str, str], directory: str) -> LogEntry | None:
    """Put into a listing what the entries from a number on say, carried out or not; return the last of them.

    None if it passed too quickly.  An empty log has an entry that says nothing.
    """
    last = max(log.numbers(), default=0)
    try:
        entries = [log.read(number) for number in range(max(1, first), last + 1)]
    except FileNotFoundError:
        return None
    removed = {path for entry in entries for path in entry.removals}
    for entry in entries:
        for staged, final in entry.renames:
            place = None if final in found else _place(directory, staged, final)
            if place is not None:
                found[final] = place
            elif final not in found and final not in removed and max(log.numbers(), default=0) > last:
                return None  # joined with others since; else somebody has removed it
        for path in entry.replaced(lambda final: final in found or final in removed):
            found.pop(path, None)
    return entries[-1] if entries else LogEntry()


def _place(directory: str, staged: str, final: str) -> str | None:
    """Return where a file is that belongs somewhere: it may be renamed between two looks."""
    for path in (final, staged, final):
        if os.path.lexists(os.path.join(directory, path)):
            return path
    return None


def _name(path: str) -> tuple[str, str]:
    return os.path.dirname(path), os.path.basename(path)


def changing(path: str) -> Unavailable:
    """Return the error of a directory of which no moment can be read."""
    return Unavailable(
        f"The files of {path} change faster than they can be read.",
        why=f"files were joined or removed while they were read, {ATTEMPTS} times in a row.",
        do="try again; if it is always the same file, somebody removed it: restore it.",
        participant=path,
    )
