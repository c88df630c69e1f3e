"""Kill a stateful pipeline around the ends of its sources and while one is held (design/0010, section 4).

An end is no row that could be counted: lost with a dead process it would leave rows waiting for ever, and ``counted``,
which speaks at the end, silent.  A source that back-pressure holds brings nothing for a while: a hold that dies with
its process must neither lose rows nor keep the next run waiting.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from tests.crash.lives import MODES, Lives
from tests.spark.running import batches_of_log, sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FILES = {"left": 4, "right": 8}
ROWS = {"left": 10, "right": 5}
LEFT_ENDS, RIGHT_ENDS = FILES["left"], FILES["right"]
"""The epochs in which they end, with their last rows, where nobody is held and Arrow evaluates what stands before."""

DEATHS = (f"before-stage:{LEFT_ENDS}", f"after-decide:{LEFT_ENDS}", f"after-forget:{RIGHT_ENDS}")


def rows_of(side: str, number: int) -> list[tuple[str, int]]:
    """Return the rows of one file: times of a key that both sides have, and a key of its own."""
    first = number * ROWS[side]
    return [*(("both", t) for t in range(first, first + ROWS[side])), (f"{side} {number}", first)]


def begun(work: Path, mode: str, way: str) -> Lives:
    for side, count in FILES.items():
        (work / side).mkdir()
        for number in range(count):
            path = work / side / f"{number}.json"
            path.write_text("".join(json.dumps({"k": k, "t": t}) + "\n" for k, t in rows_of(side, number)))
            os.utime(path, (number, number))
    return Lives(work, "ending_pipeline", {**MODES[mode], "CRASH_WAY": way})


def expected() -> tuple[list[Any], list[Any]]:
    """Return every set, and how many each key has."""
    has = {side: {row for number in range(count) for row in rows_of(side, number)} for side, count in FILES.items()}
    every = sorted(has["left"] | has["right"])
    sets = [(k, t, int((k, t) in has["left"]), int((k, t) in has["right"])) for k, t in every]
    return sets, sorted(Counter(k for k, _ in every).items())


def check(lives: Lives) -> None:
    """Run to a good end, and look into the sinks."""
    assert lives.end() == 0, lives.said()
    sets, counts = expected()
    assert sqlite_rows(lives.work / "out.db", "SELECT k, t, has_left, has_right FROM sets") == sets
    told = pyarrow.dataset.dataset(lives.work / "counts", format="parquet").to_table().select(["k", "n"])
    assert sorted(tuple(row.values()) for row in told.to_pylist()) == counts


@pytest.mark.parametrize("deaths", [DEATHS[1:], pytest.param(DEATHS, marks=pytest.mark.nightly)], ids=" ".join)
def test_an_end_is_told_once_whenever_its_epoch_is_killed(tmp_path: Path, deaths: tuple[str, ...]) -> None:
    lives = begun(tmp_path, "carried", "arrow")
    for where in deaths:
        lives.die(where)
    check(lives)
    assert f"epoch {RIGHT_ENDS} is held by every sink: evaluated for its state alone" in lives.logged()


@pytest.mark.nightly
def test_a_held_source_and_an_end_behind_sparks_plan_survive_a_kill(tmp_path: Path) -> None:
    lives = begun(tmp_path, "staged", "spark")
    lives.die_when(lambda: is_held(tmp_path, "left"), "left is held")
    lives.die_when(lambda: (tmp_path / "checkpoint/spark/1/ended/left.ended").exists(), "left has left its mark")
    lives.die_when(lambda: has_logged_an_end(tmp_path), "an end is logged")
    check(lives)


def is_held(work: Path, source: str) -> bool:
    """Tell whether back-pressure holds a source of the process that runs."""
    return any(source in path.read_text() for path in work.glob("tmp/holdfast-run-*/held"))


def has_logged_an_end(work: Path) -> bool:
    """Tell whether Spark has logged the end of a source whose rows its plan computes."""
    directory = work / "checkpoint/spark/1/offsets"
    logged = [(directory / str(batch)).read_text().replace("\\", "") for batch in batches_of_log(directory)]
    return any('"positions": {"left": 1' in line for text in logged for line in text.splitlines())
