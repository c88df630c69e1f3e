"""The byte stream sink under real SIGKILLs, at its crash points and at seeded moments, without an engine.

After each kill every committed byte is read: index, data and log agree; the source has read on all the while.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast import read
from tests.byte_store import verify
from tests.contract.source_contract import rows_between

pytestmark = pytest.mark.crash

_PROGRAM = """
import sys
import pyarrow as pa
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Task
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec

store, generation, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
schema = pa.schema([("at", pa.int64()), ("camera", pa.string()), ("data", pa.binary())])

def rows(epoch, task):
    ids = range(30 * epoch + 10 * task, 30 * epoch + 10 * task + 10)
    columns = {"at": ids, "camera": [f"c{i % 2}" for i in ids], "data": [b"%d" % i * (i % 300) for i in ids]}
    return pa.table(columns, schema=schema)

spec = ByteStreamSinkSpec(store, MessageColumns("at", "data", "camera"), index_every=7, target_bytes=60_000)
sink = spec.connect("out", "numbers", schema)
held = sink.open(RunIdentity("numbers", generation))
sink.sweep(below_epoch=held.epoch + 1)
for epoch in range(held.epoch + 1, last + 1):
    parts = [Carried(rows(epoch, 0))]
    for task in (1, 2):
        writer = sink.writer_factory()(Task("numbers", generation, epoch, task, 0))
        writer.write(rows(epoch, task).to_batches()[0])
        parts.append(writer.stage())
    record = EpochRecord("numbers", epoch, generation, {"log": {"log": epoch}})
    sink.publish([Publication(record, tuple(parts))], Held())
    print(epoch, flush=True)
sink.sweep(below_epoch=last + 1)
"""


def _start(store: Path, generation: int, last: int, fault: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOLDFAST_FAULT": fault}
    command = [sys.executable, "-c", _PROGRAM, os.fspath(store), str(generation), str(last)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.nightly
def test_after_kills_at_any_moment_index_and_data_agree_and_every_message_is_there_once(tmp_path: Path) -> None:
    store, seed = tmp_path / "store", 20261123
    rng = random.Random(seed)
    stream = read.byte_stream(store, timestamps="bigint", name="back")
    source = stream.node.spec.open("back", os.fspath(tmp_path / "workspace"))
    positions = [source.initial()]

    def look() -> None:
        verify(os.fspath(store))
        positions.append(source.latest(positions[-1], bounded=False))

    generation = last = 0
    for point in ("stage-write", "publish-uncommitted", "publish-begun"):
        generation, last = generation + 1, last + 3
        with _start(store, generation, last, f"{point}:{last}") as process:
            assert process.wait() == -signal.SIGKILL
        look()
    for _ in range(5):
        generation, last = generation + 1, last + 1000
        with _start(store, generation, last) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 12)):
                newest = int(process.stdout.readline())
            time.sleep(rng.random() / 50)  # somewhere inside one of the next epochs
            process.kill()
        look()
        last = newest + 1
    generation, last = generation + 1, last + 20
    with _start(store, generation, last) as process:
        assert process.wait() == 0
    look()
    found = [row for start, end in pairwise(positions) for row in rows_between(source, start, end)]
    wanted = [(i, f"c{i % 2}", b"%d" % i * (i % 300)) for i in range(30, 30 * last + 30)]
    assert sorted((row["timestamp"], row["stream"], row["data"]) for row in found) == wanted, seed
    own = store / "numbers" / "out"
    assert [*(own / "staging").iterdir(), *(own / "writing").iterdir()] == []
