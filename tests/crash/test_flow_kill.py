"""Kill a pipeline of a flowgraph wherever it may be: two unlike sinks hold what they hold without (design/0045)."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from holdfast import faults
from holdfast.testing import drive
from tests.crash import flow_pipeline as flows
from tests.crash.lives import MODES, Lives
from tests.everyday import seed_of_kills
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

CHAIN = (("staged", "after-stage:3"), ("carried", "publish-uncommitted:7"), ("carried", "jvm:1"))
"""How a life stages its rows, and where it dies."""

KILLS = 20
NAMED = ("before-stage", "after-stage", "after-decide", "publish-begun", "publish-uncommitted", "after-publish")

By = dict[str, list[tuple[int, int]]]
"""Key -> time and value of its rows."""


def undisturbed(count: int) -> dict[str, By]:
    """Return what each output gives over so many epochs, without Spark and without deaths."""
    rows = flows.given(count)
    found = {}
    for name, stream in flows.streams(rows).items():
        found[name] = by_key([tuple(row.values()) for epoch in drive(stream, rows) for row in epoch])
    return found


def by_key(rows: list[Any]) -> By:
    """Return the rows of each key by time: no time of a key is twice."""
    found: By = defaultdict(list)
    for key, *rest in sorted(rows):
        found[key].append((rest[0], rest[1]))
    return dict(found)


def held(work: Path) -> dict[str, By]:
    """Return what the sinks hold."""
    thumbs = dataset.dataset(work / "thumbs", format="parquet").to_table().to_pylist()
    return {
        "tracks": by_key(sqlite_rows(work / "out.db", "SELECT k, t, track FROM tracks")),
        "thumbs": by_key([tuple(row.values()) for row in thumbs]),
    }


def check(lives: Lives) -> None:
    """Run to a good end, compare, go on with a changed graph, and compare again."""
    count = int(lives.environment["GIVEN"])
    assert lives.end() == 0, lives.said()
    before, after = undisturbed(count), undisturbed(count + flows.MORE)
    assert held(lives.work) == before
    assert lives.end(GRAPH_VERSION="2", GIVEN=str(count + flows.MORE)) == 0, lives.said()
    found = held(lives.work)
    assert found["tracks"] == after["tracks"], "the tracker has its state under its new name"
    for key, rows in after["thumbs"].items():
        old = before["thumbs"].get(key, [])
        new = rows[len(old) :]
        totals = accumulate(value for _, value in new)
        expected = [*old, *((t, total) for (t, _), total in zip(new, totals, strict=True))]
        assert found["thumbs"][key] == expected, "the new calculator begins where it was added"


def begun(work: Path, count: int) -> Lives:
    return Lives(work, "flow_pipeline", {"GIVEN": str(count)})


def test_a_flowgraph_is_exact_after_kills_and_goes_on_when_it_is_changed(tmp_path: Path) -> None:
    lives = begun(tmp_path, 10)
    for mode, where in CHAIN:
        lives.environment |= MODES[mode]
        lives.die(where)
    check(lives)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES)
def test_a_flowgraph_is_exact_after_many_kills_by_seed(mode: str, tmp_path: Path) -> None:
    chance = random.Random(f"{seed_of_kills(7)} {mode}")
    lives = begun(tmp_path, flows.EPOCHS)
    lives.environment |= MODES[mode]
    killed = 0
    while killed < KILLS // len(MODES):
        epoch = lives.committed() + chance.randint(1, 2)
        kinds = (f"{chance.choice(NAMED)}:{epoch + 1}", "moment:1", "jvm:1")
        lives.die(chance.choices(kinds, (2, 2, 1))[0])
        killed += not lives.missed  # what came too late killed nobody
        lives.missed.clear()
    check(lives)


def test_frames_wait_in_the_limiter_and_the_named_points_exist() -> None:
    assert {*NAMED} <= {*faults.POINTS}
    rows = flows.given(10)
    tracks, thumbs = (sum(map(len, each.values())) for each in undisturbed(10).values())
    assert 0 < thumbs < sum(map(len, rows["frames"]))
    assert tracks > 5
