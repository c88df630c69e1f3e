"""What of Spark and PySpark is not public, in one place: a new version breaks here first, and is adapted here.

Each name says in which version it was seen, what it leans on, and what to do when that changes; it is tried by
``tests/spark/test_private.py``, or without a JVM by ``tests/unit/spark/test_private.py``.  No other module uses a name
of PySpark's that begins with an underscore, imports a module that PySpark keeps for itself, or names a class of the
JVM (``tests/arch/test_private.py``).  Public and not here: settings, though Spark calls some of them internal, and
what Py4J documents.

What leans on Spark's inside and stands elsewhere:

- :mod:`holdfast.spark.spark_versions`: which versions run a pipeline, and what the others lack.
- :mod:`holdfast.spark.plans.catalyst`: how an operator's plan is rewritten.
- :mod:`holdfast.spark.launch.log4j`: Log4j in the JVM of a session that was given.
- :mod:`holdfast.checkpoint.spark_log`: the files of a query's checkpoint directory (logs, metadata, schemas of state,
  and checksums), which commands read without PySpark.
- :mod:`holdfast.spark.launch.jvm_options`, the command line of a driver's JVM, which Spark's scripts compose otherwise.
- :mod:`holdfast.spark.launch.forked_python`, the names of the modules that Spark starts as Python processes: it runs in
  a bare interpreter.
- :mod:`holdfast.spark.launch.fork_server`, the environment that Spark gives these processes, and what they import:
  it must not load what a driver needs.
- :mod:`holdfast.spark.launch.worker_daemon`: PySpark's ``daemon`` with a ``worker`` of our own; it must load nothing
  else before it forks.
- :mod:`holdfast.spark.plans.udf_types`: the class of Python UDFs, changed where it is loaded without a session.
- ``spark/launch/startup/sitecustomize.py``: where PySpark has its zips; it runs before anything can be imported.
- ``spark/launch/log4j2.properties``: names of loggers of the JVM.

Planning processes and workers import this module: it must load nothing that ``import pyspark`` does not.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import RDD, SparkConf, SparkContext, cloudpickle
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import BatchedSerializer, pack_long
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from holdfast.errors import Unavailable, present
from holdfast.spark.spark_versions import running

T = TypeVar("T")
"""What tasks answer.  Seen in 4.3."""

SEEN_IN = "4.3"
"""The version of Spark in which all of this was seen last: raise it when the tests of this module pass on a newer one.

What differs between the versions that run a pipeline is in :mod:`holdfast.spark.spark_versions`.
"""

# --- the JVM and its sessions -----------------------------------------------------------------------------------------

BEFORE_EXEC = "preexec_fn"
"""Argument of ``Popen`` that PySpark sets itself when it starts the JVM, to ignore SIGINT there.

