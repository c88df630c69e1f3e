"""Shards on the same sinks, below one checkpoint: each fails, stands still and recovers alone (design/0048)."""

import os

import pytest

from holdfast.errors import HoldfastError, Unavailable
from holdfast.testing import CrashAt, Failure, Load, Setting, SimulatedSink, SimulatedTarget, simulated_sink
from holdfast.testing.simulation.segmented import SegmentedRows
from holdfast.testing.simulation.shard_seeds import simulate_shards
from holdfast.testing.simulation.shards import ShardWorld
from holdfast.testing.simulation.turns import Turns
from holdfast.testing.sink import SimulatedLedgerRow
from tests.everyday import part_of_seeds
from tests.sim.real_sinks import files, sqlite

pytestmark = pytest.mark.slow

SEED = os.environ.get("HOLDFAST_SEED")
"""A failing seed is replayed alone with HOLDFAST_SEED=<seed>."""

PARTS = 8
IS_WHOLE = os.environ.get("HOLDFAST_EXAMPLES") == "all"
"""Whether every place is tried, and not only every few."""

SEGMENTS = {f"segment{number}": 2 for number in range(4)}


def run(chosen):
    """Run seeds; returns how many crashes and how many stops they had."""
    crashes = stops = 0
    for seed in chosen:
        report = simulate_shards(seed)
        assert not report.problems, str(report)
        crashes += report.crash_count
        stops += report.stop_count
    return crashes, stops


