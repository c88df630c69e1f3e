"""Runs that are killed again and again get on, however much waits in their sources (design/0014, section 5)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.connectors.rate import RateSpec
from holdfast.plan.operation import limit_file, read_limit
from holdfast.plan.pressure import Ramp
from tests.contract.source_contract import Hands

FIRST = 16_000_000
BACKLOG = 40_000_000
"""Rows: at the pace below more than an hour."""
PACE = 10_000
"""Rows a second, an epoch's own cost aside."""
SECOND = 1_000_000


class Killed(Exception):
    """The process has ended."""


@dataclass
class Lives:
    """A log of offsets and one of commits, as Spark has them, and the lives of a driver that writes them.

    Parameters
    ----------
    work : Path
        Where the source's workspace is, and the directory of each run.
    first_bytes : int
        What the first epoch of a run takes at most; 0: no limit.
    """

    work: Path
    first_bytes: int
    planned: list[int] = field(default_factory=list)
    ran: list[tuple[int, int]] = field(default_factory=list)
    """Each evaluation, finished or not: the epoch, and its end."""
    committed: int = 0
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        hands = Hands()
        self.source = RateSpec(1_000_000, None, None, clock=hands).open("ticks", str(self.work / "source"))
        self.source.latest({"rows": 0}, bounded=False)
        hands.now += BACKLOG  # a row each microsecond

    @property
    def position(self) -> int:
        return self.planned[self.committed - 1] if self.committed else 0

    def live(self, seconds: float) -> None:
        """Start, replay what was planned and not committed, go on; killed after so many seconds."""
        directory = self.work / f"run-{len(self.ran)}-{self.clock_s}"
        directory.mkdir()
        stop_file = str(directory / "stop")
        ramp = Ramp(limit_file(stop_file), self.first_bytes, lambda: self.clock_s)
        self._end_s = self.clock_s + seconds
        try:
            self._pass(5)  # the start itself
            if self.committed < len(self.planned):
                self._run_epoch()
            while self._plan(stop_file):
                began_s = self.clock_s
                self._run_epoch()
                ramp.note(self.clock_s - began_s, {})
        except Killed:
            pass

    def _plan(self, stop_file: str) -> bool:
        start = {"rows": self.position}
        end = self.source.latest(start, bounded=False, limit=read_limit(limit_file(stop_file), "ticks"))
        self._pass(0.01)
        if end != start:
            self.planned.append(int(end["rows"]))
        return end != start

    def _run_epoch(self) -> None:
        end = self.planned[self.committed]
        self.ran.append((self.committed, end))
        self._pass(0.2 + (end - self.position) / PACE)
        self.committed += 1

    def _pass(self, seconds: float) -> None:
        if self.clock_s + seconds >= self._end_s:
            self.clock_s = self._end_s
            raise Killed
        self.clock_s += seconds


@pytest.mark.parametrize("life_s", [60, 90, 200, 1000])
def test_a_run_that_is_killed_again_and_again_gets_on(tmp_path: Path, life_s: float) -> None:
    lives = Lives(tmp_path, FIRST)
    count = 0
    while lives.position < BACKLOG:
        before = lives.committed
        lives.live(life_s)
        count += 1
        assert lives.committed > before, f"life {count} got nowhere"
    assert lives.planned[-1] == BACKLOG
    assert dict(lives.ran) == dict(enumerate(lives.planned)), "each epoch ends where it was planned to, in every life"
    assert len(set(lives.ran)) == len(lives.planned)
    assert count * life_s <= 4 * (BACKLOG / PACE + 5 * count) + 2 * life_s, "and no slower than by a constant"


def test_lives_of_any_length_get_on(tmp_path: Path) -> None:
    random_ = random.Random(7)
    lives = Lives(tmp_path, FIRST)
    while lives.position < BACKLOG:
        before = lives.committed
        lives.live(random_.uniform(60, 120))
        lives.live(120)
        assert lives.committed > before
    assert dict(lives.ran) == dict(enumerate(lives.planned))


def test_catching_up_costs_an_uninterrupted_run_next_to_nothing(tmp_path: Path) -> None:
    for work in ("limited", "whole"):
        (tmp_path / work).mkdir()
    limited, whole = Lives(tmp_path / "limited", FIRST), Lives(tmp_path / "whole", 0)
    for lives in (limited, whole):
        lives.live(1e9)
        assert lives.position == BACKLOG
    assert len(whole.planned) == 1
    assert 5 < len(limited.planned) < 12
    assert limited.clock_s < 1.001 * whole.clock_s


def test_without_the_limit_it_is_the_same_epoch_that_every_life_dies_in(tmp_path: Path) -> None:
    """What the others would be without it: they can fail."""
    lives = Lives(tmp_path, 0)
    for _ in range(5):
        lives.live(1000)
    assert lives.position == 0
    assert lives.ran == [(0, BACKLOG)] * 5
