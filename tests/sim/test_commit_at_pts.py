"""``commit_at="pts"`` under crashes: whoever looks, each sink holds exactly what lies before its pts (design/0015).

The auditor is an outside reader: it looks at every sink between any two durable writes of the driver and of the state
stores.  What must be there follows from the whole input and from the pts in the sink's ledger alone.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from holdfast.graph.trigger import SinkPace
from holdfast.testing import CrashAt, SimulatedCrash
from holdfast.testing.simulation.world import PIPELINE, SinkUnderTest
from tests.everyday import everyday
from tests.sim.pts_plays import CLOSED, PLAYS, live, pairs, places, plain, windows

NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@dataclass
class Ledgers:
    """Notes how the ledger of each sink moves: (epoch, pts)."""

    sinks: Sequence[SinkUnderTest]
    moves: dict[str, list[tuple[int, int | None]]] = field(default_factory=dict)

    def look(self, where: str) -> None:
        for sink in self.sinks:
            assert sink.target is not None
            row = sink.target.ledger.get((PIPELINE, sink.name))
            moves = self.moves.setdefault(sink.name, [])
            if row is not None and row.record is not None and (not moves or moves[-1][0] != row.epoch):
                moves.append((row.epoch, row.record.pts))


@pytest.mark.slow
@pytest.mark.parametrize("play", PLAYS)
def test_between_any_two_writes_each_sink_holds_exactly_what_lies_before_its_pts(play: str) -> None:
    for seed in range(6):
        world, auditor = PLAYS[play]().world(seed)
        live(world, auditor, [])
        for moved in auditor.seen.values():
            known = [pts for pts in moved if pts is not None]
            assert len(known) > 2, "pts hardly moves: nothing is shown"
            assert known == sorted(set(known)), "pts falls"
            assert known[-1] == CLOSED


@pytest.mark.slow
@pytest.mark.parametrize("play", PLAYS)
@pytest.mark.parametrize("stride", [67, pytest.param(1, marks=NIGHTLY)], ids=["everyday", "whole"])
def test_a_crash_at_every_write_leaves_each_sink_at_its_pts(play: str, stride: int) -> None:
    count = 0
    for crash in places(stride):
        world, auditor = PLAYS[play]().world(seed=crash.n % 4)
        if live(world, auditor, [crash]) == [False] and crash.when == "after":
            break
        count += 1
    assert count * stride > 100, "hardly any place to die"


@pytest.mark.slow
@pytest.mark.parametrize("play", everyday(["plain", "windows", "promised"], ["plain"]))
@pytest.mark.parametrize(
    ("events", "first", "second"),
    [(26, 43, 29), pytest.param(6, 1, 1, marks=NIGHTLY)],
    ids=["everyday", "whole"],
)
def test_every_pair_of_crashes_leaves_each_sink_at_its_pts(play: str, events: int, first: int, second: int) -> None:
    """Each world that two deaths can leave, once; ``make test`` has some of a longer run.

    The number of pairs grows with the square: all of them are of a short run, in which pts moves twice.
    """
    moved = count = 0
    for crash, others in pairs(first, second):
        for again, looks_from in others:
            world, auditor = PLAYS[play](events).world(seed=crash.n % 4)
            first_met, again_met = live(world, auditor, [crash, again], looks_from=looks_from)
            moved = max(moved, *map(len, auditor.seen.values()))
            if not (first_met and again_met):
                break
            count += 1
        if not first_met:
            break
    assert moved > 2, "pts hardly moves: nothing is shown"
    assert count * first * second > 1000, "hardly any pair of places to die"


@pytest.mark.slow
def test_a_death_before_a_write_is_one_after_the_write_before_it() -> None:
    """So it is enough for pairs to try one of the two."""
    done = [writes_until(crash) for crash in itertools.islice(places(), 40)]
    assert done[1:-1:2] == done[2::2]
    assert [len(writes) for writes in done[::2]] == list(range(20))


def writes_until(crash: CrashAt) -> list[str]:
    """Return what is written in a life that ends so; the names of parts are new each time."""
    world, auditor = windows(6).world(seed=2)
    with pytest.raises(SimulatedCrash), world.life(crash, on_write=auditor.look) as life:
        life.run()
    *done, death = (
        re.sub(r"-[0-9a-f]{8}\.part", ".part", line) for line in world.trace if not line.startswith("epoch")
    )
    assert death.startswith("crash ")
    return done


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2, 3])
def test_max_rows_per_epoch_never_cuts_between_rows_of_one_timestamp(most: int) -> None:
    """Epochs end between them, commits do not: whoever looks sees all rows of a time or none."""
    play = plain()
    times = Counter(row["t"] for _, row in play.events if row is not None)
    assert max(times.values()) > 3, "no time has more rows than an epoch"
    world, auditor = play.world(most, max_rows_per_epoch=most)
    live(world, auditor, [CrashAt(15, "after")])


@pytest.mark.slow
def test_nothing_is_published_while_pts_stands_still() -> None:
    """A commit happens only when pts has changed: a sink's ledger moves with its pts and at no other time."""
    for seed in range(8):
        world, _ = plain().world(seed)
        noted = Ledgers(world.sinks)
        with world.life(on_write=noted.look) as life:
            life.run()
        for sink, moves in noted.moves.items():
            assert len({pts for _, pts in moves}) == len(moves), f"seed {seed}: {sink} was published twice at one pts"


@pytest.mark.slow
def test_a_subplan_through_sparks_plan_before_the_gate_keeps_the_promise() -> None:
    for number in (9, 25, 41):
        live(*windows(through_spark=True).world(number), [CrashAt(number, "before"), CrashAt(number, "after")])


@pytest.mark.slow
def test_with_commit_every_pts_moves_in_steps_and_the_promise_holds() -> None:
    world, auditor = windows().world(4, commit_every=6)
    live(world, auditor, [CrashAt(25, "after"), CrashAt(40, "before")])
    without = windows().world(4)
    live(*without, [])
    assert len(auditor.seen["counts"]) < len(without[1].seen["counts"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(4, marks=pytest.mark.nightly), 5])
def test_a_sink_with_a_pace_of_its_own_holds_what_lies_before_an_older_pts(seed: int) -> None:
    world, auditor = windows().world(seed)
    world.setting = replace(world.setting, paces={"counts": SinkPace(every_epochs=4)})
    live(world, auditor, [CrashAt(25, "after"), CrashAt(40, "before")])
    without = windows().world(seed)
    live(*without, [])
    assert len(auditor.seen["counts"]) < len(without[1].seen["counts"])
