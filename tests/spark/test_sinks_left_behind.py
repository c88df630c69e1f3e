"""A sink that lost epochs the checkpoint had published: the next start notices before anything, and replays them."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast import faults
from holdfast.cli import app, check, resolving
from holdfast.config import Settings
from holdfast.errors import Diverged, HoldfastError
from tests.spark.counting import counting
from tests.spark.running import die_at, parquet_rows, sqlite_rows

pytestmark = pytest.mark.spark

PER_FILE = 10


def write_files(work: Path, numbers: range) -> None:
    (work / "in").mkdir(exist_ok=True)
    for number in numbers:
        path = work / "in" / f"{number:03}.json"
        path.write_text("".join(json.dumps({"id": number * PER_FILE + i}) + "\n" for i in range(PER_FILE)))
        os.utime(path, (number, number))


def pipeline_of(work: Path, *, has_files_sink: bool = False, is_upsert: bool = False) -> hf.Pipeline:
    rows = hf.read.files(work / "in", format="json", schema="id BIGINT", max_files_per_epoch=1, name="given")
    key: dict[str, Any] = {"mode": "upsert", "key": "id"} if is_upsert else {}
    sinks = [rows | hf.write.sqlite(work / "out.db", table="rows", name="table", **key)]
    if has_files_sink:
        sinks.append(rows | hf.write.files(work / "out", name="archive"))
    return hf.Pipeline("behind", *sinks)


def run(work: Path, spark: SparkSession, **options: bool) -> None:
    pipeline = pipeline_of(work, **options)
    pipeline.run(checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark)


def copy_of(path: Path) -> Path:
    """Copy a database that nobody has open, with what stands beside it."""
    kept = path.with_name("kept")
    kept.mkdir()
    for each in path.parent.glob(f"{path.name}*"):
        (shutil.copytree if each.is_dir() else shutil.copy)(each, kept / each.name)
    return kept


def restore(kept: Path) -> None:
    for each in kept.parent.glob("*.db*"):
        if (kept / each.name).exists():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    for each in kept.iterdir():
        (shutil.copytree if each.is_dir() else shutil.copy)(each, kept.parent / each.name)


def publish_and_restore(work: Path, spark: SparkSession, kept_files: int, files: int) -> None:
    """Publish some files, and give the database back what it held after the first of them."""
    write_files(work, range(kept_files))
    run(work, spark)
    kept = copy_of(work / "out.db")
    write_files(work, range(kept_files, files))
    run(work, spark)
    restore(kept)


def epochs_logged(work: Path) -> list[int]:
    """Return the numbers of all epochs that Spark planned, in the order of its directories."""
    found = []
    for directory in sorted((work / "checkpoint/spark").glob("[0-9]*")):
        base = json.loads((directory / "origin.json").read_text())["base"]
        found += [base + number for number in sorted(int(p.name) for p in (directory / "offsets").glob("[0-9]*"))]
    return found


def test_a_restored_sqlite_file_is_filled_again_by_the_next_start_without_a_new_row(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    publish_and_restore(tmp_path, spark, 3, 9)
    assert len(sqlite_rows(tmp_path / "out.db")) == 3 * PER_FILE

    with caplog.at_level(logging.WARNING, "holdfast"):
        run(tmp_path, spark)

    assert sqlite_rows(tmp_path / "out.db") == list(range(9 * PER_FILE))
    told = "\n".join(record.message for record in caplog.records)
    assert "sink 'table' holds everything up to epoch 3, and epoch 9 was published" in told
    assert "source 'given' from log=3 to log=9" in told
    numbers = epochs_logged(tmp_path)
    assert len(numbers) == len(set(numbers)), "no number is used twice"
    assert numbers == sorted(numbers)

    write_files(tmp_path, range(9, 10))
    run(tmp_path, spark)
    assert sqlite_rows(tmp_path / "out.db") == list(range(10 * PER_FILE))


@pytest.mark.parametrize("point", ["before-publish", "after-publish"])
def test_of_two_sinks_the_one_that_lost_epochs_gets_them_alone_whenever_the_replay_is_killed(
    tmp_path: Path, spark: SparkSession, point: str
) -> None:
    write_files(tmp_path, range(2))
    run(tmp_path, spark, has_files_sink=True, is_upsert=True)
    kept = copy_of(tmp_path / "out.db")
    write_files(tmp_path, range(2, 5))
    die_at("after-publish", 5)  # decided, and published in one of them: recovery must not hide the gap
    with pytest.raises(HoldfastError):
        run(tmp_path, spark, has_files_sink=True, is_upsert=True)
    faults.install(None)
    restore(kept)
    write_files(tmp_path, range(5, 6))

    die_at(point, 7)
    with pytest.raises(HoldfastError):
        run(tmp_path, spark, has_files_sink=True, is_upsert=True)
    faults.install(None)
    run(tmp_path, spark, has_files_sink=True, is_upsert=True)

    assert sqlite_rows(tmp_path / "out.db") == list(range(6 * PER_FILE))
    assert parquet_rows(tmp_path / "out") == list(range(6 * PER_FILE))


def test_where_the_files_are_gone_the_range_is_named_and_nothing_is_changed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start says so, and ``holdfast plan`` and ``holdfast resolve`` say the same."""
    publish_and_restore(tmp_path, spark, 2, 4)
    (tmp_path / "in/003.json").rename(tmp_path / "003.json")

    for _ in range(2):
        with pytest.raises(Diverged, match="sink 'table' has lost what was published after epoch 2") as refused:
            run(tmp_path, spark)
        assert "source 'given' from log=2 to log=4" in refused.value.why
        assert "003.json" in refused.value.why
        assert "restore sink 'table'" in refused.value.do
    for module in (check, resolving):
        monkeypatch.setattr(module, "load_target", lambda target: pipeline_of(tmp_path))
    for command in ("plan", "resolve"):
        for path in (tmp_path / "checkpoint/generations").iterdir():  # it was this process, which goes on living
            path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 2**22 + 1}))
        answer = CliRunner().invoke(app.app, [command, "it", "--checkpoint", str(tmp_path / "checkpoint"), "--json"])
        start, error = (json.loads(line) for line in answer.stdout.splitlines())
        assert start["start"]["row"] == "L"
        told = {field: error["error"][field] for field in ("what", "why", "do")}
        assert told == {"what": refused.value.what, "why": refused.value.why, "do": refused.value.do}
    assert len(sqlite_rows(tmp_path / "out.db")) == 2 * PER_FILE

    (tmp_path / "003.json").rename(tmp_path / "in/003.json")
    run(tmp_path, spark)
    assert sqlite_rows(tmp_path / "out.db") == list(range(4 * PER_FILE))


