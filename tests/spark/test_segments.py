"""Segments on Spark: the journal is lost, then the checkpoint too; sealed files are filtered, and nothing is lost."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import segments
from holdfast.connectors.segments.policies import Policy, Segment, shutdown

pytestmark = pytest.mark.spark

PER_FILE = 20


def write_files(work: Path, numbers: range) -> None:
    (work / "in").mkdir(exist_ok=True)
    for number in numbers:
        ids = range(number * PER_FILE, (number + 1) * PER_FILE)
        lines = [json.dumps({"id": each, "day": f"d{each % 3}"}) + "\n" for each in ids]
        (work / "in" / f"{number:03}.json").write_text("".join(lines))


def at_their_own_pace(segment: Segment) -> str | None:
    """One partition seals each epoch, one now and then, and one grows on."""
    return "pace" if {"day=d0": True, "day=d1": segment.rows > 3 * PER_FILE // 3}.get(segment.partition) else None


def run(work: Path, spark: SparkSession, policy: Policy) -> None:
    rows = hf.read.files(work / "in", format="json", schema="id BIGINT, day STRING", max_files_per_epoch=1, name="rows")
    pipeline = hf.Pipeline(
        "segments",
        rows | hf.write.segments(work / "out", partition_by=["day"], seal=[policy], name="days"),
        rows | hf.write.sqlite(work / "out.db", table="rows", name="table"),
    )
    pipeline.run(checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark)


def check(work: Path, files: int) -> None:
    with sqlite3.connect(work / "out.db") as connection:
        ids = sorted(number for (number,) in connection.execute("SELECT id FROM rows"))
    assert ids == list(range(files * PER_FILE))
    assert sorted(segments.open(work / "out").to_arrow()["id"].to_pylist()) == ids


def test_what_grew_in_a_lost_journal_is_read_again_and_what_is_sealed_is_not(
    tmp_path: Path, spark: SparkSession
) -> None:
    """design/0016, "Positions": first of one that grew since the first epoch; each without a checkpoint, too."""
    journal = tmp_path / "out" / "_holdfast" / "segments" / "days" / "journal"
    losses = ((), 0, 2), ((tmp_path / "checkpoint",), 2, 4), ((), 4, 7), ((tmp_path / "checkpoint",), 7, 9)
    for lost, first, end in losses:
        write_files(tmp_path, range(first, end))
        run(tmp_path, spark, at_their_own_pace)
        check(tmp_path, end)
        assert list(journal.iterdir())
        for directory in (journal, *lost):
            shutil.rmtree(directory)
        if first == 2:
            run(tmp_path, spark, shutdown())
            check(tmp_path, end)
            assert list(journal.iterdir()) == []
    run(tmp_path, spark, shutdown())
    check(tmp_path, 9)
    assert list(journal.iterdir()) == []
