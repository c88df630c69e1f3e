"""What is not public of Spark does what we take it for, on a real JVM: a new version fails here first."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.checkpoint.spark_log import operators_with_state
from holdfast.errors import InvalidPipeline
from holdfast.spark import private
from holdfast.spark.failure import summary, translate
from holdfast.spark.launch.session import RUNTIME, STATIC, TUNING
from holdfast.spark.spark_versions import running
from tests.spark.running import eventually

pytestmark = pytest.mark.spark


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 4, 1, 2)


def stream(spark: SparkSession, work: Path) -> DataFrame:
    """Return a stream of one row, ``{"id": 2}``; more come with more files."""
    (work / "in").mkdir(exist_ok=True)
    (work / "in" / "0.json").write_text('{"id": 2}\n')
    return spark.readStream.schema("id BIGINT").json(str(work / "in"))


def run(frame: DataFrame, work: Path, evaluate: Callable[[DataFrame, int], Any], **options: Any) -> Any:
    """Run a stream until all is read; return its query."""
    writer = frame.writeStream.foreachBatch(evaluate).option("checkpointLocation", str(work / "c"))
    query = writer.outputMode("update").trigger(**(options or {"availableNow": True})).start()
    if not options:
        query.awaitTermination()
    return query


def class_named(spark: SparkSession, name: str) -> Any:
    """Return a class of the JVM; py4j raises where there is none."""
    loader = spark._jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    return loader.loadClass(name)


# --- the JVM and its sessions -----------------------------------------------------------------------------------------


def test_the_context_of_the_process_is_found_and_its_jvm_is_not_launched_twice(spark: SparkSession) -> None:
    assert private.active_context() is spark.sparkContext
    with private.jvm_is_to_be_launched() as is_ours:
        assert not is_ours


def test_the_jvm_says_how_it_encodes_names_of_files(spark: SparkSession) -> None:
    assert private.encoding_of_names(spark) == "UTF-8"


def test_the_jvm_says_where_its_threads_are(spark: SparkSession) -> None:
    del spark
    stacks = private.stacks_of_jvm().strip().split("\n\n")
    (dispatcher,) = [each for each in stacks if each.startswith('"dispatcher-event-loop-0" ')]
    state, *frames = dispatcher.splitlines()
    assert state.rpartition(" ")[2] in ("WAITING", "RUNNABLE", "TIMED_WAITING", "BLOCKED")
    assert frames[-1].strip().startswith("at java.base")
    assert all(frame.startswith("    at ") for frame in frames)


def test_a_session_is_active_for_a_block(spark: SparkSession) -> None:
    def active() -> Any:
        found = spark._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession()
        return found.get() if found.isDefined() else None

    before, other = active(), spark.newSession()
    with private.active_session(other):
        assert active().equals(other._jsparkSession)
    assert active() is None if before is None else active().equals(before)


def test_workers_are_started_by_the_program_that_is_set(spark: SparkSession, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ntouch {tmp_path}/used\nexec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    before = spark.sparkContext.pythonExec
    try:
        private.set_python_of_workers(spark, str(python))
        rows(spark).mapInArrow(lambda batches: batches, "id BIGINT").collect()
    finally:
        private.set_python_of_workers(spark, before)
    assert (tmp_path / "used").exists()


def test_the_classes_that_settings_name_are_there(spark: SparkSession) -> None:
    for name in (private.CHECKPOINT_FILES, private.STATE_STORE):
        assert class_named(spark, name).getName() == name


FILES = "spark.sql.streaming.checkpointFileManagerClass"
MISSING_STATE = "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY"
NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


def test_spark_knows_every_setting_that_a_run_makes(spark: SparkSession) -> None:
    """A setting that was renamed would be taken, and heeded by nobody."""
    unknown = {key for key in RUNTIME if not spark.conf.isModifiable(key)}
    registry = spark._jvm.org.apache.spark.internal.config.ConfigEntry
    unknown |= {key for key in STATIC if registry.findEntry(key) is None}
    nameless = set() if running().names_sources else {NAMES}
    assert unknown == {FILES, CHANGELOGS, *nameless}, "two are read by their names, without being declared"


def test_a_session_knows_what_its_context_was_given_and_says_none_of_the_rest(spark: SparkSession) -> None:
    """Settings of speed that a user has given are kept, and whether Spark encrypts is asked before a warning."""
    for session in (spark, spark.newSession()):
        assert session.conf.get("spark.app.name", None) == spark.sparkContext.appName
        assert session.conf.get("spark.ssl.rpc.enabled", None) is None
        assert {session.conf.get(name, None) for name in TUNING} == {None}


def test_the_settings_that_spark_has_not_declared_are_heeded(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", private.STATE_STORE)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set(CHANGELOGS, "true")
    counts = stream(session, tmp_path).groupBy("id").count()
    run(counts, tmp_path, lambda batch, number: batch.collect())
    assert (tmp_path / "c" / "state" / "0" / "0" / "1.changelog").exists()
    session.conf.set(FILES, "no.such.class")
    with pytest.raises(Exception, match=r"no\.such\.class"):
        run(counts, tmp_path / "other", lambda batch, number: batch.collect())


def test_streams_stand_in_the_order_in_which_spark_logs_them(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set(NAMES, "false")
    a, b, c = (session.readStream.format("rate").option("rowsPerSecond", number).load() for number in (1, 2, 3))
    plan = b.filter("value > 3").union(session.range(3).withColumn("timestamp", F.now()).select("timestamp", "id"))
    assert private.streams_of(plan.union(a.union(c)), "rowsPerSecond") == ["2", "1", "3"]
    assert private.streams_of(a, "path") == [None]


def test_tasks_are_interrupted_by_a_local_property(spark: SparkSession) -> None:
    context = spark.sparkContext

    def ask() -> None:
        context.setJobGroup("group", "", interruptOnCancel=True)
        found.append(context.getLocalProperty(private.INTERRUPT))

    found: list[str | None] = []
    thread = threading.Thread(target=ask)  # whose properties end with it
    thread.start()
    thread.join()
    assert found == ["true"]


# --- Python processes -------------------------------------------------------------------------------------------------


def test_functions_of_another_environment_have_workers_of_their_own(spark: SparkSession) -> None:
    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            values = {"worker": [os.getpid()], "pool": [os.environ.get("TEST_POOL", "")]}
            yield pa.RecordBatch.from_pydict(values)

    schema, frame, found = "worker BIGINT, pool STRING", rows(spark), {}
    for pool in ("a", "b"):
        with private.workers_apart(frame.sparkSession.sparkContext, "TEST_POOL", pool):
            told = frame.mapInArrow(tell, schema)
        found[pool] = {(row.pool, row.worker) for row in told.collect()}
    assert "TEST_POOL" not in spark.sparkContext.environment
    assert {pool for of in found.values() for pool, _ in of} == {"a", "b"}
    workers = [{worker for _, worker in of} for of in found.values()]
    assert not workers[0] & workers[1]


def test_functions_of_an_rdd_have_the_environment_of_when_it_is_asked_for_its_number(spark: SparkSession) -> None:
    """``PipelinedRDD`` is made when it is first needed: a level's functions must have their workers by then."""
    context = spark.sparkContext

    def tell(_: Any) -> Iterator[str]:
        yield os.environ.get("TEST_POOL", "")

    with private.workers_apart(context, "TEST_POOL", "a"):
        made, unmade = (context.parallelize([0], 1).mapPartitions(tell) for _ in range(2))
        made.id()
    assert (made.collect(), unmade.collect()) == (["a"], [""])


