"""The pipeline that is killed while its table is another one at every load: totals of what each order found there."""

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
ticking = "SELECT 'tea' AS product, CAST((julianday('now') - 2460000) * 86400000 AS INTEGER) AS price"
prices = hf.lookup_table.sqlite(WORK / "prices.db", ticking)
priced = hf.lookup(orders, prices, on="product", how="inner", refresh="1 ms", name="priced")
totals = priced | hf.accumulate(by="product", total=hf.sum("price"), name="totals")
pipeline = hf.Pipeline("totalled", totals | hf.write.sqlite(WORK / "out.db", table="rows", name="table"))
