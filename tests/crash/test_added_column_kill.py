"""Killed around a column that a run adds to its schema file: each row once, with its value (design/0055)."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from holdfast.testing.servers.kafka import KafkaServer
from tests.crash.processes import Case
from tests.kafka_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.crash]

COUNT, EACH = 1200, 200
DEATHS = ("after-decide:2", "schema-file-longer", "columns-uncommitted", "after-publish:4")
"""Before the first row with a tip; when the file has it; while tables get it; and an epoch later."""


def line(number: int) -> str:
    tip = f', "tip": {number}' if number >= 500 and number % 3 == 0 else ""
    note = f', "note": ["n{number}"]' if number >= 900 else ""
    return f'{{"id": {number}, "kind": {number % 7}{tip}{note}}}'


EXPECTED: list[tuple[Any, ...]] = [
    (number, number % 7, number if number >= 500 and number % 3 == 0 else None, f"n{number}" if number >= 900 else None)
    for number in range(COUNT)
]


def write_files(work: Path) -> None:
    (work / "in").mkdir()
    for first in range(0, COUNT, EACH):
        path = work / "in" / f"{first:05}.json"
        path.write_text("".join(line(number) + "\n" for number in range(first, first + EACH)))
        os.utime(path, (first, first))


def check_exact(work: Path) -> None:
    assert (work / "ride.ddl").read_text() == "id BIGINT, kind INT, -- of rides\ntip BIGINT,\nnote ARRAY<STRING>\n"
    with sqlite3.connect(work / "out.db") as connection:
        found = connection.execute("SELECT id, kind, tip, json_extract(note, '$[0]') FROM rows ORDER BY id").fetchall()
    assert found == EXPECTED
    rows = pyarrow.dataset.dataset(work / "files", format="parquet").to_table().sort_by("id")
    assert rows["id"].to_pylist() == list(range(COUNT))
    with sqlite3.connect(work / "counts.db") as connection:
        counts = connection.execute("SELECT kind, n FROM counts ORDER BY kind").fetchall()
    assert counts == [(kind, sum(number % 7 == kind for number in range(COUNT))) for kind in range(7)]


def lives(case: Case) -> set[str]:
    """Kill it at each point, then start it until it is done; return the points at which it died."""
    killed = set()
    for point in (*DEATHS, *[""] * 8):
        fault: dict[str, Any] = {"HOLDFAST_FAULT": point} if point else {}
        process = case.start(program="added_pipeline.py", **fault)
        said, _ = process.communicate(timeout=180)
        if process.returncode == 0:
            return killed
        if process.returncode == -signal.SIGKILL:
            killed.add(point)
        else:
            assert "ride.ddl has the column" in said, said[-3000:]
    pytest.fail(f"it does not come to its end; it died at {killed}")


@pytest.mark.parametrize("carry_max", ["0 B", pytest.param("16 MB", marks=pytest.mark.nightly)])
def test_files_with_new_members_are_read_with_all_of_them(tmp_path: Path, carry_max: str) -> None:
    (tmp_path / "ride.ddl").write_text("id BIGINT, kind INT -- of rides")
    write_files(tmp_path)
    case = Case(tmp_path, ("sqlite", "files"), environment={"HOLDFAST_CARRY_MAX": carry_max})
    assert {"schema-file-longer", "columns-uncommitted"} <= lives(case)
    check_exact(tmp_path)


@pytest.mark.nightly
def test_rows_that_wait_for_a_column_are_taken_where_rows_are_isolated(tmp_path: Path) -> None:
    """A run that is killed before it takes itself off the count leads to a search, which condemns none of them."""
    (tmp_path / "ride.ddl").write_text("id BIGINT, kind INT -- of rides")
    write_files(tmp_path)
    isolates = {"HOLDFAST_ON_POISON": "isolate", "HOLDFAST_POISON_ATTEMPTS": "1"}
    case = Case(tmp_path, ("sqlite", "files"), environment={"HOLDFAST_CARRY_MAX": "0 B", **isolates})
    assert {"schema-file-longer", "columns-uncommitted"} <= lives(case)
    check_exact(tmp_path)


@pytest.mark.nightly
def test_messages_with_new_members_are_read_with_all_of_them(mortal_kafka: KafkaServer, tmp_path: Path) -> None:
    (tmp_path / "ride.ddl").write_text("id BIGINT, kind INT -- of rides")
    topics = Topics(mortal_kafka.bootstrap)
    topics.create("rides", 1)
    topics.produce("rides", {0: [line(number).encode() for number in range(COUNT)]})
    case = Case(tmp_path, ("sqlite", "files"), environment={"CRASH_KAFKA": mortal_kafka.bootstrap})
    assert "schema-file-longer" in lives(case)
    check_exact(tmp_path)
