"""Every change of a graph, after every ending of the one before: the sinks hold what plain Python makes of the rows,
and ``plan`` said beforehand what would happen (design/0011, section 5).

Of a life that ended at a random moment nobody knows where; so the sinks must hold what *one* change point gives, the
same for all of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.starts.graph_diff import NodeVerdict
from holdfast.starts.plan import plan
from holdfast.store.local import LocalStore
from tests.crash.changing_pipeline import CHANGES, GIVEN, MORE, Change, Memory, Version, pipeline_of
from tests.crash.lives import Lives
from tests.everyday import seed_of_kills
from tests.spark.running import die_at, sqlite_rows

pytestmark = pytest.mark.spark

CLEAN, MOMENT, GAP = ENDINGS = ("clean stop", "killed at a random moment", "killed behind publish")
FIRST, STEP = 4, 2
"""Epochs of the first graph, and of each one after it."""


@dataclass
class Story:
    """One change, lived through.

    Parameters
    ----------
    work : Path
        Checkpoint and sinks.
    spark : SparkSession
        Of the lives that nobody kills.
    name : str
        The change.
    """

    work: Path
    spark: SparkSession
    name: str
    ends: list[Sequence[int]] = field(default_factory=list)
    """For each version but the last, how many epochs of the first source it may have done in all."""

    @property
    def change(self) -> Change:
        return CHANGES[self.name]

    def pipeline(self, version: int, given: int) -> hf.Pipeline:
        return pipeline_of(self.name, version, self.work, given, more=STEP * version)

    def settings(self, version: int) -> Settings:
        return Settings(checkpoint_freq=86_400_000, **self.change.versions[version].settings)  # type: ignore[arg-type]

    def run(self, version: int, given: int) -> None:
        """Run a version to the end of what there is, and stop cleanly."""
        self.pipeline(version, given).run(
            checkpoint=str(self.work / "checkpoint"),
            trigger=hf.available_now(),
            session=self.spark,
            settings=self.settings(version),
        )

    def die(self, ending: str, *, is_real: bool) -> None:
        """Let the first version die; with a process of its own, or as if."""
        point = "after-forget" if len(self.pipeline(0, FIRST).sinks) > 1 else "after-publish"
        self.ends.append([3] if ending == GAP else range(FIRST + 2))
        if not is_real:
            die_at(point, 3)
            with pytest.raises(HoldfastError):
                self.run(0, FIRST + 1)
            faults.install(None)
            return
        settings = {f"HOLDFAST_{name.upper()}": str(of) for name, of in self.change.versions[0].settings.items()}
        lives = Lives(
            self.work,
            "changing_pipeline",
            {"CHANGE": self.name, "GRAPH_VERSION": "0", "GIVEN": str(FIRST + 1), **settings},
            chance=random.Random(f"{seed_of_kills(7)} {self.name}"),
        )
        lives.die(f"{point}:3" if ending == GAP else "moment:1")

    def planned(self, version: int, given: int) -> dict[str, str]:
        """Return what ``holdfast plan`` says of each node that does not stay as it is."""
        directory = self.work / "checkpoint"
        change = plan(
            self.pipeline(version, given), LocalStore(str(directory)), directory, self.settings(version)
        ).change
        assert change is not None
        return {node.name: node.verdict.value for node in change.nodes if node.verdict is not NodeVerdict.KEPT}

    def live(self, ending: str, *, is_real: bool = False) -> None:
        """Run every version, the first one to its ending."""
        if ending == CLEAN:
            self.run(0, FIRST)
            self.ends.append([FIRST])
        else:
            self.die(ending, is_real=is_real)
        for version, wanted in enumerate(self.change.verdicts, start=1):
            given = FIRST + STEP * version
            told = self.planned(version, given)
            assert told == dict(wanted)
            try:
                self.run(version, given)
            except InvalidPipeline as error:
                if ending != MOMENT or "no longer has" not in error.what:
                    raise
                self.run(version - 1, FIRST + 1)  # decided for a sink that is gone: the old graph finishes it
                self.run(version, given)
            self.ends.append([given])

    def held(self) -> dict[str, list[Any]]:
        """Return the rows of every sink."""
        found = {path.stem: sqlite_rows(path, "SELECT * FROM rows") for path in self.work.glob("*.db")}
        return {name: rows for name, rows in found.items() if rows}

    def check(self) -> None:
        """Compare with the plain computation, for each change point that there may have been."""
        held = self.held()
        expected = [computed(self.change.versions, ends) for ends in product(*self.ends)]
        assert held in expected, f"ends {self.ends}: held {held}, expected one of {expected}"


def computed(versions: Sequence[Version], ends: Sequence[int]) -> dict[str, list[Any]]:
    """Return what the sinks must hold when each version did the epochs up to its end."""
    memory, done, more = Memory(), 0, 0
    for number, (version, end) in enumerate(zip(versions, ends, strict=True)):
        if number:
            memory.state = {now: memory.state.get(was, {}) for now, was in version.moves.items()}
        if version.filled:
            fresh = Memory()
            for rows in GIVEN[:done]:
                version.epoch(fresh, rows, [])
            memory.state = fresh.state
            memory.out |= {sink: fresh.out.get(sink, []) for sink in version.filled}  # none, where nothing was done
        available = MORE[more : STEP * number]  # a version without the second source ignores it
        for at in range(max(end - done, len(available))):
            given = GIVEN[done + at] if done + at < end else []
            version.epoch(memory, given, available[at] if at < len(available) else [])
        done = end
        more += len(available)
    return {name: sorted(rows) for name, rows in memory.out.items() if rows}


SAMPLE = {
    "one more aggregate column": GAP,
    "two operators swapped": GAP,
    "a map added between two operators, edited and left out": GAP,
    "a sink dropped": GAP,
    "a sink added without state, with everything": CLEAN,
    "two partitions to five": CLEAN,
}
"""Some of what tests/spark/test_graph_change.py does not go through, as if they were killed; nightly has them all."""


@pytest.mark.parametrize(("change", "ending"), SAMPLE.items())
def test_a_change_after_an_ending(spark: SparkSession, tmp_path: Path, change: str, ending: str) -> None:
    story = Story(tmp_path, spark, change)
    story.live(ending)
    story.check()


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_change_after_every_ending(spark: SparkSession, tmp_path: Path, change: str, ending: str) -> None:
    story = Story(tmp_path, spark, change)
    story.live(ending, is_real=True)
    story.check()


def test_the_plain_computation_depends_on_the_change_point() -> None:
    """Else a wrong one would pass unnoticed."""
    unseen = set()
    for name, change in CHANGES.items():
        rest = [FIRST + STEP * version for version in range(1, len(change.versions))]
        seen: list[Mapping[str, Any]] = [computed(change.versions, [end, *rest]) for end in (3, 4)]
        if seen[0] == seen[1]:
            unseen.add(name)
    # Of counts that go on nobody can tell which graph made them; they tell whether a row is lost or there twice.
    wanted = {"second source in a union", "rename with renamed_from", "two partitions to five"}
    wanted |= {"a sink added, with everything", "a sink added without state, with everything"}
    wanted |= {"a sink dropped and brought back, with what it missed"}
    assert unseen == wanted | {"three changes in a row"}
