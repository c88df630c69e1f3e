"""Kill the video pipelines of examples/video wherever they may be: each frame is in events and video once, in order.

The codec is the real one.  What must be there follows from the cameras alone, whose frames carry their numbers; the
things in them from an undisturbed run of the same graph without Spark (design/0015, design/0045).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from examples.video import both, cameras, verify
from examples.video.detector import shared
from examples.video.footage import bring_in
from examples.video.scene import GATE, LEFT, RIGHT
from holdfast import faults
from holdfast.quarantine.dead_letters import read_letters
from holdfast.store.local import LocalStore
from tests.crash.lives import MODES, Lives
from tests.everyday import seed_of_kills

pytestmark = [pytest.mark.spark, pytest.mark.crash]

SIZE = (320, 180)
CHAIN = (("carried", "after-publish:2"), ("staged", "after-decide:4"), ("carried", "jvm:1"))
"""How a life stages its rows, and where it dies."""

KILLS = 30
NAMED = ("before-stage", "after-stage", "after-decide", "publish-begun", "publish-uncommitted", "after-publish")


@pytest.fixture(autouse=True)
def _own_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with TemporaryDirectory(prefix="m-") as models:  # of sockets, whose paths are short
        monkeypatch.setenv("HOLDFAST_MODELS", models)
        yield
        shared.stop()


def begun(work: Path, pipeline: str, seconds: float, rows: int) -> Lives:
    """Film and import, and return the lives of a pipeline."""
    bring_in(work, seconds, seed_of_kills(7), SIZE, (GATE,) if pipeline == "both" else (LEFT, RIGHT))
    return Lives(work, "video_pipeline", {"VIDEO_PIPELINE": pipeline, "VIDEO_ROWS": str(rows)})


def check(lives: Lives, pipeline: str, seconds: float) -> None:
    """Run to a good end, and compare."""
    assert lives.end() == 0, lives.said()
    packets = {camera.name: verify.packets(lives.work, camera) for camera in (GATE, LEFT, RIGHT)}
    if pipeline == "both":
        wanted, numbers = both.graph.run({"packet": packets["gate"]}), GATE.frames(seconds)
    else:
        wanted = cameras.two_cameras().run({side: packets[side] for side in ("left", "right")})
        numbers = verify.pair_frames(seconds)
    name = f"{pipeline}_events"
    events = verify.of_events(name, verify.held(lives.work, name), verify.rows_of(wanted["events"]), numbers)
    views = 2 if pipeline == "pair" else 1
    video = verify.of_video("video", verify.video_of(lives.work, f"{pipeline}_video"), numbers, views)
    assert events.is_exact, events
    assert video.is_exact, video
    assert (events.held, video.held) == (len(numbers), len(numbers))


def test_no_frame_is_lost_and_none_doubled_by_kills(tmp_path: Path) -> None:
    lives = begun(tmp_path, "both", 8, rows=15)
    for mode, where in CHAIN:
        lives.environment |= MODES[mode]
        lives.die(where)
    check(lives, "both", 8)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pipeline", ["both", "pair"])
@pytest.mark.parametrize("mode", MODES)
def test_no_frame_is_lost_and_none_doubled_by_many_kills_by_seed(pipeline: str, mode: str, tmp_path: Path) -> None:
    chance = random.Random(f"{seed_of_kills(7)} {mode} {pipeline}")
    lives = begun(tmp_path, pipeline, 40, rows=15)
    lives.environment |= MODES[mode]
    killed = 0
    while killed < KILLS // (2 * len(MODES)) + 1:
        epoch = lives.committed() + chance.randint(1, 2)
        kinds = (f"{chance.choice(NAMED)}:{epoch + 1}", "moment:1", "jvm:1")
        lives.die(chance.choices(kinds, (2, 2, 1))[0])
        killed += not lives.missed  # what came too late killed nobody
        lives.missed.clear()
    check(lives, pipeline, 40)


def test_the_named_points_exist() -> None:
    assert {*NAMED} <= {*faults.POINTS}


@pytest.mark.nightly
def test_a_frame_that_kills_its_process_is_isolated_and_costs_its_group_alone(tmp_path: Path) -> None:
    bring_in(tmp_path, 6, 7, SIZE, (GATE,))
    packets = verify.packets(tmp_path, GATE)
    bad, _ = packets[40]
    environment = {"CRASH_BAD": str(bad), "VIDEO_ROWS": "15", "HOLDFAST_POISON_ATTEMPTS": "1"}
    lives = Lives(tmp_path, "poisoned_video", {**environment, "HOLDFAST_RESTART_FIRST": "1 ms"})
    lives.arguments = ("--supervise", "--on-poison", "isolate")
    assert lives.end() == 0, lives.said()
    (letter,) = read_letters(LocalStore(str(tmp_path / "checkpoint")))
    assert [row["timestamp"] for row in letter.table.to_pylist()] == [bad]
    found = sorted(verify.held(tmp_path, "events"))
    group = next(number for number in range(41, 90) if packets[number][1]["is_key"])
    sound = [*range(40), *range(group, 90)]  # what follows the dead letter in its group is not shown wrongly
    assert [(row[0], row[1]) for row in found] == [(packets[number][0], number) for number in sound]
