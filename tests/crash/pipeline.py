"""The pipeline that the process tests kill: read, draw a random number, write to the sinks that CRASH_SINKS names.

Settings come from the environment, because the pipeline is run as users run theirs: ``holdfast run FILE:pipeline``.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import holdfast as hf
from tests.crash.slow import slowed

WORK = Path(os.environ["CRASH_WORK"])
SINKS = os.environ["CRASH_SINKS"].split(",")
SCHEMA = "id BIGINT, at TIMESTAMP, value DOUBLE"


def draw(rows: DataFrame) -> DataFrame:
    """Add a value that is another one each time the row is evaluated."""
    return rows.withColumn("draw", F.udf(lambda: random.random(), "double").asNondeterministic()())


def draw_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Do the same in Arrow."""
    drawn = pa.array([random.random() for _ in range(rows.num_rows)])
    return pa.RecordBatch.from_arrays([*rows.columns, drawn], names=[*rows.schema.names, "draw"])


def sink_of(kind: str) -> Any:
    """Return the sink node of one kind."""
    if kind == "sqlite":
        return hf.write.sqlite(WORK / "out.db", table="rows", name="sqlite_rows")
    if kind == "files":
        return hf.write.files(WORK / "files", name="files_rows")
    if kind == "s3":
        return hf.write.files(os.environ["CRASH_S3"], name="s3_rows")
    if kind == "redis":
        return hf.write.redis(os.environ["CRASH_REDIS"], key="rows", id="id", name="redis_rows")
    if kind == "kafka":
        return hf.write.kafka(os.environ["CRASH_KAFKA"], "rows", key=os.environ.get("CRASH_KEY"), name="kafka_rows")
    if kind == "http":
        return hf.write.http(os.environ["CRASH_HTTP"], id="id", name="http_rows")
    stage: Any = os.environ.get("CRASH_STAGE", "auto")
    return hf.write.postgres(os.environ["CRASH_DSN"], table="rows", stage=stage, name="postgres_rows")


source = hf.read.files(
    WORK / "in",
    format="json",
    schema=SCHEMA,
    timestamp="at",
    max_files_per_epoch=2,
    name="source",
)
IN_ARROW = os.environ.get("CRASH_DRAW") == "arrow"
"""Whether rows stay out of the JVM."""
drawing = hf.map_batches(draw_batch, f"{SCHEMA}, draw DOUBLE", name="drawn") if IN_ARROW else hf.map(draw, name="drawn")
drawn = source | drawing
if os.environ.get("CRASH_COLUMN"):
    drawn = drawn | hf.select("*", minute="minute(at)", name="with_minute")
delay_s = float(os.environ.get("CRASH_SLOW_S", "0"))
marks = os.environ.get("CRASH_MARKS", "")
pipeline = hf.Pipeline(
    os.environ.get("CRASH_NAME", "crashed"), *[slowed(drawn | sink_of(kind), delay_s, marks) for kind in SINKS]
)
