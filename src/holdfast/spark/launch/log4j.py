"""What Spark's JVM logs of runs in a session of the user's goes to our log instead of the notebook.

Spark prints the whole trace of a task that failed, several times, and of the query that ends by it; the run raises the
same error in a few lines.  While runs are alive in a JVM that the user has started, the loggers below write to a pipe
that the driver reads as it reads that of its own JVM (:mod:`holdfast.spark.launch.jvm_output`): masked, and passed to
the logger ``holdfast.jvm``.  When the last of these runs has ended, they are as they were.

- A logger that the user has configured is left alone.
- Levels stay as they are: nothing is logged that would not have been printed.

Seen in Spark 4.3: names of loggers, and Log4j 2 with its builders below ``SparkContext._jvm``.  If that changes, Spark
prints as it does without us.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import threading
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

from holdfast.spark.launch import jvm_output, stop_directory

LOGGERS = (
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.sql.classic.StreamingQueryManager",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.scheduler.DAGScheduler",
    "org.apache.spark.api.python",
)
"""Those that speak of queries and their tasks."""

PATTERN = "\x1e%d{yy/MM/dd HH:mm:ss} %p %c{1}: %replace{%m%n%ex}{[\\r\\n]+}{\x1f}%n"
"""As in ``log4j2.properties``."""

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_runs = 0
_restore: Callable[[], None] | None = None


def divert(context: SparkContext) -> Callable[[], None]:
    """Let the loggers write to our log from now on; return what ends that for this run, which may be called again."""
    global _runs, _restore
    if jvm_output.is_read():
        return lambda: None
    with _lock:
        _runs += 1
        if _restore is None:
            try:
                _restore = _diverted(context)
            except (OSError, Py4JError, TypeError):
                _log.info("what Spark logs is not diverted", exc_info=True)
    is_over = threading.Event()

    def end() -> None:
        global _runs, _restore
        with _lock:
            if is_over.is_set():
                return
            is_over.set()
            _runs -= 1
            if _runs == 0 and _restore is not None:
                _restore()
                _restore = None

    atexit.register(end)
    return end


def _diverted(context: SparkContext) -> Callable[[], None]:
    directory = stop_directory.create()
    pipe = directory / "pipe"
    os.mkfifo(pipe, 0o600)
    # Not blocking: Log4j opens its end later.  A second one is ours, for the pipe to end when we say so.
    output = jvm_output.JvmOutput((os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), os.open(pipe, os.O_WRONLY)))
    logging_of = context._jvm.org.apache.logging.log4j
    loggers: Any = logging_of.LogManager.getContext(False)
    config = loggers.getConfiguration()
    layout = logging_of.core.layout.PatternLayout.newBuilder().withPattern(PATTERN).build()
    builder = logging_of.core.appender.FileAppender.newBuilder().withFileName(str(pipe)).withAppend(True)
    appender = builder.setName("holdfast").setLayout(layout).setConfiguration(config).build()
    appender.start()
    configured = set(config.getLoggers().keySet())
    ours = [name for name in LOGGERS if name not in configured]
    for name in ours:
        diverted = logging_of.core.config.LoggerConfig(name, config.getLoggerConfig(name).getLevel(), False)
        diverted.addAppender(appender, None, None)
        config.addLogger(name, diverted)
    loggers.updateLoggers()

    def restore() -> None:
        try:
            for name in ours:
                config.removeLogger(name)
            loggers.updateLoggers()
            appender.stop()
        except (OSError, Py4JError, TypeError):
            _log.debug("the JVM has ended first", exc_info=True)
        output.drain()
        output.is_launched()
        shutil.rmtree(directory, ignore_errors=True)

    return restore
