"""The pipeline that is killed with generators downstream of a fan-out: orders, their lines, and two rows of each."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])

orders = hf.read.files(
    WORK / "orders",
    format="json",
    schema="id BIGINT, lines ARRAY<STRING>",
    max_files_per_epoch=1,
    name="orders",
)
exploded = orders | hf.sql("select id, i, line from input lateral view posexplode(lines) as i, line", name="exploded")
stacked = orders | hf.select("id", "stack(2, id, -id) as v", name="stacked")
plain = orders | hf.select("id", name="plain")
pipeline = hf.Pipeline(
    "exploding",
    exploded | hf.write.sqlite(WORK / "out.db", table="lines", name="lines_table"),
    stacked | hf.write.sqlite(WORK / "stacked.db", table="stacked", name="stacked_table"),
    plain | hf.write.sqlite(WORK / "plain.db", table="orders", name="orders_table"),
)
