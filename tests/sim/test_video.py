"""Video through a codec, killed at every durable write: no frame is lost, none comes twice, and each can be decoded.

The codec is :mod:`tests.fake_codec`; pipeline, coordinator and auditor are those of ``test_commit_at_pts``.  After each
write the auditor plays the video as it is then (design/0015, design/0045).
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fake_codec import STEP, error_of, filmed, graph_of, picture_of, viewed
from tests.sim.pts_plays import CLOSED, NANOSECOND, Auditor, Shown, live, pairs, places
from tests.sim.video_plays import play

NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]
CLIP = NANOSECOND + 5 * STEP
"""In the middle of a group, at a frame that is shown before the packet that it stands behind."""

pytestmark = pytest.mark.slow


def test_decoding_gives_every_frame_once_and_from_a_time_on_those_at_or_after_it() -> None:
    packets = [(row["t"], row) for row in filmed("a", 12)]
    whole = graph_of().run({"packet": packets})["event"]
    assert [(t, event["seen"]) for t, event in whole] == [(n * STEP, picture_of("a", n)) for n in range(12)]
    for start in range(-1, 12 * STEP, 3):
        before = [at for at, (t, row) in enumerate(packets) if row["is_key"] and t <= start]
        found = graph_of(start).run({"packet": packets[before[-1] if before else 0 :]})["event"]
        assert [(t, event["seen"]) for t, event in found] == [(t, event["seen"]) for t, event in whole if t >= start], (
            start
        )


@pytest.mark.parametrize("start", [None, CLIP], ids=["whole", "clipped"])
def test_between_any_two_writes_the_video_plays_up_to_its_pts(start: int | None) -> None:
    for seed in range(3):
        world, auditor = play(start=start).world(seed)
        live(world, auditor, [])
        for moved in auditor.seen.values():
            known = [pts for pts in moved if pts is not None]
            assert len(known) > 3, "pts hardly moves: nothing is shown"
            assert known[-1] == CLOSED


@pytest.mark.parametrize("start", [None, CLIP], ids=["whole", "clipped"])
@pytest.mark.parametrize("stride", [61, pytest.param(1, marks=NIGHTLY)], ids=["everyday", "every write"])
def test_a_crash_at_every_write_loses_no_frame_and_doubles_none(start: int | None, stride: int) -> None:
    count = 0
    for crash in places(stride):
        world, auditor = play(start=start).world(seed=crash.n % 4)
        if live(world, auditor, [crash]) == [False] and crash.when == "after":
            break
        count += 1
    assert count * stride > 100, "hardly any place to die"


@pytest.mark.parametrize(
    ("frames", "first", "second"),
    [(14, 97, 61), pytest.param(5, 1, 1, marks=NIGHTLY)],
    ids=["everyday", "every pair"],
)
def test_every_pair_of_crashes_loses_no_frame_and_doubles_none(frames: int, first: int, second: int) -> None:
    count = 0
    for crash, others in pairs(first, second):
        for again, looks_from in others:
            world, auditor = play(frames).world(seed=crash.n % 4)
            first_met, again_met = live(world, auditor, [crash, again], looks_from=looks_from)
            if not (first_met and again_met):
                break
            count += 1
        if not first_met:
            break
    assert count * first * second > 1000, "hardly any pair of places to die"


def test_the_auditor_sees_a_frame_that_is_missing_that_is_twice_or_that_cannot_be_decoded() -> None:
    rows = [("a", NANOSECOND, True, 5, 0), ("a", NANOSECOND + STEP, False, 1 + error_of(NANOSECOND), 1)]
    whole = Counter(viewed(rows))
    for shown in (rows, rows[:1], rows[1:], [*rows, rows[1]]):
        auditor = Auditor({"videos": lambda shown=shown: Shown(CLOSED, viewed(shown))}, {"videos": lambda pts: whole})
        auditor.look("here")
        assert bool(auditor.problems) == (shown != rows)
    assert viewed(rows) == [("a", NANOSECOND, 5, 0), ("a", NANOSECOND + STEP, 6, 1)]
    assert viewed(rows[1:]) == [("a", NANOSECOND + STEP, None, 1)]
