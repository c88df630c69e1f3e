"""The Spark session of a run: which settings Holdfast needs, and why."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

import holdfast
from holdfast.errors import Unavailable
from holdfast.spark import private
from holdfast.spark.datasource import HoldfastDataSource
from holdfast.spark.failure import summary
from holdfast.spark.launch import forking, stop_directory
from holdfast.spark.launch.java import require_java
from holdfast.spark.launch.jvm_options import quick_options
from holdfast.spark.launch.jvm_output import JvmEnded, launch

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
        "an almost empty epoch took 73 ms instead of 122: the two log writes 8 ms instead of 29 each",
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": ("65536", "fewer, larger Arrow batches between JVM and workers"),
    "spark.sql.execution.arrow.pyspark.enabled": ("true", "rows leave the JVM as Arrow, never one by one"),
    "spark.sql.streaming.stateStore.providerClass": (
        private.STATE_STORE,
        "state outside the heap; the only store of transformWithState",
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": (
        "true",
        "an epoch uploads what changed; whole snapshots are made in the background",
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": ("false", "epochs without rows are planned by our sources"),
    "spark.sql.execution.arrow.maxBytesPerBatch": ("67108864", "chunks are large: a batch of 65536 of them is not"),
    "spark.sql.streaming.numRecentProgressUpdates": ("20", "memory must not grow with the number of epochs"),
    "spark.sql.streaming.metricsEnabled": ("false", "Holdfast reports its own"),
    "spark.sql.streaming.pollingDelay": ("5ms", "how soon new rows are seen when there were none"),
    "spark.sql.streaming.stopTimeout": ("60s", "a stop that hangs becomes an error instead of a wait for ever"),
}
"""Settings of one run: set on a session of its own, whoever created the context."""

TUNING = frozenset({"spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"})
"""Those of a run that only decide about speed and memory: what the context was given for them stands."""

TOLD_TWICE = ("py4j", *private.LOGGERS_OF_WHAT_IS_RAISED)
"""Loggers of PySpark that log as errors what they raise as well, with the whole trace: the run logs it once."""

SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
"""Where Spark's sockets to Python processes lie; who may connect is not asked, so nobody else may come there.

On one machine: another one of a cluster does not have the directory of the driver's.
"""

SOCKET_PLACE_LENGTH_MAX = 25
"""With our directory's name and Spark's socket's, 76 characters, a path of the kernel's 107, or of macOS's 103."""

LOCAL_TASK_FAILURES = 4
"""As on a cluster: a failed task is tried again before the epoch fails (local mode would not)."""


def create_session(master: str, driver_memory: str, *, is_quick: bool = False) -> SparkSession:
    """Return the session of this process, created when there is none.

    Parameters
    ----------
    master : str
        Spark master; ``local[N]`` gets a failure limit of four like a cluster's.
    driver_memory : str
        Heap of the JVM, as Spark writes it (``"2g"``).
    is_quick : bool
        Whether the JVM is to be ready soon rather than quick with rows; of a local master only.

    Raises
    ------
    InvalidPipeline
        If no Java 17 or newer is found.
    Unavailable
        If the JVM ends at once, or the master does not answer.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    require_java()
    # Workers must run the interpreter that has Holdfast; "python3" of the PATH often is another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        # One machine: no other address than its own is needed, whatever its host name resolves to.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if master.startswith("local[") and "," not in master:
        master = f"{master[:-1]},{LOCAL_TASK_FAILURES}]"
    # A file of our own instead of Spark's default, which greets with five lines and prints every stack trace.
    own_log = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
    jvm = quick_options(os.environ) if is_quick and master.startswith("local") else ()
    options = {
        "spark.master": master,
        "spark.app.name": "holdfast",
        "spark.driver.memory": driver_memory,
        **{key: value for key, (value, _) in STATIC.items()},
    }
    python = None
    with _python_path_of_workers():
        if master.startswith("local"):
            directory = _socket_directory()
            options[SOCKET_DIRECTORY] = str(directory)
            python = forking.start(directory)
        try:
            session = _started(options, own_log, jvm)
        except Exception as error:
            raise Unavailable(
                f"Spark did not start, with master {master!r} and a heap of {driver_memory}.",
                why=_why_not(error),
                do="the log has whatever the JVM printed; look at HOLDFAST_MASTER (--master), HOLDFAST_DRIVER_MEMORY, "
                "JAVA_HOME, HOLDFAST_JVM, and options for Java or Spark in the environment.",
            ) from error
    if python is not None:
        private.set_python_of_workers(session, python)
    session.sparkContext.setLogLevel("ERROR")
    for name in TOLD_TWICE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return session


def _socket_directory() -> Path:
    """Return a new directory of this process for Spark's sockets; removed with it, or by a later start."""
    place = tempfile.gettempdir()
    directory = stop_directory.create(place if len(place) <= SOCKET_PLACE_LENGTH_MAX else "/tmp")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _started(options: dict[str, str], own_log: str, jvm: Sequence[str]) -> SparkSession:
    """Return a session; if its JVM does not start with options of ours, with one that has none of them."""
    try:
        return _started_with({**options, "spark.driver.extraJavaOptions": " ".join([own_log, *jvm])})
    except JvmEnded as ended:
        if not jvm:
            raise
        # A collector was chosen where we cannot see it: in spark-defaults.conf, or in a file java-opts.
        log.info("the JVM does not start with %s, and is started without: %s", " ".join(jvm), ended.lines[-1:])
    return _started_with({**options, "spark.driver.extraJavaOptions": own_log})


def _started_with(options: dict[str, str]) -> SparkSession:
    conf = SparkConf().setAll(list(options.items()))
    output = launch(conf)
    try:
        with _sigint_left_alone():
            SparkContext.getOrCreate(conf)
        return SparkSession.builder.config(map=options).getOrCreate()
    finally:
        if output is not None:
            output.has_started()


@contextmanager
def _sigint_left_alone() -> Iterator[None]:
    """Let whoever handles SIGINT go on doing so: a new context takes it, and makes an interruption of it, anywhere."""
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


@contextmanager
def _python_path_of_workers() -> Iterator[None]:
    """Set PYTHONPATH for the JVM that is started meanwhile; it hands it on to every Python process it starts."""
    before = os.environ.get("PYTHONPATH")
    paths = [path for path in (before or "").split(os.pathsep) if path]
    # Installed packages are there anyway; a source tree on sys.path is not, in another process.
    root = str(Path(holdfast.__file__).parents[1])
    if root not in paths and "site-packages" not in root:
        paths.insert(0, root)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent / "startup"), *paths])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def run_session(base: SparkSession, parallelism: int) -> SparkSession:
    """Return a session of its own for one run: same context, settings and temporary views not shared.

    It knows our data source: each session has a register of its own, and whoever compiles a source on it needs that.
    """
    session = base.newSession()
    given = base.sparkContext.getConf()
    for key, (value, _) in RUNTIME.items():
        if key not in TUNING or not given.contains(key):
            session.conf.set(key, value)
    session.conf.set("spark.sql.shuffle.partitions", str(parallelism))
    # Whether a data source may be registered Spark asks of the active session, whichever it is registered in: one that
    # ran before knows ours, and is active where somebody has called its createDataFrame.
    with private.active_session(session):
        session.dataSource.register(HoldfastDataSource)
    return session
