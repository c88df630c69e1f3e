"""A row that waits for a column is no poison: the search for rows that kill runs leaves it to the schema file.

Design/0013, section 4, and design/0055.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import BadRow
from holdfast.quarantine.dead_letters import read_letters
from holdfast.store.local import LocalStore
from tests.spark.running import sqlite_rows
from tests.spark.test_poison import SETTINGS

pytestmark = pytest.mark.spark


def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 3 in batch.column("v").to_pylist():
        raise ValueError("3 is poison")
    return batch.select(["v"])


def pipeline(work: Path, on_new: Any = "add") -> hf.Pipeline:
    given = hf.read.files(work / "in", schema=work / "row.ddl", on_new_column=on_new, name="given")
    rows = given | hf.map_batches(refuse, "v BIGINT", name="refused")
    return hf.Pipeline("waiting", rows | hf.write.sqlite(work / "out.db", table="rows", name="table"))


def write(work: Path, *texts: str) -> None:
    (work / "in").mkdir()
    (work / "row.ddl").write_text("v BIGINT")
    for at, text in enumerate(texts):
        (work / "in" / f"{at}.json").write_text(text)
        os.utime(work / "in" / f"{at}.json", (at, at))


def run(work: Path, spark: SparkSession, on_new: str = "add") -> str:
    """Return what a start, with the pipeline built anew, ends with; empty where it reads everything."""
    try:
        pipeline(work, on_new).run(
            checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark, settings=SETTINGS
        )
    except BadRow as error:
        return str(error)
    return ""


def check_that_only_the_poison_is_left_out(work: Path, last: int) -> None:
    letters = read_letters(LocalStore(str(work / "checkpoint")))
    assert [one.table.to_pylist()[0]["v"] for one in letters] == [3]
    assert (work / "row.ddl").read_text() == "v BIGINT,\ntip BIGINT,\nnote STRING\n"
    assert sqlite_rows(work / "out.db", "SELECT v FROM rows") == [1, *range(4, last + 1)]


def test_stops_for_columns_are_not_counted_as_runs_that_died(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(
        tmp_path,
        '{"v": 1}\n{"v": 3}\n{"v": 4}\n',
        '{"v": 5}\n{"v": 6, "tip": 1}\n' + "".join(f'{{"v": {at}}}\n' for at in range(7, 5000)),
        '{"v": 5000, "tip": 2, "note": "a"}\n',
    )
    assert "has the column tip BIGINT now" in run(tmp_path, spark)
    assert "has the column note STRING now" in run(tmp_path, spark)
    assert "3 is poison" in run(tmp_path, spark)
    assert not [each for each in caplog.messages if "died in epoch" in each]
    assert run(tmp_path, spark) == ""
    assert [each for each in caplog.messages if "1 runs in a row have died in epoch 1" in each]
    check_that_only_the_poison_is_left_out(tmp_path, 5000)


def test_a_search_that_meets_a_row_that_waits_for_a_column_adds_it(spark: SparkSession, tmp_path: Path) -> None:
    """The run that died had left such members out: the search is the first that does not."""
    write(tmp_path, '{"v": 1}\n{"v": 3}\n', '{"v": 4, "tip": 1}\n', '{"v": 5, "note": "a"}\n')
    assert "3 is poison" in run(tmp_path, spark, "ignore")
    assert "has the column tip BIGINT now" in run(tmp_path, spark)
    assert "has the column note STRING now" in run(tmp_path, spark)
    assert run(tmp_path, spark) == ""
    check_that_only_the_poison_is_left_out(tmp_path, 5)
