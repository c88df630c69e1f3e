"""What a Python worker says when its JVM is gone."""

import os
import subprocess
import sys

import pytest

ANSWERS = """
import socket, pyspark.worker
{module}
ours, theirs = socket.socketpair()
def main(infile, outfile):
    outfile.write(b"answer")
    {before_the_end}
pyspark.worker.main = main
code = daemon.worker(ours, True)
print("code", code, theirs.recv(6))
"""
HOLDFAST = "from holdfast.spark.launch import worker_daemon as daemon"
PYSPARK = "from pyspark import daemon"


def answered(module: str, before_the_end: str) -> subprocess.CompletedProcess[str]:
    script = ANSWERS.format(module=module, before_the_end=before_the_end)
    environment = {**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}  # as the JVM sets it by default
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=False
    )


@pytest.mark.slow
def test_a_worker_whose_jvm_is_gone_ends_without_a_word() -> None:
    silent = answered(HOLDFAST, "theirs.close()")
    assert (silent.returncode, silent.stderr) == (1, "")
    assert "BrokenPipeError" in answered(PYSPARK, "theirs.close()").stderr, "there is something to keep quiet about"


@pytest.mark.slow
def test_a_worker_that_is_heard_answers_as_with_pyspark() -> None:
    assert answered(HOLDFAST, "pass").stdout == answered(PYSPARK, "pass").stdout == "code 0 b'answer'\n"


@pytest.mark.slow
def test_other_errors_are_not_hidden() -> None:
    assert "ZeroDivisionError" in answered(HOLDFAST, "1 / 0").stderr
