"""A real Spark cluster on loopback: a standalone master, two workers, executors in processes of their own.

Made of the classes that the PySpark wheel carries.  One executor is killed in mid-epoch; Spark's event log then tells
which tasks were lost with it and which ran again.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from holdfast.demo.processes import kill_one
from holdfast.testing.servers.ports import free_port

WORKER_COUNT = 2
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
START_LIMIT_S = 60.0
EPOCH_ROWS_MAX = 10_000
"""More rows than an epoch brings: when so many came after a task was lost, its epoch is complete."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    url: str
    directory: Path
    workers: tuple[subprocess.Popen[bytes], ...]

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a pipeline run on it: the master, and Spark's settings as a file.

        Epochs of the demo are small enough for the driver to carry them; here executors must have work that they can
        lose, so carrying is off.
        """
        return {
            "HOLDFAST_MASTER": self.url,
            "HOLDFAST_CARRY_MAX": "0 B",
            "HOLDFAST_PREFETCH_MAX": "0 B",
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    @property
    def event_logs(self) -> list[Path]:
        """Spark's event logs, oldest first; one per run."""
        logs = (path for path in (self.directory / "events").iterdir() if path.is_file())
        return sorted(logs)  # named after the moment their application began

    def executors(self) -> list[psutil.Process]:
        """Return the executor processes that live now."""
        found = []
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(worker.pid).children(recursive=True)
                found += [child for child in children if _runs(child, EXECUTOR_CLASS)]
        return found


@contextmanager
def standalone_cluster(directory: Path, *, cores: int = 1) -> Iterator[Cluster]:
    """Start a master and two workers, yield, stop them by process id.

    Parameters
    ----------
    directory : Path
        For settings, logs, and what the workers write.
    cores : int
        How many tasks each worker, and its one executor, runs at a time.
    """
    for part in ("conf", "events", "logs"):
        (directory / part).mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    _write_settings(directory, url, cores)
    master = _launch(
        directory, "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)
    )
    workers: list[subprocess.Popen[bytes]] = []
    try:
        _wait_for_port(port, master, directory / "logs" / "master.log")
        for number in range(WORKER_COUNT):
            name = f"worker-{number}"
            sizes = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(directory / name))
            workers.append(_launch(directory, name, "org.apache.spark.deploy.worker.Worker", *sizes, url))
        yield Cluster(url, directory, tuple(workers))
    finally:
        for daemon in (*workers, master):
            kill_one(daemon.pid)
            daemon.wait()


@dataclass
class ExecutorKiller:
    """Kills one executor while it computes, once, in the first run of the pipeline."""

    cluster: Cluster
    seed: int
    rows_at_kill: int | None = None
    """Rows that the run had shown; None before."""
    _wait_until: float | None = None

    def __call__(self, run: int, new_rows: int) -> bool:
        """Called while run number ``run`` works; return whether the lost tasks have run again, or none will be lost."""
        if run > 0:
            return True
        if self.rows_at_kill is not None:
            return new_rows > self.rows_at_kill + EPOCH_ROWS_MAX
        if self._wait_until is None:
            self._wait_until = time.monotonic() + random.Random(self.seed).uniform(0.0, 0.5)
        if time.monotonic() >= self._wait_until:
            busy = _busiest(self.cluster.executors())
            if busy is not None:
                self.rows_at_kill = new_rows
                kill_one(busy.pid)
        return False


@dataclass(frozen=True)
class Rerun:
    """What Spark's event log says about a lost executor; tasks are named ``stage.partition``."""

    executor: str
    """Spark's name of the executor that was lost."""
    lost: frozenset[str]
    """Tasks that it was running."""
    again: frozenset[str]
    """Tasks that were started more than once."""
    owed: frozenset[str] = frozenset()
    """Tasks whose output lay with it, or that came to fetch such output: state is behind a shuffle."""

    @property
    def is_exact(self) -> bool:
        """Whether tasks were lost, all of them ran again, and of the others only those that had to."""
        return bool(self.lost) and self.lost <= self.again <= self.lost | self.owed


def read_rerun(events: Iterable[Mapping[str, Any]]) -> Rerun:
    """Find in Spark's events the lost executor, what was lost with it, and the tasks that ran again."""
    executor = ""
    lost: set[str] = set()
    fetching: set[str] = set()
    outputs: dict[str, set[str]] = {}
    starts: dict[str, int] = {}
    for event in events:
        kind = event["Event"]
        if kind == "SparkListenerTaskStart":
            task = _task_name(event)
            starts[task] = starts.get(task, 0) + 1
        elif kind == "SparkListenerTaskEnd":
            reason = event["Task End Reason"]
            if reason["Reason"] == "ExecutorLostFailure":
                lost.add(_task_name(event))
                executor = str(reason["Executor ID"])
            elif reason["Reason"] == "FetchFailed":
                fetching.add(_task_name(event))
            elif event.get("Task Type") == "ShuffleMapTask":  # succeeded; or is resubmitted after it had succeeded
                outputs.setdefault(str(event["Task Info"]["Executor ID"]), set()).add(_task_name(event))
        elif kind == "SparkListenerExecutorRemoved" and not executor:
            executor = str(event["Executor ID"])
    owed = fetching | outputs.get(executor, set())
    again = frozenset(task for task, count in starts.items() if count > 1)
    return Rerun(executor, frozenset(lost), again, frozenset(owed & again))


def read_events(log: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a log; the last line of a killed driver's log may be cut and is left out."""
    for line in log.read_text(errors="replace").splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def _task_name(event: Mapping[str, Any]) -> str:
    return f"{event['Stage ID']}.{event['Task Info'].get('Partition ID', event['Task Info']['Index'])}"


def _busiest(executors: list[psutil.Process]) -> psutil.Process | None:
    """Return the executor that has computed most in the last moments, if any did: it is running a task."""
    before = [(executor, _cpu_s(executor)) for executor in executors]
    time.sleep(0.03)
    used = [(_cpu_s(executor) - seconds, executor) for executor, seconds in before]
    seconds, executor = max(used, key=lambda pair: pair[0], default=(0.0, None))
    return executor if seconds >= 0.015 else None


def _cpu_s(process: psutil.Process) -> float:
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system
    return total


def _runs(process: psutil.Process, java_class: str) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return any(java_class in argument for argument in process.cmdline())
    return False


def _write_settings(directory: Path, url: str, cores: int) -> None:
    settings = {
        "spark.master": url,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": str(cores),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (directory / "events").absolute().as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    text = "".join(f"{key} {value}\n" for key, value in settings.items())
    (directory / "conf" / "spark-defaults.conf").write_text(text)


def _launch(directory: Path, name: str, java_class: str, *arguments: str) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__file__).parent
    with (directory / "logs" / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [home / "bin" / "spark-class", java_class, "--webui-port", "0", *arguments],
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"Spark's master did not start:\n{log.read_text(errors='replace')[-2000:]}")
