"""The pipeline that is killed around the ends of its sources, and while one of them is held.

``left`` runs ahead of ``right`` and ends before it.  Keys that one side alone has wait for the end of the other;
``counted`` speaks once, when both have ended.  ``CRASH_WAY=spark`` lets Spark compute what stands before the state,
and holds ``left`` back.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from tests.spark.counting import counting

WORK = Path(os.environ["CRASH_WORK"])
THROUGH_SPARK = os.environ["CRASH_WAY"] == "spark"
LIMIT = 12


def flat(sets: pa.RecordBatch) -> pa.RecordBatch:
    """Return sets as rows that say who is in them; ``v`` counts in :func:`counting`."""
    sides = [sets.column(side).is_valid().cast(pa.int64()) for side in ("left", "right")]
    ones = pa.array([1] * sets.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays(
        [sets.column("k"), sets.column("timestamp"), *sides, ones], names=["k", "t", "has_left", "has_right", "v"]
    )


def side(name: str) -> hf.Stream:
    """Return the rows of one side."""
    rows = hf.read.files(
        WORK / name, schema="k STRING, t BIGINT", timestamp="t", max_files_per_epoch=1, bounded=True, name=name
    )
    # Nothing that Arrow evaluates: Spark's plan computes it.
    return rows | hf.filter("upper(k) <> ''", name=f"{name}_rows") if THROUGH_SPARK else rows


aligned = hf.sync(
    {name: side(name) for name in ("left", "right")},
    by="k",
    max_waiting_rows=LIMIT if THROUGH_SPARK else None,
    name="aligned",
)
sets = aligned | hf.map_batches(flat, "k STRING, t BIGINT, has_left BIGINT, has_right BIGINT, v BIGINT", name="flat")
pipeline = hf.Pipeline(
    "ending",
    sets | hf.write.sqlite(WORK / "out.db", table="sets", name="sets_table"),
    counting(sets, at_end=True) | hf.select("k", "n", name="chosen") | hf.write.files(WORK / "counts", name="counts"),
)
