"""Staged rows are forgotten by their target, before any durable write: replayed, or refused, and never looped over.

design/0002, "Expiry".  A pipeline is a supervisor's: it starts again as long as an error says that a start mends it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import Diverged
from holdfast.graph.trigger import SinkPace
from holdfast.testing import CrashAt, Load, Setting, World, simulated_sink
from holdfast.testing.simulation.rows import ROW_US
from holdfast.testing.simulation.world import SinkUnderTest
from tests.sim import forgetting
from tests.sim.forgetting import Supervised, partly, problems
from tests.sim.test_unlike_sinks import files, sqlite

STAGED = Load(row_count=8, epoch_rows_max=3, carried_share=0.0)

SEVERAL_TASKS = replace(STAGED, row_count=12, epoch_rows_min=4, epoch_rows_max=6)


def live(world: World, at: int, *, everything: bool = True, crash: CrashAt | None = None) -> Supervised:
    """Run it; rows that are staged in one of the sinks are forgotten, all or some of them."""
    chance = random.Random(at)

    def forget() -> list[str]:
        target = world.sinks[chance.randrange(len(world.sinks))].target
        assert target is not None
        return target.forget_staged(lambda handle: not everything and chance.random() < 0.5)

    return forgetting.live(world, at, forget, crash=crash)


def transactions(count: int) -> list[SinkUnderTest]:
    return [simulated_sink(f"sink{number}") for number in range(count)]


SETTINGS = {
    "alone": (1, Setting(STAGED)),
    "two": (2, Setting(STAGED)),
    "commit thread": (2, Setting(STAGED, commit_thread=True)),
    "three, some carried": (3, Setting(replace(STAGED, carried_share=0.4), commit_thread=True)),
    "grouped": (2, Setting(STAGED, commit_every_ticks=3 * ROW_US)),
    "grouped alone": (1, Setting(STAGED, commit_every_ticks=3 * ROW_US)),
    "at pts": (2, Setting(STAGED, commit_at_pts=True)),
    "a pace": (2, Setting(STAGED, paces={"sink1": SinkPace(every_epochs=2)})),
    "a pace, alone, with a thread": (1, Setting(STAGED, commit_thread=True, paces={"sink0": SinkPace(every_epochs=3)})),
    "a short ledger": (2, Setting(STAGED, ledger_keep=1, commit_thread=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("everything", [True, False], ids=["all", "some"])
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_forgotten_before_any_write_is_revoked_and_replayed(name: str, everything: bool) -> None:
    count, setting = SETTINGS[name]
    starts = []
    for at in range(1 + everything, 60, 2):
        world = World(transactions(count), seed=at % 7, setting=replace(setting, replays=True))
        told = live(world, at, everything=everything)
        assert told.final is None, f"{at}: {told.final}"
        assert not problems(world), f"{at}: {problems(world)}\n" + "\n".join(world.trace)
        starts.append(told.start_count)
    assert max(starts) > 1, "nothing that mattered was ever forgotten"


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_forgotten_beside_a_crash_is_revoked_and_replayed(name: str) -> None:
    """The driver dies at any write; rows are forgotten before it, while it is dead, or while the next one recovers."""
    count, setting = SETTINGS[name]
    for n in range(1, 40, 3):
        for at in range(max(1, n - 6), n + 14, 3):
            world = World(transactions(count), seed=n % 5, setting=replace(setting, replays=True))
            told = live(world, at, crash=CrashAt(n, "after" if n % 2 else "before"))
            assert told.final is None, f"{n}, {at}: {told.final}"
            assert not problems(world), f"{n}, {at}: {problems(world)}\n" + "\n".join(world.trace)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("everything", [True, False], ids=["all", "some"])
def test_what_a_sink_has_published_in_part_is_refused_once_and_never_doubled(count: int, everything: bool) -> None:
    """A sink that shows parts one by one, after its own decision: gone before the first it is taken back."""
    finals, mended = 0, 0
    for n in range(1, 60):
        for crash in (None, CrashAt(max(1, n - 1), "after")):
            sinks = [simulated_sink(f"sink{number}", way="prepared") for number in range(count)]
            world = World(sinks, seed=n % 5, setting=Setting(SEVERAL_TASKS, replays=True))
            told = live(world, n, everything=everything, crash=crash)
            if told.final is None:
                assert not problems(world), f"{n}: {problems(world)}\n" + "\n".join(world.trace)
                mended += told.start_count > 1
                continue
            finals += 1
            assert "in part" in told.final.what, told.final
            assert not partly(world), partly(world)
            with pytest.raises(Diverged, match="in part") as again, world.life() as life:
                life.open()
            assert not again.value.is_mended_by_start
    assert finals, "no epoch was ever published in part"
    assert mended, "nothing was ever mended"


def remove_staged(*places: Path) -> list[str]:
    """Remove what lies in directories where real sinks keep what is staged."""
    gone = []
    for path in (path for place in places if place.exists() for path in place.iterdir()):
        gone.append(path.name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return gone


@pytest.mark.slow
@pytest.mark.parametrize("names", ["table", "directory", "table + directory"])
@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
def test_staged_files_of_real_sinks_are_removed_before_any_write(
    new_path: Callable[[], Path], names: str, dies: bool
) -> None:
    """A file that was to be renamed by an entry of the log is the one that makes a person decide."""
    load = replace(STAGED, row_count=4)
    finals = 0
    for at in range(1, 48, 3):
        database, directory = new_path(), new_path()
        made = {
            "table": lambda at=database: sqlite("table", at),
            "directory": lambda at=directory: files("directory", at),
        }
        setting = Setting(load, replays=True)
        world = World([make() for name, make in made.items() if name in names], seed=at % 5, setting=setting)
        staging = (Path(f"{database}-holdfast"), directory / "_holdfast/simulated/directory/staging")
        crash = CrashAt(at, "before") if dies else None
        told = forgetting.live(world, at, lambda places=staging: remove_staged(*places), crash=crash)
        if told.final is None:
            assert not problems(world), f"{at}: {problems(world)}\n" + "\n".join(world.trace)
            continue
        finals += 1
        assert "files are gone" in told.final.what, told.final
        assert not partly(world)
        with pytest.raises(Diverged, match="files are gone"), world.life() as life:
            life.open()
    assert bool(finals) == ("directory" in names)
