"""The files sink in S3 under real SIGKILLs: without an engine, and in runs of a pipeline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.connectors.files.objects.place import BucketPlace
from tests.crash.processes import EXPECTED, Case
from tests.s3_server import S3Bucket
from tests.unit.sinks.test_object_files import object_rows

pytestmark = pytest.mark.crash

EPOCHS = 5

_PROGRAM = f"""
import sys
import pyarrow as pa
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Task
from holdfast.connectors.files.objects.spec import ObjectFilesSpec

address, generation = sys.argv[1], int(sys.argv[2])
schema = pa.schema([("id", pa.int64())])
sink = ObjectFilesSpec(address).connect("out", "numbers", schema)
held = sink.open(RunIdentity("numbers", generation))
sink.sweep(below_epoch=held.epoch + 1)
for epoch in range(held.epoch + 1, {EPOCHS} + 1):
    parts = [Carried(pa.table({{"id": [10 * epoch]}}, schema=schema))]
    for task in range(1, 10):
        writer = sink.writer_factory()(Task("numbers", generation, epoch, task, 0))
        writer.write(pa.RecordBatch.from_pydict({{"id": [10 * epoch + task]}}, schema=schema))
        parts.append(writer.stage())
    sink.publish([Publication(EpochRecord("numbers", epoch, generation, {{}}), tuple(parts))], Held())
sink.sweep(below_epoch={EPOCHS} + 1)
"""


def _run(address: str, generation: int, fault: str = "") -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOLDFAST_FAULT": fault}
    arguments = [sys.executable, "-c", _PROGRAM, address, str(generation)]
    return subprocess.run(arguments, env=environment).returncode


def test_after_a_kill_at_each_point_every_row_is_there_once(s3_bucket: S3Bucket) -> None:
    """One directory, killed again and again: what one kill left is what the next process has to recover.

    The last kill comes while ten uploads are completed, eight at a time.
    """
    generation = 0
    for epoch, point in enumerate(["stage-write", "publish-uncommitted", "publish-begun"], start=2):
        generation += 1
        assert _run(s3_bucket.address, generation, f"{point}:{epoch}") == -signal.SIGKILL
    assert _run(s3_bucket.address, generation + 1) == 0
    place = BucketPlace(s3_bucket.address)
    found = [object_rows(place.files.get(key) or b"") for key in place.files.keys("") if not key.startswith("_")]
    assert sorted(number for numbers in found for number in numbers) == [
        10 * epoch + number for epoch in range(1, EPOCHS + 1) for number in range(10)
    ]
    assert place.uploads.all() == []


STAGED = {"HOLDFAST_CARRY_MAX": "0 B", "HOLDFAST_PREFETCH_MAX": "0 B"}

CHAINS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "alone, carried": (("s3",), ["publish-uncommitted:1", "publish-begun:1", "after-publish:3"]),
    "alone, staged": (
        ("s3",),
        ["after-stage:1", "publish-uncommitted:1", "publish-begun:2", "recovery-resolved", "after-publish:3"],
    ),
    "beside a database, staged": (
        ("s3", "sqlite"),
        ["after-stage:1", "after-decide:1", "publish-begun:1", "after-publish:2", "before-forget:2", "after-forget:3"],
    ),
}


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("chain", CHAINS)
def test_every_row_is_in_every_sink_once_after_a_chain_of_kills(
    chain: str, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    sinks, points = CHAINS[chain]
    case = Case(tmp_path, sinks, "", {**(STAGED if "staged" in chain else {}), "CRASH_S3": s3_bucket.address})
    case.write_input()
    for point in points:
        killed = case.run(HOLDFAST_FAULT=point)
        assert killed.returncode == -signal.SIGKILL, f"{point} was not reached:\n{killed.stdout[-3000:]}"
    survived = case.run()
    assert survived.returncode == 0, survived.stdout[-3000:]
    case.check_exact()
    assert case.leftovers() == []


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("count", [1, None])
def test_an_epoch_whose_uploads_expired_after_the_decision_is_read_again(
    tmp_path: Path, s3_bucket: S3Bucket, count: int | None
) -> None:
    """A lifecycle rule aborts one of them, or all, while nobody runs: the decision is revoked, and the epoch replayed.

    The database has the epoch from the decision: what differs each time it is evaluated may differ between the two.
    """
    case = Case(tmp_path, ("sqlite", "s3"), "", {**STAGED, "CRASH_S3": s3_bucket.address})
    case.write_input()
    killed = case.run(HOLDFAST_FAULT="after-decide:2")
    assert killed.returncode == -signal.SIGKILL, killed.stdout[-3000:]
    uploads = BucketPlace(s3_bucket.address).uploads
    assert uploads.all()
    for key, upload in uploads.all()[:count]:
        uploads.abort(key, upload)
    survived = case.run()
    assert survived.returncode == 0, survived.stdout[-3000:]
    for kind, rows in case.rows().items():
        assert [number for number, _ in rows] == sorted(EXPECTED), kind
    assert case.leftovers() == []
