"""The shards of a world run, one durable write at a time: who goes on, who stands still and who dies, a seed says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import InDoubt, Unavailable
from holdfast.testing.simulation.process import INSIDE_SINKS, Baton, CrashAt, SimulatedCrash
from holdfast.testing.simulation.shards import ShardLife, ShardWorld


@dataclass
class Turns:
    """Lets the shards of a world run, taking turns at durable writes: the run of one controller.

    Parameters
    ----------
    world : ShardWorld
        The world.
    crashes : mapping of int to sequence of CrashAt
        Shard -> when its first lives end; it is started again at once, while the others go on.
    dies_at : int, optional
        The durable write, of whichever shard, before which all die.
    freezes : (int, int), optional
        A shard, and the durable write of its life before which it stands still until all others are through.
    switches_inside : bool
        Whether others may go on within a call of a sink: not of a real one, which may hold a lock there.
    check : callable
        Called when a shard was taken over; raises where it may not run.
    arrivals : list of callable
        Called one by one, now and then, while shards run: rows arrive.
    """

    world: ShardWorld
    crashes: Mapping[int, Sequence[CrashAt]] = field(default_factory=dict)
    dies_at: int | None = None
    freezes: tuple[int, int] | None = None
    switches_inside: bool = True
    check: Callable[[], None] = lambda: None
    arrivals: list[Callable[[], None]] = field(default_factory=list)
    write_count: int = 0
    is_dead: bool = False
    has_frozen: bool = False
    _frozen: int | None = None
    _lives: dict[int, ShardLife] = field(default_factory=dict)

    def run(self, numbers: Sequence[int], epochs_max: int | None = None) -> bool:
        """Run shards until they are through, or have run so many epochs, or all have died; returns whether they live.

        Raises
        ------
        HoldfastError, AssertionError
            Whatever ended a shard that was not its death, a system that does not answer, or another generation.
        """
        chance = self.world.random
        baton = Baton(chance, lambda name: name == str(self._frozen), chance.choice((1.0, 0.5, 0.1)))
        drivers = {str(number): lambda number=number: self._drive(baton, number, epochs_max) for number in numbers}
        for ending in baton.run(drivers).values():
            if ending.error is not None and not isinstance(ending.error, SimulatedCrash):
                raise ending.error
        return not self.is_dead

    def _drive(self, baton: Baton, number: int, epochs_max: int | None) -> None:
        shard = self.world.shard(number)
        left = list(self.crashes.get(number, ()))
        while not self.is_dead:
            crash = left.pop(0) if left else None
            try:
                with self.world.life(number, crash, lambda label: self._between(baton, number, label)) as life:
                    self._lives[number] = life
                    life.open()
                    self.check()
                    life.engine(self.world.segments(number)).run(epochs_max)
            except SimulatedCrash:
                shard.crash_count += 1
            except (Unavailable, InDoubt):
                shard.give_up()
            else:
                return
            finally:
                self._lives.pop(number, None)
            shard.workers.stage_late(shard.random_.randint(0, 2))

    def _between(self, baton: Baton, number: int, label: str) -> None:
        """Give the turn away before a durable write; die there, or stand still."""
        self.write_count += 1
        if self.arrivals and self.world.random.random() < 0.05:
            self.arrivals.pop()()
        if self.dies_at == self.write_count:
            self._die()
        if not self.has_frozen and self.freezes == (number, self._lives[number].process.write_count + 1):
            self._frozen, self.has_frozen = number, True
        if self.switches_inside or not label.startswith(INSIDE_SINKS):
            baton.switch(str(number))
        if self._frozen == number and not self.is_dead:
            self._look_at_others(number)

    def _die(self) -> None:
        self.is_dead = True
        for life in self._lives.values():
            life.process.end()

    def _look_at_others(self, number: int) -> None:
        """Look at what the others have done while one stood still: all of it."""
        self._frozen = None
        world = self.world
        others = [segment for segment in world.topic.ends if segment not in world.segments(number)]
        found = world.audit_rows(others)
        world.problems += [f"while shard {number} stood still: {problem}" for problem in found]