def test_runs_that_start_at_once_take_turns_with_the_environment(spark: SparkSession) -> None:
    """Shards with state did not: "KeyError: 'HOLDFAST_POOL'"."""
    frame, seen = rows(spark), {}
    asks, has_entered = threading.Event(), threading.Event()

    def enter() -> None:
        asks.set()
        with private.workers_apart(frame.sparkSession.sparkContext, "TEST_POOL", "b"):
            has_entered.set()
            seen["b"] = spark.sparkContext.environment["TEST_POOL"]

    other = threading.Thread(target=enter)
    with private.workers_apart(frame.sparkSession.sparkContext, "TEST_POOL", "a"):
        other.start()
        assert asks.wait(60)
        assert not has_entered.wait(0.2)
        seen["a"] = spark.sparkContext.environment["TEST_POOL"]
    other.join()
    assert seen == {"a": "a", "b": "b"}
    assert "TEST_POOL" not in spark.sparkContext.environment


# --- what jobs answer -------------------------------------------------------------------------------------------------


def test_groups_come_to_the_partition_that_they_name(spark: SparkSession) -> None:
    groups = spark.sparkContext.parallelize([(number % 3, [number, -number]) for number in range(8)], 2)
    found = private.spread(groups, 4).glom().collect()
    assert [sorted(map(abs, of)) for of in found] == [[0, 0, 3, 3, 6, 6], [1, 1, 4, 4, 7, 7], [2, 2, 5, 5], []]


