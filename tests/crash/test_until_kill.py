"""Kill runs that end at a time: each ends exactly there all the same, and the next goes on (design/0021).

The places to die are those around what such a run decides: blocks that are cut, and blocks that are owed.  Every
durable write of the sources is one in ``tests/unit/sources/test_until.py``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from holdfast.checkpoint.directory_header import FILE_NAME, read_origin
from tests.crash.lives import MODES, Lives
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

FILES = 5
DEATHS = {
    15: ("before-stage+2", "after-decide+1", "moment:1"),
    27: ("after-decide+1", "jvm:1"),
    None: ("after-stage+2", "publish-begun+1"),
}
"""Where a run ends -> where its lives die: a number of epochs after those that Spark has committed."""


def rows_of(side: str, number: int) -> list[tuple[str, int]]:
    """Return the rows of one file: times far apart, in no order."""
    return [(f"{side}{number}-{t}", (t + number) % 40) for t in range(0, 40, 8)]


def begun(work: Path, mode: str) -> Lives:
    for side in ("left", "right"):
        (work / side).mkdir()
        for number in range(FILES):
            rows = rows_of(side, number)
            if side == "left":
                lines = [json.dumps({"id": name, "t": t}) + "\n" for name, t in rows]
                (work / side / f"{number}.json").write_text("".join(lines))
            else:
                table = pa.table({"id": [name for name, _ in rows], "t": [t for _, t in rows]})
                pq.write_table(table, work / side / f"{number}.parquet", row_group_size=2)
    return Lives(work, "until_pipeline", {**MODES[mode]})


def last_epoch(lives: Lives) -> int:
    """Return the last epoch that Spark has committed."""
    header = lives.work / "checkpoint" / "spark" / "1" / FILE_NAME
    return lives.committed() + (read_origin(header).base - 1 if header.exists() else 0)


@pytest.mark.parametrize("mode", MODES)
def test_each_run_ends_at_its_time_wherever_its_lives_die(tmp_path: Path, mode: str) -> None:
    lives = begun(tmp_path, mode)
    every = {row for side in ("left", "right") for number in range(FILES) for row in rows_of(side, number)}
    for until, deaths in DEATHS.items():
        lives.arguments = () if until is None else ("--until", str(until))
        for where in deaths:
            name, plus, ahead = where.partition("+")
            lives.die(f"{name}:{last_epoch(lives) + int(ahead)}" if plus else where)
        if until == 27:  # the log, with what is owed, comes back from the sinks
            lives.wait_for_survivors()
            shutil.rmtree(tmp_path / "checkpoint")
        assert lives.end() == 0, lives.said()
        wanted = sorted(row for row in every if until is None or row[1] < until)
        assert sorted(sqlite_rows(tmp_path / "out.db", "SELECT id, t FROM rows")) == wanted
        told = pyarrow.dataset.dataset(tmp_path / "out", format="parquet").to_table().select(["id", "t"])
        assert sorted(tuple(row.values()) for row in told.to_pylist()) == wanted
