"""Snapshots of state, and what becomes of a pipeline whose Spark directory is lost or damaged (design/0011)."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.snapshot import read_manifest, snapshot_keys
from holdfast.config import Settings
from holdfast.errors import Corrupt, Diverged, HoldfastError, InvalidPipeline
from holdfast.plan.levels.kept import read_state
from holdfast.spark.state import snapshots as snapshots_of_runs
from holdfast.store.local import LocalStore
from tests.spark.counting import counting
from tests.spark.running import die_at, eventually, reach, sqlite_rows
from tests.spark.stamping import stamping

pytestmark = pytest.mark.spark

GIVEN = ("aab", "bc", "aB", "c", "abc", "b")
"""One epoch for each, one row for each letter; a capital letter is too late."""

SHARED = Settings(buckets=3, checkpoint_freq=86_400_000)
"""Only a clean stop makes a snapshot."""


def expected(count: int) -> dict[str, list[Any]]:
    """Return what the tables must hold after so many epochs, from a loop over the letters."""
    first: dict[str, int] = {}
    second: dict[str, int] = {}
    rows: dict[str, list[Any]] = {"first": [], "second": [], "late": []}
    for text in GIVEN[:count]:
        letters = [letter for letter in text if letter.islower()]
        rows["late"] += [letter.lower() for letter in text if letter.isupper()]
        for letter in sorted(set(letters)):
            first[letter] = first.get(letter, 0) + letters.count(letter)
            rows["first"].append((letter, first[letter]))
            if first[letter] > 1:
                second[letter] = second.get(letter, 0) + 1
                rows["second"].append((letter, second[letter]))
    return {name: sorted(found) for name, found in rows.items()}


def check(work: Path, count: int = len(GIVEN)) -> None:
    assert {
        "first": sqlite_rows(work / "first.db", "SELECT k, n FROM rows"),
        "second": sqlite_rows(work / "second.db", "SELECT k, n FROM rows"),
        "late": sqlite_rows(work / "first.db", "SELECT k FROM late"),
    } == expected(count)


def pipeline_of(work: Path, count: int) -> hf.Pipeline:
    rows = [[{"k": letter.lower(), "v": -1 if letter.isupper() else 1} for letter in text] for text in GIVEN[:count]]
    given = hf.read.rows(rows, schema="k STRING, v BIGINT", name="given")
    first = counting(given, name="first")
    second = counting(first | hf.filter("n > 1", name="many"), name="second")
    return hf.Pipeline(
        "counts",
        first | hf.write.sqlite(work / "first.db", table="rows", name="first_table"),
        second | hf.write.sqlite(work / "second.db", table="rows", name="second_table"),
        first.late | hf.write.sqlite(work / "first.db", table="late", name="late_table"),
    )


def run(work: Path, spark: SparkSession, count: int = len(GIVEN), **options: Any) -> None:
    options = {"settings": SHARED, **options}
    pipeline_of(work, count).run(
        checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark, **options
    )


def snapshots(work: Path) -> list[Manifest]:
    store = LocalStore(str(work / "checkpoint"))
    return [read_manifest(store, key) for key in snapshot_keys(store)]


def counts_in(manifest: Manifest, work: Path, operator: str) -> dict[str, int]:
    """Return the state of a counting operator from the Parquet files of a snapshot."""
    found: dict[str, int] = {}
    for bucket in manifest.operators[operator].buckets.values():
        for name, file in bucket.files.items():
            table = pyarrow.parquet.read_table(work / "checkpoint" / file.key)
            if name == "counts":
                found |= dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))
    return found


def test_a_clean_stop_leaves_the_state_as_parquet_files(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, spark, count=2)
    (made,) = snapshots(tmp_path)
    assert (made.ended.epoch, made.pipeline, made.buckets) == (2, "counts", 3)
    assert 2 in made.ended.positions["given"].values()
    assert counts_in(made, tmp_path, "first") == {"a": 2, "b": 2, "c": 1}
    assert counts_in(made, tmp_path, "second") == {"a": 1, "b": 1}


def test_a_lost_directory_is_begun_anew_from_the_snapshot_of_the_last_stop(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, spark, count=3)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    run(tmp_path, spark, count=5)
    check(tmp_path, 5)
    # Every bucket of `second` was called since, or not: what was not is still the snapshot's, and is in the next one.
    assert counts_in(snapshots(tmp_path)[-1], tmp_path, "second") == {"a": 3, "b": 2, "c": 2}
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    run(tmp_path, spark)
    check(tmp_path)


@pytest.mark.parametrize("point", ["after-publish", pytest.param("after-forget", marks=pytest.mark.nightly)])
def test_what_lies_behind_the_snapshot_is_replayed_for_the_state_alone(
    spark: SparkSession, tmp_path: Path, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, spark, count=1)
    die_at(point, 4)
    with pytest.raises(HoldfastError):
        run(tmp_path, spark)
    faults.install(None)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    caplog.set_level(logging.INFO, "holdfast")
    run(tmp_path, spark)
    check(tmp_path)
    (told,) = [message for message in caplog.messages if "state is restored" in message]
    assert "from the snapshot of epoch 1" in told
    assert "3 epochs after it, 2 to 4" in told, "the end of the last one is in no progress record: the sinks tell it"
    assert "nobody knows" not in told


def test_a_replay_sees_the_clock_and_the_number_of_then(spark: SparkSession, tmp_path: Path) -> None:
    def run_epochs(count: int) -> None:
        rows = [[{"k": letter} for letter in text] for text in ("a", "ab", "c", "abcd")[:count]]
        seen = stamping(hf.read.rows(rows, schema="k STRING", name="given"), name="seen")
        table = seen | hf.write.sqlite(tmp_path / "seen.db", table="rows", name="table")
        hf.Pipeline("stamped", table).run(
            checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark, settings=SHARED
        )

    run_epochs(1)
    die_at("after-publish", 3)
    with pytest.raises(HoldfastError):
        run_epochs(3)
    faults.install(None)
    # Epoch 3 is in no progress record, but Spark's offset log has it: the directory is there, and cannot be used.
    offsets = tmp_path / "checkpoint" / "spark" / "1" / "metadata"
    offsets.write_bytes(b"{")
    run_epochs(4)
    stamps = sqlite_rows(tmp_path / "seen.db", "SELECT k, first_us, epoch FROM rows")
    by_key = {k: {stamp[1:] for stamp in stamps if stamp[0] == k} for k in "abcd"}
    assert [len(by_key[k]) for k in "abcd"] == [1, 1, 1, 1], "each key has one first time, told before or after"
    assert {k: epoch for k in "abc" for _, epoch in by_key[k]} == {"a": 1, "b": 2, "c": 3}


@pytest.mark.nightly
def test_a_damaged_directory_gives_way_to_a_new_one(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, spark, count=2)
    die_at("after-forget", 4)
    with pytest.raises(HoldfastError):
        run(tmp_path, spark)
    faults.install(None)
    offsets = tmp_path / "checkpoint" / "spark" / "1" / "offsets" / "3"
    offsets.write_bytes(offsets.read_bytes()[:-20])
    run(tmp_path, spark)
    check(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoint" / "spark").iterdir()] == ["2"]


@pytest.mark.nightly
def test_state_that_cannot_be_read_is_restored_by_the_next_start(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, spark, count=3)
    for path in (tmp_path / "checkpoint" / "spark" / "1" / "journal").glob("00000000000[12]-*.entry"):
        path.unlink()
    with pytest.raises(Corrupt) as refused:
        run(tmp_path, spark)
    assert "start again: the state is then restored" in refused.value.message
    run(tmp_path, spark)
    check(tmp_path)


def test_without_snapshots_a_lost_directory_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, spark, count=2, checkpoint_freq=0)
    assert snapshots(tmp_path) == []
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    with pytest.raises(Diverged, match="is new, and sink") as refused:
        run(tmp_path, spark)
    assert "no snapshot serves" in refused.value.why
    check(tmp_path, 2)


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "removed":
        path.unlink()
        return
    if how == "truncated":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("what", "how"),
    [
        pytest.param("manifest", "truncated", marks=pytest.mark.nightly),
        pytest.param("file", "flipped", marks=pytest.mark.nightly),
        pytest.param("file", "removed", marks=pytest.mark.nightly),
    ],
)
def test_a_damaged_snapshot_is_noticed_and_the_one_before_it_serves(
    spark: SparkSession, tmp_path: Path, how: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, spark, count=2)
    run(tmp_path, spark, count=4)
    older, newest = snapshots(tmp_path)
    shared = {file.key for file in older.files}
    own = next(file.key for file in newest.files if file.key not in shared)
    damage(tmp_path / "checkpoint" / (newest.key.path if what == "manifest" else own), how)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    run(tmp_path, spark)
    check(tmp_path)
    told = "\n".join(caplog.messages)
    assert "snapshot of epoch 4 is passed over" in told
    assert "state is restored from the snapshot of epoch 2" in told
    assert "2 epochs after it, 3 to 4" in told


def test_one_is_made_when_asked_and_while_the_run_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema="k STRING, v BIGINT")
    counts = counting(hf.read.callback(feed, name="fed"), name="counts")
    table = counts | hf.write.sqlite(tmp_path / "first.db", table="rows", name="table")
    fed = hf.Pipeline("fed", table)
    trigger = hf.every("20 ms")

    def start(**options: Any) -> Any:
        return fed.start(checkpoint=str(tmp_path / "checkpoint"), trigger=trigger, session=spark, **options)

    running = start(checkpoint_freq=0)
    assert running.checkpoint_now() == 0
    feed.push([{"k": "a", "v": 1}])
    reach(running, 1)
    eventually(lambda: running.checkpoint_now() == 1)
    assert running.status().checkpoints.count == 1
    assert running.checkpoint_now() == 1
    assert running.status().checkpoints.count == 1, "nothing has ended since"
    running.stop()
    assert [made.ended.epoch for made in snapshots(tmp_path)] == [1], "none by itself"

    running = start(checkpoint_freq=1, keep=2)
    for epoch in range(2, 6):
        feed.push([{"k": "a", "v": 1}])
        reach(running, epoch)
        eventually(lambda epoch=epoch: running.status().checkpoints.epoch >= epoch)
    running.stop()
    assert [made.ended.epoch for made in snapshots(tmp_path)][-1] == 5
    assert len(snapshots(tmp_path)) == 2
    assert running.status().checkpoints.dropped > 0
    assert running.status().checkpoints.failed == 0
    # What is published stays in the feed as long as a snapshot may have to replay it.
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    (tmp_path / "checkpoint" / snapshots(tmp_path)[-1].key.path).unlink()
    running = start()
    feed.push([{"k": "a", "v": 1}])
    eventually(lambda: len(sqlite_rows(tmp_path / "first.db", "SELECT n FROM rows")) == 6)
    running.stop()
    assert sqlite_rows(tmp_path / "first.db", "SELECT n FROM rows") == [1, 2, 3, 4, 5, 6]


@pytest.mark.nightly
def test_while_epochs_run_the_workers_write_their_own_part(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an epoch that is a barrier: the driver reads nothing from the journal (design/0011, section 3)."""
    asked: list[object] = []
    read = read_state

    def noted(*given: Any, **options: Any) -> Any:
        asked.append(options["only"])
        return read(*given, **options)

    monkeypatch.setattr(snapshots_of_runs, "read_state", noted)
    monkeypatch.setattr(snapshots_of_runs, "_PART_WAIT_S", 60.0)  # a machine that does much else
    keys = "abcdefghijkl"
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema="k STRING, v BIGINT")
    counts = counting(hf.read.callback(feed, name="fed"), name="counts")
    fed = hf.Pipeline("fed", counts | hf.write.sqlite(tmp_path / "first.db", table="rows", name="table"))

    def start(every_ms: int) -> Any:
        given: dict[str, Any] = {
            "checkpoint": str(tmp_path / "checkpoint"),
            "trigger": hf.every("20 ms"),
            "session": spark,
        }
        return fed.start(**given, settings=Settings(buckets=3, checkpoint_freq=every_ms))

    running = start(2000)
    epoch = 0
    while running.status().checkpoints.count < 2:
        epoch += 1
        feed.push([{"k": k, "v": 1} for k in keys])
        reach(running, epoch)
    assert asked == []
    (older, made) = snapshots(tmp_path)
    for each in (older, made):
        assert counts_in(each, tmp_path, "counts") == dict.fromkeys(keys, each.ended.epoch)
        assert sorted(each.operators["counts"].buckets) == [0, 1, 2]
    running.stop()
    assert len(asked) <= 1, "what ended since the last barrier is read at the stop"
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    for path in (tmp_path / "checkpoint" / "snapshots").glob("*.manifest"):
        if path.name > made.key.path.rpartition("/")[2]:
            path.unlink()
    running = start(86_400_000)
    feed.push([{"k": k, "v": 1} for k in keys])
    wanted = sorted(range(1, epoch + 2)) * len(keys)
    eventually(lambda: len(sqlite_rows(tmp_path / "first.db", "SELECT n FROM rows")) == len(wanted))
    running.stop()
    assert sqlite_rows(tmp_path / "first.db", "SELECT n FROM rows") == sorted(wanted)


def test_a_pipeline_without_state_has_none_to_copy(spark: SparkSession, tmp_path: Path) -> None:
    rows = hf.read.rows([[{"k": "a"}]], schema="k STRING", name="given")
    plain = hf.Pipeline("plain", rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"))
    running = plain.start(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark)
    running.wait()
    assert running.status().checkpoints is None
    with pytest.raises(InvalidPipeline, match="keeps no state"):
        running.checkpoint_now()
    assert snapshots(tmp_path) == []
