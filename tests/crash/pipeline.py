"""The pipeline that the process tests kill: read, draw a random number, write to the sinks that CRASH_SINKS names.

Settings come from the environment, because the pipeline is run as users run theirs: ``holdfast run FILE:pipeline``.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import holdfast as hf
from tests.crash.slow import slowed

WORK = Path(os.environ["CRASH_WORK"])
SINKS = os.environ["CRASH_SINKS"].split(",")


def draw(rows: DataFrame) -> DataFrame:
    """Add a value that is another one each time the row is evaluated."""
    return rows.withColumn("draw", F.udf(lambda: random.random(), "double").asNondeterministic()())


def sink_of(kind: str) -> Any:
    """Return the sink node of one kind."""
    if kind == "sqlite":
        return hf.write.sqlite(WORK / "out.db", table="rows", name="sqlite_rows")
    if kind == "files":
        return hf.write.files(WORK / "files", name="files_rows")
    stage = os.environ.get("CRASH_STAGE", "auto")
    return hf.write.postgres(os.environ["CRASH_DSN"], table="rows", stage=stage, name="postgres_rows")


source = hf.read.files(
    WORK / "in",
    format="json",
    schema="id BIGINT, at TIMESTAMP, value DOUBLE",
    timestamp="at",
    max_files_per_epoch=2,
    name="source",
)
drawn = source | hf.map(draw, name="drawn")
delay_s = float(os.environ.get("CRASH_SLOW_S", "0"))
pipeline = hf.Pipeline("crashed", *[slowed(drawn | sink_of(kind), delay_s) for kind in SINKS])
