"""An epoch that is evaluated again is counted once, wherever the driver died (design/0049, 9)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast import faults
from holdfast.commit.ledger import survey
from holdfast.graph.trigger import SinkPace
from holdfast.testing.simulation.engine import EXPECTED
from holdfast.testing.simulation.scenario import Crash, Drain, Expect, Restart, Rows, Stop, play, sinks
from holdfast.testing.simulation.world import World

POINTS = (
    "before-stage",
    "after-stage",
    "after-decide",
    "before-publish",
    "after-publish",
    "before-forget",
    "after-forget",
)

OPTIONS = ({"commit_every_ticks": 3}, {"paces": {"files": SinkPace(every_epochs=3)}})


def counted(world: World) -> dict[int, tuple[int, ...]]:
    """Return what the ledger has of each epoch."""
    entries = survey(world.store)
    return {entry.key.epoch: tuple(entry.content.record.expected[EXPECTED]) for entry in entries if entry.content}


@pytest.mark.parametrize("names", [("table",), ("table", "files")], ids=["one", "two"])
@pytest.mark.parametrize("carried", [True, False], ids=["carried", "staged"])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_leaves_the_counts_as_they_are_without_it(
    point: str, carried: bool, names: tuple[str, ...]
) -> None:
    assert point in faults.POINTS
    world = play(
        sinks(*names),
        Rows(2), Crash(after=point, rows=4), Restart(), Drain(), Rows(3), Stop(),
        Expect(audit=True),
        carried=carried,
        expects=True,
    )  # fmt: skip
    assert counted(world) == {1: (2, 1, 2, 1), 2: (4, 1, 6, 2), 3: (3, 1, 9, 3)}


@pytest.mark.parametrize(
    "options", [{"commit_every_ticks": 3}, {"paces": {"files": SinkPace(every_epochs=3)}}], ids=str
)
def test_epochs_that_wait_for_their_group_or_a_pace_are_counted_when_they_are_decided(
    options: Mapping[str, object],
) -> None:
    world = play(
        sinks("table", "files"),
        Rows(2), Rows(1), Restart(), Rows(4), Restart(), Rows(2), Stop(), Drain(),
        carried=True,
        expects=True,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip
    assert max(counted(world).values(), key=lambda of: of[2])[2:] == (9, 3)
