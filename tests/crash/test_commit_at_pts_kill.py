"""``commit_at="pts"`` under SIGKILL: whoever looks, each of two unlike sinks holds what lies before its pts.

A reader outside of the pipeline looks at both sinks all the time, while runs are killed and while the next ones
recover.  It knows the whole input, and takes pts from the sink's own ledger (design/0015).
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.crash.lives import MODES, Lives

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FIRST = 1_767_225_600_000_000_000
"""A tick is a nanosecond: beyond what a double keeps apart."""

CLOSED = 2**63 - 1
FILES = {"left": 14, "right": 9}

CHAINS = {
    "carried": ("after-decide:3", "after-publish:4", "jvm:1"),
    "staged": ("before-publish:3", "after-stage:5", "moment:1"),
}

Row = tuple[str, int, int]


def rows_of(side: str) -> list[list[Row]]:
    """Return the rows of each file of a source: one has many of few times, the other goes in leaps."""
    chance = random.Random(side)
    files, now, number = [], FIRST, 0
    for _ in range(FILES[side]):
        rows = []
        for _ in range(8):
            now += chance.choice((0, 0, 0, 1) if side == "left" else (0, 3))
            rows.append((chance.choice("ab"), now, number))
            number += 1
        files.append(rows)
    return files


def write_input(work: Path) -> dict[str, list[Row]]:
    """Write the files of both sources; return all their rows."""
    for side in FILES:
        (work / side).mkdir()
        for number, rows in enumerate(rows_of(side)):
            path = work / side / f"{number:03}.json"
            path.write_text("".join(json.dumps({"camera": c, "t": t, "v": v}) + "\n" for c, t, v in rows))
            os.utime(path, (number + 1, number + 1))
    return {side: [row for rows in rows_of(side) for row in rows] for side in FILES}


@dataclass
class Reader:
    """Looks at both sinks from outside, as any program may; notes what breaks the promise."""

    work: Path
    given: dict[str, list[Row]]
    problems: list[str] = field(default_factory=list)
    seen: dict[str, list[int]] = field(default_factory=lambda: {"left_table": [], "both_files": []})
    looks: int = 0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _look_on(self) -> None:
        rest_s = 0.01
        while not self._stop.wait(rest_s):
            began_s = time.monotonic()
            self.look()
            rest_s = max(0.01, time.monotonic() - began_s)  # on a slow machine it must not be what slows the pipeline

    def look(self) -> None:
        """Look once at each sink."""
        self._look_at_table()
        self._look_at_files()
        self.looks += 1

    def _look_at_table(self) -> None:
        try:
            with closing(sqlite3.connect(f"file:{self.work / 'left.db'}?mode=ro", uri=True)) as database:
                database.execute("BEGIN")
                held = database.execute("SELECT pts FROM holdfast_ledger").fetchone()
                rows = database.execute("SELECT camera, t, v FROM frames").fetchall()
        except sqlite3.OperationalError:
            return  # there is no database yet, or a writer has it
        self._compare("left_table", None if held is None else held[0], rows, self.given["left"], is_whole=True)

    def _look_at_files(self) -> None:
        """Look at the files.  The entry is the commit; its files are renamed behind it, one by one."""
        before = self._newest_entry()
        is_renamed = before is not None and all((self.work / "both" / to).exists() for _, to in before["renames"])
        paths = sorted((self.work / "both").glob("*.parquet"))
        rows = [tuple(row.values()) for path in paths for row in pq.read_table(path).to_pylist()]
        entry = self._newest_entry()
        if entry is not None:
            given = [row for side in FILES for row in self.given[side]]
            self._compare("both_files", entry["pts"], rows, given, is_whole=is_renamed and entry == before)

    def _newest_entry(self) -> dict[str, Any] | None:
        found = sorted((self.work / "both" / "_holdfast").glob("*/*/log/*.json"))
        if not found:
            return None
        entry: dict[str, Any] = json.loads(found[-1].read_text())["entry"]  # appears whole, under its name
        return entry

    def _compare(self, sink: str, pts: int | None, rows: list[Any], given: list[Row], *, is_whole: bool) -> None:
        shown = Counter(rows)
        wanted: Counter[Any] = Counter() if pts is None else Counter(row for row in given if row[1] < pts)
        if shown - wanted or (is_whole and wanted - shown):
            self.problems.append(f"{sink} at pts {pts} lacks {wanted - shown} and has {shown - wanted}")
        if pts is not None and (not self.seen[sink] or self.seen[sink][-1] != pts):
            self.seen[sink].append(pts)


@pytest.mark.parametrize("mode", ["carried", pytest.param("staged", marks=pytest.mark.nightly)])
def test_at_every_moment_each_sink_holds_exactly_what_lies_before_its_pts(mode: str, tmp_path: Path) -> None:
    given = write_input(tmp_path)
    lives = Lives(tmp_path, "pts_pipeline", MODES[mode])
    with Reader(tmp_path, given) as reader:
        for where in CHAINS[mode]:
            lives.die(where)
        assert lives.end() == 0, lives.said()
    reader.look()
    assert not reader.problems, f"{len(reader.problems)} of {reader.looks} looks: {reader.problems[0]}"
    for sink, moved in reader.seen.items():
        assert moved == sorted(set(moved)), f"the pts of {sink} falls: {moved}"
        assert len(moved) > 3, f"the pts of {sink} hardly moves: {moved}"
        assert moved[-1] == CLOSED
