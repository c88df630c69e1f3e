"""The stateful pipeline that the process tests kill: two operators in sequence, a fan-out behind state, late rows."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf
from tests.spark.counting import counting

WORK = Path(os.environ["CRASH_WORK"])
DB = WORK / "out.db"

given = hf.read.files(
    WORK / "in", format="json", schema="k STRING, v BIGINT", max_files_per_epoch=1, bounded=True, name="given"
)
first = counting(given, name="first")
many = first | hf.filter("n > 3", name="many")
second = counting(many, name="second")
pipeline = hf.Pipeline(
    "stateful",
    first | hf.write.sqlite(DB, table="first", name="first_table"),
    many | hf.select("k", "n", name="chosen") | hf.write.files(WORK / "many", name="many_files"),
    second | hf.write.sqlite(DB, table="second", name="second_table"),
    first.late | hf.write.sqlite(DB, table="late", name="late_table"),
)
