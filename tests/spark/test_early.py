"""``write.foreach_batch(send="early")`` on Spark: rows before the decision, and the same ones again after a death."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.errors import HoldfastError
from tests.spark.running import MODES, die_at, sqlite_rows

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("mode", MODES)
def test_a_function_gets_epochs_before_they_are_decided_and_again_if_they_never_were(
    tmp_path: Path, spark: SparkSession, mode: str
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("".join(json.dumps({"id": number * 10 + i}) + "\n" for i in range(10)))
        os.utime(path, (number, number))
    calls: list[tuple[int, bool]] = []
    target: dict[str, int] = {}
    ledger = tmp_path / "checkpoint/ledger"

    def save(df: Any, epoch: int) -> None:
        calls.append((epoch, any(ledger.glob(f"{epoch:012}-*"))))
        target.update({row["row_id"]: row["id"] for row in df.collect()})

    def run() -> None:
        files = hf.read.files(tmp_path / "in", format="json", schema="id BIGINT", max_files_per_epoch=1, name="given")
        rows = files | hf.row_id()
        pipeline = hf.Pipeline(
            "early",
            rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"),
            rows | hf.write.foreach_batch(save, idempotent=True, send="early", name="index"),
        )
        options: dict[str, Any] = {"trigger": hf.available_now(), "session": spark, "settings": MODES[mode]}
        pipeline.run(checkpoint=str(tmp_path / "checkpoint"), **options)

    die_at("after-decide", 2)
    with pytest.raises(HoldfastError):
        run()
    faults.install(None)
    assert calls == [(1, False), (2, False)]
    assert sorted(target.values()) == list(range(20))
    assert sqlite_rows(tmp_path / "out.db") == list(range(10))
    run()
    assert calls == [(1, False), (2, False), (2, True), (3, False)]
    assert sorted(target.values()) == sqlite_rows(tmp_path / "out.db") == list(range(30))
