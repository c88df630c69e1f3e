"""What is not public of PySpark and needs no JVM is there still: a new version fails here first."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import json
import re
import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkConf, java_gateway
from pyspark.errors.exceptions import base
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.serializers import ArrowCollectSerializer
from pyspark.sql.types import LongType, StructField, StructType

from holdfast.checkpoint.spark_log import operators_with_state
from holdfast.errors import Unavailable
from holdfast.spark import private
from holdfast.spark.launch import fork_server, forked_python, jvm
from holdfast.spark.spark_versions import minor_of, running, supported_versions

PLANNING = "pyspark.sql.streaming.transform_with_state_driver_worker"
SOURCES = Path(pyspark.__file__).parent


def source_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def test_this_version_was_looked_at() -> None:
    """A new one: let the tests of this file and of ``tests/spark/test_private.py`` pass, then add its row."""
    assert minor_of(pyspark.__version__) in supported_versions()


def told() -> Iterator[tuple[str, str]]:
    """Yield each name of the module with what is told of it."""
    body = ast.parse(inspect.getsource(private)).body
    for statement, behind in pairwise(body):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield statement.name, ast.get_docstring(statement) or ""
        elif isinstance(statement, ast.Assign):
            text = behind.value if isinstance(behind, ast.Expr) else None
            yield ast.unparse(statement.targets[0]), str(text.value) if isinstance(text, ast.Constant) else ""


def test_every_name_says_where_it_was_seen() -> None:
    texts = dict(told())
    assert len(texts) > 25
    unseen = [name for name, text in texts.items() if f"een in {private.SEEN_IN}" not in text]
    assert unseen == ["SEEN_IN", "unpickled"]


@pytest.mark.parametrize("module", [*forked_python.MODULES, *fork_server.IMPORTED])
def test_the_modules_that_spark_starts_as_processes_are_there(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def test_pyspark_says_what_is_done_before_the_jvm_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the dictionary that it is given: that is how SIGTERM comes to be ignored."""

    class StartedError(Exception):
        pass

    def popen(command: list[str], **arguments: Any) -> None:
        raise StartedError(arguments)

    monkeypatch.setattr(java_gateway, "Popen", popen)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    given = jvm._Surviving(stdout=1)
    with pytest.raises(StartedError) as started:
        private.launch_jvm(SparkConf(loadDefaults=False), given)
    arguments = started.value.args[0]
    assert {"stdout", "stdin", "env", private.BEFORE_EXEC} <= arguments.keys()
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        arguments[private.BEFORE_EXEC]()
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == [signal.SIG_IGN] * 2
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def test_a_jvm_that_somebody_else_started_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with private.jvm_is_to_be_launched() as is_ours:
        assert is_ours
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with private.jvm_is_to_be_launched() as is_ours:
        assert not is_ours


def test_functions_of_the_main_module_travel() -> None:
    offset = 3
    assert private.unpickled(private.pickled(lambda number: number + offset))(4) == 7


class ServedJob:
    """A job of four tasks whose answers the JVM hands over, as far as it gets."""

    def __init__(self, share: float) -> None:
        serializer, served = AutoBatchedSerializer(CPickleSerializer()), io.BytesIO()
        for task in range(4):
            serializer.dump_stream(private.with_end({"part": f"{task}/{at}"} for at in range(9)), served)
        self.serializer, self.data = serializer, served.getvalue()[: int(share * len(served.getvalue()))]

    def collect(self) -> list[Any]:
        return list(self.serializer.load_stream(io.BytesIO(self.data)))

    def getNumPartitions(self) -> int:
        return 4


def test_what_tasks_answer_is_taken_whole() -> None:
    job: Any = ServedJob(1)
    assert private.answers_of(job) == [{"part": f"{task}/{at}"} for task in range(4) for at in range(9)]


@pytest.mark.parametrize("share", [0, 0.26, 0.5, 0.75, 0.9, 0.999])
def test_answers_that_are_cut_off_are_not_taken_for_all(share: float) -> None:
    """PySpark reads a stream whose other side has died to its end, without an error."""
    job: Any = ServedJob(share)
    assert len(job.collect()) < 40
    with pytest.raises(Unavailable, match="cut off"):
        private.answers_of(job)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 0.99, 1])
