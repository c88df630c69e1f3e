"""Another number of shards: segments move between them, whatever dies and whenever (design/0048, section 6)."""

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from holdfast.controller.layouts import moving
from holdfast.controller.layouts.moving import Moving
from holdfast.errors import Diverged, Fenced
from holdfast.shards.layout import newest_layout, settled_layout
from holdfast.testing import Load, Setting, SimulatedCrash, SimulatedTarget, simulated_sink
from holdfast.testing.simulation.controllers import SimulatedController, simulate_contest, simulate_moves
from holdfast.testing.simulation.segmented import SegmentedRows
from holdfast.testing.simulation.shards import ShardWorld
from tests.everyday import part_of_seeds

SEED = os.environ.get("HOLDFAST_SEED")
"""A failing seed is replayed alone with HOLDFAST_SEED=<seed>."""

PARTS = 8
IS_WHOLE = os.environ.get("HOLDFAST_EXAMPLES") == "all"
"""Whether every pair of places is tried, and not only every few."""


def run(play, chosen):
    """Run seeds; returns how often something died or was fenced."""
    crashes = 0
    for seed in chosen:
        report = play(seed)
        assert not report.problems, str(report)
        crashes += report.crash_count
    return crashes


@pytest.mark.slow
def test_no_seed_loses_or_doubles_a_row_while_the_number_of_shards_changes():
    chosen = [int(SEED)] if SEED else range(40)
    assert run(simulate_moves, chosen) > len(chosen) or SEED


@pytest.mark.slow
def test_no_seed_loses_or_doubles_a_row_while_checkpoints_are_lost():
    """In 61 and 314 it is lost between two sinks of the first epoch, and another number is asked for."""
    chosen = [int(SEED)] if SEED else [61, 314, *range(30)]
    assert run(partial(simulate_moves, loses_checkpoint=True), chosen) > len(chosen) or SEED


@pytest.mark.slow
def test_controllers_and_hosts_that_start_at_once_leave_every_row_once():
    """In 20450 a fenced run plans what is dealt to another shard right then; in 21326 two fence a sink at once."""
    chosen = [int(SEED)] if SEED else [20450, 21326, *range(40)]
    assert run(simulate_contest, chosen) > len(chosen) or SEED


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("play", [simulate_moves, partial(simulate_moves, loses_checkpoint=True), simulate_contest])
def test_thousands_of_seeds_of_moves(play, part):
    chosen = part_of_seeds(part, PARTS)
    assert run(play, chosen) > len(chosen), "the seeds hardly crash anything"


# --- a change, killed at each durable write ---------------------------------------------------------------------------


def a_world():
    targets = SimulatedTarget(), SimulatedTarget()
    sinks = [simulated_sink("table", target=targets[0]), simulated_sink("files", way="prepared", target=targets[1])]
    ends = dict.fromkeys(("segment0", "segment1", "segment2", "segment3"), 1)
    return ShardWorld(
        SegmentedRows(ends), 1, lambda name: sinks, setting=Setting(Load(epoch_rows_min=6, epoch_rows_max=9))
    )


def live(world, shard_count=0, dies_at=None, make_moving=Moving):
    """Start with so many shards and run them to the end; returns how many writes it took, or None if it died."""
    controller = SimulatedController(world, dies_at, make_moving=make_moving)
    try:
        controller.run_in_rounds(controller.start(shard_count))
    except SimulatedCrash:
        world.lose_power()
        return None
    return controller.write_count


def grown(*shard_counts):
    """Return a world that has run with these numbers of shards, in this order, and has more rows since."""
    world = a_world()
    for shard_count in shard_counts:
        live(world, shard_count)
    for segment in [*world.topic.ends]:
        world.topic.arrive(segment, 1)
    world.topic.arrive("new", 2)
    return world


