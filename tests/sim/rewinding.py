"""A pipeline without state and without an engine, for rewinds: real sinks, a real checkpoint, epochs of one position.

What a run delivers for a position depends on its ``version``: a run that went wrong delivers version 1, and after the
rewind version 2 is delivered for the same positions.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset

import holdfast as hf
from holdfast.checkpoint import progress
from holdfast.checkpoint.directory_header import newest_directory
from holdfast.checkpoint.manifest import EpochEnd
from holdfast.checkpoint.participation import Participation
from holdfast.checkpoint.progress import EpochSpan
from holdfast.checkpoint.schemas import note_schema
from holdfast.checkpoint.spark_log import begun_log
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator
from holdfast.config import Settings
from holdfast.connectors.files.source.log import FileLog, whole
from holdfast.ports import Carried, EpochRecord, Store
from holdfast.starts.rewind import Rewinding
from holdfast.starts.rewind_target import check_none_holds_withdrawn
from holdfast.store.local import LocalStore
from tests.starts import begun, inputs_of

SCHEMA = pa.schema([("x", pa.int64()), ("version", pa.int64())])
MINUTE_US = 60_000_000


class Flow:
    """A pipeline with a table and a directory, in a folder of its own.

    ``behind`` is what stands between the source and the directory: not evaluated, looked at by what asks the graph.
    """

    def __init__(
        self,
        work: Path,
        *,
        rewindable: bool = True,
        has_extra: bool = False,
        behind: Callable[[hf.Stream], hf.Stream] = lambda rows: rows,
    ) -> None:
        self.work = work
        rows = hf.read.files(str(work / "in"), schema="x BIGINT, version BIGINT", name="rows")
        sinks = [
            rows | hf.write.sqlite(work / "t.db", table="t", rewindable=rewindable, name="table"),
            behind(rows) | hf.write.files(str(work / "out"), name="archive"),
        ]
        if has_extra:
            sinks.append(rows | hf.write.files(str(work / "extra"), name="extra"))
        self.pipeline = hf.Pipeline("flow", *sinks)
        self.store = LocalStore(str(work / "checkpoint"))

    def run(self, last: int, version: int) -> None:
        """Run epochs up to a position, as an engine does: take over, settle where to begin, commit."""
        self.rewinding().carry_through()
        store = self.store
        log = FileLog(str(self.work / "checkpoint" / "sources" / "rows" / "log"))
        while log.end < last:
            log.append([whole(f"{log.end}.json", 10)])
        sinks = [node.spec.connect(node.name, "flow", SCHEMA) for node in self.pipeline.sinks]
        coordinator = Coordinator(
            pipeline="flow", store=store, sinks=sinks, clock=SystemClock(), commit_thread=False
        )  # fmt: skip
        try:
            check = partial(check_none_holds_withdrawn, store, "flow")
            resumption = coordinator.open(on_behind=check)
            check([sink.name for sink in sinks], resumption.held)
            for sink in sinks:
                note_schema(store, sink.name, SCHEMA)
            below = f"spark/{newest_directory(store) or 1}"
            directory = self.work / "checkpoint"
            beginning = inputs_of(store, directory, below, "flow", self.pipeline.sources)
            origin = begun(beginning, resumption.held, resumption.last_epoch)
            began = int(origin.start.get("rows", {}).get("log", 0))
            done = len(list((directory / below / "commits").glob("*")))
            for batch in range(done, last - began):
                self._epoch(coordinator, directory / below, origin.base + batch, began + batch, batch, version)
            Participation("flow", store, [sink.name for sink in sinks]).note([sink.name for sink in sinks], last)
        finally:
            coordinator.close()

    def _epoch(self, coordinator: Coordinator, spark: Path, epoch: int, start: int, batch: int, version: int) -> None:
        before = {"rows": {"log": start}} if start else {}
        positions = {"rows": {"log": start + 1}}
        planned = begun_log([positions], epoch * MINUTE_US)
        (spark / "metadata").write_text(planned["metadata"])
        (spark / "offsets").mkdir(exist_ok=True)
        (spark / "offsets" / str(batch)).write_text(planned["offsets/0"])
        rows = pa.table({"x": [start * 10, start * 10 + 1], "version": [version] * 2}, SCHEMA)
        claim = coordinator.missing(epoch, positions, before)
        record = EpochRecord("flow", epoch, coordinator.generation, positions, epoch)
        if claim.sinks:
            coordinator.commit(claim, record, {sink: (Carried(rows),) for sink in claim.sinks})
        ended = EpochEnd(epoch, epoch, positions, epoch * MINUTE_US)
        progress.write(self.store, [EpochSpan(before, ended)], coordinator.generation)
        (spark / "commits").mkdir(exist_ok=True)
        (spark / "commits" / str(batch)).write_text(planned["commits/0"])

    def rewinding(self, store: Store | None = None) -> Rewinding:
        """Return what ``holdfast rewind`` works with."""
        return Rewinding(self.pipeline, store or self.store, self.work / "checkpoint", Settings())

    def delivered(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return what table and directory hold, as an ordinary reader sees them."""
        connection = sqlite3.connect(self.work / "t.db")
        try:
            table = sorted(connection.execute("SELECT x, version FROM t").fetchall())
        finally:
            connection.close()
        return table, self.rows_in("out")

    def rows_in(self, directory: str) -> list[tuple[int, int]]:
        """Return what a directory of files holds, as an ordinary reader sees it."""
        found = pyarrow.dataset.dataset(self.work / directory, format="parquet").to_table()
        return sorted((row["x"], row["version"]) for row in found.to_pylist())

    def epochs_used(self) -> list[int]:
        """Return the epochs that the ledger has heard of, one for each decision."""
        return [int(key.rpartition("/")[2].split("-")[0]) for key in self.store.keys("ledger/")]

    def generations(self) -> int:
        """Return how often the pipeline was taken over."""
        return len([json.loads(self.store.get(key) or b"") for key in self.store.keys("generations/")])


def expected(*versions: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the rows of positions, given up to which position which version is delivered.

    Examples
    --------
    >>> expected((1, 1), (2, 2))
    [(0, 1), (1, 1), (10, 2), (11, 2)]
    """
    rows, start = [], 0
    for end, version in versions:
        rows += [(position * 10 + i, version) for position in range(start, end) for i in range(2)]
        start = max(start, end)
    return rows
