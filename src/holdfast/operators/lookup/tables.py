"""Tables that a look-up can load: Parquet files, frames; each is asked for its rows again where it is loaded again.

What a table is asked for, it reads in the driver.  Its rows are taken over as Spark would have them, by columns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from holdfast.errors import Corrupt, InvalidPipeline, Unavailable
from holdfast.graph.building import a_type
from holdfast.store.sealed import is_of_data
from holdfast.types.conversion import check_int96, check_ranges, convert
from holdfast.types.frames import as_arrow, is_frame, is_of_spark
from holdfast.types.partition import is_partition_type, partition_columns, partition_values
from holdfast.types.schema import to_arrow


@runtime_checkable
class LookupTable(Protocol):
    """A table that can be loaded.  The rows of two loads may differ; its columns should not."""

    def described(self) -> Mapping[str, Any]:
        """Return what it is, for display and names: JSON values, no secrets, and nothing of its rows."""

    def known_columns(self) -> tuple[str, ...] | None:
        """Return its columns where that costs no connection; None where they are unknown until it is loaded."""

    def schema(self) -> pa.Schema:
        """Return its columns and their types, as Spark has them.

        Raises
        ------
        Unavailable
            If it does not answer.
        Corrupt
            If it is damaged.
        InvalidPipeline
            If it does not exist, or cannot be read.
        """

    def load(self, columns: Sequence[str]) -> pa.Table:
        """Return some columns of all of its rows, in an order that the same rows have again.  Errors as above."""


def as_spark(table: pa.Table) -> pa.Table:
    """Return a table with the types that Spark has for it.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a value is none of Spark's.

    Examples
    --------
    >>> as_spark(pa.table({"city": pa.array(["Rome"]).dictionary_encode()})).schema.field("city").type
    DataType(string)
    """
    wanted = to_arrow(table.schema, argument="the table")
    columns = [
        pa.chunked_array([convert(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, wanted, strict=True)
    ]
    found = pa.Table.from_arrays(columns, schema=wanted)
    check_ranges(found)
    return found


def table_of(given: Any) -> LookupTable:
    """Return the table that a user has given.

    Raises
    ------
    InvalidPipeline
        If it is none.
    """
    if isinstance(given, str | os.PathLike):
        return ParquetTable(str(Path(given).expanduser().absolute()))
    if isinstance(given, LookupTable):
        return given
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if is_frame(given):
        return FrameTable(given)
    raise InvalidPipeline(
        f"{a_type(given)} stands for the table.",
        why="rows are looked up in a table that can be loaded.",
        do="give the path of a Parquet file or directory, a pyarrow.Table, a frame of pandas, Polars or Spark, "
        "hf.lookup_table.postgres(dsn, query), or hf.table(stream, key=...).",
    )


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file, or a directory of them with their rows in the order of their names.

    Columns in the names of directories are texts but for those that are declared: a type that is inferred from values
    changes with them, and makes 7 of ``"007"``.
    """

    path: str
    partition_by: pa.Schema = field(default_factory=lambda: pa.schema([]))
    kind: ClassVar[str] = "parquet"

    def described(self) -> Mapping[str, Any]:
        """Return the path, and the declared columns where there are any."""
        types = {column.name: str(column.type) for column in self.partition_by}
        return {"kind": self.kind, "path": self.path, **({"partition_by": types} if types else {})}

    def known_columns(self) -> tuple[str, ...] | None:
        """Return the columns of what is there now; None where nothing is yet."""
        try:
            return tuple(self.schema().names)
        except (Unavailable, Corrupt):
            return None

    def schema(self) -> pa.Schema:
        """Return the columns of the files."""
        return to_arrow(self._read(None).schema, argument=self.path)

    def load(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the rows of all files."""
        return self._read(columns)

    def _read(self, columns: Sequence[str] | None) -> Any:
        """Return the rows; without columns, something that has a schema and has read no row."""
        path = Path(self.path)
        try:
            files = sorted(str(each) for each in path.rglob("*.parquet")) if path.is_dir() else [self.path]
            if not files:
                raise FileNotFoundError(f"{path} holds no *.parquet")
            found = self._dataset(files)
            if columns is None:
                return found
            _require(columns, found.schema.names, self.path)
            for file in files:
                check_int96(file, columns)
            return as_spark(found.to_table(columns=list(columns)))
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            why = f"{' '.join(str(error).split())}."
            if is_of_data(error):
                raise Corrupt(
                    f"the table {self.path} cannot be read.",
                    why=why,
                    do="write it again, under another name first, then rename it: a reader must not see half of it.",
                    participant=self.path,
                ) from error
            raise Unavailable(
                f"the table {self.path} cannot be read.",
                why=why,
                do="name a Parquet file, or a directory of Parquet files of one schema; files that are replaced while "
                "they are read are read again.",
                participant=self.path,
            ) from error

    def _dataset(self, files: Sequence[str]) -> Any:
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        form = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
        found = ds.dataset(files, format=form)
        directories = {file: str(Path(file).relative_to(self.path).parent) for file in files}
        named = frozenset[str]().union(*map(partition_columns, directories.values())) - {*found.schema.names}
        if not named and not self.partition_by.names:
            return found
        others = sorted(named - {*self.partition_by.names})
        schema = pa.schema([*self.partition_by, *((name, pa.string()) for name in others)])
        fragments = []
        for file, directory in directories.items():
            values = partition_values(directory, schema)
            if missing := [name for name in self.partition_by.names if name not in values]:
                raise pa.ArrowInvalid(f"{file} is in no directory {missing[0]}=...")
            at = pc.scalar(True)
            for name, value in values.items():
                at &= pc.field(name) == value if value.is_valid else pc.field(name).is_null()
            fragments.append(form.make_fragment(file, found.filesystem, partition_expression=at))
        return ds.FileSystemDataset(fragments, pa.schema([*found.schema, *schema]), form, found.filesystem)


def parquet(path: str | os.PathLike[str], *, partition_by: Any) -> ParquetTable:
    """Return the rows of a directory of Parquet files, with columns in the names of its directories, for ``hf.lookup``.

    Parameters
    ----------
    path : str or path
        The directory.
    partition_by : str, pyspark.sql.types.StructType or pyarrow.Schema
        The columns of ``key=value`` directories that are no text, and their types.

    Raises
    ------
    InvalidPipeline
        If it is no schema, or a type cannot be in the name of a directory.

    Examples
    --------
    >>> parquet("out/prices", partition_by="day DATE").partition_by
    day: date32[day]
    """
    columns = to_arrow(partition_by, argument="partition_by")
    for column in columns:
        if not is_partition_type(column.type):
            raise InvalidPipeline(
                f"partition_by: column {column.name!r} is {column.type}.",
                why="directories are named by integers, texts, booleans, decimals, dates and timestamps.",
                do="declare one of these types.",
            )
    return ParquetTable(str(Path(path).expanduser().absolute()), columns)


@dataclass(frozen=True)
class FrameTable:
    """A frame: of Arrow, pandas, Polars or Spark; one of Spark is computed again where it is loaded again."""

    frame: Any = field(repr=False, compare=False)
    kind: ClassVar[str] = "frame"

    def described(self) -> Mapping[str, Any]:
        """Return of which kind it is, and its columns."""
        return {"kind": f"{type(self.frame).__module__.partition('.')[0]} frame", "columns": self.schema().names}

    def known_columns(self) -> tuple[str, ...] | None:
        """Return its columns."""
        return tuple(self.schema().names)

    def schema(self) -> pa.Schema:
        """Return its columns and their types."""
        columns = self.frame.schema if is_of_spark(self.frame) else as_arrow(self.frame).schema
        return to_arrow(columns, argument="the table")

    def load(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of its rows."""
        found = as_arrow(self.frame)
        _require(columns, found.schema.names, "the frame")
        try:
            return as_spark(found.select(list(columns)))
        except pa.ArrowInvalid as error:
            raise InvalidPipeline(
                "the frame cannot be looked up in.",
                why=f"{error}.",
                do="correct the value, or leave the column out: hf.lookup(..., columns=[...]).",
            ) from error


def _require(columns: Sequence[str], there: Sequence[str], place: str) -> None:
    missing = [name for name in columns if name not in there]
    if missing:
        raise InvalidPipeline(
            f"{place} has no column {missing[0]!r}.",
            why=f"it has {', '.join(there)}; the look-up reads {', '.join(columns)}.",
            do="correct on= or columns=, or bring the column back.",
        )
