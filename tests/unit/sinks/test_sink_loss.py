"""A table that lost its rows and not its ledger is said to be empty by the next start (design/0027)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.graph.nodes import SinkNode
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity

SCHEMA = pa.schema([("id", pa.int64())])
HINT = "the table is empty, and its ledger says that it holds everything up to epoch 1"


def opened(node: SinkNode, generation: int, *, publishes: bool = False) -> None:
    sink = node.spec.connect("table", "lost", SCHEMA)
    held = sink.open(RunIdentity("lost", generation))
    if publishes:
        record = EpochRecord("lost", 1, generation, {"given": {"log": 1}})
        sink.publish([Publication(record, (Carried(pa.table({"id": [1, 2]}, SCHEMA)),))], Held(held.epoch, generation))
    sink.close()


def check(node: SinkNode, caplog: pytest.LogCaptureFixture, delete: object) -> None:
    caplog.set_level("INFO", logger="holdfast.connectors")
    opened(node, 1, publishes=True)
    opened(node, 2)
    assert HINT not in caplog.text
    delete()
    opened(node, 3)
    (said,) = [record.getMessage() for record in caplog.records if HINT in record.getMessage()]
    assert "holdfast reconcile" in said


def test_sqlite(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def delete() -> None:
        with closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as connection:
            connection.execute("DELETE FROM rows")

    check(hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"), caplog, delete)


@pytest.mark.postgres
def test_postgres(postgres_plain: str, caplog: pytest.LogCaptureFixture) -> None:
    def delete() -> None:
        with psycopg.connect(postgres_plain, autocommit=True) as connection:
            connection.execute("TRUNCATE lost_rows")

    check(hf.write.postgres(postgres_plain, table="lost_rows", name="table"), caplog, delete)


def test_a_table_that_never_had_rows_is_not_mentioned_before_its_first_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = hf.write.sqlite(tmp_path / "out.db", table="rows", name="table")
    for generation in (1, 2):
        opened(node, generation)
    assert not caplog.records
