"""Reads a directory of files sinks outside of a pipeline: each row once, whatever is being renamed or removed.

The log of a sink decides what its entries name; what no entry since the listing began has named has not changed since.

The rows of files of a directory, with the types that were written; the names of directories have columns, too.

Rows of a directory of files, and when epochs were published there, for ``holdfast trace``.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.files.sink.log import FilesLog, LogEntry
from holdfast.connectors.kit import json_lines
from holdfast.connectors.kit.files.own_files import visible_paths
from holdfast.errors import Corrupt, InvalidPipeline, Unavailable
from holdfast.expressions.compile import columnar
from holdfast.ports import PublishedEpoch
from holdfast.store import durable
from holdfast.store.sealed import damage_named
from holdfast.types.partition import partition_columns, partition_values
from holdfast.types.schema import decode_schema, unite_schemas

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


_FILE = "__filename"
"""Of each row: where Arrow has read it."""


@dataclass(frozen=True)
class FilesTable:
    """Files that are one table.

    Parameters
    ----------
    paths : tuple of str
        Of Parquet files and files of JSON lines, staged ones too.
    base : str
        The directory below which columns become directories.
    schema : pyarrow.Schema
        Columns of the rows, partition columns included.
    file_system : pyarrow.fs.FileSystem, optional
        Where they are; None: the local one.
    """

    paths: tuple[str, ...]
    base: str
    schema: pa.Schema
    file_system: Any = None

    def to_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows, with these columns or all.

        Raises
        ------
        FileNotFoundError
            If a file is gone.
        Corrupt
            If one is damaged.
        Unavailable
            If the object store does not answer.
        """
        wanted = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_batches(list(self.batches(wanted)), wanted)

    def batches(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with these of the columns; errors as :meth:`to_table`."""
        of_directory: dict[str, dict[str, pa.Scalar]] = {}
        for directory, rows in self._of_files(wanted):
            if directory not in of_directory:
                of_directory[directory] = self._values(directory)
            values = of_directory[directory]
            columns = [
                pa.repeat(values[field.name], rows.num_rows) if field.name in values else rows.column(field.name)
                for field in wanted
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _of_files(self, wanted: pa.Schema) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield what is in the files, with the directory of each, relative."""
        in_names = frozenset[str]().union(*(partition_columns(self._directory(path)) for path in self.paths))
        schema = pa.schema([field for field in self.schema if field.name not in in_names])
        names = [field.name for field in wanted if field.name not in in_names]
        lines = [path for path in self.paths if path.removesuffix(".staged").endswith(".json")]
        for path in lines:
            with damage_named(path):
                table = json_lines.decode(self._content(path), schema)
            for rows in table.to_batches():
                yield self._directory(path), rows
        others = [path for path in self.paths if path not in set(lines)]
        if not others:
            return
        from pyarrow import dataset as pa_dataset  # loads pandas: a second, for commands that read no rows

        with damage_named(self.base):
            found = pa_dataset.dataset(others, schema=schema, format="parquet", filesystem=self.file_system)
            for rows in found.to_batches(columns=[*names, _FILE] if in_names else names):
                if rows.num_rows:  # those of one file
                    yield self._directory(rows.column(_FILE)[0].as_py()) if in_names else "", rows

    def _directory(self, path: str) -> str:
        return os.path.relpath(os.path.dirname(path), self.base)

    def _content(self, path: str) -> bytes:
        if self.file_system is None:
            with open(path, "rb") as file:
                return file.read()
        with self.file_system.open_input_stream(path) as stream:
            return bytes(stream.read())

    def _values(self, directory: str) -> dict[str, pa.Scalar]:
        try:
            return partition_values(directory, self.schema)
        except (pa.ArrowException, ValueError) as error:
            raise Corrupt(
                f"{self.base}: the name of the directory {directory} has no value of its column.",
                why=f"{error}.",
                do="move it out: no sink has written it.",
                participant=self.base,
            ) from error


def schema_of(path: str, noted: Iterable[str]) -> pa.Schema:
    """Return the columns of a directory, from what the logs of its sinks note.

    Raises
    ------
    InvalidPipeline
        If none of them notes its columns.
    """
    schemas = [decode_schema(each) for each in noted if each]
    if not schemas:
        raise InvalidPipeline(
            f"The columns of {path} are unknown.",
            why="the logs of its sinks do not note them: they were written by an earlier version.",
            do="start a pipeline that writes there once; or read its paths() with any reader of files.",
            participant=path,
        )
    return unite_schemas(schemas)


def history(log_directory: str) -> list[PublishedEpoch]:
    """Return the epochs that the entries of the log name; the time is that of the file of the entry."""
    log, found, last = FilesLog(log_directory, aside=""), [], 0
    for number in log.numbers():
        try:
            entry = log.read(number)
            at_us = os.stat(os.path.join(log_directory, f"{number:012d}.json")).st_mtime_ns // 1000
        except FileNotFoundError:
            continue  # removed because a hundred newer ones are there
        if entry.epoch > last and not entry.is_compaction:
            found.append(PublishedEpoch(entry.epoch, entry.generation, entry.positions, at_us))
        last = entry.epoch
    return found


def find(path: str, name: str, where: str | tuple[str, str], limit: int) -> list[dict[str, Any]]:
    """Return rows of the directory: parameters as of :class:`~holdfast.ports.LineageSpec`; a condition is Spark SQL."""
    return found(FilesDataset(path).table(), name, where, limit)


def found(rows: FilesTable, name: str, where: str | tuple[str, str], limit: int) -> list[dict[str, Any]]:
    """Return rows of files; parameters as of :func:`find`."""
    test = _condition(where, rows.schema, name)
    several: list[dict[str, Any]] = []
    for batch in rows.batches(rows.schema):
        chosen = batch.filter(test(batch)).slice(0, limit - len(several))
        several += chosen.to_pylist()
        if len(several) == limit:
            break
    return several


def _condition(where: str | tuple[str, str], schema: pa.Schema, name: str) -> Any:
    if not isinstance(where, str):
        column, value = where
        return lambda batch: pc.equal(batch.column(column).cast(pa.string()), value)
    compiled = columnar(where, schema)
    if compiled is None or compiled.type != pa.bool_():
        raise InvalidPipeline(
            f"sink {name!r}: its rows cannot be asked for by {where!r}.",
            why="that is no condition of the SQL that is evaluated without Spark, over the columns "
            f"{', '.join(schema.names)}.",
            do="write comparisons with AND, OR, NOT, IN, BETWEEN, IS NULL.",
            participant=name,
        )
    return compiled.evaluate
