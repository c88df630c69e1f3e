"""Rewinds, resets, losses of parts of the checkpoint and kills, in any order: sinks end as a list in memory says.

Real sinks, checkpoint and coordinator, an engine of one position an epoch (:mod:`tests.sim.rewinding`).  Each run
delivers a version of its own, so a row that should have been withdrawn, or that a wrong run wrote again, is seen.  The
expectation is computed from what was asked alone: which versions a position may have.  A killed run may have decided
any number of its epochs; whatever it was, all sinks have the same of it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import faults
from holdfast.checkpoint import progress
from holdfast.checkpoint.participation import note_part
from holdfast.errors import Diverged, InvalidPipeline
from holdfast.starts.rewind_target import withdrawn_by
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore
from tests.sim.rewinding import Flow

STEPS = 9
SEEDS = 12


class Story:
    """One seed: what was done, and which versions each position may have."""

    def __init__(self, work: Path, seed: int) -> None:
        work.mkdir()
        self.flow = Flow(work, has_extra=True)
        self.chance = random.Random(seed)
        self.may_have: list[set[int]] = []
        self.version = 0
        self.trace: list[str] = [f"seed {seed}"]

    def tell(self, what: str) -> None:
        """Note a step, for people."""
        self.trace.append(what)

    # --- steps ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run some positions further, and perhaps die on the way."""
        last = self.chance.randint(max(1, len(self.may_have)), len(self.may_have) + 3)
        self.version += 1
        self.tell(f"run to {last}, version {self.version}")
        if self._survives(lambda: self.flow.run(last, self.version)):
            self._has_run(last)
            return
        held = [*self.may_have, *(set() for _ in range(last - len(self.may_have)))]
        self.may_have = held[:last]
        self._settle(last)

    def rewind(self) -> None:
        """Go back to some epoch that is known, and perhaps die on the way."""
        numbers = self.chance.sample(range(1, 60), 59)
        for number in numbers:
            with suppress(InvalidPipeline):
                to = int(self.flow.rewinding().plan(str(number)).positions["rows"]["log"])
                break
        else:
            return
        self.tell(f"rewind to epoch {number}, position {to}")
        if self._survives(lambda: self.flow.rewinding().do(str(number))):
            assert self.versions() == [tuple(each) for each in self.versions()][:to], self.trace
            self.may_have = self.may_have[:to]
            return
        before = len(self.may_have)
        self.flow.rewinding().carry_through()
        there = len(self.versions())
        assert there in (to, before), self.trace
        self.may_have = self.may_have[:there]

    def lose_spark(self) -> None:
        """Lose what Spark keeps."""
        self.tell("lose spark/")
        shutil.rmtree(self.flow.work / "checkpoint/spark", ignore_errors=True)

    def lose_progress(self) -> None:
        """Lose how epochs ended."""
        self.tell("lose progress/")
        shutil.rmtree(self.flow.work / "checkpoint/progress", ignore_errors=True)

    def reset_one(self) -> None:
        """Reset one sink: the next start is refused, and nothing is changed by it; then all are reset."""
        node = self.chance.choice(self.flow.pipeline.sinks)
        if not self.may_have:
            return
        self.tell(f"reset {node.name}")
        note_part(self.flow.store, node.name)
        spec: Any = node.spec
        spec.reset(node.name, "flow", rows=True, is_dry_run=False)
        with pytest.raises(Diverged, match="holds nothing, and has taken part"):
            self.flow.run(len(self.may_have) + 1, 99)
        there = [*self.flow.delivered(), self.flow.rows_in("extra")]
        assert 99 not in {version for rows in there for _, version in rows}, self.trace
        self.reset_all()

    def reset_all(self) -> None:
        """Start over."""
        self.tell("reset all")
        for node in self.flow.pipeline.sinks:
            note_part(self.flow.store, node.name)
            spec: Any = node.spec
            spec.reset(node.name, "flow", rows=True, is_dry_run=False)
        shutil.rmtree(self.flow.work / "checkpoint")
        self.flow = Flow(self.flow.work, has_extra=True)
        self.may_have = []

    # --- inside -----------------------------------------------------------------------------------------------------

    def _survives(self, act: Callable[[], object]) -> bool:
        """Do something in a process that may die at any durable write; return whether it lived."""
        crash = CrashAt(self.chance.randint(1, 90), self.chance.choice(("before", "after")))
        process = Process(crash if self.chance.random() < 0.7 else None)
        healthy = self.flow.store
        self.flow.store = FaultyStore(healthy, process)  # type: ignore[assignment]
        try:
            with process.counting_points():
                act()
        except SimulatedCrash:
            self.tell(f"  died {process.trace[-1]}")
            return False
        finally:
            faults.install(None)
            self.flow.store = healthy
        return True

    def _has_run(self, last: int) -> None:
        self.may_have += [{self.version} for _ in range(last - len(self.may_have))]

    def _settle(self, last: int) -> None:
        """Run again what a death has left: what was decided stays, and the rest is of this run."""
        died, self.version = self.version, self.version + 1
        self.tell(f"run again to {last}, version {self.version}")
        self.flow.run(last, self.version)
        self.may_have = [each or {died, self.version} for each in self.may_have]
        found = [version for (version,) in self.versions()[: len(self.may_have)]]
        assert all(each in may for each, may in zip(found, self.may_have, strict=True)), (self.trace, found)
        self.may_have = [{each} for each in found]

    def versions(self) -> list[tuple[int, ...]]:
        """Return the versions of each position, which all sinks agree about; each of its two rows is there once."""
        table, archive = self.flow.delivered()
        extra = self.flow.rows_in("extra")
        if not (table == archive == extra):
            raise AssertionError(f"{self.trace}: {table} {archive} {extra}")
        rows: dict[int, list[tuple[int, int]]] = {}
        for x, version in table:
            rows.setdefault(x // 10, []).append((x % 10, version))
        assert [*rows] == list(range(len(rows))), (self.trace, table)
        for position, held in rows.items():
            assert [at for at, _ in held] == [0, 1], (self.trace, position, held)
        return [tuple(sorted({version for _, version in held})) for held in rows.values()]

    def check(self) -> None:
        """Compare the sinks with what may be there, and the records with what was withdrawn."""
        if not self.may_have:
            return
        assert [{*each} for each in self.versions()] == self.may_have, self.trace
        for step in progress.read(self.flow.store):
            gone = withdrawn_by(self.flow.store, step.ended.epoch, step.ended.positions)
            assert gone is None, (self.trace, step.ended)


def live(work: Path, seed: int) -> Story:
    story = Story(work, seed)
    story.run()
    steps = [story.run] * 4 + [story.rewind] * 3 + [story.lose_spark, story.lose_progress, story.reset_one]
    for _ in range(STEPS):
        story.chance.choice(steps)()
        if len(story.trace) > 1 and not story.trace[-1].startswith("reset"):
            story.check()
    story.run()
    story.check()
    return story


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_after_any_order_of_rewinds_resets_losses_and_kills_the_sinks_are_what_was_asked_for(
    tmp_path: Path, seed: int
) -> None:
    live(tmp_path / "flow", seed)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_many_more_of_them(tmp_path: Path) -> None:
    for seed in range(SEEDS, 600):
        live(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed))
