"""However a run evaluates its rows, those that pass a node are shown to who asks (design/0049, section 5)."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from tests.spark.running import arrive, eventually

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
pytestmark = pytest.mark.spark

SCHEMA = "k STRING, t BIGINT, v BIGINT, note STRING"
KEPT: Mapping[str, Any] = {}
STAGED: Mapping[str, Any] = {"carry_max": "0 B", "prefetch_max": "0 B"}
IN_SPARK: Mapping[str, Any] = {"columnar": False}
SECRET = "hunter2hunter2"


def passed(rows: Any) -> Any:
    return rows


def rows_of(work: Path) -> hf.Stream:
    (work / "in").mkdir(exist_ok=True)
    return hf.read.files(str(work / "in"), schema=SCHEMA, timestamp="t", name="rows")


def sink(work: Path, name: str) -> Any:
    return hf.write.sqlite(work / f"{name}.db", table="rows", name=name)


def stateless(work: Path) -> hf.Pipeline:
    called = rows_of(work) | hf.map_batches(passed, SCHEMA, timestamp="t", name="called")
    some = called | hf.filter("v > 1", name="some")
    return hf.Pipeline("seen", some | sink(work, "table"))


def doubled(rows: DataFrame) -> DataFrame:
    return rows.withColumn("twice", F.col("v") * 2)


def with_state(work: Path) -> hf.Pipeline:
    """Return a graph with steps before state, state, a step of Spark's behind it, and one of ours behind that."""
    called = rows_of(work) | hf.map_batches(passed, SCHEMA, timestamp="t", name="called")
    once = called | hf.distinct(by=("k", "v"), horizon=10**6, disorder=10**6, timestamp="t", name="once")
    behind = once | hf.filter("v > 1", name="behind")
    return hf.Pipeline("seen", behind | sink(work, "table"))


def around_spark(work: Path) -> hf.Pipeline:
    once = rows_of(work) | hf.distinct(by=("k", "v"), horizon=10**6, disorder=10**6, timestamp="t", name="once")
    behind = once | hf.map(doubled, name="doubled") | hf.filter("twice > 2", name="behind")
    return hf.Pipeline("seen", behind | sink(work, "table"))


@contextmanager
def fed(
    pipeline: hf.Pipeline, work: Path, spark: SparkSession, settings: Mapping[str, Any], **given: Any
) -> Iterator[hf.Run]:
    """Run a pipeline, into which rows arrive until the end of the block."""
    run = pipeline.start(
        checkpoint=work / "checkpoint",
        trigger=hf.every("20 ms"),
        session=spark,
        settings=Settings(buckets=2, **settings),
        **given,
    )
    is_over = threading.Event()

    def feed() -> None:
        number = 0
        while not is_over.wait(0.1):
            rows = [{"k": "ab"[n % 2], "t": n, "v": n, "note": f"password={SECRET}"} for n in range(number, number + 6)]
            arrive(work / "in", f"{number:08d}.json", rows)
            number += 6

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield run
    finally:
        is_over.set()
        thread.join()
        run.stop()
        run.wait()


def seen(work: Path, names: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
    """Return three rows of each node, asked for at once."""
    attached = hf.attach(work / "checkpoint")
    with ThreadPoolExecutor(len(names)) as pool:
        asked = {name: pool.submit(attached.sample, name, 3, timeout_s=120) for name in names}
        return {name: of.result()["rows"] for name, of in asked.items()}


@pytest.mark.parametrize("settings", [KEPT, STAGED], ids=["kept worker", "tasks"])
@pytest.mark.parametrize("graph", [stateless, with_state, around_spark])
def test_every_node_that_arrow_evaluates_shows_its_rows(
    graph: Any, settings: Mapping[str, Any], spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = graph(tmp_path)
    names = [each.name for each in (*pipeline.nodes, *pipeline.sinks) if each.name != "doubled"]
    with fed(pipeline, tmp_path, spark, settings):
        found = seen(tmp_path, names)
        if graph is around_spark:
            with pytest.raises(InvalidPipeline, match="rows of 'doubled' cannot be seen") as refused:
                hf.attach(tmp_path / "checkpoint").sample("doubled")
            assert refused.value.do == "sample what takes them: behind."
    for name, rows in found.items():
        assert len(rows) == 3, name
        assert {row["note"] for row in rows} == {"password=***"}
        assert all(row["v"] > 1 for row in rows if name in ("some", "behind", "table"))
        assert all(row["twice"] == 2 * row["v"] for row in rows if "twice" in row)
    assert_nowhere(tmp_path / "checkpoint")


def assert_nowhere(checkpoint: Path) -> None:
    """Check that nothing of what was shown is in the checkpoint: state has rows as they are, and masks nothing."""
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if b"password=***" in path.read_bytes()] == []


@pytest.mark.parametrize("settings", [IN_SPARK, {**IN_SPARK, **STAGED}], ids=["carried", "tasks"])
def test_of_a_plan_of_sparks_what_goes_to_sinks_is_shown(
    settings: Mapping[str, Any], spark: SparkSession, tmp_path: Path
) -> None:
    with fed(stateless(tmp_path), tmp_path, spark, settings):
        assert len(seen(tmp_path, ["table"])["table"]) == 3
        with pytest.raises(InvalidPipeline, match="cannot be seen") as refused:
            hf.attach(tmp_path / "checkpoint").sample("rows")
        assert refused.value.do == "sample what takes them: table."


def test_the_command_line_shows_rows_or_says_that_there_are_none(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = ["--checkpoint", str(tmp_path / "checkpoint")]
    with fed(stateless(tmp_path), tmp_path, spark, KEPT):
        eventually(lambda: hf.attach(tmp_path / "checkpoint").status()["epoch"], what="the first epoch")
        shown = CliRunner().invoke(app, ["sample", "some", "-n", "2", "--timeout", "120", *checkpoint])
        assert shown.exit_code == 0
        assert [line.partition(",")[0][:2] for line in shown.stdout.splitlines()] == ["k=", "k="]
        assert SECRET not in shown.stdout
        shown = CliRunner().invoke(app, ["sample", "some", "-n", "2", "--timeout", "120", "--json", *checkpoint])
        lines = [json.loads(line) for line in shown.stdout.splitlines()]
        assert [set(line["row"]) for line in lines[:2]] == [{"k", "t", "v", "note"}] * 2
        assert lines[2]["count"] == 2
        hf.attach(tmp_path / "checkpoint").pause()
        eventually(lambda: hf.attach(tmp_path / "checkpoint").status()["doing"] == "paused", what="a run that waits")
        none = CliRunner().invoke(app, ["sample", "some", "--timeout", "0.5", *checkpoint])
        assert none.stdout == "no row has passed some within 0.5 s, in 0 epochs\n"
        wrong = CliRunner().invoke(app, ["sample", "somewhere", *checkpoint])
        assert wrong.exit_code == 2
        assert "it has rows, called, some, table" in wrong.output
        hf.attach(tmp_path / "checkpoint").resume()


def test_shards_show_their_rows_together(spark: SparkSession, tmp_path: Path) -> None:
    with fed(stateless(tmp_path), tmp_path, spark, KEPT, shards=2):
        assert len(seen(tmp_path, ["some"])["some"]) == 3
