"""What the JVM and its Python processes print: lines of users to the terminal, traces to the log, secrets nowhere."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.errors import Fenced
from holdfast.spark.launch import jvm_output
from holdfast.spark.launch.jvm_output import LINE_BYTES_MAX, JvmOutput, Sorter

TRACE = """\
Traceback (most recent call last):
  File "/site-packages/pyspark/daemon.py", line 236, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
BrokenPipeError: [Errno 32] Broken pipe
"""


def of_user(text: str) -> list[str]:
    """Return the lines that go to the terminal."""
    sort = Sorter()
    return [said.text for line in text.splitlines() for said in sort(line) if said.is_of_user]


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Iterator[JvmOutput]:
    monkeypatch.setattr(jvm_output, "DRAIN_S", 60.0)  # a machine may be busy
    made = JvmOutput()
    made.has_started()
    yield made
    made.drain()


def say(output: JvmOutput, text: bytes) -> None:
    os.write(output.write_end, text)


def test_what_a_function_prints_is_its_users() -> None:
    assert of_user("loading\n\n  indented\nWARNING: dark\n") == ["loading", "", "  indented", "WARNING: dark"]


def test_a_traceback_is_not_for_the_terminal_and_what_follows_is() -> None:
    assert of_user(f"before\n{TRACE}after\n") == ["before", "after"]


def test_a_chain_of_tracebacks_is_one() -> None:
    chain = f"{TRACE}\nDuring handling of the above exception, another exception occurred:\n\n{TRACE}"
    assert of_user(f"PySpark worker failed with exception:\n{chain}\nafter\n") == ["after"]


def test_an_error_of_several_lines_belongs_to_its_traceback() -> None:
    trace = TRACE.replace(
        "BrokenPipeError: [Errno 32] Broken pipe", "Fenced: 3 is fenced\n  Why: 4 started\n  Do: stop"
    )
    assert of_user(f"{trace}after\n") == ["after"]


def test_two_tracebacks_that_are_printed_at_once_are_none_of_the_users() -> None:
    lines = TRACE.splitlines()
    assert of_user("\n".join([*(line for line in lines for _ in range(2)), "after"])) == ["after"]


def test_a_trace_of_java_is_not_for_the_terminal() -> None:
    trace = (
        'Exception in thread "main" java.lang.IllegalStateException: gone\n'
        "\tat org.apache.spark.A.b(A.scala:1)\n\t... 12 more\nCaused by: java.io.IOException: no\n"
        "WARNING: Using incubator modules: jdk.incubator.vector\n"
        "OpenJDK 64-Bit Server VM warning: sharing is off\n[0.012s][warning][cds] no archive\n"
        "Warning: Java versions > Java 11 can only operate in restricted mode without off-heap memory!\n"
    )
    assert of_user(f"{trace}after\n") == ["after"]


def test_what_pyspark_says_of_its_own_processes_is_none_of_the_users() -> None:
    line = "Streaming TransformWithStateInPandas Python worker"
    assert of_user(f"Starting {line}.\n\n{line} finish init stage of Python runner.\n\nafter\n") == ["after"]


def test_a_record_of_spark_is_one_and_may_stand_behind_a_line_that_has_not_ended() -> None:
    said = Sorter()("half a line\x1eERROR Executor: failed\x1f\tat org.A\x1f")
    assert [(one.text, one.is_of_user) for one in said] == [
        ("half a line", True),
        ("ERROR Executor: failed\n\tat org.A", False),
    ]


def test_lines_of_users_reach_the_terminal_masked(output: JvmOutput, capsys: pytest.CaptureFixture[str]) -> None:
    say(output, b"connect password=hunter2\nna\xc3\xafve \xff\n")
    output.drain()
    assert capsys.readouterr().err == "connect password=***\nna\u00efve \ufffd\n"


def test_traces_go_to_the_log_masked_and_to_the_file_only(
    output: JvmOutput, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast.jvm")
    say(output, b"\x1eERROR Executor: token=abc\x1f\tat org.A\x1f\n" + TRACE.encode())
    output.drain()
    assert capsys.readouterr().err == ""
    assert caplog.messages[0] == "ERROR Executor: token=***\n\tat org.A"
    assert caplog.messages[-1] == "BrokenPipeError: [Errno 32] Broken pipe"
    assert all(record.holdfast_file_only for record in caplog.records)  # type: ignore[attr-defined]


def test_what_errors_say_to_programs_is_shown_nowhere(
    output: JvmOutput, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast.jvm")
    record = Fenced("3 is fenced").record()
    trace = TRACE.replace("BrokenPipeError: [Errno 32] Broken pipe", f"Fenced: 3 is fenced\n  {record}")
    say(output, f"{trace}\x1eERROR Executor: Fenced: 3\x1f  {record}\x1f\tat org.A\x1f\nafter\n".encode())
    output.drain()
    assert capsys.readouterr().err == "after\n"
    assert caplog.messages[-2:] == ["Fenced: 3 is fenced", "ERROR Executor: Fenced: 3\n\tat org.A"]


def test_until_spark_has_started_nothing_is_of_a_user(capsys: pytest.CaptureFixture[str]) -> None:
    output = JvmOutput()
    command = "import sys; sys.stderr.write('Unrecognized option: secret=s\\nError: no JVM\\n\\tat org.A\\n')"
    subprocess.run([sys.executable, "-c", command], stderr=output.write_end, check=True)
    output.is_launched()
    assert output.last_lines() == ["Unrecognized option: secret=***", "Error: no JVM"]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_line_without_an_end_is_cut_and_the_next_one_is_whole(
    output: JvmOutput, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2 * LINE_BYTES_MAX // 4096):
        say(output, b"x" * 4096)
    say(output, b"\nnext\nhalf")
    output.drain()
    assert capsys.readouterr().err == "x" * LINE_BYTES_MAX + "\nnext\nhalf\n"


def test_a_terminal_that_is_closed_does_not_stop_the_reader(
    output: JvmOutput, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stderr", None)
        say(output, b"one\n")
        while output._has_more(0):
            pass
        with output._passing:
            pass
    say(output, b"two\n")
    output.drain()
    assert capsys.readouterr().err == "two\n"


@pytest.mark.slow
def test_what_was_printed_before_the_end_of_the_process_is_shown_and_the_end_is_in_order() -> None:
    program = (
        "import os\n"
        "from holdfast.spark.launch.jvm_output import JvmOutput\n"
        "output = JvmOutput()\n"
        "output.has_started()\n"
        "for n in range(3000): os.write(output.write_end, b'line\\n')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "line\n" * 3000)
