"""The pipeline that is killed while its table changes: orders with the price that their epoch saw."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])

orders = hf.read.files(
    WORK / "orders",
    format="json",
    schema="id BIGINT, product STRING, t BIGINT",
    timestamp="t",
    max_files_per_epoch=1,
    name="orders",
)
priced = hf.lookup(orders, WORK / "prices.parquet", on="product", how="inner", name="priced")
sinks = [priced | hf.write.sqlite(WORK / "out.db", table="rows", name="table")]
if os.environ.get("CRASH_STATE"):
    once = priced | hf.distinct("id", 10**6, name="once")
    again = hf.lookup(once, WORK / "prices.parquet", on="product", columns={"again": "price"}, name="behind")
    sinks = [again | hf.write.sqlite(WORK / "out.db", table="rows", name="table")]
pipeline = hf.Pipeline("looked_up", *sinks)
