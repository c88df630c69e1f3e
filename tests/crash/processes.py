"""Real processes of one pipeline, killed and started again, and the look at what they left in the sinks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
import psycopg
import pyarrow.dataset
import pyarrow.parquet
import redis

from holdfast.connectors.files.objects.place import BucketPlace
from tests.http_servers import KeyedServer
from tests.kafka_servers import KafkaTopic

ROOT = Path(__file__).resolve().parents[2]
FILES = 6
ROWS_PER_FILE = 400
EXPECTED = set(range(FILES * ROWS_PER_FILE))


@dataclass(frozen=True)
class Case:
    """One pipeline in one directory.

    Parameters
    ----------
    work : Path
        Empty directory for input, checkpoint and sinks.
    sinks : tuple of str
        ``sqlite``, ``files``, ``postgres``, ``redis`` (at ``CRASH_REDIS``), ``kafka`` (at ``CRASH_KAFKA``),
        ``http`` (at ``CRASH_HTTP``), ``s3`` (at ``CRASH_S3``, with the variables of this process).
    environment : mapping of str to str
        Further variables of the process.
    server : KeyedServer, optional
        What ``http`` posts to.
    """

    work: Path
    sinks: tuple[str, ...]
    dsn: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    server: KeyedServer | None = None

    @property
    def checkpoint(self) -> Path:
        """The checkpoint directory."""
        return self.work / "checkpoint"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its processes."""
        return {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "CRASH_WORK": str(self.work),
            "CRASH_SINKS": ",".join(self.sinks),
            "CRASH_DSN": self.dsn,
            "HOLDFAST_DRIVER_MEMORY": "1 GiB",
            **self.environment,
        }

    def write_input(self, first: int = 0, last: int = FILES, *, padding: int = 0) -> None:
        """Write the input files from number ``first`` to below ``last``, each by rename.

        ``padding`` is bytes in each line that nobody reads: large files have tasks of their own.
        """
        directory = self.work / "in"
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(first, last):
            ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
            same = {"at": f"2026-01-01T{number // 60:02}:{number % 60:02}:00Z", "padding": "." * padding}
            lines = [json.dumps({"id": i, "value": i / 2, **same}) for i in ids]
            hidden = directory / f".{number:03}.tmp"
            hidden.write_text("\n".join(lines) + "\n")
            os.utime(hidden, (number, number))
            hidden.rename(directory / f"{number:03}.json")

    def command(self, *arguments: str, program: str = "pipeline.py") -> list[str]:
        """Return the command ``holdfast run`` of one of the pipelines here."""
        target = f"{ROOT}/tests/crash/{program}:pipeline"
        return [sys.executable, "-m", "holdfast", "run", target, "--checkpoint", str(self.checkpoint), *arguments]

    def start(
        self,
        *arguments: str,
        output: int | IO[str] = subprocess.PIPE,
        program: str = "pipeline.py",
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Start ``holdfast run`` in a process group of its own.

        Give a file as ``output`` where workers may outlive the process: they keep a pipe open.
        """
        command = self.command("--master", "local[2]", *(arguments or ("--available-now",)), program=program)
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**self.variables, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, **environment: Any) -> subprocess.CompletedProcess[str]:
        """Run to the end, whatever end it is."""
        process = self.start(**environment)
        try:
            output, _ = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            kill_tree(process)
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    # --- what the sinks hold ------------------------------------------------------------------------

    def rows(self) -> dict[str, list[tuple[int, float]]]:
        """Return (id, draw) of every row of every sink, in the order of ids."""
        return {kind: sorted(getattr(self, f"_{kind}_rows")()) for kind in self.sinks}

    def _sqlite_rows(self) -> list[tuple[int, float]]:
        with sqlite3.connect(self.work / "out.db") as connection:
            return connection.execute("SELECT id, draw FROM rows").fetchall()

    def _files_rows(self) -> list[tuple[int, float]]:
        files = pyarrow.dataset.dataset(self.work / "files", format="parquet")
        if not files.files:
            return []
        table = files.to_table(["id", "draw"])
        return list(zip(table["id"].to_pylist(), table["draw"].to_pylist(), strict=True))

    def _postgres_rows(self) -> list[tuple[int, float]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute("SELECT id, draw FROM rows").fetchall()

    def _redis_rows(self) -> list[tuple[int, float]]:
        with redis.Redis.from_url(self.environment["CRASH_REDIS"], decode_responses=True) as client:
            return [(int(entry["id"]), float(entry["draw"])) for _, entry in client.xrange("rows")]

    def _kafka_rows(self) -> list[tuple[int, float]]:
        rows = [json.loads(value) for value in KafkaTopic(self.environment["CRASH_KAFKA"], "rows").values()]
        return [(row["id"], row["draw"]) for row in rows]

    def _http_rows(self) -> list[tuple[int, float]]:
        assert self.server is not None
        return [(row["id"], row["draw"]) for row in self.server.rows]

    def _s3_rows(self) -> list[tuple[int, float]]:
        files, found = BucketPlace(self.environment["CRASH_S3"]).files, []
        for key in files.keys(""):
            if not key.startswith("_"):
                table = pyarrow.parquet.read_table(pyarrow.BufferReader(files.get(key) or b""))
                found += zip(table["id"].to_pylist(), table["draw"].to_pylist(), strict=True)
        return found

    def check_exact(self, expected: Collection[int] = EXPECTED) -> None:
        """Assert that every sink holds every row once, and that all of them hold the same values."""
        found = self.rows()
        for kind, rows in found.items():
            ids = [number for number, _ in rows]
            assert len(ids) == len(expected), f"{kind}: {len(ids)} rows instead of {len(expected)}"
            assert set(ids) == set(expected), kind
        first = found[self.sinks[0]]
        assert all(rows == first for rows in found.values()), "two sinks hold different values of one row"

    def leftovers(self) -> list[str]:
        """Return whatever should not be there after a clean end: staged rows, orphans, open decisions."""
        found = [str(path) for path in self.work.rglob("*") if path.is_file() and self._is_leftover(path)]
        if "postgres" in self.sinks:
            with psycopg.connect(self.dsn) as connection:
                prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                found += [gid for (gid,) in connection.execute(prepared)]
                staging = "SELECT relname FROM pg_class WHERE relname LIKE 'holdfast_stage%'"
                found += [name for (name,) in connection.execute(staging)]
        if "redis" in self.sinks:
            with redis.Redis.from_url(self.environment["CRASH_REDIS"], decode_responses=True) as client:
                found += client.keys("holdfast:*staged*")
        if "kafka" in self.sinks:
            found += KafkaTopic(self.environment["CRASH_KAFKA"], "rows").open_transactions()
        if "s3" in self.sinks:
            found += [key for key, _ in BucketPlace(self.environment["CRASH_S3"]).uploads.all()]
        return found

    def _is_leftover(self, path: Path) -> bool:
        parts = path.relative_to(self.work).parts
        if parts[0] == "checkpoint":
            return parts[1] == "ledger" and path.stat().st_size > 4096
        in_staging = "staging" in parts or "out.db-holdfast" in parts
        return in_staging or path.name.endswith(".tmp")


def kill_tree(process: subprocess.Popen[str]) -> None:
    """SIGKILL a process and everything it started, by process id, and collect it."""
    victims = [process.pid]
    with suppress(psutil.NoSuchProcess):
        victims += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def wait_for_session(session: int, timeout_s: float = 60) -> None:
    """Wait until no process of a session is left."""
    end = time.monotonic() + timeout_s
    while any(_session_of(pid) == session for pid in psutil.pids()):
        if time.monotonic() > end:
            raise TimeoutError(f"processes of session {session} do not end")
        time.sleep(0.02)


def _session_of(pid: int) -> int | None:
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        return None if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getsid(pid)
    return None


def fork_server_of(process: subprocess.Popen[str]) -> psutil.Process:
    """Return what the Python processes of a run are forked from; its JVM is there, so it is."""
    (found,) = (
        one for one in psutil.Process(process.pid).children() if "holdfast.spark.launch.fork_server" in one.cmdline()
    )
    return found


def parent_of(process: psutil.Process) -> int | None:
    """Return a parent's process id; None of a process that has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.ppid()
    return None


SUBMIT = "org.apache.spark.deploy.SparkSubmit"


def jvm_of(process: subprocess.Popen[str], timeout_s: float = 60) -> psutil.Process:
    """Return the JVM that a run has started, as soon as it is there."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        for child in psutil.Process(process.pid).children(recursive=True):
            # A short-lived JVM comes first: Spark's launcher, which only works out the command.  While it ends, its own
            # command is empty.
            with suppress(psutil.NoSuchProcess):
                command = child.cmdline()
                if SUBMIT in command and "org.apache.spark.launcher.Main" not in command:
                    return child
        time.sleep(0.02)
    raise TimeoutError("no JVM was started")