def test_rows_that_are_cut_off_are_an_error(share: float) -> None:
    """Behind an Arrow stream, which may end anywhere, ``toArrow`` reads the order of its batches."""
    batches = [pa.RecordBatch.from_pydict({"n": list(range(at, at + 9))}) for at in range(3)]
    served = io.BytesIO()
    with pa.ipc.new_stream(served, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    for number in (3, 2, 0, 1):
        served.write(number.to_bytes(4, "big"))
    cut = io.BytesIO(served.getvalue()[: int(share * len(served.getvalue()))])
    if share == 1:
        assert list(ArrowCollectSerializer().load_stream(cut)) == [batches[2], batches[0], batches[1]]
        return
    with pytest.raises((EOFError, OSError, pa.ArrowInvalid)):
        list(ArrowCollectSerializer().load_stream(cut))


def test_an_environment_that_another_thread_reads_does_not_change() -> None:
    """Shards with state failed at random: "dictionary changed size during iteration"."""
    context: Any = SimpleNamespace(environment={"A": "1"})
    read = iter(context.environment.items())
    with private.workers_apart(context, "POOL", "a"):
        assert context.environment == {"A": "1", "POOL": "a"}
        assert list(read) == [("A", "1")]
    assert context.environment == {"A": "1"}


def test_arrow_and_spark_agree_on_schemas() -> None:
    schema = StructType([StructField("id", LongType(), nullable=False)])
    assert private.arrow_schema(schema) == pa.schema([pa.field("id", pa.int64(), nullable=False)])
    assert private.spark_schema(private.arrow_schema(schema)) == schema
    at = pa.schema([pa.field("at", pa.timestamp("us", tz="Europe/Berlin"))])
    assert private.arrow_schema(private.spark_schema(at)).field("at").type == pa.timestamp("us", tz="UTC")


def test_the_planning_process_asks_a_prefetching_reader_for_rows() -> None:
    reader = private.prefetching_reader()
    assert reader is not None
    assert issubclass(reader, DataSourceStreamReader)
    runner = source_of("pyspark.sql.streaming.python_streaming_source_runner")
    assert runner.count(f"isinstance(reader, {reader.__name__})") >= (3 if running().asks_from else 1)
    assert "reader.getCache(start_offset, end_offset)" in runner
    assert ("isinstance(reader.simple_reader, SupportsTriggerAvailableNow)" in runner) is running().asks_from
    assert (private.available_now() is not None) is running().asks_from


def test_without_such_a_class_there_is_no_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource_internal", ModuleType("changed"))
    assert private.prefetching_reader() is None


def test_what_processes_print_of_themselves_is_known() -> None:
    pattern = re.compile(private.PRINTED_BY_PROCESSES, re.VERBOSE)
    name = re.search(r'log_name = "(.*)"', source_of(PLANNING))
    assert name is not None
    for text in (name[1], f"Starting {name[1]}."):
        assert pattern.match(text), text
    printed = {"util.py": "worker failed", "daemon.py": "daemon failed", "worker_util.py": "mem limits"}
    for file, words in printed.items():
        texts = re.findall(rf'"([^"\n]*{words}[^"\n]*)"', (SOURCES / file).read_text())
        assert texts
        assert all(pattern.match(text) for text in texts), texts
    assert pattern.match("price of camera 2") is None


@pytest.mark.parametrize("name", private.LOGGERS_OF_WHAT_IS_RAISED)
def test_the_loggers_that_repeat_what_is_raised_are_pysparks(name: str) -> None:
    assert f'"{name}"' in inspect.getsource(base)


def test_a_query_waits_only_where_spark_says_so() -> None:
    idle = {"isTriggerActive": False, "isDataAvailable": False, "message": "Waiting for data to arrive"}
    assert private.waits_for_rows(idle)
    assert private.waits_for_rows({**idle, "message": "Waiting for next trigger"})
    for other in ({"isTriggerActive": True}, {"isDataAvailable": True}, {"message": "Initializing sources"}):
        assert not private.waits_for_rows({**idle, **other})


def test_a_view_of_a_checkpoint_has_one_committed_batch(tmp_path: Path) -> None:
    spark, view = tmp_path / "spark", tmp_path / "view"
    (spark / "state" / "0").mkdir(parents=True)
    (spark / "state" / "11").mkdir()
    (spark / "state" / "_tmp").mkdir()
    (spark / "offsets").mkdir()
    (spark / "offsets" / "7").write_text("v2\n{}")
    (spark / "metadata").write_text("{}")
    private.show_as_committed(spark, 7, view, lambda path: Path(path).mkdir(parents=True))
    assert (view / "offsets" / "7").read_text() == "v2\n{}"
    version, entry = (view / "commits" / "7").read_text().splitlines()
    assert (version, json.loads(entry)) == ("v1", {"nextBatchWatermarkMs": 0})
    assert operators_with_state(view) == [0, 11]