def test_a_job_answers_with_all_that_its_tasks_do(spark: SparkSession) -> None:
    job = spark.sparkContext.parallelize(range(4), 4).mapPartitions(lambda given: [f"{n}" for n in given if n != 1])
    assert private.answers_of(job.mapPartitions(private.with_end)) == ["0", "2", "3"]
    assert private.rows_of(rows(spark)) == [{"id": number} for number in range(4)]


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*private.STATEFUL, *private.TRANSPARENT, "Project", "Filter", "Join"])
def test_catalyst_has_every_kind_of_node_that_is_looked_for(kind: str, spark: SparkSession) -> None:
    package = "expressions" if kind == "PipeOperator" else "plans.logical"
    found = class_named(spark, f"org.apache.spark.sql.catalyst.{package}.{kind}")
    assert found.getSimpleName() == kind


def test_a_plan_is_a_tree_of_kinds(spark: SparkSession, tmp_path: Path) -> None:
    plan = private.analyzed(stream(spark, tmp_path).filter("id > 1").groupBy("id").count())
    kinds = []
    while True:
        kinds.append((private.kind_of(plan), private.is_streaming(plan)))
        if not private.children_of(plan):
            break
        (plan,) = private.children_of(plan)
    assert [kind for kind, _ in kinds[:2]] == ["Aggregate", "Filter"]
    assert all(is_stream for _, is_stream in kinds)
    assert not private.is_streaming(private.analyzed(rows(spark)))


def test_a_python_function_in_a_plan_is_seen(spark: SparkSession) -> None:
    plain = rows(spark).select((F.col("id") + 1).alias("x"))
    called = rows(spark).select((F.udf(lambda number: number + 1, "long")("id") + 1).alias("x"))
    found = [private.listed(private.analyzed(frame).projectList())[0] for frame in (plain, called)]
    assert [private.calls_python(spark, expression) for expression in found] == [False, True]


def test_an_expression_of_a_plan_is_a_column_again_and_keeps_its_identity(spark: SparkSession) -> None:
    frame = rows(spark)
    (added,) = private.listed(private.analyzed(frame.select((F.col("id") + 1).alias("x"))).projectList())
    assert private.kind_of(added) == "Alias"
    column = private.column_of(spark, added.child())
    assert isinstance(column, Column)
    assert [row[0] for row in frame.select(column).collect()] == [1, 2, 3, 4]
    again = frame.select("*", private.alias_of(spark, added.child(), added))
    assert again.columns == ["id", "x"]
    (_, kept) = private.listed(private.analyzed(again).projectList())
    assert kept.exprId().equals(added.exprId())


