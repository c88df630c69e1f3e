"""What a run with state says of itself: how much it holds, what came too late, who waits on whom; and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.observe.inspection import inspect_checkpoint
from holdfast.store.paths import open_store
from tests.everyday import everyday
from tests.spark.running import MODES, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, t BIGINT, v INT"


def row(t: int, k: str = "a") -> dict[str, Any]:
    return {"k": k, "t": t, "v": 0}


def source(name: str, *epochs: list[dict[str, Any]]) -> hf.Stream:
    return hf.read.rows([*epochs], schema=SCHEMA, timestamp="t", name=name)


@pytest.mark.parametrize("mode", everyday(MODES, ["staged"]))
def test_a_silent_input_is_named_by_the_status_and_by_inspect(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    camera = source("camera", [row(5), row(5, "b")], [row(6), row(4, "b")])
    lidar = source("lidar", [row(9, "b")], [])
    aligned = hf.sync({"camera": camera, "lidar": lidar}, by="k", name="aligned")
    paced = camera | hf.limit_in_flight(1, by="k", per="1 d", name="paced")
    db = tmp_path / "out.db"
    sets = aligned | hf.select("k", "timestamp", name="sets")
    pipeline = hf.Pipeline(
        "waits",
        sets | hf.write.sqlite(db, table="sets", name="sets_table"),
        paced.shed | hf.write.sqlite(db, table="shed", name="shed_table"),
    )
    checkpoint = tmp_path / "ckpt"
    run = pipeline.start(checkpoint=str(checkpoint), trigger=hf.available_now(), session=spark, settings=MODES[mode])
    run.wait()
    found, limited = run.status().operators
    assert (found.name, found.kind, limited.name, limited.kind) == ("aligned", "sync", "paced", "limit_in_flight")
    assert (found.waiting_rows, found.late) == (3, 1)
    assert found.state_rows >= 3
    assert found.state_bytes > 0
    assert (limited.shed, limited.late) == (1, 1)
    assert sqlite_rows(db, "SELECT k, t FROM shed") == [("a", 6)]
    waits = {(wait.key["k"], wait.input, wait.bound) for wait in found.waits}
    assert ("a", "lidar", None) in waits

    report = inspect_checkpoint(str(checkpoint), open_store(str(checkpoint)), checkpoint).state
    assert report is not None
    assert report.operators == run.status().operators
    assert (report.epoch, report.generation) == (2, 1)

    again = pipeline.start(checkpoint=str(checkpoint), trigger=hf.available_now(), session=spark, settings=MODES[mode])
    again.wait()
    known = again.status().operators[0]
    assert (known.waiting_rows, known.late, len(known.waits)) == (3, 0, len(found.waits))