LETTERS = ("aab", "bc", "abc", "c", "ab")
"""One epoch for each."""


def expected_counts(first: int) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    rows = []
    for text in LETTERS[:first]:
        for letter in sorted(set(text)):
            counts[letter] = counts.get(letter, 0) + text.count(letter)
            rows.append((letter, counts[letter]))
    return sorted(rows)


@pytest.mark.parametrize("freq", [0, 86_400_000], ids=["without snapshots", "with snapshots of later epochs"])
def test_state_is_taken_back_to_before_what_the_sink_lost(tmp_path: Path, spark: SparkSession, freq: int) -> None:
    def count(epochs: int) -> None:
        rows = [[{"k": letter, "v": 1} for letter in text] for text in LETTERS[:epochs]]
        counts = counting(hf.read.rows(rows, schema="k STRING, v BIGINT", name="given"), name="counts")
        pipeline = hf.Pipeline("counts", counts | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"))
        settings = Settings(buckets=3, checkpoint_freq=freq, checkpoint_keep=1)
        options: dict[str, Any] = {"trigger": hf.available_now(), "session": spark, "settings": settings}
        pipeline.run(checkpoint=str(tmp_path / "checkpoint"), **options)

    def held() -> list[Any]:
        return sqlite_rows(tmp_path / "out.db", "SELECT k, n FROM rows")

    count(2)
    kept = copy_of(tmp_path / "out.db")
    count(3)
    count(4)
    restore(kept)
    assert held() == expected_counts(2)
    count(4)
    assert held() == expected_counts(4)
    count(5)
    assert held() == expected_counts(5)
