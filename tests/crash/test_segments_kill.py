"""The segments sink under real SIGKILLs at any moment, its thread sealing beside the epochs, without an engine.

A process publishes small epochs as fast as it can and is killed again and again; the last one ends by itself.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast.connectors.segments.manifest import SegmentsManifest

pytestmark = pytest.mark.crash

KILLS = 8
TARGET = 60_000
EPOCHS_MIN = 150

_PROGRAM = f"""
import sys
import pyarrow as pa
from holdfast import segments
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Task
from holdfast.connectors.segments import manifest
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.connectors.kit import maintenance as thread

manifest.ENTRIES_MAX, thread.PAUSE_S = 20, 0.01
directory, generation, until = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
schema = pa.schema([("id", pa.int64()), ("day", pa.int64())])
spec = SegmentsSinkSpec(directory, partition_by=("day",), target_size="{TARGET} B", compression=None, sort_by=("id",))
sink = spec.connect("out", "numbers", schema)
held = sink.open(RunIdentity("numbers", generation))
sink.sweep(below_epoch=held.epoch + 1)
print("begun", flush=True)
epoch = held.epoch
while not until or epoch < until:
    epoch += 1
    ids = range(epoch * 1000, epoch * 1000 + 1000)
    days = [n % (7 if n % 3 else 2) for n in ids]
    if epoch == until:
        days[-1] = 7  # one row, never due by its size, however far sealing lags behind the epochs
    table = pa.table({{"id": ids, "day": days}}, schema=schema)
    writer = sink.writer_factory()(Task("numbers", generation, epoch, 1, 0))
    writer.write(table.slice(0, 600).combine_chunks().to_batches()[0])
    parts = (writer.stage(), Carried(table.slice(600)))
    sink.publish([Publication(EpochRecord("numbers", epoch, generation, {{"log": {{"log": epoch}}}}), parts)], Held())
    sink.sweep(below_epoch=epoch + 1)
sink.close()
sink.sweep(below_epoch=epoch + 1)
print(epoch, flush=True)
"""


def start(directory: Path, generation: int, until: int = 0) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", _PROGRAM, os.fspath(directory), str(generation), str(until)]
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def last_epoch(own: Path) -> int:
    return SegmentsManifest(os.fspath(own / "manifest")).last().epoch


def test_after_kills_at_any_moment_every_row_is_in_one_well_sized_file(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    own = directory / "_holdfast" / "numbers" / "out"
    chance = random.Random(7)
    for generation in range(1, KILLS + 1):
        process = start(directory, generation)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.05, 1.0))
        process.kill()
        process.communicate()
    output, _ = start(directory, KILLS + 1, max(last_epoch(own), EPOCHS_MIN) + 5).communicate()
    last = int(output)
    manifest = SegmentsManifest(os.fspath(own / "manifest"))
    holdings = manifest.holdings()
    assert holdings.last.epoch == last
    assert (holdings.growing, holdings.files) == ({}, {})
    segments = list(manifest.sealed(holdings))
    on_disk = {os.fspath(path.relative_to(directory)) for path in directory.glob("day=*/*")}
    assert on_disk == {segment.path for segment in segments}
    assert [*(own / "journal").iterdir(), *(own / "sealing").iterdir(), *(own / "writing").iterdir()] == []

    ids: list[int] = []
    through: dict[str, int] = defaultdict(int)
    for segment in segments:
        rows = pq.ParquetFile(directory / segment.path).read()["id"].to_pylist()
        assert rows == sorted(rows)
        assert {number // 1000 for number in rows} <= set(range(segment.first_epoch, segment.last_epoch + 1))
        assert segment.first_epoch > through[segment.partition]
        through[segment.partition] = segment.last_epoch
        assert segment.size_bytes >= TARGET / 2 or segment.reason == "shutdown"
        ids += rows
    assert sorted(ids) == list(range(1000, (last + 1) * 1000))
    assert {segment.reason for segment in segments} == {"size", "shutdown"}
