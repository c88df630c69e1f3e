"""A process that looks at the sinks of ``pts_pipeline`` from outside, until its standard input ends.

What a sink must show follows from the whole input, which the reader knows, and from the pts in the sink's own ledger.
Each look is consistent in itself: one snapshot of PostgreSQL, one transaction of SQLite, and of files what the newest
entry of their log names.  What is shown was decided before: the checkpoint's ledger has that epoch, with that pts.

    python -m tests.crash.pts_reader WORK DSN     prints a report as JSON when it ends
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq

from holdfast.commit.ledger import Standing, survey
from holdfast.store.local import LocalStore
from tests.crash.processes import ROOT, kill_tree

FIRST = 1_767_225_600_000_000_000
"""A tick is a nanosecond: beyond what a double keeps apart."""

PAUSE_S = 0.02
FILES = {"left": 14, "right": 9}
SINKS = ("left_table", "both_files", "some_rows")

Row = tuple[str, int, int]


# --- the input --------------------------------------------------------------------------------------------------------


def rows_of(side: str, files: int) -> list[list[Row]]:
    """Return the rows of each file of a source: one has many of few times, the other goes in leaps."""
    chance = random.Random(side)
    found, now, number = [], FIRST, 0
    for _ in range(files):
        rows = []
        for _ in range(8):
            now += chance.choice((0, 0, 0, 1) if side == "left" else (0, 3))
            rows.append((chance.choice("ab"), now, number))
            number += 1
        found.append(rows)
    return found


def write_input(work: Path, times: int = 1) -> None:
    """Write the files of both sources, so many times as many."""
    for side, files in FILES.items():
        (work / side).mkdir()
        for number, rows in enumerate(rows_of(side, files * times)):
            path = work / side / f"{number:03}.json"
            path.write_text("".join(json.dumps({"camera": c, "t": t, "v": v}) + "\n" for c, t, v in rows))
            os.utime(path, (number + 1, number + 1))


def given(work: Path) -> dict[str, list[Row]]:
    """Return what each sink gets in the end."""
    rows: dict[str, list[Row]] = {side: [] for side in FILES}
    for side, found in rows.items():
        for path in sorted((work / side).glob("*.json")):
            found += [(row["camera"], row["t"], row["v"]) for row in map(json.loads, path.read_text().splitlines())]
    both = [*rows["left"], *rows["right"]]
    return {"left_table": rows["left"], "both_files": both, "some_rows": [row for row in both if row[0] == "a"]}


# --- a look -----------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What a reader has seen.

    Parameters
    ----------
    problems : list of str
        What breaks the promise.
    seen : dict of str to list of int
        Sink -> each pts that it has shown, in their order.
    looks : int
        How often all sinks were looked at.
    """

    problems: list[str] = field(default_factory=list)
    seen: dict[str, list[int]] = field(default_factory=lambda: {sink: [] for sink in SINKS})
    looks: int = 0


@dataclass(frozen=True)
class Shown:
    """What a sink shows at a moment; ``is_whole``: rows that are missing are a problem, too."""

    epoch: int
    pts: int | None
    rows: Sequence[Any]
    is_whole: bool = True


