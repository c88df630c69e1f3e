"""Real sinks of this machine for simulated worlds: a table in a database file, and a directory of files."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as dataset

from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.testing import SCHEMA, real_sink
from holdfast.testing.simulation.world import PIPELINE


def sqlite(name, path, pipeline=PIPELINE):
    """Return a sink to a table in a database file."""
    spec = SqliteSpec(path=os.fspath(path), table="rows")

    def rows():
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as connection:
            has_table = connection.execute("select 1 from sqlite_master where name = 'rows'").fetchone()
            query = "select id, segment, seq, value from rows order by rowid"
            return connection.execute(query).fetchall() if has_table else []

    def leftovers():
        return [os.fspath(found) for found in Path(f"{path}-holdfast").rglob("*") if found.is_file()]

    return real_sink(name, lambda: spec.connect(name, pipeline, SCHEMA), rows, leftovers, is_ordered=True)


def files(name, directory, pipeline=PIPELINE):
    """Return a sink to a directory of Parquet files."""
    spec = FilesSinkSpec(os.fspath(directory))

    def rows():
        found = dataset.dataset(directory, format="parquet", schema=SCHEMA).to_table().to_pylist()
        return [tuple(row[column] for column in SCHEMA.names) for row in found]

    def leftovers():
        own = directory / "_holdfast" / pipeline / name
        return [os.fspath(path) for path in [*own.glob("staging/*"), *own.glob("writing/*")]]

    return real_sink(name, lambda: spec.connect(name, pipeline, SCHEMA), rows, leftovers)
