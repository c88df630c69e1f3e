"""The pipeline that is killed while what waits in it settles by the bounds of two topics' partitions."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

BROKER = os.environ["CRASH_KAFKA"]
TABLES = Path(os.environ["CRASH_WORK"], "out.db")


def read(topic: str) -> hf.Stream:
    """Read a topic; what has been silent for long holds nobody back."""
    return hf.read.kafka(
        BROKER,
        topic,
        schema="k STRING, t BIGINT, id BIGINT",
        timestamp="t",
        disorder=3,
        idle_after="400 ms",
        max_rows_per_epoch=60,
        name=topic,
    )


left, right = read("left"), read("right")
both = hf.sync({"left": left, "right": right}, by="k", timestamps="ascending", name="both")
merged = hf.merge(left, {"right": right}, by="k", name="merged")
paired = hf.join(left, right, on="k", within=(0, 5), name="paired")
TABLES_OF = {
    "sets": both | hf.select("k", "timestamp AS t", "left.id[0] AS l", "right.id[0] AS r", name="sets"),
    "seen": merged | hf.select("k", "t", "id AS l", "right.id AS r", name="seen"),
    "pairs": paired | hf.select("k", "joined_time AS t", "id AS l", "id_right AS r", name="pairs"),
}
pipeline = hf.Pipeline(
    "bounds",
    *[rows | hf.write.sqlite(TABLES, table=name, name=f"{name}_table") for name, rows in TABLES_OF.items()],
)
