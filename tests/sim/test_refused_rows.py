"""A row that one sink refuses, and a crash at every durable write before: sinks stay equal, and go on when it is taken.

Admitting is no durable write (design/0002, "Admitting"): a crash in it is one before the decision.
"""

import pytest

from holdfast.errors import BadRow
from holdfast.testing import CrashAt, Load, Setting, SimulatedCrash, SimulatedTarget, World, simulated_sink

LOAD = Load(row_count=5, epoch_rows_max=2, task_failure_rate=0.2)


def live(world, crash=None):
    """Run one life; return how it ended."""
    try:
        with world.life(crash) as life:
            life.run()
    except (SimulatedCrash, BadRow) as end:
        return type(end)
    return None


def held(target):
    """Return the epoch up to which a target holds everything."""
    return max(row.epoch for row in target.ledger.values())


@pytest.mark.parametrize("way", ["transaction", "prepared"])
@pytest.mark.parametrize("refusing", [0, 1], ids=["first", "last"])
@pytest.mark.parametrize(
    "setting",
    [Setting(LOAD), Setting(LOAD, commit_thread=True), Setting(LOAD, commit_every_ticks=3_000)],
    ids=["plain", "commit thread", "grouped"],
)
@pytest.mark.slow
def test_sinks_stay_equal_whatever_dies_before_a_refused_row_and_go_on_when_it_is_taken(way, refusing, setting):
    ends, refused_id = set(), 3 - refusing  # not every row reaches the second sink
    for n in range(1, 200):
        targets = [SimulatedTarget(), SimulatedTarget()]
        sinks = [simulated_sink(f"sink{number}", way=way, target=target) for number, target in enumerate(targets)]
        world = World(sinks, setting=setting)
        targets[refusing].refuses = lambda row: row["id"] == refused_id
        end = live(world, CrashAt(n, "after"))
        ends.add(end)
        assert end is not None
        for _ in range(2):
            assert live(world) is BadRow
            assert held(targets[0]) == held(targets[1])
        targets[refusing].refuses = None
        assert live(world) is None
        world.finish()
        assert world.audit() == []
        if end is BadRow:
            break
    assert ends == {SimulatedCrash, BadRow}
