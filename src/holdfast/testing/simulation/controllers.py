"""Controllers of a pipeline in shards: each moves segments, if another number is asked for, and runs the shards.

A controller is one driver: its death is that of all its shards.  Looked at while segments move: at each durable write
each segment's position is in the ledger of some shard, and where it is in two, it is the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from holdfast.controller.layouts.moving import Ledgers, Moving, StandingShard, check_layout, is_carried_through
from holdfast.errors import Diverged, Fenced, InDoubt, Unavailable
from holdfast.ports import Store
from holdfast.positions import Positions
from holdfast.retry import RetryPolicy
from holdfast.shards.assignment import Assignment, assign
from holdfast.shards.layout import ShardLayout, newest_layout, settled_layout
from holdfast.shards.moves import Stand, plans_of_others
from holdfast.shards.recovery import recover_shards
from holdfast.testing.failures import SeededFailures
from holdfast.testing.simulation.engine import EngineConflict, Load
from holdfast.testing.simulation.process import Baton, CrashAt, Process, SimulatedCrash
from holdfast.testing.simulation.rows import ROW_US
from holdfast.testing.simulation.seeds import SeedReport
from holdfast.testing.simulation.segmented import EngineDirectory, SegmentedRows
from holdfast.testing.simulation.shard_seeds import shared_sinks
from holdfast.testing.simulation.shards import ShardLife, ShardWorld
from holdfast.testing.simulation.turns import Turns
from holdfast.testing.simulation.world import PIPELINE, Setting
from holdfast.testing.store import FaultyStore

MakeMoving = Callable[..., Moving]
PLANNED = "a run that was fenced has planned that, after new segments were dealt."
"""Why a shard is refused until all start again."""

CheckLayout = Callable[[Store, int, str], None]


@dataclass
class SimulatedController:
    """One controller, as long as it lives.

    Parameters
    ----------
    world : ShardWorld
        What is durable.
    dies_at : int, optional
        The durable write before which it dies.
    give_way : callable
        Called before each durable write: lets others go on.
    make_moving, check : callable
        Put broken ones in the place of what is in :mod:`holdfast.controller.layouts.moving`.
    """

    world: ShardWorld
    dies_at: int | None = None
    give_way: Callable[[], None] = lambda: None
    make_moving: MakeMoving = Moving
    check: CheckLayout = check_layout
    write_count: int = 0
    _processes: list[Process] = field(default_factory=list)

    @contextmanager
    def life(self, number: int) -> Iterator[ShardLife]:
        """Start a shard in this process."""
        with self.world.life(number, on_write=self._between) as life:
            self._processes.append(life.process)
            yield life

    @property
    def store(self) -> FaultyStore:
        """The checkpoint of the pipeline, as this process sees it."""
        process = Process(trace=[], on_write=self._between)
        self._processes.append(process)
        return FaultyStore(self.world.store, process)

    def start(self, shard_count: int = 0) -> ShardLayout:
        """Take all shards over and let them stand under a layout of so many; returns that layout.  0: as there are."""
        has_begun = newest_layout(self.store) is not None or EngineDirectory(self.store).has_begun
        if not has_begun and len(self.world.ledgers()) > 1:
            with self._moving() as moving:
                moving.first(self.world.ledgers, self._layout_of)
        with self._moving() as moving:
            layout = moving.settle() or ShardLayout(Assignment())
            if shard_count not in (0, layout.shard_count) or (layout.number and moving.is_to_begin_anew(layout)):
                return moving.change(layout, shard_count or layout.shard_count, self._deal)
            with suppress(Diverged):  # sinks of a shard differ: a run can mend that, until then nothing is dealt
                return moving.note(layout, self._deal) if layout.number else layout
            return layout

    @contextmanager
    def _moving(self) -> Iterator[Moving]:
        with ExitStack() as lives:

            def connect(number: int) -> StandingShard:
                return lives.enter_context(self.life(number)).standing()

            yield self.make_moving(PIPELINE, self.store, connect, lambda layout: unit_of)

    def _layout_of(self, said: Sequence[Ledgers]) -> tuple[ShardLayout, Mapping[int, Positions]]:
        ledgers = [{sink: each.held for sink, each in of.items()} for of in said]
        found = recover_shards(ledgers, unit_of)
        return self._deal(ShardLayout(found.assignment)), found.hand_overs

    def run_in_rounds(self, layout: ShardLayout) -> None:
        """Run the shards of a layout to the end of what there is: an epoch of each in turn, started again for it."""
        self.world.assignment = layout.assignment
        left = [*range(layout.shard_count)]
        while left:
            left = [number for number in left if not self._run_epoch(layout, number)]

    def _run_epoch(self, layout: ShardLayout, number: int) -> bool:
        with self.life(number) as life:
            life.open()
            self.check(self.store, layout.number, PIPELINE)
            self._check_plans(layout, number)
            return life.engine(self.world.segments_under(layout.assignment, number)).run(1)

    def run_one(self, number: int) -> None:
        """Run one shard alone, as on a host of its own, under the layout that holds; if there is one, and it may."""
        with self.life(number) as life:
            life.open()
            layout = settled_layout(self.store)
            if layout is None or number >= layout.shard_count:
                return
            stores = {each: self.world.shard(each).store for each in layout.moves}
            if is_carried_through(layout, {each: EngineDirectory(store) for each, store in stores.items()}):
                self._check_plans(layout, number)
                life.engine(self.world.segments_under(layout.assignment, number)).run(3)

    def _check_plans(self, layout: ShardLayout, number: int) -> None:
        """Raise where the engine has planned what is another shard's: the next start mends it."""
        planned = EngineDirectory(self.world.shard(number).store).planned_end()
        if plans_of_others(layout.assignment, {number: Stand(planned=planned)}, unit_of):
            raise Diverged(f"shard {number} is to read what is another shard's.", why=PLANNED, participant=f"{number}")

    def _deal(self, layout: ShardLayout) -> ShardLayout:
        return replace(layout, assignment=assign(layout.assignment, self.world.units))

    def _between(self, label: str) -> None:
        self.write_count += 1
        self.world.look_at_positions()
        if self.dies_at == self.write_count:
            for process in self._processes:
                process.is_alive = False
            raise SimulatedCrash(f"all shards die before {label}")
        self.give_way()


