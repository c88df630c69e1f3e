"""Rows with members that are no column are counted, and the members named (design/0055), whoever evaluates."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.config import Settings
from holdfast.connectors import memory

pytestmark = pytest.mark.spark

ROWS = """\
{"id": 1}
{"id": 2, "tip": 5.5, "vip": true}
{"id": "x", "tip": 1}
{"id": 3, "place": {"x": 1.0, "y": 2.0}}
{"id": 4, "tip": null}
"""


@pytest.mark.parametrize("columnar", [True, False])
def test_rows_with_new_members_are_counted_and_the_members_named(
    tmp_path: Path, spark: SparkSession, columnar: bool
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text(ROWS)
    rides = hf.read.files(
        str(tmp_path / "in"),
        schema="id BIGINT, place STRUCT<x: DOUBLE>",
        on_bad_row="reject",
        on_new_column="rescue",
        name="rides",
    )
    out = rides | hf.select("id", rescued="_rescued", name="shown") | hf.write.memory(f"rescued_{columnar}")
    run = hf.Pipeline("rescued", out).run(
        checkpoint=str(tmp_path / "cp"),
        trigger=hf.available_now(),
        session=spark,
        settings=Settings(columnar=columnar),
    )
    assert memory.rows(f"rescued_{columnar}").to_pylist() == [
        {"id": 1, "rescued": None},
        {"id": 2, "rescued": '{"tip":5.5,"vip":true}'},
        {"id": 3, "rescued": '{"place":{"y":2.0}}'},
        {"id": 4, "rescued": '{"tip":null}'},
    ]
    (source,) = run.status().sources
    assert (source.rows, source.rejects, source.rescued) == (5, 1, 3)
    assert source.reasons["rescued"] == {"tip": 2, "vip": 1, "place.*": 1}
