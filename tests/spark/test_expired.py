"""Staged rows of decided epochs that somebody has removed: the next start reads the epochs again, or names the range.

design/0002, "Expiry", on Spark: where Spark's log has finished the epoch, and where it has not.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast import faults
from holdfast.cli import app, resolving
from holdfast.errors import Diverged, HoldfastError
from holdfast.shards.ends import is_final
from tests.spark.running import STAGED, die_at, parquet_rows, sqlite_rows

pytestmark = pytest.mark.spark

PER_FILE = 10
FILES = 5


def pipeline_of(work: Path, pace: str | None = None) -> hf.Pipeline:
    rows = hf.read.files(work / "in", format="json", schema="id BIGINT", max_files_per_epoch=1, name="given")
    return hf.Pipeline(
        "expired",
        rows | hf.write.sqlite(work / "out.db", table="rows", commit_every=pace, name="table"),
        rows | hf.write.files(work / "out", name="archive"),
    )


def run(work: Path, spark: SparkSession, pace: str | None = None) -> None:
    pipeline = pipeline_of(work, pace)
    options: dict[str, Any] = {"trigger": hf.available_now(), "session": spark, "settings": STAGED}
    pipeline.run(checkpoint=str(work / "checkpoint"), **options)


def die_decided(work: Path, spark: SparkSession, epoch: int, pace: str | None = None) -> None:
    """Let a run die behind the decision on an epoch: no sink has it."""
    (work / "in").mkdir()
    for number in range(FILES):
        path = work / "in" / f"{number:03}.json"
        path.write_text("".join(json.dumps({"id": number * PER_FILE + i}) + "\n" for i in range(PER_FILE)))
        os.utime(path, (number, number))
    die_at("after-decide", epoch)
    with pytest.raises(HoldfastError):
        run(work, spark, pace)
    faults.install(None)


def remove_staged(work: Path, *sinks: str) -> int:
    """Remove what is staged for sinks; return how many files that were."""
    places = {"table": work / "out.db-holdfast", "archive": work / "out/_holdfast/expired/archive/staging"}
    count = 0
    for sink in sinks:
        for path in places[sink].iterdir():
            if path.is_dir():
                count += len(list(path.iterdir()))
                shutil.rmtree(path)
            elif path.suffix == ".arrow":
                count += 1
                path.unlink()
    return count


def all_is_there(work: Path) -> bool:
    wanted = list(range(FILES * PER_FILE))
    return sqlite_rows(work / "out.db") == wanted == parquet_rows(work / "out")


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize(
    "sinks",
    [*(pytest.param((one,), marks=pytest.mark.nightly) for one in ("table", "archive")), ("table", "archive")],
    ids="-".join,
)
def test_an_epoch_that_spark_has_not_finished_is_evaluated_again_for_the_sinks_that_lost_it(
    tmp_path: Path, spark: SparkSession, sinks: tuple[str, ...], epoch: int
) -> None:
    """Also the very first one: a sink that holds nothing is not taken for one that was added."""
    die_decided(tmp_path, spark, epoch)
    assert remove_staged(tmp_path, *sinks) > 0
    run(tmp_path, spark)
    assert all_is_there(tmp_path)


def test_epochs_that_spark_has_finished_are_replayed_to_a_sink_with_a_pace(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for the sink, decided and staged; ``inspect`` and ``resolve`` say what they find."""
    die_decided(tmp_path, spark, 5, pace="1 hour")
    assert len(sqlite_rows(tmp_path / "out.db")) == PER_FILE, "the first epoch does not wait"
    assert len(parquet_rows(tmp_path / "out")) == 4 * PER_FILE
    assert remove_staged(tmp_path, "table") > 0
    for module in (app, resolving):
        monkeypatch.setattr(module, "load_target", lambda target: pipeline_of(tmp_path, "1 hour"))
    for path in (tmp_path / "checkpoint/generations").iterdir():  # it was this process, which goes on living
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 2**22 + 1}))
    arguments = ["it", "--checkpoint", str(tmp_path / "checkpoint")]
    said = CliRunner().invoke(app.app, ["inspect", *arguments]).stdout
    assert "! expired: rows staged for table are gone, of epoch 2, 3, 4, 5, which is decided:" in said
    said = CliRunner().invoke(app.app, ["resolve", *arguments]).stdout
    assert "revoked, as its staged rows are gone: the next start reads the epoch again" in said
    run(tmp_path, spark, "1 hour")
    assert all_is_there(tmp_path)


def test_where_the_source_has_let_go_of_the_rows_the_range_is_named_once_and_the_decisions_stay(
    tmp_path: Path, spark: SparkSession
) -> None:
    die_decided(tmp_path, spark, 5, pace="1 hour")
    remove_staged(tmp_path, "table")
    (tmp_path / "in/003.json").rename(tmp_path / "003.json")
    decisions = sorted(path.name for path in (tmp_path / "checkpoint/ledger").iterdir())
    for _ in range(2):
        with pytest.raises(Diverged, match="rows staged for sink 'table' are gone") as refused:
            run(tmp_path, spark, "1 hour")
        assert "40 rows, source 'given' from log=1 to log=5" in refused.value.what
        assert "003.json" in refused.value.why
        assert is_final(refused.value), "a supervisor does not start it again"
    assert sorted(path.name for path in (tmp_path / "checkpoint/ledger").iterdir()) == decisions
    (tmp_path / "003.json").rename(tmp_path / "in/003.json")
    run(tmp_path, spark, "1 hour")
    assert all_is_there(tmp_path)