# --- a query that runs ------------------------------------------------------------------------------------------------


def test_a_column_that_is_computed_or_renamed_is_another_one(spark: SparkSession) -> None:
    def columns(frame: DataFrame) -> dict[str, int]:
        listed = private.listed(private.analyzed(frame).output())
        return {column.name(): private.identity_of(column) for column in listed}

    frame = rows(spark)
    made = columns(frame.filter("id > 1").select("id", F.col("id").alias("other"), (F.col("id") + 0).alias("computed")))
    assert made["id"] == columns(frame)["id"]
    assert len(set(made.values())) == 3


def test_what_a_batch_observes_is_known_while_it_is_at_work(spark: SparkSession, tmp_path: Path) -> None:
    found: list[Any] = []
    observed = stream(spark, tmp_path).observe(
        "seen",
        F.count(F.lit(1)).alias("rows"),
        F.max("id").alias("highest"),
        F.lit(None).cast("long").alias("none"),
        F.call_function("approx_top_k", F.when(F.col("id") > 1, "many"), F.lit(3), F.lit(10)).alias("texts"),
    )
    begun = threading.Event()

    def evaluate(batch: DataFrame, number: int) -> None:
        batch.collect()
        begun.wait(60)
        found.append(private.observed_metrics(query, "seen"))
        found.append(private.observed_metrics(query, "another"))

    query = run(observed, tmp_path, evaluate, processingTime="1 day")
    begun.set()
    try:
        eventually(lambda: len(found) == 2 or query.exception() is not None)
    finally:
        query.stop()
    seen, another = found
    assert another is None
    assert [seen.number(name) for name in ("rows", "highest", "none", "absent")] == [1, 2, None, None]
    assert (seen.pairs("texts"), seen.pairs("absent")) == ([("many", 1)], [])


def test_a_query_says_that_it_waits_once_it_has_asked_everybody(spark: SparkSession, tmp_path: Path) -> None:
    query = run(stream(spark, tmp_path), tmp_path, lambda batch, number: None, processingTime="10 milliseconds")
    try:
        eventually(lambda: query.lastProgress is not None and private.waits_for_rows(query.status))
    finally:
        query.stop()


# --- files of a query's checkpoint ------------------------------------------------------------------------------------


