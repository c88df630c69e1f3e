"""Killed around epochs whose rows have members that are no column: a replay rescues the same text (design/0055)."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path

import pyarrow.dataset
import pytest

from holdfast.testing.servers.kafka import KafkaServer
from tests.crash.processes import Case
from tests.kafka_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.crash]

COUNT, EACH = 1200, 200
DEATHS = ("after-stage:2", "after-decide:2", "after-publish:3")
"""The second epoch is evaluated, evaluated once more and decided, and published at last by a start; the third lacks a
sink."""


def line(number: int) -> tuple[str, str | None]:
    """Return a line, and what is rescued of it."""
    if number % 5 == 0:
        return f'{{"id": {number}}}', None
    if number % 5 == 1:
        return f'{{"id": {number}, "tip": {number}.10}}', f'{{"tip":{number}.10}}'
    if number % 5 == 2:
        return f'{{"place": {{"x": 1, "y": [{number}]}}, "id": {number}}}', f'{{"place":{{"y":[{number}]}}}}'
    if number % 5 == 3:
        return f'{{"id": {number}, "note": "\\u00fc\\n{number}"}}', f'{{"note":"ü\\n{number}"}}'
    return f'{{"id": "{number}", "tip": 1}}', None


LINES = [line(number) for number in range(COUNT)]
GOOD = [(number, rescued) for number, (_, rescued) in enumerate(LINES) if number % 5 != 4]
BAD = [text for number, (text, _) in enumerate(LINES) if number % 5 == 4]


def write_files(work: Path) -> None:
    (work / "in").mkdir()
    for first in range(0, COUNT, EACH):
        path = work / "in" / f"{first:05}.json"
        path.write_text("".join(text + "\n" for text, _ in LINES[first : first + EACH]))
        os.utime(path, (first, first))


def check_killed_and_exact(case: Case) -> None:
    for point in DEATHS:
        killed = case.start(program="rescued_pipeline.py", HOLDFAST_FAULT=point)
        said, _ = killed.communicate(timeout=180)
        assert killed.returncode == -signal.SIGKILL, said[-3000:]
    survived = case.start(program="rescued_pipeline.py")
    said, _ = survived.communicate(timeout=180)
    assert survived.returncode == 0, said[-3000:]
    with sqlite3.connect(case.work / "out.db") as connection:
        found = connection.execute("SELECT id, rescued FROM rows ORDER BY id").fetchall()
    table = pyarrow.dataset.dataset(case.work / "files", format="parquet").to_table().sort_by("id")
    assert found == GOOD
    assert list(zip(table["id"].to_pylist(), table["rescued"].to_pylist(), strict=True)) == GOOD
    with sqlite3.connect(case.work / "bad.db") as connection:
        assert sorted(raw for (raw,) in connection.execute("SELECT raw FROM rows")) == sorted(BAD)
    assert all(rescued is None or json.loads(rescued) for _, rescued in found)


@pytest.mark.parametrize("carry_max", ["0 B", pytest.param("16 MB", marks=pytest.mark.nightly)])
def test_files_are_read_again_with_the_same_text(tmp_path: Path, carry_max: str) -> None:
    write_files(tmp_path)
    check_killed_and_exact(Case(tmp_path, ("sqlite", "files"), environment={"HOLDFAST_CARRY_MAX": carry_max}))


@pytest.mark.nightly
def test_messages_are_read_again_with_the_same_text(mortal_kafka: KafkaServer, tmp_path: Path) -> None:
    topics = Topics(mortal_kafka.bootstrap)
    topics.create("rides", 2)
    made = [text.encode() for text, _ in LINES]
    topics.produce("rides", {0: made[::2], 1: made[1::2]})
    environment = {"HOLDFAST_CARRY_MAX": "0 B", "CRASH_KAFKA": mortal_kafka.bootstrap}
    check_killed_and_exact(Case(tmp_path, ("sqlite", "files"), environment=environment))
