"""``commit_at="pts"`` where Spark's plan stands before the state, and over a changed graph (design/0015)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from tests.spark.running import arrive, sqlite_rows

pytestmark = pytest.mark.spark

NANOSECOND = 1_767_225_600_000_000_000
"""BIGINT ticks of nanoseconds: beyond what a double keeps apart."""


def doubled(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("k", "t AS at", "v * 2 AS v")


def pipeline(work: Path, *, is_changed: bool) -> hf.Pipeline:
    """A function of a frame before a sink and before windows; once it is changed also before a further sink."""
    names = ("left", "right")
    left, right = (
        hf.read.files(
            str(work / name), schema="k STRING, t BIGINT, v BIGINT", timestamp="t", max_rows_per_epoch=2, name=name
        )
        for name in names
    )
    rows = left | hf.map(doubled, timestamp="at", name="doubled")
    windows = rows | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="windows")
    sinks = [
        rows | hf.write.sqlite(work / "rows.db", table="rows", name="rows_out"),
        windows | hf.write.sqlite(work / "windows.db", table="windows", name="windows_out"),
        right | hf.write.sqlite(work / "right.db", table="right_rows", name="right_out"),
    ]
    if is_changed:
        big = rows | hf.filter("v >= 4", name="big")
        sinks.append(big | hf.write.sqlite(work / "big.db", table="big", name="big_out"))
    return hf.Pipeline("frames", *sinks, commit_at="pts")


def given(*times: int) -> list[dict[str, Any]]:
    return [{"k": "a", "t": NANOSECOND + t, "v": t} for t in times]


def test_a_changed_graph_goes_on_with_what_waits_for_pts_behind_a_function_of_a_frame(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each sink holds exactly what lies before its pts, of both sources: before the change, and after it."""
    lefts, rights = [1, 2, 2, 2, 5, 12], [1, 7]
    arrive(tmp_path / "left", "0.json", given(*lefts))
    arrive(tmp_path / "right", "0.json", given(*rights))

    def check(pts: int) -> None:
        for name in ("rows", "windows", "right"):
            found = sqlite_rows(tmp_path / f"{name}.db", "SELECT pts FROM holdfast_ledger")
            assert found == [NANOSECOND + pts], name
        shown = sqlite_rows(tmp_path / "rows.db", "SELECT at, v FROM rows")
        assert shown == sorted((NANOSECOND + t, 2 * t) for t in lefts if t < pts)
        shown = sqlite_rows(tmp_path / "right.db", "SELECT t FROM right_rows")
        assert shown == sorted(NANOSECOND + t for t in rights if t < pts)

    options: Any = {"checkpoint": str(tmp_path / "ckpt"), "trigger": hf.available_now(), "session": spark}
    pipeline(tmp_path, is_changed=False).run(**options)
    check(min(7, 10))  # the window from 10 on is open, and the right source is at 7
    lefts.append(25)
    rights.append(30)
    arrive(tmp_path / "left", "1.json", given(25))
    arrive(tmp_path / "right", "1.json", given(30))
    pipeline(tmp_path, is_changed=True).run(**options)
    check(20)  # windows[20, 30) is open
    assert sqlite_rows(tmp_path / "windows.db", "SELECT window_start, n FROM windows") == [
        (NANOSECOND, 5),
        (NANOSECOND + 10, 1),
    ]
    assert sqlite_rows(tmp_path / "big.db", "SELECT at FROM big") == [], (
        "what waited before it was there is not its own"
    )
