"""The Spark session of a run: which settings Holdfast needs, and why.

What of a pipeline travels to other hosts that should not be read on the way, and whether Spark encrypts it.

Executors stage rows by themselves, so a sink's writer factory goes to them with each task, a PostgreSQL DSN with its
password in it; so do the options of Spark's own readers.  Both are part of task closures and plans, which Spark sends
over its own connections (RPC and block transfer), unencrypted unless it is configured otherwise.
"""

from __future__ import annotations

import logging
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from holdfast.capabilities import offers
from holdfast.config import Settings
from holdfast.errors import Unavailable
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode
from holdfast.ports import Confidential
from holdfast.spark import private
from holdfast.spark.datasource import HoldfastDataSource
from holdfast.spark.failure import summary
from holdfast.spark.launch import class_archive, forking
from holdfast.spark.launch.java import require_java
from holdfast.spark.launch.jvm import (
    JvmEnded,
    environment_of_workers,
    has_begun,
    has_our_classes,
    launch,
    options_for,
    plain_options,
)
from holdfast.spark.launch.jvm_classes import local_files
from holdfast.spark.launch.jvm_options import JvmOptions, RowsInJvm, rows_to_expect
from holdfast.spark.spark_versions import require_spark, running

log = logging.getLogger("holdfast.run")

STATIC: dict[str, tuple[str, str]] = {
    # key: (value, why)
    "spark.ui.showConsoleProgress": ("false", "the progress bar of Spark would fight with ours for the terminal"),
    "spark.ui.enabled": ("false", "a port and memory per run; switch it on with your own session"),
    "spark.ui.retainedJobs": ("50", "the driver keeps what it shows: memory must not grow with the number of epochs"),
    "spark.ui.retainedStages": ("50", "as above"),
    "spark.ui.retainedTasks": ("1000", "as above"),
    "spark.sql.ui.retainedExecutions": ("10", "as above"),
    "spark.ui.dagGraph.retainedRootRDDs": ("20", "as above"),
    "spark.cleaner.periodicGC.interval": ("5min", "shuffle and broadcast files of old epochs are dropped in time"),
    "spark.scheduler.mode": ("FAIR", "shards have pools of their own; without any it is first come, first served"),
    "spark.python.worker.reuse": ("true", "a fork per task costs 30 ms an epoch"),
    "spark.python.daemon.module": (
        "holdfast.spark.launch.worker_daemon",
        "no traceback of a worker whose JVM has ended",
    ),
    "spark.python.unix.domain.socket.enabled": ("true", "on TCP a task waits 30 to 40 ms for its first input"),
}
"""Settings of the context: used only for a session that Holdfast itself creates."""

