"""Kill a stateful pipeline wherever it may be: its sinks are as if nothing had happened (design/0010, section 5).

One chain kills the same pipeline again and again, each time at another point and further on, as in
:mod:`tests.crash.test_named_points`; what it must give comes from a loop over the rows.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import faults
from tests.crash.lives import MODES, Lives
from tests.spark.running import parquet_rows, sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

EPOCHS = 12
KEYS = "abcdefgh"
SIDES = ("left", "right")

CHAINS: dict[str, tuple[str, ...]] = {
    # mode: where each run dies.  jvm:n and moment:n: a moment after Spark has committed n epochs more.
    "carried": (
        "before-stage:2",
        "after-decide:3",
        "recovery-resolved",
        "publish-begun:4",
        "after-forget:5",
        "moment:1",
    ),
    "staged": (
        "after-stage:1",
        "before-publish:2",
        "publish-uncommitted:3",
        "after-publish:4",
        "before-forget:5",
        "jvm:1",
    ),
}

EVERYDAY: dict[str, tuple[str, ...]] = {
    "carried": ("after-decide:3", "after-forget:5"),
    "staged": ("publish-uncommitted:3", "jvm:1"),
}
"""What ``make test`` takes of each chain."""

BOTH = [pytest.param(EVERYDAY, id="everyday"), pytest.param(CHAINS, id="whole", marks=pytest.mark.nightly)]


# --- what goes in, and what must come out ----------------------------------------------------------------------------


def rows_of(epoch: int, side: str) -> list[dict[str, Any]]:
    """Return the rows of one source in one epoch, of more and more keys; a few go back in time."""
    chance = random.Random(f"{epoch} {side}")
    rows = []
    for number in range(14):
        back = 15 if chance.random() < 0.1 else 0
        time_of_row = epoch * 10 + number // 2 - back
        rows.append({"k": chance.choice(KEYS[: 3 + epoch]), "t": time_of_row, "v": 1000 * epoch + number})
    return rows


def write_input(work: Path) -> None:
    for side in SIDES:
        (work / side).mkdir()
        for epoch in range(1, EPOCHS + 1):
            path = work / side / f"{epoch:03}.json"
            broken = ["{broken\n"] * (side == "left" and epoch % 3 == 1)
            path.write_text("".join([*(json.dumps(row) + "\n" for row in rows_of(epoch, side)), *broken]))
            os.utime(path, (epoch, epoch))


def expected() -> dict[str, list[Any]]:
    """Return what the sinks must hold, from a loop over rows."""
    bounds: defaultdict[tuple[str, str], float] = defaultdict(lambda: -math.inf)
    waiting: dict[tuple[str, int], dict[str, int]] = {}
    counts, alone = Counter[str](), Counter[str]()
    found: dict[str, list[Any]] = {name: [] for name in ("sets", "late", "counts", "many", "beside")}
    for epoch in range(1, EPOCHS + 1):  # in the last one both sources end
        for side in SIDES:
            for row in rows_of(epoch, side):
                key, at = row["k"], row["t"]
                if at < bounds[key, side]:
                    found["late"].append((key, at, side))
                    found["beside"].append(f"late {key} {at} {side}")
                    continue
                waiting.setdefault((key, at), {})[side] = row["v"]
                bounds[key, side] = at + 1
        settled = [
            (key, at) for key, at in sorted(waiting) if epoch == EPOCHS or at < min(bounds[key, side] for side in SIDES)
        ]
        given = Counter(key for key, _ in settled)
        single = {key for key, at in settled if len(waiting[key, at]) == 1}
        for key, at in settled:
            values = waiting.pop((key, at))
            found["sets"].append((key, at, values.get("left", 0), values.get("right", 0)))
            alone[key] += len(values) == 1
        for key in single:
            found["beside"].append(f"alone {epoch} {key} {alone[key]}")
        for key, count in given.items():
            counts[key] += count
            found["counts"].append((epoch, key, counts[key]))
            if counts[key] > 9:
                found["many"].append(counts[key])
    found["beside"] += entered()
    return {name: sorted(rows) for name, rows in found.items()}


def entered() -> list[str]:
    """Return what became of the rows of one source at the entry, and its rejects."""
    newest, flying, found = dict[str, int](), dict[str, int](), list[str]()
    for epoch in range(1, EPOCHS + 1):
        found += [f"rejected {epoch:03}.json:15"] * (epoch % 3 == 1)
        for row in rows_of(epoch, "left"):
            key, at = row["k"], row["t"]
            if at < newest.get(key, at):
                continue  # late
            if at > newest.get(key, -1):
                newest[key] = at
                if key not in flying or at - flying[key] > 2:
                    flying[key] = at
            found.append(f"{'entered' if flying[key] == at else 'shed'} {key} {at}")
    return found


def held(work: Path) -> dict[str, list[Any]]:
    """Return what the sinks hold."""
    db = work / "out.db"
    return {
        "sets": sqlite_rows(db, "SELECT k, t, ifnull(left_v, 0), ifnull(right_v, 0) FROM sets"),
        "late": sqlite_rows(db, "SELECT k, timestamp, input FROM late"),
        "counts": sqlite_rows(db, "SELECT epoch, k, n FROM counts"),
        "many": parquet_rows(work / "many", "n"),
        "beside": parquet_rows(work / "beside", "said"),
    }


def test_the_input_tries_what_it_should() -> None:
    wanted = expected()
    assert all(len(rows) > 10 for name, rows in wanted.items() if name != "late")
    assert len(wanted["late"]) > 3
    assert any(left and right for _, _, left, right in wanted["sets"])
    assert {line.partition(" ")[0] for line in wanted["beside"]} == {"late", "rejected", "shed", "entered", "alone"}
    assert all(set(EVERYDAY[mode]) < set(points) for mode, points in CHAINS.items())
    reached = {point.partition(":")[0] for points in CHAINS.values() for point in points}
    assert reached - {"jvm", "moment"} | {
        "stage-write",
        *faults.SNAPSHOT_POINTS,
        *faults.RESOLVE_POINTS,
        *faults.REPAIR_POINTS,
        *faults.COLUMN_POINTS,
    } == set(faults.POINTS)


def begun(work: Path, mode: str) -> Lives:
    write_input(work)
    return Lives(work, "stateful_pipeline", MODES[mode])


def check(lives: Lives, **more: str) -> None:
    """Run to a good end, and look into the sinks."""
    assert lives.end(**more) == 0, lives.said()
    assert held(lives.work) == expected()


@pytest.mark.nightly  # test_ends_and_holds_kill.py kills carried epochs with every make test
@pytest.mark.parametrize("chains", BOTH)
def test_the_sinks_are_exact_after_a_chain_of_kills_of_carried_epochs(
    chains: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    lives = begun(tmp_path, "carried")
    for where in chains["carried"]:
        lives.die(where)
    check(lives)
    assert "epoch 5 is held by every sink: evaluated for its state alone" in lives.logged()


@pytest.mark.parametrize("chains", BOTH)
def test_the_sinks_are_exact_after_a_chain_of_kills_of_staged_epochs(
    chains: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    lives = begun(tmp_path, "staged")
    for where in chains["staged"]:
        lives.die(where)
    mark = tmp_path / "mark"
    check(lives, HOLDFAST_FAULT=f"stage-write:{EPOCHS}", HOLDFAST_FAULT_MARK=str(mark))
    assert mark.exists() or lives.missed, "no worker died while it wrote"


# --- the whole matrix ------------------------------------------------------------------------------------------------


def every_point(epochs: Sequence[int]) -> list[str]:
    others = (
        "stage-write",
        "recovery-resolved",
        *faults.SNAPSHOT_POINTS,
        *faults.RESOLVE_POINTS,
        *faults.REPAIR_POINTS,
        *faults.COLUMN_POINTS,
    )
    points = [point for point in faults.POINTS if point not in others]
    return [f"{point}:{epochs[number % len(epochs)]}" for number, point in enumerate(points)]


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", [*every_point((1, 4)), *every_point((3, EPOCHS))])
def test_a_kill_at_every_named_point_leaves_the_sinks_exact(tmp_path: Path, point: str, mode: str) -> None:
    lives = begun(tmp_path, mode)
    lives.die(point)
    lives.die("recovery-resolved")
    check(lives)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["moment", "jvm"])
def test_kills_at_random_moments_leave_the_sinks_exact(tmp_path: Path, what: str, mode: str) -> None:
    lives = begun(tmp_path, mode)
    while lives.committed() < EPOCHS - 5:
        lives.die(f"{what}:{lives.chance.randrange(1, 3)}")
    check(lives)
