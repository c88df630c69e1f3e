"""Columns in the names of directories: read with the declared types, whatever the format, and next to bad rows."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import read
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.ports import Carried, EpochRecord, Publication, RunIdentity
from tests.unit.sources.reading import everything, good, rejected, source_over

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("text", pa.string()), ("id", pa.int64()), ("day", pa.date32()), ("price", pa.decimal128(9, 2)),
                    ("flag", pa.bool_()), ("at", pa.timestamp("us", "UTC"))])  # fmt: skip
ROWS = [
    {"text": "007", "id": 1, "day": dt.date(2026, 1, 2), "price": Decimal("1.50"), "flag": True,
     "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)},
    {"text": "7", "id": 2, "day": None, "price": None, "flag": None, "at": None},
    {"text": "a/b=c%", "id": 3, "day": dt.date(1, 1, 1), "price": Decimal("-7.00"), "flag": False,
     "at": dt.datetime(1969, 12, 31, tzinfo=dt.UTC)},
]  # fmt: skip
DDL = "text STRING, id BIGINT, day DATE, price DECIMAL(9, 2), flag BOOLEAN, at TIMESTAMP"


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("options", [{}, {"max_rows_per_epoch": 1}, {"on_bad_row": "reject"}])
@pytest.mark.parametrize("format", ["parquet", "json"])
@pytest.mark.parametrize("partition_by", [("text",), ("day", "price"), ("text", "day", "price", "flag", "at")])
def test_what_write_files_has_written_is_read_as_it_was(
    tmp_path: Path, format: Any, partition_by: tuple[str, ...], options: dict[str, Any]
) -> None:
    sink = FilesSinkSpec(str(tmp_path / "out"), format=format, partition_by=partition_by).connect("out", "p", SCHEMA)
    expected = sink.open(RunIdentity("p", 1))
    rows = Carried(pa.Table.from_pylist(ROWS, SCHEMA))
    sink.publish([Publication(EpochRecord("p", 1, 1, {"s": {"log": 1}}), (rows,))], expected)
    source = source_over(tmp_path / "out", tmp_path / "w", DDL, format=format, partition_by=partition_by, **options)
    found = everything(source)
    assert by_id(good(found) if options.get("on_bad_row") else found) == ROWS


def test_csv_has_the_columns_of_its_header_and_of_its_directory(tmp_path: Path) -> None:
    for text in ("007", "7"):
        (tmp_path / "in" / f"text={text}").mkdir(parents=True)
        (tmp_path / "in" / f"text={text}" / "a.csv").write_text("id\n1\nx\n2\n")
    options: dict[str, Any] = {"format": "csv", "partition_by": "text", "on_bad_row": "reject"}
    found = everything(source_over(tmp_path / "in", tmp_path / "w", "id INT, text STRING", **options))
    assert sorted((row["text"], row["id"]) for row in good(found)) == [("007", 1), ("007", 2), ("7", 1), ("7", 2)]
    assert [one["position"] for one in rejected(found)] == ["a.csv:3", "a.csv:3"]
    assert all(row["text"] is None for row in found if row["id"] is None)


@pytest.mark.parametrize(
    ("directory", "schema", "reason"),
    [
        ("n=many", "id INT, n INT", "does not fit its column"),
        ("m=1", "id INT, n INT", "no directory above it is named n="),
        ("n=__HIVE_DEFAULT_PARTITION__", "id INT, n INT NOT NULL", "'n' is declared NOT NULL"),
    ],
)
@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_directory_without_a_value_makes_bad_files_and_no_nulls(
    tmp_path: Path, directory: str, schema: str, reason: str, format: Any
) -> None:
    for name, number in ((directory, 1), ("n=2", 2)):
        (tmp_path / "in" / name).mkdir(parents=True)
        path = tmp_path / "in" / name / f"a.{format}"
        if format == "parquet":
            pq.write_table(pa.table({"id": [number]}), path)
        else:
            path.write_text(json.dumps({"id": number}))
    options = {"format": format, "partition_by": ["n"]}
    with pytest.raises(BadRow, match=reason):
        everything(source_over(tmp_path / "in", tmp_path / "w", schema, **options))
    found = everything(source_over(tmp_path / "in", tmp_path / "v", schema, on_bad_row="reject", **options))
    assert good(found) == [{"id": 2, "n": 2}]
    (reject,) = rejected(found)
    assert reason in reject["reason"]


def test_row_ids_are_those_of_the_files_rows(tmp_path: Path) -> None:
    """The numbers count what is in the files, in a good directory as in a bad one."""
    for name in ("n=1", "n=x"):
        (tmp_path / "in" / name).mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "in" / name / "a.parquet")
    options: dict[str, Any] = {"format": "parquet", "partition_by": ["n"], "on_bad_row": "reject"}
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT, n INT", **options)
    end = source.latest(source.initial(), bounded=False)
    numbered = [
        each for span in source.spans(source.initial(), end, parallelism=1) for each in source.read_numbered(span)
    ]
    runs = [(run.place, run.numbers.tolist(), batch.num_rows) for (run,), batch in numbered]
    assert sorted(runs) == [("n=1/a.parquet", [0, 1], 2), ("n=x/a.parquet", [0], 1)]


def test_the_argument_is_checked_and_changes_no_graph_without_it() -> None:
    for wrong, schema in (("n", "id INT"), ("x", "id INT, x DOUBLE"), (("id",), "id INT")):
        with pytest.raises(InvalidPipeline, match="partition_by"):
            read.files("in", schema=schema, partition_by=wrong, name="source")
    assert "partition_by" not in read.files("in", schema="id INT", name="source").node.spec.arguments()
    spec = read.files("in", schema="id INT, n INT", partition_by="n", name="source").node.spec
    assert spec.arguments()["partition_by"] == ["n"]
