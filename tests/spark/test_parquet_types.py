"""A Parquet file with every type, through Arrow and through Spark, into sinks: the same values (design/0004, 5)."""

from __future__ import annotations

import datetime as dt
import sqlite3
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors import memory
from holdfast.types.plain import json_text
from tests.spark.running import STAGED
from tests.unit.sources.test_parquet_types import FIRST, NEVER, READ

pytestmark = pytest.mark.spark

CASES = [(name.replace(" ", "_"), held, kind, values) for name, held, kind, values in READ] + [
    ("int96", pa.array([NEVER, FIRST], pa.timestamp("us")), "TIMESTAMP_NTZ", [NEVER, FIRST]),
    ("an_instant", pa.array([NEVER], pa.timestamp("us")), "TIMESTAMP", [NEVER.replace(tzinfo=dt.UTC)]),
]


@pytest.mark.parametrize("columnar", [True, False], ids=["in Arrow", "through Spark"])
def test_every_type_of_parquet_reaches_every_sink_with_its_values(
    columnar: bool, spark: SparkSession, tmp_path: Path
) -> None:
    table = pa.table({name: pa.concat_arrays([held, pa.nulls(3, held.type)])[:3] for name, held, *_ in CASES})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "all.parquet", use_deprecated_int96_timestamps=True)
    schema = ", ".join(f"{name} {kind}" for name, _, kind, _ in CASES)
    source = hf.read.files(str(tmp_path / "in"), format="parquet", schema=schema, name="all")
    name = f"kept_{uuid.uuid4().hex[:8]}"
    pipeline = hf.Pipeline(
        "p",
        source | hf.write.memory(name),
        source | hf.write.files(str(tmp_path / "parquet"), name="parquet"),
        source | hf.write.files(str(tmp_path / "json"), format="json", name="json"),
        source | hf.write.segments(str(tmp_path / "segments"), name="segments"),
        source | hf.write.sqlite(str(tmp_path / "t.db"), table="t", name="sqlite"),
    )
    pipeline.run(
        checkpoint=str(tmp_path / "checkpoint"),
        trigger=hf.available_now(),
        session=spark,
        settings=STAGED.model_copy(update={"columnar": columnar}),
    )
    expected = [{name: (values + [None] * 3)[at] for name, _, _, values in CASES} for at in range(3)]
    rows = memory.rows(name)
    assert rows.to_pylist() == expected
    assert pq.read_table(tmp_path / "parquet").to_pylist() == expected
    assert hf.files.open(tmp_path / "json").to_arrow().to_pylist() == expected
    assert hf.segments.open(tmp_path / "segments").to_arrow().to_pylist() == expected
    nested = [name for name, kind in zip(rows.schema.names, rows.schema.types, strict=True) if pa.types.is_nested(kind)]
    texts = {name: json_text(rows[name].combine_chunks()).to_pylist() for name in nested}
    with sqlite3.connect(tmp_path / "t.db") as connection:
        found = [dict(zip(rows.schema.names, each, strict=True)) for each in connection.execute("SELECT * FROM t")]
    assert {name: [row[name] for row in found] for name in nested} == texts
    plain = ["uuid", "json", "string_view", "float16", "uint32", "38_digits", "int96"]
    assert [str(found[0][name]) for name in plain] == [str(expected[0][name]) for name in plain]
