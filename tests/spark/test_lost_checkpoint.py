"""Lose Spark's directory, or the ledger too: every row is still in every sink once (design/0001, the sink knows)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.errors import Corrupt, Diverged, HoldfastError, InvalidPipeline
from tests.spark.running import NAMED, die_at

pytestmark = pytest.mark.spark

FILES = 6
PER_FILE = 50


def write_files(work: Path, numbers: range) -> None:
    (work / "in").mkdir(exist_ok=True)
    for number in numbers:
        lines = [json.dumps({"id": number * PER_FILE + i}) + "\n" for i in range(PER_FILE)]
        (work / "in" / f"{number:03}.json").write_text("".join(lines))


def run(work: Path, spark: SparkSession) -> None:
    rows = hf.read.files(work / "in", format="json", schema="id BIGINT", max_files_per_epoch=1, name="rows")
    odd = rows | hf.filter("id % 2 = 1", name="odd")
    pipeline = hf.Pipeline(
        "lost",
        rows | hf.write.sqlite(work / "out.db", table="rows", name="all_rows"),
        odd | hf.write.files(work / "out", name="odd_rows"),
    )
    pipeline.run(checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark)


def check(work: Path, files: int) -> None:
    with sqlite3.connect(work / "out.db") as connection:
        ids = sorted(number for (number,) in connection.execute("SELECT id FROM rows"))
    assert ids == list(range(files * PER_FILE))
    odd = pyarrow.dataset.dataset(work / "out", format="parquet").to_table()["id"].to_pylist()
    assert sorted(odd) == list(range(1, files * PER_FILE, 2))


def test_a_lost_spark_directory_costs_nothing(tmp_path: Path, spark: SparkSession) -> None:
    write_files(tmp_path, range(3))
    run(tmp_path, spark)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    write_files(tmp_path, range(3, FILES))
    run(tmp_path, spark)
    check(tmp_path, FILES)
    run(tmp_path, spark)
    check(tmp_path, FILES)


def test_a_sink_that_lacks_the_first_epoch_of_all_gets_it_without_any_checkpoint(
    tmp_path: Path, spark: SparkSession
) -> None:
    """It was taken for a sink that had been added, which begins where the others are."""
    write_files(tmp_path, range(3))
    die_at("after-publish", 1)  # SQLite holds epoch 1, the files do not
    with pytest.raises(HoldfastError):
        run(tmp_path, spark)
    faults.install(None)
    shutil.rmtree(tmp_path / "checkpoint")
    run(tmp_path, spark)
    check(tmp_path, 3)


def test_a_sink_that_lacks_the_first_epoch_of_all_gets_it_also_where_the_start_that_would_give_it_dies(
    tmp_path: Path, spark: SparkSession
) -> None:
    """It was taken for new by the start after that: the one before had noted the other as taking part."""
    write_files(tmp_path, range(3))
    die_at("after-publish", 1)  # SQLite holds epoch 1, the files do not
    with pytest.raises(HoldfastError):
        run(tmp_path, spark)
    shutil.rmtree(tmp_path / "checkpoint")
    die_at("before-stage", 2)  # the number under which the files would get epoch 1
    with pytest.raises(HoldfastError):
        run(tmp_path, spark)
    faults.install(None)
    run(tmp_path, spark)
    check(tmp_path, 3)


def test_sinks_that_stopped_at_different_epochs_meet_again_without_spark_and_ledger(
    tmp_path: Path, spark: SparkSession
) -> None:
    write_files(tmp_path, range(FILES))
    die_at("after-publish", 3)  # SQLite holds epoch 3, the files do not
    with pytest.raises(HoldfastError):
        run(tmp_path, spark)
    faults.install(None)
    for lost in ("spark", "ledger", "fences", "generations"):
        shutil.rmtree(tmp_path / "checkpoint" / lost)
    die_at("after-publish", 4)  # and once more, in the epoch that brings them together
    with pytest.raises(HoldfastError):
        run(tmp_path, spark)
    faults.install(None)
    run(tmp_path, spark)
    check(tmp_path, FILES)


def test_a_lost_checkpoint_costs_nothing_the_sinks_say_what_their_positions_mean(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Nothing that a crash can lose is needed: positions come from the sinks, and with them the log of files."""
    write_files(tmp_path, range(3))
    run(tmp_path, spark)
    shutil.rmtree(tmp_path / "checkpoint")
    write_files(tmp_path, range(3, 5))
    run(tmp_path, spark)
    check(tmp_path, 5)
    shutil.rmtree(tmp_path / "checkpoint")
    write_files(tmp_path, range(5, FILES))
    die_at("after-publish", 6)  # SQLite holds the epoch, the files do not
    with pytest.raises(HoldfastError):
        run(tmp_path, spark)
    faults.install(None)
    shutil.rmtree(tmp_path / "checkpoint")
    run(tmp_path, spark)
    check(tmp_path, FILES)


