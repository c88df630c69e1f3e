"""What Spark raises becomes one of our errors: by what the user should do, with the line that says most.  No JVM."""

from __future__ import annotations

import errno
import socket

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException, PythonException

from holdfast.errors import BadRow, Corrupt, Fenced, HoldfastError, InternalError, InvalidPipeline, Unavailable
from holdfast.spark import private
from holdfast.spark.failure import is_too_large, translate
from holdfast.spark.private import Throwable
from holdfast.store import durable

DIVIDED = """[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0. SQLSTATE: 22012
== SQL (line 1, position 1) ==
1 / (id - 2) AS `inverse`
^^^^^^^^^^^^
"""
STREAM = "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: {} SQLSTATE: XXKST"
UDF = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "flow.py", line 7, in <lambda>
ZeroDivisionError: division by zero
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
"""


class StreamingQueryException(Exception):
    """As PySpark's, by its name."""


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (ArithmeticError(DIVIDED), BadRow, "In: 1 / (id - 2) AS `inverse`"),
        (PythonException(UDF), InvalidPipeline, "ZeroDivisionError: division by zero"),
        (AnalysisException("[UNRESOLVED_COLUMN] no `x`. SQLSTATE: 42703"), InvalidPipeline, "[UNRESOLVED_COLUMN]"),
        (Exception("[USER_RAISED_EXCEPTION] 3 is poison SQLSTATE: P0001"), BadRow, "3 is poison"),
        (Exception("[FAILED_EXECUTE_UDF] User defined function failed. SQLSTATE: 39000"), InvalidPipeline, "[FAILED_"),
        (
            StreamingQueryException(STREAM.format("java.io.IOException: No space left on device")),
            Unavailable,
            "IOException: No space left on device",
        ),
        (RuntimeError("Job aborted: ExecutorLostFailure (executor 1 exited)"), Unavailable, "ExecutorLostFailure"),
        (RuntimeError("Python worker exited unexpectedly (crashed)"), Unavailable, "worker exited"),
        (StreamingQueryException(STREAM.format("java.lang.IllegalStateException: x")), InternalError, "x"),
        (
            StreamingQueryException(
                STREAM.format("[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] It is empty.")
            ),
            Corrupt,
            "MISSING_STATE_DIRECTORY] It is empty.",
        ),
        (
            RuntimeError(
                "Job aborted\norg.apache: [CANNOT_LOAD_STATE_STORE.CANNOT_READ] 2.changelog does not exist\n\tat x"
            ),
            Corrupt,
            "2.changelog does not exist",
        ),
    ],
)
def test_the_kind_follows_what_the_user_should_do(error: Exception, kind: type[HoldfastError], why: str) -> None:
    found = translate(error, "p", "epoch 7")
    assert type(found) is kind
    assert why in found.why
    assert found.pipeline == "p"
    assert found.do
    assert found.__cause__ is error
    for noise in ("org.apache", "runId", "Traceback", "\n"):
        assert noise not in found.why


RUNTIME = "org.apache.spark.SparkRuntimeException"
STREAM_FAILED = Throwable("org.apache.spark.sql.streaming.StreamingQueryException", "STREAM_FAILED", "XXKST", "")
ABORTED = Throwable("org.apache.spark.SparkException", "", "", "Job aborted due to stage failure")
LOST_STATE = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS"


@pytest.mark.parametrize(
    ("chain", "kind"),
    [
        ([Throwable(RUNTIME, "DIVIDE_BY_ZERO", "22012", "")], BadRow),
        ([STREAM_FAILED, Throwable(RUNTIME, "USER_RAISED_EXCEPTION", "P0001", "")], BadRow),
        ([ABORTED, Throwable(private.PYTHON_EXCEPTION_CLASS, "", "", "")], InvalidPipeline),
        ([Throwable(private.PYTHON_EXCEPTION_CLASS, "PYTHON_EXCEPTION", "38000", "")], InvalidPipeline),
        ([ABORTED, Throwable(RUNTIME, "FAILED_EXECUTE_UDF", "39000", "")], InvalidPipeline),
        ([Throwable(RUNTIME, "INVALID_ARRAY_INDEX", "XX000", "")], InvalidPipeline),
        ([STREAM_FAILED, Throwable(RUNTIME, LOST_STATE, "58030", f"[{LOST_STATE}] 2.delta is gone.\nmore")], Corrupt),
        ([STREAM_FAILED, Throwable("java.lang.AssertionError", "", "", "assertion failed")], InternalError),
        ([Throwable(RUNTIME, "PYTHON_DATA_SOURCE_ERROR", "38000", "")], InternalError),
    ],
)
def test_the_kind_follows_what_spark_calls_a_failure(
    chain: list[Throwable], kind: type[HoldfastError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "throwables", lambda error: chain)
    found = translate(RuntimeError("something else"), "p", "epoch 7")
    assert type(found) is kind
    if kind is Corrupt:
        assert (found.participant, found.why) == ("@state", f"[{LOST_STATE}] 2.delta is gone.")


@pytest.mark.parametrize("said", ["[CANNOT_LOAD_STATE_STORE.X] not mine", "[DIVIDE_BY_ZERO] x SQLSTATE: 22012"])
def test_what_a_users_function_says_is_not_taken_for_sparks_words(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [Throwable(private.PYTHON_EXCEPTION_CLASS, "PYTHON_EXCEPTION", "38000", said)]
    monkeypatch.setattr(private, "throwables", lambda error: chain)
    assert type(translate(PythonException(f"Traceback ...\nValueError: {said}"), "p", "epoch 7")) is InvalidPipeline


def test_the_number_of_a_full_disk_is_known() -> None:
    """Java tells it by a text alone."""
    full = translate(StreamingQueryException(STREAM.format("java.io.IOException: Disk quota exceeded")), "p", "it")
    assert full.errno == errno.EDQUOT
    assert durable.is_full(full)
    assert not durable.is_full(translate(StreamingQueryException(STREAM.format("Read-only file system")), "p", "it"))


def test_an_error_of_ours_is_found_again_in_whatever_spark_made_of_it() -> None:
    text = (
        "Traceback ...\nholdfast.errors.Fenced: generation 3 is fenced\n  Why: 4 started\n  Do:  stop\n\tat org.apache"
    )
    found = translate(StreamingQueryException(STREAM.format(text)), "p", "epoch 7")
    assert (type(found), found.what, found.why, found.do) == (Fenced, "generation 3 is fenced", "4 started", "stop")
    assert translate(found, "other", "epoch 8") is found


def test_a_jvm_that_does_not_answer_has_died() -> None:
    found = translate(Py4JNetworkError("Answer from Java side is empty"), "p", "epoch 7")
    assert type(found) is Unavailable
    assert "JVM has died in epoch 7" in found.what
    assert "HOLDFAST_DRIVER_MEMORY" in found.do


def test_a_broken_connection_of_the_users_own_is_no_dead_jvm() -> None:
    """``foreach_batch`` calls a user's function on the driver: what it connects to is not our JVM."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = unused.getsockname()
    with pytest.raises(ConnectionRefusedError) as refused:
        socket.create_connection(address)
    assert "JVM" not in translate(refused.value, "p", "epoch 7").message


def test_an_epoch_that_is_too_large_for_the_driver_is_known_by_sparks_own_setting() -> None:
    assert is_too_large(RuntimeError("... is bigger than spark.driver.maxResultSize (1024.0 MiB)"))
    assert not is_too_large(RuntimeError("another one"))