Seen in 4.3, in ``pyspark.java_gateway.launch_gateway``, which writes into the dictionary that it is given.  If it sets
another one (Python advises against this one), wrap that in :mod:`holdfast.spark.launch.jvm`.
"""


@contextmanager
def jvm_is_to_be_launched() -> Iterator[bool]:
    """Hold PySpark's lock; yield whether this process has no JVM, and was given none.

    Seen in 4.3: ``SparkContext._lock``, ``SparkContext._gateway`` and the variable by which ``spark-submit`` passes
    on the JVM that it runs in.  If they change: look at how ``SparkContext._ensure_initialized`` decides to launch one.
    """
    with SparkContext._lock:
        yield SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ


def launch_jvm(conf: SparkConf, arguments: dict[str, Any]) -> Any:
    """Start a JVM with these arguments of ``Popen``; return what PySpark reaches it by.

    Seen in 4.3: ``pyspark.java_gateway.launch_gateway(conf, popen_kwargs)``, "a developer feature".  If it goes: let
    PySpark launch the JVM, which then prints to our stderr; ``launch_jvm`` and ``adopt_jvm`` become no-ops.
    """
    return launch_gateway(conf, arguments)


def connected_jvm(connection: Path, process: Any) -> Any:
    """Return what PySpark reaches a JVM by that runs as this process, and has written where it listens.

    Seen in 4.3: the file that ``launch_gateway`` reads itself, and the variables that name a JVM to it.  If they
    change: let Spark's scripts start the JVM (:func:`launch_jvm`).
    """
    data = connection.read_bytes()  # a port, the length of the secret, the secret
    os.environ["PYSPARK_GATEWAY_PORT"] = str(int.from_bytes(data[:4], "big"))
    os.environ["PYSPARK_GATEWAY_SECRET"] = data[8:].decode()
    try:
        gateway = launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = process
    return gateway


def end_jvm(timeout_s: float) -> None:
    """End this process's JVM in order, and wait; the next session begins another.

    Seen in 4.3: ``_gateway.proc``, which reads its standard input; ``_ensure_initialized`` where ``_gateway`` is None.
    """
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout_s)
    gateway.shutdown()


def adopt_jvm(gateway: Any) -> None:
    """Let PySpark take a JVM for this process's own, under the lock of :func:`jvm_is_to_be_launched`.

    Seen in 4.3: ``SparkContext._ensure_initialized(gateway=...)``; ``SparkContext(gateway=...)`` is public and makes a
    context at once, whose handler of SIGINT we do not want.  If it changes: that one.
    """
    SparkContext._ensure_initialized(gateway=gateway)


def set_python_of_workers(session: SparkSession, python: str) -> None:
    """Let Spark start this program as Python from now on.

    Seen in 4.3: ``SparkContext.pythonExec``, read for each function that is sent to workers.  If it goes: processes are
    started instead of forked, which is slower; ``PYSPARK_PYTHON`` would have to be set before the JVM starts.
    """
    session.sparkContext.pythonExec = python


def active_context() -> SparkContext | None:
    """Return the context of this process; None where there is none: unlike ``getOrCreate`` it makes none.

    Seen in 4.3: ``SparkContext._active_spark_context``.  If it goes: hand the session down to who asks.
    """
    return SparkContext._active_spark_context


def stacks_of_jvm() -> str:
    """Return where each thread of the JVM of this process is; empty where it has none.

    Seen in 4.3: ``SparkContext._jvm``.  If it goes: leave this out of a support bundle.
    """
    if (jvm := SparkContext._jvm) is None:
        return ""
    text = jvm.java.io.StringWriter()
    printer = jvm.java.io.PrintWriter(text)
    for thread in jvm.java.lang.Thread.getAllStackTraces().keySet().toArray():
        # A throwable prints a stack with one call; asked for, each frame would be some.
        stack = jvm.java.lang.Throwable(f'"{" ".join(thread.getName().split())}" {thread.getState()}')
        stack.setStackTrace(thread.getStackTrace())
        stack.printStackTrace(printer)
    return str(text.toString()).replace("java.lang.Throwable: ", "\n").replace("\t", "    ")


def encoding_of_names(session: SparkSession) -> str:
    """Return how the JVM encodes names of files: its ``sun.jnu.encoding`` (seen in 4.3: ``SparkSession._jvm``)."""
    return str(session._jvm.java.lang.System.getProperty("sun.jnu.encoding"))


@contextmanager
def active_session(session: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread meanwhile.

    Seen in 4.3: ``SparkSession._get_j_spark_session_class`` and ``_jsparkSession``; PySpark itself makes a session
    active in ``createDataFrame`` and leaves it so.  If they change: look there.
    """
    sessions = SparkSession._get_j_spark_session_class(session._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def hear_of_updates(context: SparkContext, tell: Callable[[], object]) -> None:
    """Say what to call where the JVM is cut off while it tells of accumulators: PySpark prints a traceback.

    Seen in 4.3: ``SparkContext._accumulatorServer``, a ``socketserver``.  If it changes, that traceback is seen again.
    """
    context._accumulatorServer.handle_error = lambda request, address: tell()


CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""What writes Spark's logs, in 8 ms a file; the default takes 29.

Seen in 4.3, for the internal ``spark.sql.streaming.checkpointFileManagerClass``.  If it moves no query starts: give the
new name, or leave the setting out.
"""

STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store in RocksDB.  Seen in 4.3; documented, by this name."""

INTERRUPT = "spark.job.interruptOnCancel"
"""Local property: whether a cancelled job interrupts its tasks.

Seen in 4.3, as ``SparkContext.SPARK_JOB_INTERRUPT_ON_CANCEL``.  ``SparkContext.setInterruptOnCancel`` is public and
cannot be asked what was set before.  If it changes: that one, and false afterwards.
"""

LOGGERS_OF_WHAT_IS_RAISED = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers that log as errors what it raises as well, with the whole trace.

Seen in 4.3, in ``pyspark.errors``.  If they change, the terminal shows failures twice: give the new names.
"""


# --- Python processes -------------------------------------------------------------------------------------------------


def pickled(value: Any) -> bytes:
    """Return a value as bytes, functions and classes of ``__main__`` included; :func:`unpickled` reads them.

    Seen in 4.3: ``pyspark.cloudpickle``, PySpark's copy.  If it goes: require ``cloudpickle``.
    """
    data: bytes = cloudpickle.dumps(value)
    return data


def unpickled(data: bytes) -> Any:
    """Return what :func:`pickled` was given."""
    return cloudpickle.loads(data)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark sends rows of a schema with.

    Seen in 4.3: ``pyspark.sql.pandas.types.to_arrow_schema``.  If it changes: all columns that pass between Spark and
    our sinks are typed by it; ``DataFrame.toArrow`` of an empty frame gives the same, with a job.
    """
    return to_arrow_schema(schema, **running().utc)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow rows.

    Seen in 4.3: ``pyspark.sql.pandas.types.from_arrow_schema``.  If it changes: ``createDataFrame`` of an empty Arrow
    table has it.  By itself, 4.1 makes an instant of a time without a zone.
    """
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def prefetching_reader() -> type[Any] | None:
    """Return the class whose readers may read an epoch while they plan it; None: there is no such thing.

    Seen in 4.3: ``_SimpleStreamReaderWrapper``.  Spark asks a reader of that class for ``getCache`` after
    ``partitions``, and its attribute ``simple_reader`` whether it can do ``AvailableNow``; nothing else of it is used.
    If it goes: there is no prefetch (89 ms an epoch become 149), and nothing else changes.
    """
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
    except ImportError:
        return None
    found: type[Any] = _SimpleStreamReaderWrapper
    return found


def available_now() -> type[Any] | None:
    """Return the class by which a reader takes part in ``AvailableNow``; None before Spark 4.2.

    Seen in 4.3: ``SupportsTriggerAvailableNow``, which is public.  Without it a run ends itself
    (:class:`holdfast.spark.run.Run`).
    """
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        return None
    found: type[Any] = SupportsTriggerAvailableNow
    return found


_environment_lock: threading.Lock = threading.Lock()  # runs that start at once in one process, as shards do, share it


@contextmanager
def workers_apart(context: SparkContext, variable: str, value: str) -> Iterator[None]:
    """Give functions that are used in the block workers of their own.

    Seen in 4.3: Spark reuses a worker only for functions of the same environment, which is that of the context when
    they are used: ``SparkContext.environment``.  If it changes: buckets wander between more processes, and each of them
    reads state again; nothing else.
    """
    with _environment_lock:
        before = context.environment
        context.environment = {**before, variable: value}  # another: a thread that uses a function may read this one
        try:
            yield
        finally:
            context.environment = before


def spread(groups: RDD[tuple[int, list[T]]], partitions: int) -> RDD[T]:
    """Return the values of groups, each in the partition whose number its group has: a shuffle of whole groups.

    Seen in 4.3: what ``RDD.partitionBy`` does once it has gathered values.  It gathers a number of them, whatever their
    size, and no more than 2 GiB can be pickled.  If it changes: that one, with values instead of groups.
    """
    context = groups.context
    serializer = context._unbatched_serializer
    pairs = groups.mapPartitions(partial(_pairs, serializer), preservesPartitioning=True)
    pairs._bypass_serializer = True
    jvm = present(context._jvm, "a shuffle is asked for without a JVM.")
    partitioner = jvm.PythonPartitioner(partitions, id(spread))
    shuffled = jvm.PairwiseRDD(pairs._jrdd.rdd()).asJavaPairRDD().partitionBy(partitioner)
    return RDD(jvm.PythonRDD.valueOfPair(shuffled), context, BatchedSerializer(serializer))


def _pairs(serializer: Any, groups: Iterable[tuple[int, list[object]]]) -> Iterator[bytes]:
    """Yield groups as ``PairwiseRDD`` takes them: by twos, a number and what it does not look at (seen in 4.3)."""
    for number, values in groups:
        yield pack_long(number)
        yield serializer.dumps(values)


# --- what jobs answer -------------------------------------------------------------------------------------------------


def with_end(answers: Iterable[T]) -> Iterator[T | None]:
    """Yield what a task answers, and that this was all: None.  Seen in 4.3, for :func:`answers_of`."""
    yield from answers
    yield None


def answers_of(job: RDD[T | None]) -> list[T]:
    """Return what all tasks of a job answer, each of which ends with :func:`with_end`.

    Seen in 4.3: ``RDD.collect`` takes the end of a stream that the JVM did not finish for the end of all answers
    (``FramedSerializer.load_stream``).  If it changes: tasks need not say that they ended.

    Raises
    ------
    Unavailable
        If the answers of some tasks are missing: the JVM died while it handed them over.
    """
    answers = job.collect()
    whole, of = answers.count(None), job.getNumPartitions()
    if whole != of:
        raise Unavailable(
            "Spark's JVM was cut off while it handed over what tasks answered.",
            why=f"the answers of {whole} tasks came, of {of}: it was killed, or ran out of memory.",
            do="start again: nothing of the epoch was decided. If it happens again, check the system's log for the "
            "out-of-memory killer, and raise HOLDFAST_DRIVER_MEMORY.",
        )
    return [answer for answer in answers if answer is not None]


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame, all of them or an error.

    Seen in 4.3: ``DataFrame.collect`` takes a cut stream for a whole one, as of :func:`answers_of`; that of ``toArrow``
    ends with the order of its batches, without which it fails.  If that changes: count the rows that tasks report.
    """
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return rows


PRINTED_BY_PROCESSES = r"""
    PySpark\ (?:worker\ failed\ with\ exception|daemon\ failed\ to\ flush)
  | (?:Starting\ )?Streaming\ \w+\ Python\ worker\b | (?:Current|Setting)\ mem\ limits
"""
"""How lines begin that PySpark's processes print of themselves (a verbose pattern): they are no user's.

Seen in 4.3, in ``util.py``, ``daemon.py``, ``worker_util.py`` and ``transform_with_state_driver_worker.py``.  If they
change, such lines reach the terminal.
"""


# --- plans ------------------------------------------------------------------------------------------------------------

STATEFUL = (
    *("Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "EventTimeWatermark"),
    *("FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "GlobalLimit", "LocalLimit", "Sort"),
    *("TransformWithState", "TransformWithStateInPySpark", "Window"),
)
"""Kinds of plan nodes that keep state on a stream, beside a join of two streams.  Seen in 4.3: Catalyst's classes.
If Spark gets another operator with state, add its name here."""

TRANSPARENT = ("SubqueryAlias", "View", "PipeOperator")
"""Kinds of plan nodes that change nothing: names of temporary views, places of ``|>``.  Seen in 4.3, in Catalyst."""


def analyzed(frame: DataFrame) -> Any:
    """Return a frame's analysed plan, a tree of Catalyst's, as the JVM has it.

    Seen in 4.3: ``DataFrame._jdf``, ``queryExecution().analyzed()``.  The plan itself has no public form but text.  If
    it changes: fan-out (:mod:`holdfast.spark.fanout`) and the refusal of state in Spark cannot be done without.
    """
    return frame._jdf.queryExecution().analyzed()


def kind_of(node: Any) -> str:
    """Return the kind of a plan node, or of an expression: the name of its class in Catalyst (seen in 4.3)."""
    return str(node.getClass().getSimpleName())


def listed(sequence: Any) -> list[Any]:
    """Return the elements of a ``Seq`` of Scala's (seen in 4.3: its methods ``size`` and ``apply``)."""
    return [sequence.apply(index) for index in range(sequence.size())]


def children_of(node: Any) -> list[Any]:
    """Return what a plan node takes its rows from (seen in 4.3: ``TreeNode.children``)."""
    return listed(node.children())


def is_streaming(node: Any) -> bool:
    """Tell whether a plan node's rows are those of a stream (seen in 4.3: ``LogicalPlan.isStreaming``)."""
    return bool(node.isStreaming())


def streams_of(frame: DataFrame, option: str) -> list[str | None]:
    """Return an option of each stream that a frame reads, in the order in which Spark logs positions by place.

    Seen in 4.3, and in 4.1, where it matters: ``StreamingRelationV2.extraOptions``; ``MicroBatchExecution`` collects
    sources as ``TreeNode.collect`` does, nodes before their children.  If it changes: sources check that offsets are
    theirs, and end the run.
    """

    def options_below(node: Any) -> Iterator[str | None]:
        if kind_of(node) == "StreamingRelationV2":
            yield node.extraOptions().get(option)
        for child in children_of(node):
            yield from options_below(child)

    return list(options_below(analyzed(frame)))


def calls_python(session: SparkSession, expression: Any) -> bool:
    """Tell whether an expression calls a Python UDF.

    Seen in 4.3: ``TreePattern.PYTHON_UDF``, which Catalyst itself looks for.  If it changes: search the expression for
    the class ``PythonUDF``.
    """
    pattern = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    return bool(expression.containsPattern(pattern))


def column_of(session: SparkSession, expression: Any) -> Column:
    """Return an expression of a plan as a column.

    Seen in 4.3: ``org.apache.spark.sql.classic.ExpressionUtils.column``.  If it moves: ``Column.__init__`` of
    ``pyspark.sql.classic`` shows what a column is made of.
    """
    return Column(session._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def alias_of(session: SparkSession, expression: Any, like: Any) -> Column:
    """Return an expression under the name and the identity of an ``Alias``, so that plans above it still find it.

    Seen in 4.3: the six arguments of Catalyst's ``Alias``.  If there are more: hand on those of ``like``.
    """
    catalyst = session._jvm.org.apache.spark.sql.catalyst.expressions
    parts = (like.name(), like.exprId(), like.qualifier(), like.explicitMetadata(), like.nonInheritableMetadataKeys())
    return column_of(session, catalyst.Alias(expression, *parts))


def identity_of(column: Any) -> int:
    """Return the number by which Catalyst knows a column of a plan; a computed or renamed one has its own.

    Seen in 4.3: ``NamedExpression.exprId``.  If it changes: no bound passes ``map`` and ``sql`` any more.
    """
    return int(column.exprId().id())


# --- a query that runs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ObservedMetrics:
    """Metrics that a query has observed under one name.

    What reads them is seen in 4.3: :func:`observed_metrics`.

    Parameters
    ----------
    values : mapping of str to Any
        Name of a metric -> its number, or a list of texts with the count of each, nulls left out.
    """

    values: Mapping[str, Any]

    def number(self, name: str) -> int | None:
        """Return a number; None where it is null, or there is none."""
        value = self.values.get(name)
        return None if value is None else int(value)

    def pairs(self, name: str) -> list[tuple[str, int]]:
        """Return a list of texts and counts; an empty one where it is null, or there is none."""
        return list(self.values.get(name) or ())


def observed_metrics(query: StreamingQuery, name: str) -> ObservedMetrics | None:
    """Return what a query has observed under a name in the batch that is at work; None where it has not (yet).

    Seen in 4.3: ``StreamingQuery._jsq`` and ``lastExecution().observedMetrics()``.  ``lastProgress`` is public, and
    includes a batch only after ``foreachBatch`` has returned from it.  If it changes: observe each batch anew.
    """
    row = query._jsq.streamingQuery().lastExecution().observedMetrics().get(name)
    if not row.isDefined():
        return None
    values = row.get()
    names = [str(each) for each in values.schema().fieldNames()]
    return ObservedMetrics({name: _metric(values, at) for at, name in enumerate(names) if not values.isNullAt(at)})


def _metric(values: Any, at: int) -> int | list[tuple[str, int]]:
    """Return one of the values that a batch has observed.

    Seen in 4.3: a Scala ``Row``, of which a list is a ``Seq`` of rows.  If it changes: as of :func:`observed_metrics`.
    """
    if values.schema().apply(at).dataType().typeName() == "long":
        return int(values.getLong(at))
    rows = values.getSeq(at)
    pairs = [rows.apply(each) for each in range(rows.size())]
    return [(row.getString(0), row.getLong(1)) for row in pairs if not row.isNullAt(0)]


def waits_for_rows(status: Mapping[str, Any]) -> bool:
    """Tell whether a query has asked all its sources, by its ``status``, and found nothing to do.

    Seen in 4.3: its message is ``Waiting for data to arrive`` or ``Waiting for next trigger``, which no other field
    distinguishes from that of a query that has just begun.  If it changes: the lag of sources that have delivered
    everything is unknown until their first epoch.
    """
    return not status["isTriggerActive"] and not status["isDataAvailable"] and "Wait" in status["message"]


# --- files of a query's checkpoint ------------------------------------------------------------------------------------

COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'
"""An entry of Spark's commit log for a query without a watermark.

Seen in 4.3.  If the version rises: entries of a query of ours (``spark/<n>/commits``) show its form.
"""


def show_as_committed(checkpoint: Path, batch_id: int, view: Path, make_directory: Callable[[str], object]) -> None:
    """Make a view of a query's checkpoint, for Spark's reader of state, in which a batch at work is committed.

    ``make_directory`` makes one, and those above it.

    Seen in 4.3: the reader looks at ``metadata``, at the batch in both logs, and at ``state``.  If it looks at more,
    its error names the file: link or copy it here.
    """
    entries = {"offsets": (checkpoint / "offsets" / str(batch_id)).read_bytes(), "commits": COMMITTED.encode()}
    for log, entry in entries.items():
        make_directory(str(view / log))
        (view / log / str(batch_id)).write_bytes(entry)
    (view / "metadata").write_bytes((checkpoint / "metadata").read_bytes())
    os.symlink(checkpoint / "state", view / "state")


# --- what Spark says of a failure -------------------------------------------------------------------------------------

TOO_LARGE = "spark.driver.maxResultSize"
"""In the message of a job whose result is too large for the driver: the setting by its name.

Seen in 4.3; the exception is a ``SparkException`` like any other, without a condition.
"""

WORKER_DIED = "Python worker exited unexpectedly"
"""In the message of a task whose Python worker died.  Seen in 4.3, in ``BasePythonRunner``; without a condition."""

LOST = (
    *("ExecutorLostFailure", WORKER_DIED, "Python worker failed to connect back"),
    *("FetchFailed", "Connection reset by peer"),
)
"""What Spark, or the network below it, says when a machine or a process went away.

Seen in 4.3, without conditions.  If one changes: a lost process ends a run instead of being waited for.
"""

DISK = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
}
"""What the system says when Spark cannot write its checkpoint, and the numbers that Java does not report.

Seen in 4.3, in the message of an ``IOException``.  If Java changes it: a full disk ends a run instead of being waited
for.
"""

STATE_IS_LOST = ("CANNOT_LOAD_STATE_STORE", "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY")
"""Conditions of Spark when it does not find, or cannot read, what a stateful operator had kept.

Seen in 4.3, the first with conditions below it.  If they change: such a run ends with an ``InternalError``, and the
next start does not take the state from a snapshot.
"""

PYTHON_EXCEPTION = "PYTHON_EXCEPTION"
"""Condition of what a function of Python raised in a worker.  Seen in 4.3."""

PYTHON_EXCEPTION_CLASS = "org.apache.spark.api.python.PythonException"
"""The class that has it.  Seen in 4.3; alone where a job reports it in a text."""

AROUND = frozenset({"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR"})
"""Conditions that only say where another failure was raised, and quote it.  Seen in 4.3."""

IN_TEXTS = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]|\bSQLSTATE: (\w{5})")
"""How a message of Spark's begins, with its condition, and ends.  Seen in 4.3; documented as the standard format."""


@dataclass(frozen=True)
class Throwable:
    """One exception of the JVM: its class, what Spark calls it (empty where it does not), and words.  Seen in 4.3."""

    java_class: str
    condition: str
    sql_state: str
    message: str


def throwables(error: BaseException) -> list[Throwable]:
    """Return the exceptions of the JVM that PySpark raised as one, each followed by its cause.

    There is none if it does not come from there, and some are missing if the JVM is gone meanwhile.

    Seen in 4.3: ``_origin`` of PySpark's exceptions, whose public ``getCondition`` is that of the outermost only;
    ``PythonErrorUtils``, by which PySpark asks.  If they change: :func:`holdfast.spark.failure.translate` reads
    conditions out of messages (:data:`IN_TEXTS`), in which a user's text may stand too.
    """
    found: list[Throwable] = []
    with suppress(Py4JError, OSError, EOFError):
        node = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        while node is not None and len(found) < 20:  # a chain could be circular
            condition = state = None
            if is_instance_of(SparkContext._gateway, node, "org.apache.spark.SparkThrowable"):
                asked = SparkContext._jvm.PythonErrorUtils
                condition, state = asked.getCondition(node), asked.getSqlState(node)
            found.append(Throwable(node.getClass().getName(), condition or "", state or "", node.getMessage() or ""))
            node = node.getCause()
    return found


EXPRESSION = re.compile(r"^== SQL.* ==\n(.+)$", re.MULTILINE)
"""After an error of Spark SQL: the expression that it is about.  Seen in 4.3; if it changes, messages lack it."""

OF_THE_STREAM = re.compile(
    r"^\S*StreamingQueryException: \[STREAM_FAILED\].*? terminated with exception: (.*?)(?: SQLSTATE.*)?$"
)
"""The first line of what ends a query, around the message of its cause.

Seen in 4.3.  If it changes: messages name the query, which users do not know, before they say why it failed.
"""
