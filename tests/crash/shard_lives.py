"""Lives of a driver of shards: started, killed, and started again; and what its sinks hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast import segments
from holdfast.connectors.files.source.division import FileDivision
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_name
from holdfast.store.local import LocalStore
from tests.crash.processes import ROOT
from tests.crash.shards_process import FAILED_AT_END, Life
from tests.kafka_servers import KafkaTopic
from tests.spark.running import arrive, eventually, parquet_rows, sqlite_rows

FILES = 24
WITHIN_S = 400


@dataclass
class Lives:
    """One pipeline whose driver is started again and again.

    Parameters
    ----------
    life : Life
        What each driver is started with; see :meth:`driver`.
    ids : list of int
        Of all rows that have arrived.
    """

    life: Life
    ids: list[int] = field(default_factory=list)

    @property
    def work(self) -> Path:
        """The directory of input, checkpoint and sinks."""
        return Path(self.life.work)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process."""
        path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        return {**os.environ, "PYTHONPATH": path, "HOLDFAST_DRIVER_MEMORY": "1 GiB", **self.life.variables}

    def arrive(self, files: int = FILES) -> None:
        """Let files of ten rows arrive; their names are spread over the segments."""
        for _ in range(files):
            first = len(self.ids)
            new = [*range(first, first + 10)]
            arrive(self.work / "in", f"{first:05}.json", [{"id": each} for each in new])
            self.ids += new

    @contextmanager
    def driver(self, **changes: object) -> Iterator[Driver]:
        """Give a driver that has begun all of its shards, or whose start is refused; it is gone afterwards.

        Parameters
        ----------
        changes
            Of what drivers are started with, from now on.
        """
        self.life = replace(self.life, **changes)  # type: ignore[arg-type]
        said = self.work / "said"  # by all drivers: shown where one fails
        with said.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.shards_process"],
                env=self.variables,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            yield Driver(process)
        except BaseException:
            sys.stderr.write(said.read_text()[-8_000:])
            raise
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    # --- what an outside reader sees --------------------------------------------------------------------------------

    def rows(self, sink: str) -> list[int]:
        """Return the ids of a sink, sorted."""
        if sink == "table":
            return sqlite_rows(self.work / "table.db") if (self.work / "table.db").exists() else []
        if sink == "store":
            return sorted(segments.open(self.work / "store").to_arrow()["id"].to_pylist())
        if sink == "files":
            return parquet_rows(self.work / "files")
        return sorted(json.loads(value)["id"] for value in KafkaTopic(self.life.bootstrap, "rows").values())

    def table(self) -> list[int]:
        """Return the ids of the table, sorted."""
        return self.rows("table")

    def epoch_of(self, shard: int) -> int:
        """Return the last epoch that a shard has published in the table."""
        query = f"SELECT epoch FROM holdfast_ledger WHERE pipeline = '{shard_name('numbers', shard)}'"
        return max(sqlite_rows(self.work / "table.db", query), default=0)

    def shard_of(self, number: int) -> int:
        """Return the shard that reads the row of an id, by the newest layout."""
        layout = newest_layout(LocalStore(str(self.work / "checkpoint")))
        assert layout is not None
        segment = FileDivision(layout.parts["numbers"]).segment_of(f"{number // 10 * 10:05}.json")
        return layout.assignment.shards[f"numbers:{segment}"]

    def check_exact(self) -> None:
        """Assert that each sink has each row once."""
        for sink in self.life.sinks:
            assert self.rows(sink) == self.ids, sink


@dataclass
class Driver:
    """A driver."""

    process: subprocess.Popen[str]

    def line(self) -> str:
        """Return what it says next; empty where it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def begin(self) -> None:
        """Wait until it has begun all shards; fail where its start is refused."""
        assert (line := self.line()) == "begun", line

    def kill(self) -> None:
        """Kill it, with its JVM."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def come_true(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something that it brings about; fail where it ends."""

        def is_over() -> bool:
            assert self.process.poll() is None, f"the driver has ended with {self.process.returncode}: {what}"
            return holds()

        eventually(is_over, within_s=WITHIN_S, what=what)

    def end(self) -> bool:
        """Wait for its own end; return whether no failure was given to it as it stopped: else rows may wait."""
        code = self.process.wait(WITHIN_S)
        assert code in (0, FAILED_AT_END)
        return code == 0
