"""The pipeline of a join of changes that the process tests kill: what holds in two streams, and an aggregate of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])

bids = hf.read.files(
    WORK / "bids", format="json", schema="auction BIGINT, t BIGINT, seller BIGINT, price BIGINT",
    max_files_per_epoch=1, name="bids",
)  # fmt: skip
people = hf.read.files(
    WORK / "people", format="json", schema="person BIGINT, t BIGINT, city STRING", max_files_per_epoch=1, name="people"
)
told: dict[str, Any] = {"delete": "is_deleted"}
best = bids | hf.reduce(by="auction", seller=hf.max_by("seller", "t"), price=hf.max("price"), **told, name="best")
homes = people | hf.reduce(by="person", city=hf.max_by("city", "t"), **told, name="homes")
sold = hf.join(best, homes, on={"seller": "person"}, how="left", **told, name="sold")
known = sold | hf.filter("city IS NOT NULL", name="known")
cities = known | hf.reduce(by="city", auctions=hf.count(), total=hf.sum("price"), **told, name="cities")
held: dict[str, Any] = {"mode": "upsert", **told}

pipeline = hf.Pipeline(
    "joined_changes",
    sold | hf.write.sqlite(WORK / "sold.db", table="sold", key="auction", name="sold_table", **held),
    cities | hf.write.sqlite(WORK / "cities.db", table="cities", key="city", name="cities_table", **held),
)
