"""The files sink under a real SIGKILL at each of its crash points, without an engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.crash

EPOCHS = 4

_PROGRAM = f"""
import sys
import pyarrow as pa
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Task
from holdfast.connectors.files.sink.spec import FilesSinkSpec

directory, generation = sys.argv[1], int(sys.argv[2])
schema = pa.schema([("id", pa.int64())])
sink = FilesSinkSpec(directory).connect("out", "numbers", schema)
held = sink.open(RunIdentity("numbers", generation))
sink.sweep(below_epoch=held.epoch + 1)
for epoch in range(held.epoch + 1, {EPOCHS} + 1):
    parts = [Carried(pa.table({{"id": [10 * epoch]}}, schema=schema))]
    for task in (1, 2):
        writer = sink.writer_factory()(Task("numbers", generation, epoch, task, 0))
        writer.write(pa.RecordBatch.from_pydict({{"id": [10 * epoch + task]}}, schema=schema))
        parts.append(writer.stage())
    sink.publish([Publication(EpochRecord("numbers", epoch, generation, {{}}), tuple(parts))], Held())
sink.sweep(below_epoch={EPOCHS} + 1)
"""


def _run(directory: Path, generation: int, fault: str = "") -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOLDFAST_FAULT": fault}
    arguments = [sys.executable, "-c", _PROGRAM, os.fspath(directory), str(generation)]
    return subprocess.run(arguments, env=environment).returncode


@pytest.mark.nightly
def test_after_a_kill_at_each_point_of_each_epoch_every_row_is_there_once(tmp_path: Path) -> None:
    """One directory, killed again and again: what one kill left is what the next process has to recover."""
    directory = tmp_path / "out"
    generation = 0
    for epoch, point in enumerate(["stage-write", "publish-uncommitted", "publish-begun"], start=2):
        generation += 1
        assert _run(directory, generation, f"{point}:{epoch}") == -signal.SIGKILL
    assert _run(directory, generation + 1) == 0
    ids = sorted(pq.read_table(directory)["id"].to_pylist())
    assert ids == [10 * epoch + number for epoch in range(1, EPOCHS + 1) for number in range(3)]
    own = directory / "_holdfast" / "numbers" / "out"
    assert os.listdir(own / "staging") == []
    assert os.listdir(own / "writing") == []
