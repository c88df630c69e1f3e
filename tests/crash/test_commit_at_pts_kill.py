"""``commit_at="pts"`` under SIGKILL: whoever looks, each of three unlike sinks holds what lies before its pts.

A process that has nothing to do with the pipeline (:mod:`tests.crash.pts_reader`) looks at all sinks all the time,
while runs are killed and while the next ones recover.  It knows the whole input, and takes pts from the sink's own
ledger (design/0015).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import faults
from tests.crash.lives import MODES, Lives
from tests.crash.pts_reader import Reader, Report, given, watched, write_input

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.postgres]

CLOSED = 2**63 - 1
TIMES = 3
"""So many times the input of the everyday test: an epoch for each of many kills."""

CHAIN = (("carried", "after-publish:4"), ("staged", "after-decide"))
"""How a life stages its rows, and where it dies."""

OTHERS = ("stage-write", *faults.SNAPSHOT_POINTS, *faults.RESOLVE_POINTS, *faults.REPAIR_POINTS, *faults.COLUMN_POINTS)
"""A worker dies at the first; a run of this pipeline reaches none of the others."""


def begun(work: Path, dsn: str, times: int = 1) -> Lives:
    write_input(work, times)
    return Lives(work, "pts_pipeline", {"CRASH_DSN": dsn})


def check(report: Report) -> None:
    """Judge what the reader has seen, and that it has seen something."""
    assert not report.problems, f"{len(report.problems)} in {report.looks} looks: {report.problems[0]}"
    assert report.looks > 100, "the reader hardly looked"
    for sink, moved in report.seen.items():
        assert moved == sorted(set(moved)), f"the pts of {sink} falls: {moved}"
        assert len(moved) > 3, f"the pts of {sink} hardly moves: {moved}"
        assert moved[-1] == CLOSED


def test_the_reader_sees_a_row_too_many_one_too_few_and_what_nobody_decided(
    tmp_path: Path, postgres_prepared: str
) -> None:
    write_input(tmp_path)
    rows = sorted(given(tmp_path)["left_table"], key=lambda row: row[1])
    pts = rows[20][1]
    before = [row for row in rows if row[1] < pts]
    with closing(sqlite3.connect(tmp_path / "left.db")) as database:
        database.execute("CREATE TABLE holdfast_ledger (epoch, pts)")
        database.execute("CREATE TABLE frames (camera, t, v)")
        database.execute("INSERT INTO holdfast_ledger VALUES (1, ?)", [pts])
        for shown in (before, [*before, rows[20]], before[1:]):
            database.execute("DELETE FROM frames")
            database.executemany("INSERT INTO frames VALUES (?, ?, ?)", shown)
            database.commit()
            with closing(Reader(tmp_path, postgres_prepared)) as reader:
                reader.look()
            undecided = f"left_table shows pts {pts} of epoch 1: decided is []"
            assert (undecided in reader.report.problems, len(reader.report.problems)) == (True, 1 + (shown != before))


def test_at_every_moment_each_sink_holds_exactly_what_lies_before_its_pts(
    tmp_path: Path, postgres_prepared: str
) -> None:
    lives = begun(tmp_path, postgres_prepared)
    with watched(tmp_path, postgres_prepared) as report:
        for mode, where in CHAIN:
            lives.environment |= MODES[mode]
            lives.die(where)
        assert lives.end() == 0, lives.said()
    check(report)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_a_kill_at_each_named_point_in_any_order_leaves_each_sink_at_its_pts(
    mode: str, tmp_path: Path, postgres_prepared: str
) -> None:
    lives = begun(tmp_path, postgres_prepared, TIMES)
    lives.environment |= MODES[mode]
    points = [point for point in faults.POINTS if point not in OTHERS]
    with watched(tmp_path, postgres_prepared) as report:
        for where in lives.chance.sample(points * 2, 2 * len(points)):
            lives.die(where)
        assert lives.end() == 0, lives.said()
    check(report)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_kills_at_random_moments_leave_each_sink_at_its_pts(mode: str, tmp_path: Path, postgres_plain: str) -> None:
    lives = begun(tmp_path, postgres_plain, 4 * TIMES)  # a life goes on for up to 0.3 s, and makes further epochs
    lives.environment |= MODES[mode]
    with watched(tmp_path, postgres_plain) as report:
        for _ in range(20):
            lives.die(f"{lives.chance.choice(('moment', 'jvm'))}:1")
        assert lives.end() == 0, lives.said()
    check(report)