def check(world):
    world.finish()
    assert world.audit() == [], "\n".join(world.trace)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 3), (3, 1), pytest.param(1, 2, marks=pytest.mark.nightly), pytest.param(3, 2, marks=pytest.mark.nightly)],
)
def test_a_change_that_dies_at_any_write_is_carried_through_or_never_was(before, after):
    places = live(grown(before), after)
    for n in range(1, places + 1):
        for asked in (before, after):  # whatever number is asked for then
            world = grown(before)
            assert live(world, after, dies_at=n) is None
            live(world, asked)
            check(world)
            assert world.assignment.shard_count == asked


@pytest.mark.slow
def test_a_change_that_dies_twice_is_carried_through():
    places = live(grown(2), 3)
    step = 1 if IS_WHOLE else 13
    for first in range(1, places + 1, step):
        for second in range(1, places + 1, step):
            world = grown(2)
            live(world, 3, dies_at=first)
            live(world, 2, dies_at=second)
            live(world, 3)
            check(world)


# --- the checkpoint is lost at each durable write ---------------------------------------------------------------------


def recover(world, shard_count):
    """Lose the checkpoint, and start again: with another number, if a run need not make the sinks equal first."""
    world.lose_checkpoint()
    for segment in [*world.topic.ends]:
        world.topic.arrive(segment, 1)
    with suppress(Diverged):
        live(world, shard_count)
    live(world)
    live(world, shard_count)
    check_rows(world)


def check_rows(world):
    """Look at everything but this: a sink that lacks an epoch gets it as it is evaluated then; its decision is lost."""
    world.finish()
    problems = [problem for problem in world.audit() if "two values" not in problem]
    assert problems == [], "\n".join(world.trace)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 3), pytest.param(2, 2, marks=pytest.mark.nightly), pytest.param(3, 1, marks=pytest.mark.nightly)],
)
def test_a_checkpoint_that_is_lost_at_any_write_is_recovered_from_the_sinks(before, after):
    """Of shards that run, and of those whose segments are about to move."""
    places = live(grown(before), after)
    for n in range(1, places + 1):
        world = grown(before)
        assert live(world, after, dies_at=n) is None
        recover(world, before if n % 2 else after)


@pytest.mark.slow
@pytest.mark.parametrize("loses", [False, True])
def test_a_recovery_that_dies_at_any_write_is_done_by_the_next_start(loses):
    """Also if what it had written is lost in its turn; in the middle of a move, which is where most is to be done."""
    places = live(grown(2), 3)
    for first in range(1, places + 1, 1 if IS_WHOLE else 17):
        for second in range(1, places + 1, 1 if IS_WHOLE else 11):
            world = grown(2)
            live(world, 3, dies_at=first)
            world.lose_checkpoint()
            live(world, dies_at=second)
            recover(world, 3) if loses else live(world)
            check_rows(world)


def planned_and_dead(make_moving=Moving):
    """Yield worlds in which new segments have come, and all died at one of the next durable writes."""
    for n in range(1, 60):
        world = grown(2)
        controller = SimulatedController(world, make_moving=make_moving)
        layout = controller.start(2)
        for number in range(3):
            world.topic.arrive(f"later{number}", 1)
        controller.dies_at = controller.write_count + n
        try:
            controller.run_in_rounds(layout)
        except SimulatedCrash:
            yield world
        else:
            return


def lost_or_doubled(world, make_moving=Moving):
    controller = SimulatedController(world, make_moving=make_moving)
    controller.run_in_rounds(controller.start(2))
    world.finish()
    return world.audit()


@pytest.mark.slow
def test_what_the_shard_with_the_rest_has_planned_stays_with_it():
    worlds = 0
    for world in planned_and_dead():
        assert lost_or_doubled(world) == [], "\n".join(world.trace)
        worlds += 1
    assert worlds > 20


def test_there_and_back_is_the_identity():
    world = a_world()
    live(world, 3)
    before, positions = newest_layout(world.store), held(world)
    for shard_count in (5, 1, 2, 3):
        live(world, shard_count)
    after = newest_layout(world.store)
    assert after.assignment.shards == before.assignment.shards
    assert {shard: of for shard, of in held(world).items() if of} == positions
    check(world)