RUNTIME: dict[str, tuple[str, str]] = {
    "spark.sql.session.timeZone": ("UTC", "TIMESTAMP means the same instant on every machine"),
    "spark.sql.ansi.enabled": ("true", "Spark's default; the expressions that Arrow evaluates mean this"),
    "spark.sql.caseSensitive": ("false", "as above"),
    "spark.sql.ansi.doubleQuotedIdentifiers": ("false", "as above"),
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": (
        "true",
        "positions are keyed by source name; must be on from the first run",
    ),
    "spark.sql.streaming.checkpointFileManagerClass": (
        private.CHECKPOINT_FILES,
        "an almost empty epoch took 73 ms instead of 122: the two log writes 8 ms instead of 29 each (2 ms with "
        "holdfast.spark.launch.jvm_classes)",
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": ("65536", "fewer, larger Arrow batches between JVM and workers"),
    "spark.sql.execution.arrow.pyspark.enabled": ("true", "rows leave the JVM as Arrow, never one by one"),
    "spark.sql.streaming.stateStore.providerClass": (
        private.STATE_STORE,
        "state that an older version kept there is read from it",
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": (
        "true",
        "as above: it was kept so",
    ),
    "spark.sql.adaptive.enabled": (
        "false",
        "stages of an adaptive plan are jobs of their own, whose tasks do not know the epoch",
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": ("false", "epochs without rows are planned by our sources"),
    "spark.sql.execution.arrow.maxBytesPerBatch": ("67108864", "chunks are large: a batch of 65536 of them is not"),
    "spark.sql.streaming.numRecentProgressUpdates": ("20", "memory must not grow with the number of epochs"),
    "spark.sql.streaming.metricsEnabled": ("false", "Holdfast reports its own"),
    "spark.sql.streaming.pollingDelay": ("5ms", "how soon new rows are seen when there were none"),
    "spark.sql.streaming.stopTimeout": ("60s", "a stop that hangs becomes an error instead of a wait for ever"),
}
"""Settings of one run: set on a separate session, even if the user created the context."""

TUNING = frozenset({"spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"})
"""Those of a run that only decide about speed and memory: values given to the context, or the session, are kept."""

LOGGED_TWICE = ("py4j", *private.LOGGERS_OF_WHAT_IS_RAISED)
"""Loggers of PySpark that log as errors what they raise as well, with the whole trace: the run logs it once."""

SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
"""Where Spark's sockets to Python processes lie; connections are not authenticated, so no other user has access.

On one machine: another one of a cluster does not have the directory of the driver's.
"""

LOCAL_TASK_FAILURES = 4
"""As on a cluster: a failed task is tried again before the epoch fails (local mode would not)."""


def session_of(settings: Settings, *, rows: RowsInJvm) -> SparkSession:
    """Return the session of this process, created as the settings say when there is none.

    Parameters
    ----------
    settings : Settings
        Of the run, or of a command.
    rows : RowsInJvm
        What the JVM evaluates, but for a few.
    """
    return create_session(
        settings.master,
        f"{settings.driver_memory_mib}m",
        rows=rows_to_expect(settings.jvm, rows),
        has_archive=settings.class_archive != class_archive.OFF,
    )


def create_session(
    master: str, driver_memory: str, *, rows: RowsInJvm = RowsInJvm.ALL, has_archive: bool = False
) -> SparkSession:
    """Return the session of this process, created when there is none.

    Parameters
    ----------
    master : str
        Spark master; ``local[N]`` gets a failure limit of four like a cluster's.
    driver_memory : str
        Heap of the JVM, as Spark writes it (``"2g"``).
    rows : RowsInJvm
        For which rows the JVM is to be optimised; of a local master only.
    has_archive : bool
        Whether the JVM may use the archive of Spark's classes, which is made where there is none; of a local master
        only.

    Raises
    ------
    InvalidPipeline
        If no Java 17 or newer is found, or this Spark cannot run a pipeline.
    Unavailable
        If the JVM ends at once, or the master does not answer.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    require_spark()
    require_java()
    is_local = master.startswith("local")
    if master.startswith("local[") and "," not in master:
        master = f"{master[:-1]},{LOCAL_TASK_FAILURES}]"
    jvm = options_for(driver_memory, rows=rows if is_local else RowsInJvm.ALL, has_archive=has_archive and is_local)
    options = {
        "spark.master": master,
        "spark.app.name": "holdfast",
        **{key: value for key, (value, _) in STATIC.items()},
    }
    python = None
    with environment_of_workers(is_local=is_local):
        if is_local:
            workers = forking.workers()
            options[SOCKET_DIRECTORY] = str(workers.directory)
            python = workers.python
        try:
            session = _started(options, jvm)
        except Exception as error:
            raise Unavailable(
                f"Spark did not start, with master {master!r} and a heap of {driver_memory}.",
                why=_why_not(error),
                do="the log has whatever the JVM printed; look at HOLDFAST_MASTER (--master), HOLDFAST_DRIVER_MEMORY, "
                "JAVA_HOME, HOLDFAST_JVM, and options for Java or Spark in the environment.",
            ) from error
    if python is not None:
        private.set_python_of_workers(session, python)
    if has_archive and is_local:
        class_archive.make_later()
    session.sparkContext.setLogLevel("ERROR")
    cut_off = "the JVM was cut off while it told of accumulators"
    private.hear_of_updates(session.sparkContext, lambda: log.debug(cut_off, exc_info=True))
    for name in LOGGED_TWICE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return session


def _started(options: dict[str, str], jvm: JvmOptions) -> SparkSession:
    """Return a session; if the JVM that was begun for it, or has options of ours, does not start, with another one."""
    plain = plain_options(jvm.memory)
    was_begun = has_begun()
    try:
        return _started_with(options, jvm)
    except JvmEnded as ended:
        if jvm == plain and not was_begun:
            raise
        # A collector was chosen where we cannot see it (in spark-defaults.conf, or in a file java-opts); or a damaged
        # archive of classes, which the JVM should have refused.
        log.info("the JVM does not start with %s, and is started without: %s", " ".join(jvm.for_java), ended.lines[-1:])
        class_archive.forget(jvm.for_java)
    return _started_with(options, plain)


def _started_with(options: dict[str, str], jvm: JvmOptions) -> SparkSession:
    options = {**options, **jvm.settings, "spark.driver.extraJavaOptions": shlex.join(jvm.for_java)}
    conf = SparkConf().setAll(list(options.items()))
    output = launch(conf, jvm)
    if options["spark.master"].startswith("local") and has_our_classes():
        conf.set(local_files.SETTING, local_files.CLASS)
    try:
        with _sigint_left_alone():
            SparkContext.getOrCreate(conf)
        return SparkSession.builder.config(map=options).getOrCreate()
    finally:
        if output is not None:
            output.has_started()


@contextmanager
def _sigint_left_alone() -> Iterator[None]:
    """Keep the handler of SIGINT: a new context replaces it by one that raises an interruption anywhere."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_someones = before is not None and before is not signal.default_int_handler
        if is_someones and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _why_not(error: Exception) -> str:
    if isinstance(error, JvmEnded):
        return " ".join(["the JVM ended before it was ready:", *(summary(line) for line in error.lines[-4:] or ["?"])])
    # The text of py4j's own error begins with the call that failed.
    return summary(str(error.java_exception if isinstance(error, Py4JJavaError) else error))


def run_session(base: SparkSession, parallelism: int) -> SparkSession:
    """Return a session of its own for one run: same context, settings and temporary views not shared.

    Our data source is registered in it: each session has a registry of its own, which compiling a source needs.
    """
    session = base.newSession()
    for key, (value, _) in {**RUNTIME, **running().settings}.items():
        if key not in TUNING or base.conf.get(key, None) is None:
            session.conf.set(key, value)
    session.conf.set("spark.sql.shuffle.partitions", str(parallelism))
    # Spark checks in the active session whether a data source is registered already, whichever session registers it: a
    # session of an earlier run has ours, and is active where its createDataFrame was called.
    with private.active_session(session):
        session.dataSource.register(HoldfastDataSource)
    return session


Ask = Callable[[str], bool]
"""Whether a switch of Spark's is on."""


def exposed(pipeline: Graph, master: str, is_on: Ask) -> str:
    """Return a warning if secrets of the pipeline would travel in clear to another host; else nothing.

    Parameters
    ----------
    pipeline : Graph
        What is to run.
    master : str
        Spark's master.
    is_on : callable
        Asked for names of Spark settings.
    """
    if master.startswith("local"):  # threads of one JVM, or (local-cluster) processes of one machine
        return ""
    if is_on("spark.ssl.rpc.enabled") or (is_on("spark.authenticate") and is_on("spark.network.crypto.enabled")):
        return ""
    ends: list[Node | SinkNode] = [*pipeline.sources, *pipeline.sinks]
    nodes = [node.name for node in ends if offers(node.spec, Confidential) and node.spec.sends_secret]
    if not nodes:
        return ""
    return (
        f"secrets of {', '.join(nodes)} travel to the executors of {master} in clear: set spark.authenticate and "
        "spark.network.crypto.enabled (or spark.ssl.rpc.enabled) to true; docs/operations.md says what travels"
    )


def answers(session: SparkSession) -> bool:
    """Return whether the context of a session is there, and its JVM answers."""
    try:
        return bool(session.sparkContext.defaultParallelism)
    except Exception:  # of py4j, of a socket, of a context that is stopped: whatever it is
        return False


def is_fair(session: SparkSession) -> bool:
    """Return whether jobs of several pools share the cores; else they are first come, first served."""
    return str(session.sparkContext.getConf().get("spark.scheduler.mode", "FIFO")).upper() == "FAIR"
