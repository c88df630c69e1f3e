"""The stateful pipeline that the process tests kill: two operators in sequence, fan-outs behind state, late rows.

``sync`` waits for rows of two sources, and ``counted`` counts its sets.  Between them stand a function of batches and a
Python UDF of Spark's, so that rows leave the worker of one state and come to that of the other.
"""

from __future__ import annotations

import os
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
)
