"""What a user reads when a real run fails: one message of a known kind, whatever Python and Java wrapped around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.connectors import memory
from holdfast.errors import BadRow, Corrupt, HoldfastError, InvalidPipeline, Unavailable
from tests.everyday import everyday
from tests.spark.running import CARRIED, MODES, STAGED, arrive, away, numbered

pytestmark = pytest.mark.spark


WAYS = [*MODES, *(f"{mode} through Spark" for mode in MODES)]
"""Carried and staged; in Arrow where that is possible, and through Spark's plan."""


@pytest.fixture
def kept() -> str:
    """Name of a memory table that no other test uses."""
    return f"kept_{uuid.uuid4().hex[:8]}"


def failure_of(pipeline: hf.Pipeline, work: Path, spark: SparkSession, mode: str) -> HoldfastError:
    """Run, and return the error that ends the run; check that it reads well."""
    settings = MODES[mode.partition(" ")[0]].model_copy(update={"columnar": "Spark" not in mode})
    run = pipeline.start(checkpoint=str(work / "c"), trigger=hf.available_now(), session=spark, settings=settings)
    with pytest.raises(HoldfastError) as raised:
        run.wait(120)
    error = raised.value
    for word in ("Py4J", "org.apache", "java.", "Traceback", "Caused by", "\tat "):
        assert word not in error.message, error.message
    assert len(error.message.splitlines()) <= 4, error.message
    assert error.do
    assert run.status().state == "failed"
    assert run.status().error == error.message
    return error


def source() -> hf.Stream:
    return hf.read.rows([[{"id": 1}], [{"id": 2}], [{"id": 3}]], schema="id BIGINT", name="rows")


