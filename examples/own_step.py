"""A step of your own over whole tables: the newest row of each key, and who changed: ``stateful``."""

import os
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "own_step"

positions = hf.read.rows(
    [
        [{"ship": "Anna", "port": "Kiel"}, {"ship": "Berta", "port": "Emden"}],
        [{"ship": "Anna", "port": "Kiel"}, {"ship": "Berta", "port": "Kiel"}],
    ],
    schema="ship STRING, port STRING",
    name="positions",
)


def moved(
    tables: Mapping[str, pa.Table] | None, rows: pa.Table, at: hf.StepTime
) -> tuple[dict[str, hf.Change], pa.Table]:
    """Return the last port of each ship as a change, and the ships that are elsewhere now.  Called once a bucket."""
    newest = rows.group_by("ship", use_threads=False).aggregate([("port", "last")]).rename_columns(["ship", "port"])
    before = newest.slice(0, 0) if tables is None else tables["last"]
    known = newest.join(before, "ship", right_suffix="_before", use_threads=False)
    elsewhere = pc.fill_null(pc.not_equal(known["port"], known["port_before"]), False)
    out = known.filter(elsewhere).append_column("epoch", pa.array([at.epoch] * pc.sum(elsewhere).as_py(), pa.int64()))
    out = out.rename_columns({"port_before": "left_port"}).select(["ship", "left_port", "port", "epoch"])
    return {"last": hf.Change(newest, None)}, out.sort_by("ship")


moves = positions | hf.stateful(
    moved,
    by="ship",
    state={"last": "ship STRING, port STRING"},
    schema="ship STRING, left_port STRING, port STRING, epoch BIGINT",
    name="moves",
)

pipeline = hf.Pipeline("moves", moves | hf.write.sqlite(WORK / "own_step.db", table="moves", name="moves_table"))


def main() -> None:
    """Run to the end of the input, and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    with closing(sqlite3.connect(WORK / "own_step.db")) as connection:
        for row in connection.execute("SELECT ship, left_port, port, epoch FROM moves"):
            print(row)


if __name__ == "__main__":
    main()
