"""Holdfast's cells: every point of ``holdfast.faults`` that a run comes to, for every sink."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from bench.matrix.lives import ROOT, ROWS_PER_FILE, Death, Side, Worker
from bench.matrix.targets import Place
from holdfast import faults

STAGE_WRITE, RESOLVED = "stage-write", "recovery-resolved"
SNAPSHOTS = ("snapshot-files", "snapshot-manifest")
BESIDE = ("after-decide", "before-forget", "after-forget")
"""Only an epoch of several sinks is decided in the checkpoint: these have a SQLite table beside the sink."""

COMMANDS: Mapping[str, str] = {
    "rejected-kept": "`holdfast resolve --reject-rows` alone comes to it: `tests/unit/cli/test_cli_recovery.py`",
    "rejected-decided": "`holdfast resolve --reject-rows` alone comes to it: `tests/unit/cli/test_cli_recovery.py`",
    "repair-uncommitted": "the repair of a sink alone comes to it: `tests/crash/test_reconcile_kill.py`",
    "repaired": "the repair of a sink alone comes to it: `tests/crash/test_reconcile_kill.py`",
    "columns-uncommitted": "a start with a new column alone comes to it: `tests/crash/test_new_column_kill.py`",
    "schema-file-longer": "a run that adds a column alone comes to it: `tests/crash/test_added_column_kill.py`",
}
"""The points that no plain run comes to, and which test kills there."""

POINTS = tuple(point for point in faults.POINTS if point not in COMMANDS)

NOT_REACHED: Mapping[tuple[str, str], str] = {
    ("sqlite", "publish-begun"): "one transaction publishes; there is no record of intent before it",
    ("mysql", "publish-begun"): "one transaction publishes; there is no record of intent before it",
    ("redis", "publish-begun"): "an epoch of at most 1,000 rows, as here, is published in one step",
}
"""(sink, point) that there is not: why."""

NOT_RUN: Mapping[str, str] = {
    "byte_stream": "its rows are bytes without an id: `tests/crash/test_byte_stream_kill.py` counts them",
    "http": "exactly-once as far as the server takes each key once: `tests/crash/test_idempotent_kill.py`",
    "foreach_batch": "exactly-once as far as the function is idempotent: `tests/crash/test_idempotent_kill.py`",
    "console": "shows rows and keeps none",
    "memory": "lives within the process that is killed",
}
"""Sinks that are not in the matrix: why, or which test has them."""

_STAGED = {"HOLDFAST_CARRY_MAX": "0 B", "HOLDFAST_PREFETCH_MAX": "0 B"}


def chains(points: Collection[str]) -> list[tuple[str, ...]]:
    """Return the points of each chain: those of a sink alone, and those of two."""
    alone = tuple(point for point in POINTS if point in points and point not in BESIDE)
    beside = tuple(point for point in BESIDE if point in points)
    return [chain for chain in (alone, beside) if chain]


def side(sink: str, points: Sequence[str], place: Place, work: Path) -> tuple[Side, Worker | None]:
    """Return how Holdfast is run for a chain: an epoch for each file, every other one of which dies."""
    variables = {
        **place.variables,
        **_STAGED,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "MATRIX_WORK": str(work),
        "MATRIX_SINK": sink,
        "MATRIX_ADDRESS": place.address,
        "HOLDFAST_DRIVER_MEMORY": "1 GiB",
    }
    if points[0] in BESIDE:
        variables["MATRIX_BESIDE"] = "1"
    target = f"{ROOT}/bench/matrix/pipeline.py:pipeline"
    command = [sys.executable, "-m", "holdfast", "run", target, "--checkpoint", str(work / "checkpoint")]
    command += ["--master", "local[2]", "--available-now"]
    deaths: list[Death] = []
    epoch = 0
    for point in points:
        if point in (STAGE_WRITE, RESOLVED):
            continue
        if point in SNAPSHOTS:  # at the first one, which comes at once
            fault = {"HOLDFAST_FAULT": point, "HOLDFAST_CHECKPOINT_FREQ": "1"}
            deaths.append(Death(point, fault, epoch * ROWS_PER_FILE))
            continue
        epoch += 2
        # An epoch is a file: all of the files before this epoch's are in the sink when it dies.
        deaths.append(Death(point, {"HOLDFAST_FAULT": f"{point}:{epoch}"}, (epoch - 1) * ROWS_PER_FILE))
    if RESOLVED in points:  # a death in recovery from another one
        below = epoch * ROWS_PER_FILE
        deaths.append(Death("", {"HOLDFAST_FAULT": f"after-stage:{epoch + 6}"}, below))
        deaths.append(Death(RESOLVED, {"HOLDFAST_FAULT": RESOLVED}, below))
    if STAGE_WRITE not in points:
        return Side(command, variables, deaths), None
    mark = work / "died"
    fault = {"HOLDFAST_FAULT": f"{STAGE_WRITE}:{epoch + 8}", "HOLDFAST_FAULT_MARK": str(mark)}
    return Side(command, variables, deaths), Worker(STAGE_WRITE, fault, mark)