def fail_at_two(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 2 in batch.column("id").to_pylist():
        raise LookupError("no price\nfor camera 2")
    return batch


@pytest.mark.parametrize("mode", WAYS)
def test_a_function_that_raises_is_named_with_its_exception(
    mode: str, spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    priced = source() | hf.map_batches(fail_at_two, "id BIGINT", name="price")
    error = failure_of(hf.Pipeline("p", priced | hf.write.memory(kept)), tmp_path, spark, mode)
    assert type(error) is InvalidPipeline
    assert "map_batches 'price'" in error.what
    assert error.participant == "price"
    assert "LookupError" in error.what
    assert "no price for camera 2" in error.why
    assert "test_run_errors.py" in error.why, "where it was raised"
    assert memory.rows(kept)["id"].to_pylist() == [1], "the epoch that fails leaves nothing"


@pytest.mark.parametrize("mode", WAYS)
def test_a_function_behind_a_fan_out_is_named_too(mode: str, spark: SparkSession, tmp_path: Path, kept: str) -> None:
    rows = source()
    pipeline = hf.Pipeline(
        "p",
        rows | hf.map_batches(fail_at_two, "id BIGINT", name="price") | hf.write.memory(kept),
        rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"),
    )
    error = failure_of(pipeline, tmp_path, spark, mode)
    assert (type(error), "map_batches 'price'" in error.what) == (InvalidPipeline, True)


def test_a_set_up_that_raises_is_named_with_its_exception(spark: SparkSession, tmp_path: Path, kept: str) -> None:
    def load() -> Any:
        raise FileNotFoundError("model.bin")

    loaded = source() | hf.map_batches(lambda batch, model: batch, "id BIGINT", setup=load, name="classify")
    error = failure_of(hf.Pipeline("p", loaded | hf.write.memory(kept)), tmp_path, spark, "carried")
    assert type(error) is InvalidPipeline
    assert "the setup of map_batches 'classify' raised FileNotFoundError" in error.what
    assert "model.bin" in error.why


def test_a_function_that_returns_other_columns_is_told_both_schemas(
    spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    def rename(batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"ID": batch.column("id")})

    renamed = source() | hf.map_batches(rename, "id BIGINT", name="rename")
    error = failure_of(hf.Pipeline("p", renamed | hf.write.memory(kept)), tmp_path, spark, "carried")
    assert type(error) is InvalidPipeline
    assert "'rename'" in error.what
    assert "id: int64" in error.why
    assert "ID: int64" in error.why


@pytest.mark.parametrize("mode", MODES)
def test_a_udf_that_raises_is_told_by_its_exception(mode: str, spark: SparkSession, tmp_path: Path, kept: str) -> None:
    def invert(frame: DataFrame) -> DataFrame:
        return frame.withColumn("inverse", F.udf(lambda n: 1 / (n - 2), "double")("id"))

    inverted = source() | hf.map(invert, name="invert")
    error = failure_of(hf.Pipeline("p", inverted | hf.write.memory(kept)), tmp_path, spark, mode)
    assert type(error) is InvalidPipeline
    assert "the Python UDF <lambda> of map 'invert'" in error.what
    assert "ZeroDivisionError" in error.what
    assert "division by zero" in error.why
    assert "test_run_errors.py" in error.why
    assert "the first row: 2" in error.why


@pytest.mark.parametrize("mode", WAYS)
def test_an_expression_that_has_no_value_for_a_row_is_named(
    mode: str, spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    inverted = source() | hf.select(inverse="1 / (id - 2)", name="invert")  # ANSI: no null for a division by zero
    error = failure_of(hf.Pipeline("p", inverted | hf.write.memory(kept)), tmp_path, spark, mode)
    assert type(error) is BadRow
    assert "DIVIDE_BY_ZERO" in error.message
    assert "1 / (id - 2)" in error.message
    assert memory.rows(kept)["inverse"].to_pylist() == [-1.0]


@pytest.mark.parametrize("mode", WAYS)
def test_a_bad_row_names_file_line_and_reason(mode: str, spark: SparkSession, tmp_path: Path, kept: str) -> None:
    arrive(tmp_path / "in", "0.json", [*numbered(0, 3), '{"id": "three"}'])
    rows = hf.read.files(str(tmp_path / "in"), schema="id BIGINT, at TIMESTAMP", name="source")
    error = failure_of(hf.Pipeline("p", rows | hf.write.memory(kept)), tmp_path, spark, mode)
    assert type(error) is BadRow
    assert "0.json" in error.what
    assert "4" in error.what
    assert "id" in error.why
    assert memory.rows(kept).num_rows == 0


@pytest.mark.parametrize("mode", WAYS)
def test_a_file_that_changed_after_it_was_logged_is_corrupt(
    mode: str, spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    arrive(tmp_path / "in", "0.json", [*numbered(0, 3), "{broken"])
    rows = hf.read.files(str(tmp_path / "in"), schema="id BIGINT, at TIMESTAMP", name="source")
    pipeline = hf.Pipeline("p", rows | hf.write.memory(kept))
    assert type(failure_of(pipeline, tmp_path, spark, mode)) is BadRow
    (tmp_path / "in" / "0.json").write_text('{"id": 0}\n')
    error = failure_of(pipeline, tmp_path, spark, mode)
    assert type(error) is Corrupt
    assert "0.json" in error.message


def test_a_sink_that_fails_on_the_driver_ends_the_run_with_its_own_words(spark: SparkSession, tmp_path: Path) -> None:
    def save(frame: DataFrame, epoch: int) -> None:
        raise PermissionError("s3://bucket is read-only")

    pipeline = hf.Pipeline("p", source() | hf.write.foreach_batch(save, name="save"))
    error = failure_of(pipeline, tmp_path, spark, "carried")
    assert "s3://bucket is read-only" in error.message
    assert "PermissionError" in error.message


def test_an_error_of_a_writer_keeps_its_kind_on_the_way_through_the_jvm(spark: SparkSession, tmp_path: Path) -> None:
    """A writer in a worker finds a file where its directory has to be: no attempt more would find it gone."""
    arrive(tmp_path / "in", "0.json", numbered(0, 3))
    rows = hf.read.files(str(tmp_path / "in"), schema="id BIGINT, at TIMESTAMP", name="source")
    pipeline = hf.Pipeline("p", rows | hf.write.sqlite(tmp_path / "db" / "out.db", table="rows", name="table"))
    settings = STAGED.model_copy(update={"retry_attempts": 2, "retry_first": "10 ms", "retry_cap": "20 ms"})
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "out.db-holdfast").touch()  # a file where the staging directory must be
    options: dict[str, Any] = {"trigger": hf.available_now(), "session": spark, "settings": settings}
    with pytest.raises(HoldfastError) as raised:
        pipeline.run(checkpoint=str(tmp_path / "c"), **options)
    assert type(raised.value) is InvalidPipeline
    assert "out.db-holdfast" in raised.value.message
    assert "move it away" in raised.value.do


def test_an_error_of_an_epoch_keeps_its_fields_and_its_story(spark: SparkSession, tmp_path: Path, kept: str) -> None:
    """The way through the JVM cuts an error down to its text; the run has the error itself."""
    retry = {"retry_attempts": 2, "retry_first": "10 ms", "retry_cap": "20 ms"}
    pipeline = hf.Pipeline("p", away(source() | hf.write.memory(kept)))
    with pytest.raises(Unavailable) as raised:
        pipeline.run(
            checkpoint=str(tmp_path / "c"),
            trigger=hf.available_now(),
            session=spark,
            settings=CARRIED.model_copy(update=retry),
        )
    error = raised.value
    assert (error.pipeline, error.participant, error.epoch, error.generation) == ("p", kept, 1, 1)
    assert any("epoch 1" in note for note in error.__notes__)


def test_the_next_run_goes_on_where_a_failed_one_stopped(spark: SparkSession, tmp_path: Path, kept: str) -> None:
    gate = tmp_path / "repaired"

    def fragile(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if gate.exists() else fail_at_two(batch)

    priced = source() | hf.map_batches(fragile, "id BIGINT", name="price")
    pipeline = hf.Pipeline("p", priced | hf.write.memory(kept))
    failure_of(pipeline, tmp_path, spark, "staged")
    gate.touch()
    pipeline.run(checkpoint=str(tmp_path / "c"), trigger=hf.available_now(), session=spark, settings=STAGED)
    assert memory.rows(kept)["id"].to_pylist() == [1, 2, 3]


def test_a_jvm_that_does_not_start_is_one_message_that_names_what_to_look_at(tmp_path: Path):
    (tmp_path / "one.py").write_text(
        "import holdfast as hf\n"
        "rows = hf.read.rows([[{'id': 1}]], schema='id BIGINT', name='rows')\n"
        "pipeline = hf.Pipeline('one', rows | hf.write.sqlite('one.db', table='t', name='t'))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "one.py", "--checkpoint", "c", "--available-now"],
        cwd=tmp_path,
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:NoSuchOption=1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 1
    message = answer.stderr[answer.stderr.index("Unavailable: ") :]
    assert "Spark did not start" in message
    assert "NoSuchOption" in message, "what the JVM said of it"
    assert "NoSuchOption" not in answer.stderr.replace(message, ""), "once"
    assert "HOLDFAST_MASTER" in message
    assert "Traceback" not in answer.stderr
    assert "Traceback" in (tmp_path / "c" / "holdfast.log").read_text()
    assert not (tmp_path / "one.db").exists()


@pytest.mark.parametrize("way", everyday(("carried", "staged"), ["carried"]))
def test_a_function_that_raises_puts_neither_traces_nor_secrets_on_the_terminal(tmp_path: Path, way: str):
    """It is called in the kept worker, or in one of Spark's."""
    (tmp_path / "one.py").write_text(
        "import sys\n"
        "import holdfast as hf\n"
        "def connect(batch):\n"
        "    print('to stdout, token=abcdef')\n"
        "    print('to stderr', file=sys.stderr)\n"
        "    raise ValueError('no answer of db, password=hunter2')\n"
        "rows = hf.read.rows([[{'id': 1}]], schema='id BIGINT', name='rows')\n"
        "rows = rows | hf.map_batches(connect, 'id BIGINT', name='f')\n"
        "pipeline = hf.Pipeline('one', rows | hf.write.sqlite('one.db', table='t', name='t'))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "one.py", "--checkpoint", "c", "--available-now"],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOLDFAST_DRIVER_MEMORY": "1 GiB",
            **({} if way == "carried" else {"HOLDFAST_CARRY_MAX": "0 B"}),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    log = (tmp_path / "c" / "holdfast.log").read_text()
    assert (answer.returncode, answer.stdout) == (2, "")
    for noise in ("\tat ", "Traceback", "org.apache", "incubator", "hunter2", "abcdef"):
        assert noise not in answer.stderr, answer.stderr
    assert "to stdout, token=***\n" in answer.stderr
    assert "to stderr\n" in answer.stderr
    if way == "staged":
        assert "ERROR Executor: Exception in task" in log
        assert "\tat org.apache.spark" in log
    assert "one.py:6)" in log
    assert "InvalidPipeline: map_batches 'f' raised ValueError" in log
    for noise in ("hunter2", "holdfast-error"):
        assert noise not in answer.stderr + log, "neither secrets nor what programs tell each other"


def test_ctrl_c_while_a_run_starts_on_spark_stops_it_with_exit_0_and_without_noise(tmp_path: Path):
    (tmp_path / "one.py").write_text(
        "import os, signal\n"
        "from pathlib import Path\n"
        "import holdfast as hf\n"
        "def interrupted(frame):\n"
        "    if not Path('interrupted').exists():\n"
        "        Path('interrupted').touch()\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return frame\n"
        "rows = hf.read.rows([[{'id': 1}]], schema='id BIGINT', name='rows') | hf.map(interrupted, name='f')\n"
        "pipeline = hf.Pipeline('one', rows | hf.write.sqlite('one.db', table='t', name='t'))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "one.py", "--checkpoint", "c"],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_DRIVER_MEMORY": "1 GiB"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert answer.returncode == 0, answer.stderr
    assert "SIGINT: stopping after the current epoch" in answer.stderr
    for noise in ("Traceback", "KeyboardInterrupt", "Exception while sending", "InternalError"):
        assert noise not in answer.stderr, answer.stderr
