"""The stateful pipeline that the process tests kill: two operators in sequence, fan-outs behind state, side outputs.

``sync`` waits for rows of two sources, and ``counted`` counts its sets.  Between them stand a function of batches and a
Python UDF of Spark's, so that rows leave the worker of one state and come to that of the other.

Every kind of side output goes to a sink beside those of the main outputs: late rows, rejects and shed ones through a
function of batches, unmatched ones counted behind a further state.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.operators.sync.spec import sync
from tests.spark.counting import counting

WORK = Path(os.environ["CRASH_WORK"])
DB = WORK / "out.db"


def flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return sets as rows without structs; ``v`` counts in :func:`counting`."""
    sides = [pa.compute.struct_field(batch.column(side), "v") for side in ("left", "right")]
    ones = pa.array([1] * batch.num_rows, pa.int64())
    columns = [batch.column("k"), batch.column("timestamp"), *sides, ones]
    return pa.RecordBatch.from_arrays(columns, names=["k", "t", "left_v", "right_v", "v"])


sides = {
    side: hf.read.files(
        WORK / side,
        format="json",
        schema="k STRING, t BIGINT, v BIGINT",
        timestamp="t",
        max_files_per_epoch=1,
        bounded=True,
        on_bad_row="reject" if side == "left" else "fail",
        name=side,
    )
    for side in ("left", "right")
}
aligned = sync(sides, by="k", name="aligned")
sets = aligned | hf.map_batches(
    flat, schema="k STRING, t BIGINT, left_v BIGINT, right_v BIGINT, v BIGINT", name="flattened"
)
once = sets | hf.map(lambda rows: rows.withColumn("v", F.udf(lambda v: v * 1, "bigint")("v")), name="once")
counted = counting(once, name="counted")


def told(kind: str, *names: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that makes a line of some columns of each row; of a path the name remains."""

    def tell(rows: pa.RecordBatch) -> pa.RecordBatch:
        lines = [" ".join([kind, *(str(row[name]).rpartition("/")[2] for name in names)]) for row in rows.to_pylist()]
        return pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], names=["said"])

    return tell


entered = sides["left"] | hf.limit_in_flight(1, by="k", timeout=2, name="entered")
alone = counting(aligned.unmatched | hf.select("k", v="1", name="ones"), name="alone")
beside = {
    "late": aligned.late | hf.map_batches(told("late", "k", "timestamp", "input"), "said STRING", name="late_told"),
    "rejects": sides["left"].rejects | hf.map_batches(told("rejected", "position"), "said STRING", name="rejects_told"),
    "shed": entered.shed | hf.map_batches(told("shed", "k", "t"), "said STRING", name="shed_told"),
    "entered": entered | hf.map_batches(told("entered", "k", "t"), "said STRING", name="entered_told"),
    "unmatched": alone | hf.map_batches(told("alone", "epoch", "k", "n"), "said STRING", name="alone_told"),
}
pipeline = hf.Pipeline(
    "stateful",
    sets | hf.write.sqlite(DB, table="sets", name="sets_table"),
    aligned.late
    | hf.select("k", "timestamp", "input", "reason", name="told")
    | hf.write.sqlite(DB, table="late", name="late_table"),
    counted | hf.write.sqlite(DB, table="counts", name="counts_table"),
    counted
    | hf.filter("n > 9", name="many")
    | hf.select("k", "n", name="chosen")
    | hf.write.files(WORK / "many", name="many_files"),
    hf.union(*beside.values(), name="all_beside") | hf.write.files(WORK / "beside", name="beside_files"),
)