def held(world):
    """Return the positions of each shard, as a sink has them."""
    (target, _) = world._targets
    return {pipeline: row.record.positions for (pipeline, _), row in target.ledger.items() if row.record is not None}


def test_a_sink_that_is_behind_refuses_the_change_and_nothing_is_changed():
    world = grown(2)
    row = world._targets[0].ledger[("simulated-1", "table")]
    row.record, row.epoch = replace(row.record, positions={}), row.epoch - 1
    with pytest.raises(Diverged, match=r"its sinks \['table'\] hold less"):
        SimulatedController(world).start(3)
    assert newest_layout(world.store).shard_count == 2


def test_a_shard_that_starts_again_after_another_controller_has_changed_the_layout_is_fenced():
    world = grown(2)
    layout = newest_layout(world.store)
    SimulatedController(world).start(3)
    with pytest.raises(Fenced, match="have been changed by another start"):
        moving.check_layout(world.store, layout.number, "simulated")


# --- and they can fail ------------------------------------------------------------------------------------------------


class GivesFirst(Moving):
    """Lets shards give before others have received."""

    def _carry_through(self, layout):
        for gives in (True, False):
            for number, move in sorted(layout.moves.items()):
                self.shards[number].move(layout.number, move, gives=gives)
        super()._carry_through(layout)


class BeginsFirst(Moving):
    """Lets shards begin before they have moved."""

    def _carry_through(self, layout):
        for number, move in sorted(layout.moves.items()):
            self.shards[number].begin(layout.number, move)
        super()._carry_through(layout)


class LeavesItUnfinished(Moving):
    """A start with a layout that was decided runs under it at once."""

    def settle(self):
        layout = settled_layout(self.store)
        self.take(range(layout.shard_count if layout else 1))
        return layout


class DoesNotLook(Moving):
    """Decides for a layout although shards have been taken over since."""

    def _look(self):
        pass


class ForgetsWhatIsPlanned(Moving):
    """Deals segments that the shard with the rest has begun, and its sinks do not hold."""

    def _stands(self):
        return {number: replace(stand, planned={}) for number, stand in super()._stands().items()}


class MovesWithoutLayout(Moving):
    """Hands over first, and records the layout then."""

    def _record(self, layout):
        self._carry_through(replace(layout, number=layout.number + 1))
        return super()._record(layout)


class HandsNothingOver(Moving):
    """Leaves a segment that is in two ledgers in both."""

    def first(self, ask, layout_of):
        return super().first(ask, lambda said: (layout_of(said)[0], {}))


def fails(play, seed, **mutation):
    try:
        return play(seed, **mutation).problems
    except Exception as error:
        return [error]


@pytest.mark.slow
@pytest.mark.parametrize("make", [GivesFirst, BeginsFirst, LeavesItUnfinished, MovesWithoutLayout])
def test_a_wrong_order_of_a_move_is_noticed(make):
    assert any(fails(simulate_moves, seed, make_moving=make) for seed in range(20))


@pytest.mark.slow
def test_a_segment_that_stays_in_two_ledgers_is_noticed():
    def is_wrong(n):
        world = grown(2)
        live(world, 3, dies_at=n)
        world.lose_checkpoint()
        try:
            live(world, make_moving=HandsNothingOver)
            recover(world, 3)
        except (AssertionError, Diverged):
            return True
        return False

    assert any(is_wrong(n) for n in range(1, live(grown(2), 3) + 1))


@pytest.mark.slow
def test_dealing_what_is_planned_is_noticed():
    """By the shard that is to run it, before any row is doubled."""
    with pytest.raises(Diverged, match="is to read what is another shard's"):
        any(lost_or_doubled(world, ForgetsWhatIsPlanned) for world in planned_and_dead())


@pytest.mark.slow
@pytest.mark.parametrize("mutation", [{"make_moving": DoesNotLook}, {"check": lambda store, layout, pipeline: None}])
def test_that_nobody_looks_who_else_has_started_is_noticed(mutation):
    assert any(fails(simulate_contest, seed, **mutation) for seed in range(100))
