"""The pipeline with expectations that the process tests kill: one of each way, one after the other."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])
STOPS_AT = float(os.environ.get("CRASH_STOPS_AT", "1"))
"""The part of an epoch's rows that ``held`` lets fail."""

rides = hf.read.files(WORK / "in", format="json", schema="id BIGINT, speed BIGINT", max_files_per_epoch=1, name="rides")
held = (
    rides
    | hf.expect("speed >= 0", name="known")
    | hf.expect("speed < 1000", name="held", on_fail="stop", max_fraction=STOPS_AT)
)
valid = held | hf.expect("speed <= 120", name="valid", on_fail="reject", max_fraction=0.25)
kept = valid | hf.expect("id % 5 != 0", name="kept", on_fail="drop", max_fraction=0.5)
pipeline = hf.Pipeline(
    "expected",
    kept | hf.write.sqlite(WORK / "good.db", table="rows", name="good"),
    kept | hf.write.files(WORK / "files", name="files"),
    valid.rejects | hf.write.sqlite(WORK / "bad.db", table="rows", name="bad"),
)