class Reader:
    """Looks at the sinks; it belongs to no pipeline.

    Parameters
    ----------
    work : Path
        The pipeline's directory.
    dsn : str
        Its database.
    """

    def __init__(self, work: Path, dsn: str) -> None:
        self._work = work
        self._given = given(work)
        self._ledger = LocalStore(str(work / "checkpoint"))
        self._database = psycopg.connect(dsn)
        self._database.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._database.read_only = True
        self._read: dict[tuple[Path, int], list[Any]] = {}
        self.report = Report()

    def close(self) -> None:
        """Leave the database."""
        self._database.close()

    def look(self) -> None:
        """Look once at each sink."""
        looks = {"left_table": self._table, "both_files": self._files, "some_rows": self._rows}
        for sink, look in looks.items():
            shown = look()
            if shown is not None:
                self._compare(sink, shown)
        self.report.looks += 1

    def _table(self) -> Shown | None:
        with suppress(sqlite3.OperationalError):  # there is no database yet, or a writer has it
            path = f"file:{self._work / 'left.db'}?mode=ro"
            with closing(sqlite3.connect(path, uri=True)) as database:
                database.execute("BEGIN")
                held = database.execute("SELECT epoch, pts FROM holdfast_ledger").fetchone()
                epoch, pts = held or (0, None)
                return Shown(epoch, pts, database.execute("SELECT camera, t, v FROM frames").fetchall())
        return None

    def _rows(self) -> Shown | None:
        with suppress(psycopg.errors.UndefinedTable), self._database.transaction(force_rollback=True):
            held = self._database.execute("SELECT epoch, pts FROM holdfast_ledger").fetchone()
            epoch, pts = held or (0, None)
            return Shown(epoch, pts, self._database.execute("SELECT camera, t, v FROM frames").fetchall())
        return None

    def _files(self) -> Shown | None:
        """Return what is there of the files.  The entry is the commit; its files are renamed behind it, one by one."""
        before = self._newest_entry()
        is_renamed = before is not None and all((self._work / "both" / to).exists() for _, to in before["renames"])
        rows = [row for path in sorted((self._work / "both").glob("*.parquet")) for row in self._of_file(path)]
        entry = self._newest_entry()
        if entry is None:
            return None
        return Shown(entry["epoch"], entry["pts"], rows, is_renamed and entry == before)

    def _of_file(self, path: Path) -> list[Any]:
        """Return the rows of a file; one that is as it was is not read again: the pipeline needs the time."""
        key = path, path.stat().st_mtime_ns
        if key not in self._read:
            self._read[key] = [tuple(row.values()) for row in pq.read_table(path).to_pylist()]
        return self._read[key]

    def _newest_entry(self) -> dict[str, Any] | None:
        found = sorted((self._work / "both" / "_holdfast").glob("*/*/log/*.json"))
        if not found:
            return None
        entry: dict[str, Any] = json.loads(found[-1].read_text())["entry"]  # appears whole, under its name
        return entry

    def _compare(self, sink: str, shown: Shown) -> None:
        pts, report = shown.pts, self.report
        rows = Counter(shown.rows)
        wanted = Counter() if pts is None else Counter(row for row in self._given[sink] if row[1] < pts)
        if rows - wanted or (shown.is_whole and wanted - rows):
            report.problems.append(f"{sink} at pts {pts} lacks {wanted - rows} and has {rows - wanted}")
        if pts is not None and (not report.seen[sink] or report.seen[sink][-1] != pts):
            report.seen[sink].append(pts)
            self._check_decided(sink, shown)

    def _check_decided(self, sink: str, shown: Shown) -> None:
        decided = [
            entry.content.record.pts
            for entry in survey(self._ledger, {shown.epoch})
            if entry.standing in (Standing.OPEN, Standing.DONE) and entry.content is not None
        ]
        if decided != [shown.pts]:
            self.report.problems.append(f"{sink} shows pts {shown.pts} of epoch {shown.epoch}: decided is {decided}")


def main(work: str, dsn: str) -> None:
    """Look, until standard input ends."""
    reader, is_over = Reader(Path(work), dsn), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    rest_s = PAUSE_S
    while not is_over.wait(rest_s):
        began_s = time.monotonic()
        reader.look()
        rest_s = max(PAUSE_S, time.monotonic() - began_s)  # on a slow machine it must not be what slows the pipeline
    reader.look()
    json.dump(asdict(reader.report), sys.stdout)


# --- the side of the test ---------------------------------------------------------------------------------------------


@contextmanager
def watched(work: Path, dsn: str) -> Iterator[Report]:
    """Let a reader look while the block runs; its report is filled in at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.pts_reader", str(work), dsn],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    report = Report()
    try:
        yield report
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        vars(report).update(json.loads(output))
    finally:
        kill_tree(process)


if __name__ == "__main__":
    main(*sys.argv[1:])
