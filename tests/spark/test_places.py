"""Sources that change places in Spark's plan: which position is whose is known all the same (design/0052)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.spark.spark_versions import running
from tests.spark.running import arrive, sqlite_rows

pytestmark = pytest.mark.spark


def source_of(work: Path, name: str) -> Any:
    rows = hf.read.files(str(work / name), schema="id BIGINT", max_rows_per_epoch=2, name=name)
    # Of a kind that only Spark evaluates: else sources are read in an order of Holdfast's.
    return rows | hf.sql("SELECT id, typeof(id) AS kind FROM input", name=f"{name}_sql")


def pipeline_of(work: Path, *names: str) -> hf.Pipeline:
    united = hf.union(*[source_of(work, name) for name in names], name="both") if len(names) > 1 else None
    rows = source_of(work, names[0]) if united is None else united
    return hf.Pipeline("placed", rows | hf.write.sqlite(str(work / "out.db"), table="rows", name="table"))


@pytest.mark.parametrize("changes", [[("a", "b"), ("b", "a"), ("a", "b")], [("b",), ("a", "b"), ("b",), ("b", "a")]])
def test_sources_change_places_come_and_go(spark: SparkSession, tmp_path: Path, changes: list[Any]) -> None:
    expected: list[int] = []
    pending: dict[str, list[int]] = {"a": [], "b": []}
    for number, names in enumerate(changes):
        for offset, name in enumerate(("a", "b")):
            ids = [1000 * number + 100 * offset + at for at in range(5)]
            arrive(tmp_path / name, f"{number}.json", [{"id": each} for each in ids])
            pending[name] += ids
        for name in names:
            expected += pending.pop(name)
            pending[name] = []
        pipeline_of(tmp_path, *names).run(checkpoint=tmp_path / "ckpt", trigger=hf.available_now(), session=spark)
        assert sqlite_rows(tmp_path / "out.db") == sorted(expected)
    directories = sorted(path.name for path in (tmp_path / "ckpt" / "spark").iterdir())
    if not running().names_sources:
        assert directories[-1] == str(len(changes)), "each change has begun one"


def test_a_run_that_ends_where_there_is_no_more_has_read_what_there_was_in_several_epochs(
    spark: SparkSession, tmp_path: Path
) -> None:
    arrive(tmp_path / "a", "0.json", [{"id": at} for at in range(9)])
    pipeline = pipeline_of(tmp_path, "a")
    run = pipeline.run(checkpoint=tmp_path / "ckpt", trigger=hf.available_now(), session=spark)
    assert sqlite_rows(tmp_path / "out.db") == list(range(9))
    assert run.status().epoch >= 5
    run = pipeline.run(checkpoint=tmp_path / "ckpt", trigger=hf.available_now(), session=spark)
    assert sqlite_rows(tmp_path / "out.db") == list(range(9))
