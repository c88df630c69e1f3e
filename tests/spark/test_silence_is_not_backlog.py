"""``idle_after`` counts silence and no backlog: a source that is read slowly is not silent."""

from __future__ import annotations

import bisect
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors import memory
from tests.spark.running import arrive, eventually

pytestmark = pytest.mark.spark

KEYS, TIMES = 5, 200
SCHEMA = "k STRING, t BIGINT, v BIGINT"


def slowed(batch: Any) -> Any:
    """Return the batch after a while: an epoch takes its time, as with a model or a slow sink."""
    import time

    time.sleep(0.3)
    return batch


@pytest.mark.nightly
def test_a_partner_that_was_delivered_is_found_however_slowly_its_source_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [{"k": f"k{k}", "t": 10 * t, "v": t} for t in range(TIMES) for k in range(KEYS)]
    arrive(tmp_path / "slow", "0.json", rows)
    arrive(tmp_path / "main", "0.json", [{**row, "t": row["t"] + 5} for row in rows])

    def source(name: str, limit: int) -> hf.Stream:
        return hf.read.files(str(tmp_path / name), schema=SCHEMA, timestamp="t", max_rows_per_epoch=limit, name=name)

    slow = source("slow", 150) | hf.map_batches(slowed, SCHEMA, name="slowed")
    seen = hf.merge(source("main", 1000), {"slow": slow}, by="k", idle_after="1 s", name="seen")
    pipeline = hf.Pipeline(
        "backlog",
        seen | hf.write.memory("backlog_seen"),
        seen.late | hf.write.memory("backlog_late"),
    )
    checkpoint = tmp_path / "checkpoint"
    run = pipeline.start(checkpoint=str(checkpoint), trigger=hf.every("20 ms"), session=spark)
    try:
        eventually(
            lambda: len(memory.rows("backlog_seen")) == len(rows) or run.wait(timeout_s=0),
            within_s=400,
            what="every main row",
        )
        epochs = run.status().epoch
        time.sleep(3)  # nothing may come of any epoch now, so there must be none
        assert run.status().epoch - epochs <= 1
    finally:
        run.stop()
    found = memory.rows("backlog_seen").to_pylist()
    assert len(found) == len(rows)
    times = [10 * t for t in range(TIMES)]  # of the slow rows, for every key: an as-of merge of our own
    wrong = [
        row
        for row in found
        if row["slow"] is None or row["slow"]["t"] != times[bisect.bisect_right(times, row["t"]) - 1]
    ]
    assert wrong == [], f"{len(wrong)} of {len(found)} rows without the partner that was delivered"
    assert memory.rows("backlog_late").num_rows == 0
    logged = [path.read_text() for path in (checkpoint / "spark" / "1" / "offsets").glob("[0-9]*")]
    assert any("behind_us" in text for text in logged), "what a replay decides by is logged with the epoch"
    assert any("given_us" in json.dumps(text) for text in logged)
