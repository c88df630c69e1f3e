"""Pipelines in shards whose checkpoint is in an object store: what is called here runs in a process of its own."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import holdfast as hf
from holdfast import faults
from holdfast.cli.app import app
from holdfast.connectors.files.source.division import FileDivision
from holdfast.controller.layouts.graph import PARTS
from holdfast.errors import HoldfastError
from tests.spark.object_store_runs import placed
from tests.spark.running import arrive, eventually, parquet_rows, sqlite_rows

DEVICES = [f"device{number}" for number in range(6)]


@dataclass
class ShardsPlace:
    """Files of devices, each device in one segment; a table and files, or a table behind state.

    Parameters
    ----------
    work : Path
        Of input and sinks; the scratch is in ``scratch`` there.
    address : str
        Of the checkpoint.
    keeps_state : bool
        Whether rows are numbered, device by device.
    """

    work: Path
    address: str
    keeps_state: bool = False
    begins: str | None = None
    """Where the pipeline begins: with a named checkpoint."""
    beside: Path | None = None
    """The directory of another place on the same host, whose input it reads: the scratches of both are there."""
    count: int = 0
    segments: dict[str, str] = field(default_factory=dict)
    rows: list[tuple[str, int]] = field(default_factory=list)

    @property
    def scratch(self) -> Path:
        """Directory below which the scratch is."""
        return (self.beside or self.work) / "scratch"

    @property
    def of_pipeline(self) -> Path:
        """The scratch itself."""
        (found,) = self.scratch.iterdir()
        return found

    def arrive(self, *, before: bool = False) -> None:
        """Let a file of each device come; ``before``: in the order of a listing before all others."""
        for device in DEVICES:
            rows = [{"device": device, "id": len(self.rows) + i} for i in range(3)]
            name = self._name_for(device)
            arrive(self.work / "in", name, rows, at=1 if before else 1000 + self.count)
            self.rows += [(device, row["id"]) for row in rows]

    def _name_for(self, device: str) -> str:
        division = FileDivision(PARTS)
        while True:
            self.count += 1
            name = f"{self.count:05}.json"
            if self.segments.setdefault(device, division.segment_of(name)) == division.segment_of(name):
                return name

    def check(self) -> None:
        """Every row is in every sink once; with state, each has the number that it has of its device."""
        ids = [id for _, id in self.rows]
        if not self.keeps_state:
            assert sqlite_rows(self.work / "out.db") == ids == parquet_rows(self.work / "out")
            return
        wanted = []
        for device in DEVICES:
            own = [id for each, id in self.rows if each == device]
            wanted += [(device, number) for number in range(1, len(own) + 1)]
        assert sqlite_rows(self.work / "out.db") == ids
        assert sqlite_rows(self.work / "out.db", "SELECT device, n FROM rows") == wanted

    def move_scratch(self, to: str) -> None:
        """Keep a scratch, or another one, elsewhere."""
        self.scratch.rename(self.work / to)

    def copy_scratch(self, to: str) -> None:
        """Keep a copy."""
        shutil.copytree(self.scratch, self.work / to)


def pipeline_of(place: ShardsPlace) -> hf.Pipeline:
    """Return the pipeline of a place."""
    rows = hf.read.files(
        (place.beside or place.work) / "in", schema="device STRING, id BIGINT", max_files_per_epoch=1, name="rows"
    )
    if place.keeps_state:
        counted = rows | hf.accumulate(by="device", n=hf.count(), name="counted")
        table = counted | hf.write.sqlite(place.work / "out.db", table="rows", name="table", rewindable=True)
        return hf.Pipeline("kept", table, shard_by="device")
    table = rows | hf.write.sqlite(place.work / "out.db", table="rows", name="table")
    return hf.Pipeline("kept", table, rows | hf.write.files(place.work / "out", name="files"))


def run(
    place: ShardsPlace,
    shards: int | None = None,
    fails: tuple[str, int, int] | None = None,
    only: int | None = None,
    **variables: str,
) -> tuple[str, list[int]]:
    """Run to the end of the input; return how it failed, and how often each shard was started again.

    With ``fails``, a point, a shard and a number, the shard fails there so often, other than where all are taken over.
    """
    with placed(place.scratch, variables):
        if fails is not None:
            point, shard, count = fails
            left = [None] * count

            def hook(reached: str, at: int) -> None:
                if reached == point and left and threading.current_thread() is not threading.main_thread():
                    left.pop()
                    raise RuntimeError(f"{reached}:{at}")

            faults.install(hook, shard=shard)
        options: dict[str, Any] = {} if only is None else {"only_shard": only}
        try:
            started = pipeline_of(place).start(
                checkpoint=place.address,
                trigger=hf.available_now(),
                master="local[2]",
                shards=shards,
                from_checkpoint=place.begins,
                **options,
            )
            try:
                started.wait()
            finally:
                again = [each.restarts for each in started.status().shards]
        except (HoldfastError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}", []
        return "", again


def run_on_two_hosts(place: ShardsPlace) -> tuple[str, list[tuple[str, int]]]:
    """Run on a host, start all on another one meanwhile; return how the first run ends, and the rows."""

    def start(host: str) -> Any:
        return pipeline_of(place).start(
            checkpoint=place.address,
            trigger=hf.every("20 ms"),
            master="local[2]",
            shards=2,
            spark_checkpoint=place.work / host,
        )

    def are_all_there() -> bool:
        return len(sqlite_rows(place.work / "out.db")) >= len(place.rows)

    with placed(place.scratch, {}):
        place.arrive()
        first = start("a")
        try:
            eventually(are_all_there)
            place.arrive()
            second = start("b")
            try:
                place.arrive()
                eventually(lambda: not first.is_active and are_all_there())
            finally:
                second.stop()
            second.wait()
            first.wait()
        except HoldfastError as error:
            return f"{type(error).__name__}: {error}", place.rows
        finally:
            first.stop()
        return "", place.rows


def command(place: ShardsPlace, *words: str) -> tuple[int, str]:
    """Give a command of ``holdfast`` for a place; return its exit code and what it said."""
    program = place.work / "program.py"
    program.write_text(
        "from pathlib import Path\n"
        "from tests.spark.object_store_shards import ShardsPlace, pipeline_of\n"
        f"pipeline = pipeline_of(ShardsPlace(Path({str(place.work)!r}), {place.address!r}, {place.keeps_state!r}))\n"
    )
    given = [f"{program}:pipeline" if word == "TARGET" else word for word in words]
    with placed(place.scratch, {}):
        done = CliRunner().invoke(app, [*given, "--checkpoint", place.address])
    return done.exit_code, done.output
