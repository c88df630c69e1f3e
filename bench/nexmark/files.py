"""The events as Parquet files, so that every side reads the same bytes."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow.parquet

import holdfast as hf
from bench.nexmark.events import SCHEMAS, Events
from bench.nexmark.expected import side_table

ROWS_PER_GROUP = 125_000
"""In a row group, as writers of such files have it: more than one task can read a file."""

_COLUMN_TYPES = {"int64": "BIGINT", "string": "STRING"}


def ddl(table: str) -> str:
    """Return the columns of a table in Spark SQL's words."""
    return ", ".join(f"{field.name} {_COLUMN_TYPES.get(str(field.type), 'TIMESTAMP')}" for field in SCHEMAS[table])


def write_events(directory: Path, events: Events, count: int, events_per_file: int) -> None:
    """Write each table into a directory of its own: a file for so many events, in the order of their times."""
    shutil.rmtree(directory, ignore_errors=True)
    for table in SCHEMAS:
        (directory / table).mkdir(parents=True)
        for number, start in enumerate(range(0, count, events_per_file)):
            rows = events.make(table, start, min(count, start + events_per_file))
            path = directory / table / f"{number:05}.parquet"
            pyarrow.parquet.write_table(pyarrow.Table.from_batches([rows]), path, row_group_size=ROWS_PER_GROUP)
            os.utime(path, (number, number))


def write_parts(directory: Path, events: Events, count: int, parts: int, events_per_slice: int) -> None:
    """Write the same rows for readers that begin anywhere: each table in ``parts`` files, slices of it in turns.

    Flink hands files to its readers in no order that one could rely on.  So each of its readers gets one file, in the
    order of time, and they move through the time together.
    """
    shutil.rmtree(directory, ignore_errors=True)
    for table, schema in SCHEMAS.items():
        (directory / table).mkdir(parents=True)
        paths = [directory / table / f"{number}.parquet" for number in range(parts)]
        with ExitStack() as stack:
            writers = [stack.enter_context(pyarrow.parquet.ParquetWriter(path, schema)) for path in paths]
            for number, start in enumerate(range(0, count, events_per_slice)):
                rows = events.make(table, start, min(count, start + events_per_slice))
                writers[number % parts].write_batch(rows)
    (directory / "side").mkdir()
    pyarrow.parquet.write_table(side_table(), directory / "side" / "0.parquet")


@dataclass(frozen=True)
class FileTables:
    """The tables of such a directory, a file in each epoch.

    Parameters
    ----------
    directory : Path
        Where they are.
    disorder : str
        How far a file may be below what came before it.
    """

    directory: Path
    disorder: str = "0 s"

    @cached_property
    def person(self) -> hf.Stream:
        """Who bids and sells."""
        return self._read("person")

    @cached_property
    def auction(self) -> hf.Stream:
        """What is sold."""
        return self._read("auction")

    @cached_property
    def bid(self) -> hf.Stream:
        """What is bidden."""
        return self._read("bid")

    def _read(self, table: str) -> hf.Stream:
        return hf.read.files(
            str(self.directory / table),
            format="parquet",
            schema=ddl(table),
            timestamp="dateTime",
            disorder=self.disorder,
            bounded=True,
            max_files_per_epoch=1,
            name=table,
        )
