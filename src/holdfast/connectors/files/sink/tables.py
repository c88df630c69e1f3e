"""The rows of files of a directory, with the types that were written; the names of directories have columns, too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.kit import json_lines
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.store.damage import damage_named
from holdfast.types.partition import partition_columns, partition_values
from holdfast.types.schema import decode_schema, unite_schemas

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
