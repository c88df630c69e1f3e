"""Two drivers on one checkpoint: the older one is fenced and changes nothing (issue acceptance: 100 interleavings)."""

import random
from typing import Any

import pytest

from holdfast.errors import Fenced, HoldfastError
from holdfast.testing import Baton, EngineConflict, Load, Setting, SimulatedSink, World, simulated_sink

FIRST, SECOND = "first", "second"


def drive(world, baton, name, generations):
    """Run a driver to its end; a collision in the engine's logs is Fenced if a newer one has taken over."""
    with world.life(on_write=lambda _: baton.switch(name)) as life:
        try:
            generations[name] = life.open().generation
            life.run()
        except EngineConflict:
            life.coordinator.check_fenced()
            raise


def contest(seed, make=SimulatedSink):
    chance = random.Random(seed)
    count = chance.choice((1, 2, 2, 3))
    load = Load(row_count=8, epoch_rows_max=3, carried_share=chance.choice((0.0, 0.5, 1.0)))
    setting = Setting(
        load,
        commit_thread=chance.random() < 0.5,
        commit_every_ticks=chance.choice((None, None, 4_000)),
    )
    ways: Any = ("transaction", "prepared")
    world = World(
        [simulated_sink(f"s{n}", way=chance.choice(ways), make=make) for n in range(count)], seed=seed, setting=setting
    )
    baton, generations = Baton(chance), {}
    endings = baton.run({name: lambda name=name: drive(world, baton, name, generations) for name in (FIRST, SECOND)})
    return world, {name: ending.error for name, ending in endings.items()}, generations


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_the_older_driver_is_fenced_and_nothing_is_lost_or_doubled(seed):
    world, errors, generations = contest(seed)
    older = min(generations, key=generations.__getitem__) if len(generations) == 2 else None
    for name, error in errors.items():
        assert error is None or isinstance(error, Fenced | EngineConflict), (name, error)
    if older is not None and errors[older] is None:
        assert isinstance(errors[FIRST if older == SECOND else SECOND], EngineConflict | type(None))
    world.finish()
    assert world.audit() == []


@pytest.mark.slow
def test_a_fenced_driver_is_seen_often_and_two_that_both_end_well_are_seen_too():
    outcomes = [tuple(type(error).__name__ for error in contest(seed)[1].values()) for seed in range(100)]
    assert sum("Fenced" in outcome for outcome in outcomes) > 60


class DoesNotFence(SimulatedSink):
    """Lets stale generations publish what they like."""

    def _check_generation(self):
        pass


def test_a_sink_that_does_not_fence_is_noticed():
    def problems(seed):
        try:
            return contest(seed, DoesNotFence)[0].audit()
        except HoldfastError as error:
            return [error]

    assert any(problems(seed) for seed in range(100))


def test_an_interleaving_is_repeatable():
    assert len({tuple(contest(5)[0].trace) for _ in range(3)}) == 1