def unit_of(source: str, name: str) -> str:
    """Return the unit of a segment."""
    return f"{source}:{name}"


# --- seeds ------------------------------------------------------------------------------------------------------------


def simulate_moves(seed: int, *, make_moving: MakeMoving = Moving, loses_checkpoint: bool = False) -> SeedReport:
    """Run a pipeline with one number of shards after another, through all crashes, and audit it.

    Parameters
    ----------
    seed : int
        Chooses the numbers, sinks, segments and rows that arrive, also while shards run and new ones, which shards
        die alone and when all die: while segments move, or later.
    make_moving : callable
        Puts a broken one in the place of :class:`~holdfast.controller.layouts.moving.Moving`.
    loses_checkpoint : bool
        Whether the checkpoint is lost now and then when all have died.  Then decisions are lost too, so that a sink may
        get a row with another value than others: that is no problem.
    """
    chance = random.Random(f"moves {seed}")
    world = _world(seed, chance)
    layout = ShardLayout(Assignment())
    for _ in range(chance.randint(2, 5)):
        _arrive(world, chance)
        layout = _phase(world, chance, make_moving, loses_checkpoint=loses_checkpoint)
    layout = _phase(world, chance, make_moving, is_last=True, loses_checkpoint=loses_checkpoint)
    world.assignment = layout.assignment
    world.finish()
    crashes = sum(shard.crash_count for shard in world.shards.values())
    stops = sum(shard.stop_count for shard in world.shards.values())
    problems = [each for each in world.audit() if not loses_checkpoint or "two values" not in each]
    return SeedReport(seed, tuple(world.trace), crashes, stops, tuple(problems))


