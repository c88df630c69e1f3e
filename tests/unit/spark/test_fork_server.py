"""What Spark's Python processes are forked from: a fork is as a process that was started, or it is started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark
import pytest

from holdfast.spark.launch import forking
from holdfast.spark.launch.fork_server import is_as_if_new

pytestmark = pytest.mark.slow

DAEMON = ["-m", "holdfast.spark.launch.worker_daemon", "pyspark.worker"]
END_S = 30
DAEMONS_END = 1
"""With what PySpark's daemon ends whenever it is asked to."""


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory whose name is short enough for a socket."""
    return tmp_path_factory.mktemp("f")


@pytest.fixture
def server(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[psutil.Process]:
    """Start a server as a session does; it is ended as at the end of the driver."""
    ends: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr("atexit.register", lambda _, process: ends.append(process))
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert forking.start(place) == str(place / "python")
    (process,) = ends
    found = psutil.Process(process.pid)
    while not (place / "forks").exists():
        assert process.poll() is None, "the server has ended"
    yield found
    forking._end(process)
    assert not (place / "forks").exists()


@contextmanager
def started(
    place: Path, arguments: list[str], inherited: dict[str, str], ignored: bool = False, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start what Spark would."""
    given = {**inherited, **environment, "PYTHON_UNIX_DOMAIN_ENABLED": "true"}
    given["PYTHON_WORKER_FACTORY_SOCK_DIR"] = str(place)
    pipe = subprocess.PIPE
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN) if ignored else None
    process = subprocess.Popen([place / "python", *arguments], stdin=pipe, stdout=pipe, env=given)
    if ignored:
        signal.signal(signal.SIGTERM, before)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def await_serving(process: subprocess.Popen[bytes], place: Path) -> None:
    """Return when the daemon forks workers: it says where it listens before it is ready for signals."""
    assert process.stdout is not None
    length = int.from_bytes(process.stdout.read(4), "big")
    path = process.stdout.read(length)
    assert path.startswith(os.fsencode(place))
    with socket.socket(socket.AF_UNIX) as jvm:
        jvm.connect(path)
        assert len(jvm.recv(4, socket.MSG_WAITALL)) == 4, "no worker told its process id"


def test_a_daemon_is_forked_and_has_its_own_streams_environment_and_directory(
    place: Path, server: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    with started(place, DAEMON, server.environ()) as process:
        await_serving(process, place)
        (fork,) = server.children()
        assert fork.cwd() == os.path.realpath(place)
        assert process.stdin is not None
        process.stdin.close()  # as when the JVM ends
        assert process.wait(END_S) == DAEMONS_END
    psutil.wait_procs([fork], timeout=END_S)
    assert server.children() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_fork_and_its_end_is_told(place: Path, server: psutil.Process, number: int) -> None:
    with started(place, DAEMON, server.environ()) as process:
        await_serving(process, place)
        (fork,) = server.children()
        if number == signal.SIGKILL:
            fork.kill()
            assert process.wait(END_S) == -signal.SIGKILL
        else:
            process.terminate()
            assert process.wait(END_S) == DAEMONS_END
        psutil.wait_procs([fork], timeout=END_S)
        assert not fork.is_running()


def test_what_is_started_with_signals_ignored_ignores_them_as_a_fork(place: Path, server: psutil.Process) -> None:
    """So a JVM is started, and what it starts: a signal for all processes of a run is the driver's alone."""
    module = ["-m", "pyspark.sql.streaming.python_streaming_source_runner"]
    waiting = {"PYTHON_WORKER_FACTORY_SOCK_PATH": str(place / "jvm")}
    with socket.socket(socket.AF_UNIX) as jvm:
        jvm.bind(str(place / "jvm"))
        jvm.listen()
        with started(place, module, server.environ(), **waiting, ignored=True) as process:
            connection, _ = jvm.accept()
            (fork,) = server.children()
            for each in (fork, psutil.Process(process.pid)):
                each.send_signal(signal.SIGTERM)
            assert fork.is_running()
            assert process.poll() is None
            connection.close()
            process.wait(END_S)


def test_what_a_fork_could_not_be_is_started(place: Path, server: psutil.Process) -> None:
    with started(place, DAEMON, server.environ(), OTHER="1") as process:
        await_serving(process, place)
        assert server.children() == []
        assert psutil.Process(process.pid).cmdline()[1:] == DAEMON
    with started(place, ["-c", "print(1 + 1)"], server.environ()) as process:
        assert process.communicate()[0] == b"2\n"


def test_without_a_server_everything_is_started(place: Path, server: psutil.Process) -> None:
    environment = server.environ()
    server.kill()
    with started(place, DAEMON, environment) as process:
        await_serving(process, place)
        assert psutil.Process(process.pid).cmdline()[1:] == DAEMON
    (place / "forks").unlink()


def test_signals_for_all_processes_leave_the_server_alone(place: Path, server: psutil.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        server.send_signal(number)
    with started(place, DAEMON, server.environ()) as process:
        await_serving(process, place)
        assert len(server.children()) == 1


def test_the_server_ends_with_a_driver_that_is_killed(place: Path) -> None:
    script = "import sys; from pathlib import Path; from holdfast.spark.launch import forking\n"
    script += "forking.start(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    driver = subprocess.Popen([sys.executable, "-c", script, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    driver.stdout.readline()
    (server,) = psutil.Process(driver.pid).children()
    driver.kill()
    driver.communicate()
    gone, _ = psutil.wait_procs([server], timeout=END_S)
    assert gone == [server]


ENVIRONMENT = {"HOME": "/h", "PYTHONPATH": "/a:/b", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
SPARKS = Path(pyspark.__file__).parent


@pytest.mark.parametrize(
    ("changed", "is_forked"),
    [
        ({}, True),
        ({"PYTHONPATH": f"{SPARKS}/python/lib/pyspark.zip:/a:/b"}, True),
        ({"PYTHONPATH": "/other/pyspark.zip:/a:/b"}, False),
        ({"PYTHONPATH": "/b:/a"}, False),
        ({"PYTHONHASHSEED": "1"}, False),
        ({"HOME": "/g"}, False),
        ({"LD_PRELOAD": "x.so"}, False),
        ({"OMP_NUM_THREADS": "4"}, False),
        ({"SPARK_HOME": "/s", "PYTHON_WORKER_FACTORY_SOCK_PATH": "/x"}, True),
    ],
)
def test_only_what_would_be_the_same_is_forked(changed: dict[str, str], is_forked: bool) -> None:
    asked = {"arguments": ["pyspark.daemon"], "environment": {**ENVIRONMENT, **changed}}
    assert is_as_if_new(asked, ENVIRONMENT) == is_forked
    assert not is_as_if_new({**asked, "arguments": ["json.tool"]}, ENVIRONMENT)