def test_no_seed_loses_doubles_or_leaves_anything_behind_nor_lets_a_shard_touch_or_await_another():
    chosen = [int(SEED)] if SEED else range(150)
    crashes, stops = run(chosen)
    assert SEED or (crashes > len(chosen) and stops > len(chosen) // 20)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_seeds_of_shards(part):
    chosen = part_of_seeds(part, PARTS)
    crashes, stops = run(chosen)
    assert crashes > len(chosen), "the seeds hardly crash anything"
    assert stops > len(chosen) // 20, "the seeds hardly let a system stay away"


def test_the_same_seed_gives_the_same_interleaving():
    assert len({simulate_shards(4711).trace for _ in range(3)}) == 1


# --- every write of one shard, whatever the others do -----------------------------------------------------------------


def a_world(turns=0, *, shard_count=2, carried_share=0.0, make=SimulatedSink):
    targets = SimulatedTarget(), SimulatedTarget()
    sinks = [
        simulated_sink("table", target=targets[0], make=make),
        simulated_sink("files", way="prepared", target=targets[1], make=make),
    ]
    setting = Setting(Load(epoch_rows_max=3, carried_share=carried_share))
    return ShardWorld(SegmentedRows(SEGMENTS), shard_count, lambda name: sinks, turns=turns, setting=setting)


def check(world, turns, shards):
    """Run shards to their end, and look at everything."""
    assert turns.run(shards)
    world.finish()
    assert world.audit() == [], "\n".join(world.trace)


def write_count(make, number):
    """Return how many durable writes a life of a shard has that nothing disturbs."""
    world = make()
    with world.life(number) as life:
        life.coordinator.open()
        life.engine(world.segments(number)).run()
        return life.process.write_count


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_shard_dies_at_each_write_twice_while_others_are_anywhere(victim, when):
    places = write_count(a_world, victim)
    assert places > 15
    for n in range(1, places + 1):
        for second in range(1, places + 1, 1 if IS_WHOLE else 11):
            world = a_world(n * 100 + second)
            check(world, Turns(world, {victim: [CrashAt(n, when), CrashAt(second, when)]}), [0, 1])
            assert world.shard(victim).crash_count >= 1, f"write {n} is not reached"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_while_one_shard_stands_still_at_any_write_the_others_get_all_their_rows_out(victim):
    places = write_count(lambda: a_world(0, shard_count=3), victim)
    for n in range(1, places + 1):
        world = a_world(n, shard_count=3)
        turns = Turns(world, freezes=(victim, n))
        check(world, turns, [0, 1, 2])
        assert turns.has_frozen


def test_all_die_at_each_write_and_each_goes_on_from_its_own_checkpoint():
    world = a_world()
    turns = Turns(world)
    check(world, turns, [0, 1])
    for n in range(1, turns.write_count + 1):
        world = a_world()
        assert not Turns(world, dies_at=n).run([0, 1])
        world.lose_power()
        check(world, Turns(world), [0, 1])


def test_a_shard_whose_sinks_stay_away_holds_nobody_up():
    """It gives up, and is started again, as often as it takes; the others are through before that."""
    for turns in range(20):
        world = a_world(turns)
        world.shard(1).failures = Away(12)
        check(world, Turns(world), [0, 1])
        assert world.shard(1).stop_count > 0 == world.shard(0).stop_count
        names = [line.partition(":")[0] for line in world.trace]
        assert names.index("simulated-1") < len(names) - 1 - names[::-1].index("simulated")


class Away:
    """A system does not answer the first calls of a shard."""

    def __init__(self, count):
        self.left = count

    def __call__(self, participant, call):
        if participant == "store" or not self.left:
            return None
        self.left -= 1
        return Failure.UNAVAILABLE


# --- real sinks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1])
def test_one_shard_dies_at_each_call_of_real_sinks(new_path, victim):
    def make(turns=0):
        table, directory = new_path(), new_path()
        setting = Setting(Load(epoch_rows_max=4))
        return ShardWorld(
            SegmentedRows({"a": 3, "b": 3}),
            2,
            lambda name: [sqlite("table", table, name), files("directory", directory, name)],
            turns=turns,
            setting=setting,
        )

    places = write_count(make, victim)
    for n in range(1, places + 1, 1 if IS_WHOLE else 3):
        world = make(n)
        check(world, Turns(world, {victim: [CrashAt(n, "after")]}, switches_inside=False), [0, 1])


# --- and they can fail ------------------------------------------------------------------------------------------------


class SweepsByPrefix(SimulatedSink):
    """Takes whatever begins with the pipeline's name for its own."""

    def _is_orphan(self, handle, below_epoch):
        pipeline, generation, epoch, _, _ = handle.partition("|")[2].rsplit("/", 4)
        if not pipeline.startswith(self._run.pipeline) or handle in self._row.in_progress:
            return False
        ours = self._run.generation
        return int(generation) < ours or (int(generation) == ours and int(epoch) < below_epoch)


class KeepsOneRow(SimulatedSink):
    """Has one ledger row for all shards of a pipeline."""

    @property
    def _row(self):
        name = self._run.pipeline.partition("-")[0]
        return self.target.ledger.setdefault((name, self.name), SimulatedLedgerRow())


class FencesAll(SimulatedSink):
    """A takeover fences every shard of the pipeline."""

    def _open(self, run):
        held = super()._open(run)
        for (pipeline, sink), row in self.target.ledger.items():
            if sink == self.name and pipeline != run.pipeline and pipeline.startswith(run.pipeline):
                self._write("fence", lambda row=row: setattr(row, "generation", row.generation + 1))
        return held


class WaitsForOthers(SimulatedSink):
    """Does not commit while another shard is in the middle of its own."""

    def _publish(self, publications, expected):
        busy = [key for key, row in self.target.ledger.items() if row.in_progress and key[0] != self._run.pipeline]
        if busy:
            raise Unavailable(f"{busy} are at work.", participant=self.name)
        super()._publish(publications, expected)


@pytest.mark.parametrize("make", [SweepsByPrefix, KeepsOneRow, FencesAll, WaitsForOthers])
def test_a_sink_that_does_not_tell_shards_apart_is_noticed(make):
    def fails(seed):
        try:
            return simulate_shards(seed, make_sink=make).problems
        except HoldfastError as error:
            return error

    assert any(fails(seed) for seed in range(60))