def _phase(
    world: ShardWorld,
    chance: random.Random,
    make_moving: MakeMoving,
    *,
    is_last: bool = False,
    loses_checkpoint: bool = False,
) -> ShardLayout:
    """Start with some number of shards until it succeeds, and run them for a while, or to the end."""
    deaths, shard_count = chance.choice((0, 0, 1, 2, 3)), chance.randint(1, 4)

    def lose_power() -> None:
        world.trace.append("all die")
        world.lose_power()
        if loses_checkpoint and chance.random() < 0.5:
            world.trace.append("the checkpoint is lost")
            world.lose_checkpoint()

    while True:
        if chance.random() < 0.4:  # also after a death: another number may be asked for then
            shard_count = chance.randint(1, 4)
        dies_at = chance.randint(1, 60) if deaths > 0 else None
        deaths -= 1
        controller = SimulatedController(world, dies_at, make_moving=make_moving)
        try:
            layout = controller.start(shard_count)
        except SimulatedCrash:
            world.shard(0).crash_count += 1
            lose_power()
            continue
        except Diverged:
            if not loses_checkpoint or not shard_count:
                raise
            shard_count = 0  # sinks of a shard differ, which only a run can mend
            continue
        except (Unavailable, InDoubt):
            for shard in world.shards.values():
                shard.give_up()
            continue
        world.assignment = layout.assignment
        crashes = {
            number: [CrashAt(chance.randint(1, 25), "after")]
            for number in range(layout.shard_count)
            if chance.random() < 0.4
        }
        dies_at = chance.randint(1, 120) if deaths > 0 else None
        deaths -= 1
        turns = Turns(world, crashes, dies_at=dies_at)
        turns.check = partial(check_layout, world.store, layout.number, PIPELINE)
        turns.arrivals = [partial(_arrive, world, chance) for _ in range(chance.choice((0, 0, 2)))]
        if turns.run(range(layout.shard_count), None if is_last else chance.choice((1, 2, 4, None))):
            return layout
        lose_power()


def simulate_contest(seed: int, *, make_moving: MakeMoving = Moving, check: CheckLayout = check_layout) -> SeedReport:
    """Let two controllers and hosts of single shards start at once, and audit what they leave.

    Parameters
    ----------
    seed : int
        Chooses everything.
    make_moving, check : callable
        Put broken ones in the place of what is in :mod:`holdfast.controller.layouts.moving`.
    """
    chance = random.Random(f"contest {seed}")
    world = _world(seed, chance, rates=(0.0,))
    first = SimulatedController(world, make_moving=make_moving)
    layout = first.start(chance.randint(1, 4))
    world.assignment = layout.assignment
    Turns(world).run(range(layout.shard_count), chance.choice((1, None)))
    _arrive(world, chance)
    baton = Baton(world.random, switch_rate=chance.choice((1.0, 0.3, 0.1, 0.03)))

    def control(name: str, shard_count: int) -> None:
        controller = SimulatedController(world, None, lambda: baton.switch(name), make_moving, check)
        controller.run_in_rounds(controller.start(shard_count))

    def host(name: str, number: int) -> None:
        SimulatedController(world, None, lambda: baton.switch(name)).run_one(number)

    drivers: dict[str, Callable[[], None]] = {
        name: partial(control, name, chance.randint(1, 4)) for name in ("first", "second")
    }
    for number in range(chance.choice((0, 1, 2))):
        drivers[f"host {number}"] = partial(host, f"host {number}", chance.randint(0, 2))
    errors = [ending.error for ending in baton.run(drivers).values() if ending.error is not None]
    problems = [
        f"{type(error).__name__}: {error}"
        for error in errors
        if not isinstance(error, Fenced | EngineConflict) and not (isinstance(error, Diverged) and error.why == PLANNED)
    ]
    last = SimulatedController(world)
    last.run_in_rounds(last.start(chance.randint(1, 4)))
    world.finish()
    return SeedReport(seed, tuple(world.trace), len(errors), 0, (*problems, *world.audit()))


def _arrive(world: ShardWorld, chance: random.Random) -> None:
    """Let rows arrive in some segments, and now and then in new ones."""
    for segment in [*world.topic.ends]:
        world.topic.arrive(segment, chance.choice((0, 0, 1, 2)))
    for _ in range(chance.choice((0, 1, 3)) if len(world.topic.ends) < 9 else 0):
        world.topic.arrive(f"segment{len(world.topic.ends)}", chance.randint(1, 3))


def _world(seed: int, chance: random.Random, rates: Sequence[float] = (0.0, 0.0, 0.02)) -> ShardWorld:
    sinks = shared_sinks(chance, chance.choice((1, 1, 2, 2, 3)))
    return ShardWorld(
        SegmentedRows({f"segment{number}": chance.randint(1, 3) for number in range(chance.randint(1, 5))}),
        1,
        lambda name: sinks,
        seed=seed,
        setting=Setting(
            Load(
                epoch_rows_max=chance.randint(1, 6),
                carried_share=chance.choice((0.0, 0.5)),
                task_failure_rate=chance.choice((0.0, 0.2)),
            ),
            commit_thread=chance.random() < 0.5,
            commit_every_ticks=chance.choice((None, None, 3 * ROW_US)),
            retry=RetryPolicy(attempts=chance.choice((2, 6)), seed=seed),
        ),
        failures_of=lambda number, own: SeededFailures(own, own.choice(rates)),
    )
