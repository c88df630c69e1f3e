"""Spark as its users write it: a streaming query with ``foreachBatch`` that COPYs into PostgreSQL; at-least-once.

It is written as well as we can: rows leave the JVM as Arrow and reach PostgreSQL as CSV made by Arrow, not one by one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def default_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with Spark's defaults: two cores, 2 GB, quiet."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("raw").config("spark.driver.memory", "2g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def copy_task(dsn: str, table: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what each task does: one connection, one COPY, one commit."""

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import psycopg
        import pyarrow as pa
        import pyarrow.csv

        row_count = 0
        options = pyarrow.csv.WriteOptions(include_header=False)
        statement = f"COPY {table} FROM STDIN (FORMAT csv)".encode()
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor, cursor.copy(statement) as sink:
            for batch in batches:
                buffer = pa.BufferOutputStream()
                pyarrow.csv.write_csv(batch, buffer, options)
                sink.write(memoryview(buffer.getvalue()))
                row_count += batch.num_rows
        yield pa.RecordBatch.from_pydict({"row_count": [row_count]})

    return copy


def copy_batch(dsn: str, table: str) -> Callable[[DataFrame, int], None]:
    """Return the function for ``foreachBatch``: every task copies its rows, nobody remembers the batch."""
    task = copy_task(dsn, table)

    def save(batch: DataFrame, batch_id: int) -> None:
        batch.mapInArrow(task, "row_count long").collect()

    return save


def copy_batch_rows(dsn: str, table: str) -> Callable[[DataFrame, int], None]:
    """Return the simpler function of many a tutorial: ``foreachPartition`` and ``write_row``."""

    def copy(rows: Iterator[Any]) -> None:
        import psycopg

        statement = f"COPY {table} FROM STDIN".encode()
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor, cursor.copy(statement) as sink:
            for row in rows:
                sink.write_row(tuple(row))

    def save(batch: DataFrame, batch_id: int) -> None:
        batch.foreachPartition(copy)

    return save
