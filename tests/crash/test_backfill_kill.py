"""Kill a backfill and the live run beside it: every row is in each sink once (design/0056)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast import segments
from holdfast.checkpoint.backfills import noted_backfills
from holdfast.store.paths import open_store
from tests.crash.lives import LIFE_MAX_S, MODES, Lives
from tests.crash.processes import kill_tree
from tests.everyday import everyday
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FILES, ROWS, NOW = 6, 20, 100
"""Files that are there, rows in each, and the time at which the live run begins."""

DEATHS = {
    "carried": ("after-decide:2",),
    "staged": ("after-stage:1", "after-decide:3", "before-forget:4"),
}
"""Where lives of the backfill end."""


def file_of_rows(work: Path, number: int, *, low: int = 0) -> None:
    """Let a file arrive whose times lie on both sides of where the live run begins, in no order."""
    first = number * ROWS
    rows = [{"id": first + i, "t": low + (37 * (first + i)) % (2 * NOW - low)} for i in range(ROWS)]
    arrive(work / "in", f"{number}.json", rows)


def seen_in(work: Path) -> tuple[list[int], list[int]]:
    """Return the ids in the table and in the store, in order."""
    try:
        stored = sorted(segments.open(work / "store").to_arrow()["id"].to_pylist())
    except Exception:  # it is not there yet
        stored = []
    return sorted(sqlite_rows(work / "out.db", "SELECT id FROM rows")), stored


@pytest.mark.parametrize("mode", everyday(MODES, {"carried"}))
def test_every_row_is_there_once_wherever_both_are_killed(tmp_path: Path, mode: str) -> None:
    for number in range(FILES):
        file_of_rows(tmp_path, number)
    live = Lives(
        tmp_path, "backfill_pipeline", {**MODES[mode]}, arguments=("--at", str(NOW)), trigger=("--every", "50ms")
    )
    past = Lives(tmp_path, "backfill_pipeline", {**MODES[mode]}, command=("backfill",), trigger=())
    past.arguments = ("--source", "rides", "--from", "0", "--to", str(NOW), "--rate", "1000/s")
    every = list(range(FILES * ROWS))
    of_live = [i for i in every if (37 * i) % (2 * NOW) >= NOW]
    process = live.start()
    try:
        eventually(lambda: seen_in(tmp_path)[0] == of_live, within_s=LIFE_MAX_S, what="the rows of the live run")
        first, *others = DEATHS[mode]
        past.die(first)
        os.kill(process.pid, signal.SIGKILL)  # what is left of it goes by itself
        kill_tree(process)
        process = live.start()
        for where in others:
            past.die(where)
        file_of_rows(tmp_path, FILES, low=NOW)
        assert past.end() == 0, past.said()
        [note] = noted_backfills(open_store(str(tmp_path / "checkpoint")))
        assert note.ended_us is not None
        wanted = [*every, *range(FILES * ROWS, (FILES + 1) * ROWS)]
        eventually(lambda: seen_in(tmp_path)[0] == wanted, within_s=LIFE_MAX_S, what="the rows that came last")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIFE_MAX_S) == 0, live.said()
        assert seen_in(tmp_path) == (wanted, wanted)
        assert past.end() == 0
        assert "done since" in past.said()
        assert seen_in(tmp_path) == (wanted, wanted)
    finally:
        kill_tree(process)
