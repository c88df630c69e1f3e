"""Kill a stateful pipeline wherever it may be: its sinks are as if nothing had happened (design/0010)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import faults
from tests.crash.processes import ROOT, kill_tree
from tests.spark.running import parquet_rows, sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

EPOCHS = 6
KEYS = "abcdefgh"


def rows_of(epoch: int) -> list[dict[str, Any]]:
    """Return the rows of one epoch; some are too late."""
    chance = random.Random(epoch)
    return [{"k": chance.choice(KEYS[: 3 + epoch]), "v": chance.choice([-1, 1, 1, 1])} for _ in range(12)]


def write_input(work: Path) -> None:
    (work / "in").mkdir()
    for epoch in range(EPOCHS):
        path = work / "in" / f"{epoch:03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(epoch)))
        os.utime(path, (epoch, epoch))


def expected() -> dict[str, list[Any]]:
    """Return what the sinks must hold, from a loop over rows."""
    first: dict[str, int] = {}
    second: dict[str, int] = {}
    found: dict[str, list[Any]] = {"first": [], "many": [], "second": [], "late": []}
    for epoch in range(EPOCHS):
        touched = set()
        for row in rows_of(epoch):
            if row["v"] < 0:
                found["late"].append((row["k"], -1))
            else:
                first[row["k"]] = first.get(row["k"], 0) + 1
                touched.add(row["k"])
        for key in touched:
            found["first"].append((epoch + 1, key, first[key]))
            if first[key] > 3:
                found["many"].append(first[key])
                second[key] = second.get(key, 0) + 1
                found["second"].append((epoch + 1, key, second[key]))
    return {name: sorted(rows) for name, rows in found.items()}


def held(work: Path) -> dict[str, list[Any]]:
    """Return what the sinks hold."""
    db = work / "out.db"
    return {
        "first": sqlite_rows(db, "SELECT epoch, k, n FROM first"),
        "many": parquet_rows(work / "many", "n"),
        "second": sqlite_rows(db, "SELECT epoch, k, n FROM second"),
        "late": sqlite_rows(db, "SELECT k, v FROM late"),
    }


def start(work: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast", "run", f"{ROOT}/tests/crash/stateful_pipeline.py:pipeline"]
    command += ["--checkpoint", str(work / "checkpoint"), "--master", "local[2]", "--available-now"]
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "CRASH_WORK": str(work), "HOLDFAST_DRIVER_MEMORY": "1 GiB"}
    with (work / "log").open("a") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **variables, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def finish(work: Path, **environment: str) -> int:
    process = start(work, **environment)
    try:
        return process.wait(timeout=180)
    finally:
        kill_tree(process)


STAGES = {"carried": {}, "staged": {"HOLDFAST_CARRY_MAX": "0 B", "HOLDFAST_PREFETCH_MAX": "0 B"}}


@pytest.mark.parametrize("mode", STAGES)
@pytest.mark.parametrize("point", ["after-stage", "after-decide", "after-publish", "after-forget"])
def test_a_kill_at_every_named_point_leaves_the_sinks_exact(tmp_path: Path, point: str, mode: str) -> None:
    assert point in faults.POINTS
    write_input(tmp_path)
    mark = tmp_path / "mark"
    killed = finish(tmp_path, HOLDFAST_FAULT=f"{point}:4", HOLDFAST_FAULT_MARK=str(mark), **STAGES[mode])
    assert mark.exists(), (tmp_path / "log").read_text()[-3000:]
    assert killed == -signal.SIGKILL
    assert finish(tmp_path, **STAGES[mode]) == 0, (tmp_path / "log").read_text()[-3000:]
    assert held(tmp_path) == expected()
    if point == "after-forget" and mode == "carried":  # staged epochs are published behind Spark's back
        logs = "".join(path.read_text() for path in (tmp_path / "checkpoint").rglob("*.log"))
        assert "epoch 4 is held by every sink: evaluated for its state alone" in logs


@pytest.mark.slow
def test_kills_at_random_moments_leave_the_sinks_exact(tmp_path: Path) -> None:
    write_input(tmp_path)
    chance = random.Random(os.environ.get("HOLDFAST_SEED", "7"))
    for _ in range(4):
        process = start(tmp_path, **STAGES["staged"])
        until = time.monotonic() + chance.uniform(8, 16)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        kill_tree(process)
    assert finish(tmp_path, **STAGES["staged"]) == 0, (tmp_path / "log").read_text()[-3000:]
    assert held(tmp_path) == expected()