def test_a_batch_that_spark_has_not_committed_is_read_through_a_view(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", private.STATE_STORE)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    counts = stream(session, tmp_path).groupBy("id").count()
    run(counts, tmp_path, lambda batch, number: batch.collect())
    spark_checkpoint, view = tmp_path / "c", tmp_path / "view"
    entry = (spark_checkpoint / "commits" / "0").read_text()
    assert entry.splitlines()[0] == private.COMMITTED.splitlines()[0]
    (spark_checkpoint / "commits" / "0").unlink()
    private.show_as_committed(spark_checkpoint, 0, view, lambda path: Path(path).mkdir(parents=True))
    assert operators_with_state(view) == [0]
    state = session.read.format("statestore").option("batchId", "0").load(str(view))
    assert [(row.key.id, row.value["count"]) for row in state.collect()] == [(2, 1)]


# --- what Spark says of a failure -------------------------------------------------------------------------------------


def failure_of(fail: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011  of whatever kind: what it says is looked at
        fail()
    return raised.value


def text_of(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__name__}: {error}"


def divide(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("1 / (id - 2)")


def raise_in_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise KeyError("[DIVIDE_BY_ZERO] of mine SQLSTATE: 22012")


CALLED: dict[str, tuple[Callable[[DataFrame], object], list[tuple[str, str]]]] = {
    "a value": (lambda frame: divide(frame).toArrow(), [("DIVIDE_BY_ZERO", "22012")]),
    "raise_error": (
        lambda frame: frame.selectExpr("raise_error('no')").collect(),
        [("USER_RAISED_EXCEPTION", "P0001")],
    ),
    "a name": (lambda frame: frame.selectExpr("nope"), [("UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703")]),
    "a function": (
        lambda frame: frame.mapInArrow(raise_in_worker, "id BIGINT").collect(),
        [(private.PYTHON_EXCEPTION, "38000")],
    ),
    "no error of Spark's": (lambda frame: dict[str, int]()["x"], []),
}


@pytest.mark.parametrize("name", CALLED)
def test_a_failure_is_known_by_what_spark_calls_it(name: str, spark: SparkSession) -> None:
    if name == "a function" and not running().asks_from:
        pytest.skip("PySpark before 4.2 keeps the trace of a function, and no exception of the JVM")
    fail, expected = CALLED[name]
    error = failure_of(lambda: fail(rows(spark)))
    chain = private.throwables(error)
    assert [(each.condition, each.sql_state) for each in chain] == expected
    for each in chain:
        assert private.IN_TEXTS.findall(each.message)[0] == (each.condition, "")
    if name == "a function":
        assert chain[0].java_class == private.PYTHON_EXCEPTION_CLASS
        assert isinstance(translate(error, "p", "it"), InvalidPipeline), "and no BadRow for what it quotes"


def test_the_conditions_that_are_looked_for_are_sparks(spark: SparkSession) -> None:
    reader = spark._jvm.org.apache.spark.SparkThrowableHelper.errorReader()
    known = (*private.STATE_IS_LOST, *private.AROUND, private.PYTHON_EXCEPTION)
    unknown = [name for name in known if not reader.isValidErrorClass(name)]
    assert unknown == ([] if running().names_sources else [MISSING_STATE, private.PYTHON_EXCEPTION])


def test_a_worker_that_dies_is_known_by_what_spark_says(spark: SparkSession) -> None:
    def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(3)

    error = failure_of(lambda: rows(spark).mapInArrow(die, "id BIGINT").collect())
    assert private.WORKER_DIED in str(error)
    chain = private.throwables(error)
    assert [each.condition for each in chain] == ["", "", ""], "else it could be known by that"
    assert private.WORKER_DIED in chain[1].message


def test_a_result_that_is_too_large_is_known_by_the_setting(spark: SparkSession) -> None:
    conf = spark.sparkContext._jsc.sc().conf()
    before = conf.get(private.TOO_LARGE, "1g")
    conf.set(private.TOO_LARGE, "64k")
    try:
        said = text_of(failure_of(lambda: spark.range(0, 200_000, 1, 2).toArrow()))
    finally:
        conf.set(private.TOO_LARGE, before)
    assert private.TOO_LARGE in said


@pytest.mark.skipif(not running().names_sources, reason="no version of Holdfast has kept state in this Spark's store")
def test_state_that_is_gone_is_known_and_the_stream_around_it_is_cut_off(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", private.STATE_STORE)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    counts = stream(session, tmp_path).groupBy("id").count()
    run(counts, tmp_path, lambda batch, number: batch.collect())
    (tmp_path / "c" / "state").rename(tmp_path / "moved")
    (tmp_path / "in" / "1.json").write_text('{"id": 3}\n')
    error = failure_of(lambda: run(counts, tmp_path, lambda batch, number: batch.collect()))
    said = text_of(error)
    around, inner = [each.condition for each in private.throwables(error)]
    assert around in private.AROUND
    assert inner in private.STATE_IS_LOST
    assert private.OF_THE_STREAM.match(said.splitlines()[0])
    assert summary(said).startswith(f"[{MISSING_STATE}]")


def test_the_expression_that_fails_stands_behind_its_error(spark: SparkSession) -> None:
    said = text_of(failure_of(lambda: divide(rows(spark)).collect()))
    found = private.EXPRESSION.search(said)
    assert found is not None
    assert found[1] == "1 / (id - 2)"
