"""Sinks at a pace of their own: what they lack is decided, waits, and is theirs whatever dies (design/0019)."""

from dataclasses import replace

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.graph.trigger import SinkPace
from holdfast.testing import (
    Crash,
    Drain,
    Expect,
    Load,
    Restart,
    Rows,
    Setting,
    Stop,
    World,
    play,
    simulated_sink,
    sinks,
)

TWO = ("table", "files")
EVERY_THREE = {"files": SinkPace(every_epochs=3)}


def test_a_sink_with_a_pace_commits_several_epochs_at_once_while_the_other_has_each():
    play(
        sinks(*TWO),
        Rows(2),
        Expect(table=[0, 1], files=[0], ledger={1: "done"}),
        Rows(2),
        Rows(2),
        Expect(table=list(range(6)), files=[0], ledger={1: "done", 2: "open", 3: "open"}),
        Rows(2),
        Expect(table=list(range(8)), files=[0, 2, 4, 6], ledger=dict.fromkeys(range(1, 5), "done")),
        Rows(2),
        Expect(files=[0, 2, 4, 6]),
        Stop(),
        Expect(table=list(range(10)), files=[0, 2, 4, 6, 8], audit=True),
        paces=EVERY_THREE,
    )


@pytest.mark.parametrize("carried", [True, False], ids=["carried", "staged"])
def test_what_waits_when_the_driver_dies_is_published_by_the_next_start(carried):
    """A start asks the sink what it holds, and gives it the rest from the decisions (design/0019, "A start")."""
    play(
        sinks(*TWO),
        Rows(2),
        Rows(2),
        Crash(after="decide", rows=2),
        Expect(table=[0, 1, 2, 3], files=[0], ledger={1: "done", 2: "open", 3: "open"}),
        Restart(),
        Expect(table=list(range(6)), files=[0, 2, 4], ledger=dict.fromkeys((1, 2, 3), "done")),
        Rows(2),
        Expect(files=[0, 2, 4]),
        Drain(),
        Expect(files=[0, 2, 4, 6], audit=True),
        paces=EVERY_THREE,
        carried=carried,
    )


def test_a_pace_that_was_dropped_or_changed_leaves_nothing_behind():
    load = Load(row_count=4, epoch_rows_min=1, epoch_rows_max=1)
    world = World([simulated_sink("table"), simulated_sink("files")], setting=Setting(load, paces=EVERY_THREE))
    with world.life() as life:
        life.run(epochs_max=3)
    assert [row[0] for row in world.sinks[1].rows()] == [0]
    for paces in ({}, {"table": SinkPace(every_epochs=5)}, EVERY_THREE):
        world.setting = replace(world.setting, paces=paces)
        with world.life() as life:
            life.open()
        assert [row[0] for row in world.sinks[1].rows()] == [0, 2]
    world.finish()
    assert world.audit() == []


def test_a_sink_that_was_taken_out_while_epochs_wait_for_it_is_asked_back():
    """What it lacks is decided: leaving it out would lose those rows (design/0019, "A start")."""
    table, files = simulated_sink("table"), simulated_sink("files")
    load = Load(row_count=4, epoch_rows_min=1, epoch_rows_max=1)
    world = World([table, files], setting=Setting(load, paces=EVERY_THREE))
    with world.life() as life:
        life.run(epochs_max=3)
    world.sinks = [table]
    with (
        pytest.raises(InvalidPipeline, match="epoch 2 is decided for sink 'files'"),
        world.life() as life,
    ):
        life.open()
    world.sinks = [table, files]
    world.finish()
    assert world.audit() == []
    world.sinks = [table]
    with world.life() as life:
        life.open()