def test_a_new_checkpoint_for_sinks_that_cannot_say_what_they_hold_is_refused(
    tmp_path: Path, spark: SparkSession
) -> None:
    """As an earlier version left them."""
    write_files(tmp_path, range(2))
    run(tmp_path, spark)
    shutil.rmtree(tmp_path / "checkpoint")
    own = tmp_path / "out" / "_holdfast" / "lost" / "odd_rows"
    shutil.rmtree(own / "positions")
    with sqlite3.connect(tmp_path / "out.db") as connection:
        connection.execute("DROP TABLE holdfast_positions")
    with pytest.raises(Corrupt, match="missing"):  # its log counts them
        run(tmp_path, spark)
    entry = max((own / "log").glob("*.json"))
    body = {**json.loads(entry.read_text())["entry"], "explained": {}, "explanations": []}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    entry.write_text(json.dumps({"format": 1, "entry": body, "sha256": checksum}))
    with pytest.raises(Diverged, match="is new, and sink") as refused:
        run(tmp_path, spark)
    assert "empty the targets" in refused.value.do
    check(tmp_path, 2)


def test_a_log_that_is_older_than_the_sinks_is_completed_from_them_where_spark_has_no_directory(
    tmp_path: Path, spark: SparkSession
) -> None:
    write_files(tmp_path, range(1))
    run(tmp_path, spark)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    write_files(tmp_path, range(1, 4))
    run(tmp_path, spark)
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "copy").rename(tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    write_files(tmp_path, range(4, FILES))
    run(tmp_path, spark)
    check(tmp_path, FILES)


def test_with_state_one_snapshot_is_enough(tmp_path: Path, spark: SparkSession) -> None:
    """All that is left of the checkpoint is a snapshot: the sinks have the rest."""

    def run_counting() -> None:
        rows = hf.read.files(tmp_path / "in", format="json", schema="id BIGINT", max_files_per_epoch=1, name="rows")
        keyed = rows | hf.select("id % 7 as k", "id", name="keyed")
        sums = keyed | hf.accumulate(by="k", n=hf.count(), total=hf.sum("id"), name="sums")
        pipeline = hf.Pipeline("summed", sums | hf.write.sqlite(tmp_path / "out.db", table="sums", name="all_sums"))
        pipeline.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark)

    def leave_the_snapshots() -> None:
        for path in (tmp_path / "checkpoint").iterdir():
            if path.name != "snapshots":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    write_files(tmp_path, range(2))
    run_counting()
    write_files(tmp_path, range(2, 5))
    die_at("after-publish", 4)
    with pytest.raises(HoldfastError):
        run_counting()
    faults.install(None)
    leave_the_snapshots()
    run_counting()
    leave_the_snapshots()
    write_files(tmp_path, range(5, FILES))
    run_counting()
    with sqlite3.connect(tmp_path / "out.db") as connection:
        rows = connection.execute("SELECT k, id, n, total FROM sums ORDER BY id").fetchall()
    ids = range(FILES * PER_FILE)
    assert rows == [(i % 7, i, i // 7 + 1, sum(range(i % 7, i + 1, 7))) for i in ids]


def test_state_of_which_nothing_is_left_is_rebuilt_from_the_sources_if_the_start_is_asked_for_that(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole checkpoint is lost, the sinks stand at two positions, and the rebuilding dies: then it goes on."""

    def run_counting(**options: Any) -> None:
        rows = hf.read.files(tmp_path / "in", format="json", schema="id BIGINT", max_files_per_epoch=1, name="rows")
        keyed = rows | hf.select("id % 7 as k", "id", name="keyed")
        sums = keyed | hf.accumulate(by="k", n=hf.count(), total=hf.sum("id"), name="sums")
        pipeline = hf.Pipeline(
            "rebuilt",
            sums | hf.write.sqlite(tmp_path / "out.db", table="sums", name="to_table"),
            sums | hf.write.files(tmp_path / "out", name="to_files"),
        )
        pipeline.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark, **options)

    def dies_at(point: str, epoch: int, **options: Any) -> None:
        die_at(point, epoch)
        with pytest.raises(HoldfastError):
            run_counting(**options)
        faults.install(None)

    write_files(tmp_path, range(4))
    dies_at("after-publish", 4)  # SQLite holds epoch 4, the files do not
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(Diverged, match="'to_table' holds epoch 4") as refused:
        run_counting()
    assert "start once with --rebuild-state" in refused.value.do
    dies_at("before-stage", 8, rebuild_state=True)  # 5 to 7 are muted; 8 is given to the files
    assert "state is computed again from the beginning of the sources, in 4 epochs" in caplog.text
    write_files(tmp_path, range(4, FILES))
    run_counting()
    ids = range(FILES * PER_FILE)
    wanted = [(i % 7, i, i // 7 + 1, sum(range(i % 7, i + 1, 7))) for i in ids]
    with sqlite3.connect(tmp_path / "out.db") as connection:
        assert connection.execute("SELECT k, id, n, total FROM sums ORDER BY id").fetchall() == wanted
    files = pyarrow.dataset.dataset(tmp_path / "out", format="parquet").to_table().sort_by("id").to_pylist()
    assert [(row["k"], row["id"], row["n"], row["total"]) for row in files] == wanted


@pytest.mark.nightly
def test_a_timer_that_fell_due_while_only_a_snapshot_was_left_is_in_the_sinks_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    """What follows the snapshot is evaluated again at the times of the sinks' epochs, not at the present one.

    At death one sink holds an epoch that the other does not.  All timers fall due afterwards.
    (On a machine that is too slow for that, this proves less.)
    """
    due_us = time.time_ns() // 1000 + 4_000_000

    def late(key: int, rows: list[dict[str, int]], state: Any) -> Iterator[dict[str, int]]:
        if rows:
            state.timer(due_us, clock="batch")
        else:
            yield {"id": key}

    def run_timed() -> None:
        rows = hf.read.files(tmp_path / "in", format="json", schema="id BIGINT", max_files_per_epoch=1, name="rows")
        fired = rows | hf.apply(late, by="id", state="unused BIGINT", timers="batch", schema="id BIGINT", name="fired")
        pipeline = hf.Pipeline(
            "timed",
            fired | hf.write.sqlite(tmp_path / "out.db", table="fired", name="to_table"),
            fired | hf.write.files(tmp_path / "out", name="to_files"),
        )
        settings = Settings(controller_checkpoint_freq=3_600_000)  # nothing of these epochs is recorded
        pipeline.run(
            checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark, settings=settings
        )

    def write(number: int) -> None:
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.json").write_text(f'{{"id": {number}}}\n')

    write(0)
    run_timed()
    write(1)
    write(2)
    die_at("after-publish", 3)
    with pytest.raises(HoldfastError):
        run_timed()
    faults.install(None)
    for path in (tmp_path / "checkpoint").iterdir():
        if path.name != "snapshots":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    time.sleep(max(0.0, due_us / 1e6 - time.time()))
    for number in (3, 4):
        write(number)
        run_timed()
    with sqlite3.connect(tmp_path / "out.db") as connection:
        table = sorted(number for (number,) in connection.execute("SELECT id FROM fired"))
    files = sorted(pyarrow.dataset.dataset(tmp_path / "out", format="parquet").to_table()["id"].to_pylist())
    assert table == files == [0, 1, 2, 3]


def test_two_sinks_that_disagree_on_what_a_position_means_are_refused_with_both_words(
    tmp_path: Path, spark: SparkSession
) -> None:
    write_files(tmp_path, range(2))
    run(tmp_path, spark)
    shutil.rmtree(tmp_path / "checkpoint")
    with sqlite3.connect(tmp_path / "out.db") as connection:
        connection.execute("UPDATE holdfast_positions SET text = replace(text, '000.json', 'other.json')")
    with pytest.raises(Diverged, match="disagree on explanation 2 of source 'rows'") as refused:
        run(tmp_path, spark)
    assert "other.json" in refused.value.why
    assert "000.json" in refused.value.why
    check(tmp_path, 2)


def test_a_feed_is_read_on_where_its_sinks_are_whatever_of_the_checkpoint_is_lost(
    tmp_path: Path, spark: SparkSession
) -> None:
    def push_and_run(*ids: int) -> None:
        feed = hf.read.CallbackFeed(tmp_path / "feed", schema="id BIGINT")
        for number in ids:
            feed.push([{"id": number}])
        pushed = hf.read.callback(feed, name="pushed")
        pipeline = hf.Pipeline("fed", pushed | hf.write.sqlite(tmp_path / "out.db", table="rows", name="all_rows"))
        pipeline.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark)

    def held() -> list[int]:
        with sqlite3.connect(tmp_path / "out.db") as connection:
            return sorted(number for (number,) in connection.execute("SELECT id FROM rows"))

    push_and_run(0, 1, 2)
    push_and_run(3)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    push_and_run(4, 5)
    assert held() == list(range(6))
    shutil.rmtree(tmp_path / "checkpoint")
    push_and_run(6)
    assert held() == list(range(7))
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    shutil.rmtree(tmp_path / "feed")
    with pytest.raises(Diverged, match="is new, and sink") as refused:
        push_and_run(7)
    assert "reaches from entry 0 to 1, and does not hold 7" in refused.value.why
    assert held() == list(range(7))


def test_rows_in_the_program_that_were_given_and_edited_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    def run_with(*ids: int) -> None:
        rows = hf.read.rows([[{"id": number}] for number in ids], schema="id BIGINT", name="given")
        pipeline = hf.Pipeline("given", rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="all_rows"))
        pipeline.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark)

    run_with(0, 1)
    with pytest.raises(InvalidPipeline, match="list 1 of the rows of source 'given' has changed"):
        run_with(0, 10, 2)
    run_with(0, 1, 2)
    with sqlite3.connect(tmp_path / "out.db") as connection:
        assert [number for (number,) in connection.execute("SELECT id FROM rows ORDER BY id")] == [0, 1, 2]


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_a_cut_entry_of_sparks_log_is_named_and_the_cure_that_is_named_costs_nothing(
    tmp_path: Path, spark: SparkSession, log: str
) -> None:
    write_files(tmp_path, range(3))
    run(tmp_path, spark)
    entry = max((tmp_path / "checkpoint/spark/1" / log).glob("[0-9]*"), key=lambda path: int(path.name))
    entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])
    write_files(tmp_path, range(3, FILES))
    with pytest.raises((Corrupt, Diverged)) as refused:
        run(tmp_path, spark)

    assert str(entry) in refused.value.message
    assert str(tmp_path / "checkpoint/spark/1") in refused.value.do
    check(tmp_path, 3)
    shutil.rmtree(tmp_path / "checkpoint/spark/1")
    run(tmp_path, spark)
    check(tmp_path, FILES)


def test_a_sink_that_was_emptied_is_noticed(tmp_path: Path, spark: SparkSession) -> None:
    def run_alone() -> None:
        rows = hf.read.files(tmp_path / "in", format="json", schema="id BIGINT", name="rows")
        pipeline = hf.Pipeline("alone", rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="all_rows"))
        pipeline.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark)

    write_files(tmp_path, range(2))
    run_alone()
    for left in tmp_path.glob("out.db*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    write_files(tmp_path, range(2, 3))
    with pytest.raises(Diverged, match="holds nothing"):
        run_alone()


def test_a_sink_that_is_added_while_others_hold_an_epoch_that_spark_replays_may_wait_for_its_first_row(
    tmp_path: Path, spark: SparkSession
) -> None:
    def run_with(*names: str) -> None:
        rows = hf.read.files(tmp_path / "in", format="json", schema="id BIGINT", name="rows")
        sinks = [rows | hf.write.sqlite(tmp_path / f"{name}.db", table="rows", name=name) for name in names]
        pipeline = hf.Pipeline("joined", *sinks)
        pipeline.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark)

    def held_by(name: str) -> list[int]:
        with sqlite3.connect(tmp_path / f"{name}.db") as connection:
            return sorted(number for (number,) in connection.execute("SELECT id FROM rows"))

    write_files(tmp_path, range(2))
    run_with("first")
    for entry in (tmp_path / "checkpoint/spark/1/commits").glob("*0*"):
        entry.unlink()  # as if it had been killed between publishing and Spark's commit log
    run_with("first", "second")  # replays the epoch, which is not for the second
    run_with("first", "second")
    write_files(tmp_path, range(2, 3))
    run_with("first", "second")
    assert held_by("first") == list(range(3 * PER_FILE))
    assert held_by("second") == list(range(2 * PER_FILE, 3 * PER_FILE))


def test_a_checkpoint_that_is_older_than_its_sink_is_refused_before_other_files_take_the_places_of_those_it_holds(
    tmp_path: Path, spark: SparkSession
) -> None:
    write_files(tmp_path, range(2))
    run(tmp_path, spark)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    write_files(tmp_path, range(3, 4))
    run(tmp_path, spark)
    write_files(tmp_path, range(2, 3))  # comes late, and lies before the other by its time, as after mv or rsync -t
    os.utime(tmp_path / "in" / "002.json", (1, 1))
    (tmp_path / "checkpoint").rename(tmp_path / "newer")
    shutil.copytree(tmp_path / "copy", tmp_path / "checkpoint")
    for _ in range(2):
        with pytest.raises(Diverged, match="holds source 'rows' up to position 3"):
            run(tmp_path, spark)
    shutil.copytree(tmp_path / "newer", tmp_path / "checkpoint", dirs_exist_ok=True)
    run(tmp_path, spark)
    check(tmp_path, 4)


@NAMED
@pytest.mark.nightly
def test_a_source_of_spark_goes_on_from_the_offsets_that_its_sinks_hold(tmp_path: Path, spark: SparkSession) -> None:
    """Whose offsets say everything by themselves: alone, beside a source of ours, and where one sink lacks an epoch."""
    options = {"rowsPerBatch": 5, "startTimestamp": 1000, "advanceMillisPerBatch": 100, "numPartitions": 1}

    def held() -> tuple[int, list[int]]:
        if not (tmp_path / "out.db").exists():
            return 0, []
        with sqlite3.connect(tmp_path / "out.db") as connection:
            (epoch,) = connection.execute("SELECT max(epoch) FROM holdfast_ledger").fetchone()
            return epoch, sorted(number for (number,) in connection.execute("SELECT value FROM ticks"))

    def run_ticking(epochs: int) -> None:
        ticks = hf.read.spark("rate-micro-batch", options, name="ticks") | hf.select("value", name="values")
        given = hf.read.rows([[{"value": -n}] for n in range(1, 50)], schema="value BIGINT", name="given")
        pipeline = hf.Pipeline(
            "ticking",
            ticks | hf.write.sqlite(tmp_path / "out.db", table="ticks", name="ticks_table"),
            hf.union(ticks, given, name="both") | hf.write.files(tmp_path / "out", name="all_files"),
        )
        goal = held()[0] + epochs
        run = pipeline.start(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.every("10 ms"), session=spark)
        try:
            while held()[0] < goal and not run.wait(0.05):
                pass
        finally:
            run.stop()

    def check_both() -> int:
        ticked = held()[1]
        assert ticked == list(range(len(ticked)))
        filed = sorted(pyarrow.dataset.dataset(tmp_path / "out", format="parquet").to_table()["value"].to_pylist())
        assert filed == list(range(filed[0], len(ticked)))
        assert filed[0] < 0
        return len(ticked)

    run_ticking(3)
    before = check_both()
    shutil.rmtree(tmp_path / "checkpoint")
    run_ticking(3)
    assert check_both() > before
    die_at("after-publish", held()[0] + 3)  # the table holds the epoch, the files do not
    with pytest.raises(HoldfastError):
        run_ticking(9)
    faults.install(None)
    before = held()[0]
    shutil.rmtree(tmp_path / "checkpoint")
    die_at("after-publish", before + 1)  # and once more, in the epoch that brings them together
    with pytest.raises(HoldfastError):
        run_ticking(3)
    faults.install(None)
    run_ticking(3)
    check_both()
