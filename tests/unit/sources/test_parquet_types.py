"""Every type that a Parquet file can have: read with its values, or refused by the column's name."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import BadRow
from holdfast.types.schema import to_arrow
from tests.unit.sources.reading import everything, rejected, source_over

pytestmark = pytest.mark.slow

ONE = UUID("00112233-4455-6677-8899-aabbccddeeff")
NEVER = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
FIRST = dt.datetime(1, 1, 1)
UTC = dt.UTC


def decimals(kind: pa.DataType) -> pa.Array:
    return pa.array([Decimal("1.5"), None], kind)


DECIMALS = pa.array([Decimal(n * 7_001 + 3) / 10_000 for n in range(1_000)], pa.decimal128(15, 4))
"""Most of them lie between two doubles."""

READ: list[tuple[str, pa.Array, str, list[Any]]] = [
    ("uuid", pa.array([ONE.bytes, None], pa.uuid()), "STRING", [str(ONE), None]),
    ("uuid as bytes", pa.array([ONE.bytes, None], pa.uuid()), "BINARY", [ONE.bytes, None]),
    ("json", pa.array(['{"a": 1}', None], pa.json_()), "STRING", ['{"a": 1}', None]),
    ("vector", pa.array([[1.5, 2.5], None], pa.list_(pa.float32(), 2)), "ARRAY<FLOAT>", [[1.5, 2.5], None]),
    ("vectors", pa.array([[[1], [2]], None], pa.list_(pa.list_(pa.int8(), 1))), "ARRAY<ARRAY<INT>>",
     [[[1], [2]], None]),
    ("tensor", pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2]),
                                              pa.array([[1.5, 2.5]], pa.list_(pa.float32(), 2))),
     "ARRAY<DOUBLE>", [[1.5, 2.5]]),
    ("string view", pa.array(["é", None], pa.string_view()), "STRING", ["é", None]),
    ("binary view", pa.array([b"\xff", None], pa.binary_view()), "BINARY", [b"\xff", None]),
    ("large string", pa.array(["x"], pa.large_string()), "STRING", ["x"]),
    ("large binary", pa.array([b"x"], pa.large_binary()), "BINARY", [b"x"]),
    ("text without its annotation", pa.array([b"\xc3\xa9", None]), "STRING", ["é", None]),
    ("text as bytes", pa.array(["é"]), "BINARY", [b"\xc3\xa9"]),
    ("fixed binary", pa.array([b"abc"], pa.binary(3)), "BINARY", [b"abc"]),
    ("dictionary", pa.array(["x", None, "x"]).dictionary_encode(), "STRING", ["x", None, "x"]),
    ("list of dictionaries", pa.ListArray.from_arrays([0, 2, 3], pa.array(["x", None, "x"]).dictionary_encode()),
     "ARRAY<STRING>", [["x", None], ["x"]]),
    ("float16", pa.array([1.5, None], pa.float16()), "FLOAT", [1.5, None]),
    ("float16 as double", pa.array([1.5, None], pa.float16()), "DOUBLE", [1.5, None]),
    ("uint8", pa.array([255], pa.uint8()), "SMALLINT", [255]),
    ("uint8 in range", pa.array([127], pa.uint8()), "TINYINT", [127]),
    ("uint16", pa.array([2**16 - 1], pa.uint16()), "INT", [2**16 - 1]),
    ("uint32", pa.array([2**32 - 1], pa.uint32()), "BIGINT", [2**32 - 1]),
    ("uint64", pa.array([2**64 - 1], pa.uint64()), "DECIMAL(20, 0)", [Decimal(2**64 - 1)]),
    ("uint64 in range", pa.array([2**63 - 1], pa.uint64()), "BIGINT", [2**63 - 1]),
    ("integer as a small decimal", pa.array([7, None], pa.int64()), "DECIMAL(5, 2)", [Decimal("7.00"), None]),
    ("decimal as the nearest double", DECIMALS, "DOUBLE", [float(one) for one in DECIMALS.to_pylist()]),
    ("decimals in lists", pa.array([DECIMALS.to_pylist()]), "ARRAY<DOUBLE>",
     [[float(one) for one in DECIMALS.to_pylist()]]),
    ("wide decimal as double", pa.array([Decimal("0." + "3" * 60)], pa.decimal256(60, 60)), "DOUBLE", [1 / 3]),
    ("decimal as the nearest float", pa.array([Decimal("16777217.0001"), None], pa.decimal128(15, 4)), "FLOAT",
     [16777218.0, None]),
    ("decimal32", decimals(pa.decimal32(5, 1)), "DECIMAL(5, 2)", [Decimal("1.50"), None]),
    ("decimal64", decimals(pa.decimal64(15, 1)), "DECIMAL(15, 1)", [Decimal("1.5"), None]),
    ("decimal128", decimals(pa.decimal128(38, 10)), "DECIMAL(38, 10)", [Decimal("1.5000000000"), None]),
    ("decimal256", decimals(pa.decimal256(60, 1)), "DECIMAL(38, 18)", [Decimal("1.5"), None]),
    ("38 digits", pa.array([Decimal("9" * 38)], pa.decimal128(38, 0)), "DECIMAL(38, 0)", [Decimal("9" * 38)]),
    ("date64", pa.array([dt.date(2020, 1, 1)], pa.date64()), "DATE", [dt.date(2020, 1, 1)]),
    ("seconds", pa.array([1], pa.timestamp("s")), "TIMESTAMP_NTZ", [dt.datetime(1970, 1, 1, 0, 0, 1)]),
    ("nanoseconds", pa.array([1999, -1], pa.timestamp("ns")), "TIMESTAMP_NTZ",
     [dt.datetime(1970, 1, 1, 0, 0, 0, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)]),
    ("map", pa.array([[("a", 1)], None, []], pa.map_(pa.large_string(), pa.uint8())), "MAP<STRING, INT>",
     [[("a", 1)], None, []]),
    ("large list", pa.array([[1], None, []], pa.large_list(pa.int8())), "ARRAY<INT>", [[1], None, []]),
    ("list view", pa.array([[1], None, []], pa.list_view(pa.int8())), "ARRAY<INT>", [[1], None, []]),
    ("nothing", pa.nulls(2), "STRUCT<a: INT>", [None, None]),
    ("list of nothing", pa.array([[None], None], pa.list_(pa.null())), "ARRAY<INT>", [[None], None]),
    ("struct", pa.StructArray.from_arrays(
        [pa.array([ONE.bytes, None], pa.uuid()), pa.array(["x", None], pa.string_view())], ["a", "b"],
        mask=pa.array([False, True])), "STRUCT<b: STRING, a: STRING>", [{"b": "x", "a": str(ONE)}, None]),
    ("opaque", pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "type", "vendor"), pa.array(["x"])), "STRING",
     ["x"]),
]  # fmt: skip

REFUSED: list[tuple[str, pa.Array, str]] = [
    ("clock time", pa.array([dt.time(1)], pa.time64("us")), "STRING"),
    ("uint64 beyond", pa.array([2**64 - 1], pa.uint64()), "BIGINT"),
    ("uint8 beyond", pa.array([255], pa.uint8()), "TINYINT"),
    ("39 digits", pa.array([Decimal("9" * 39)], pa.decimal256(39, 0)), "DECIMAL(38, 0)"),
    ("integer beyond a decimal", pa.array([1000], pa.int64()), "DECIMAL(5, 2)"),
    ("digits that would be lost", pa.array([Decimal("1.55")], pa.decimal64(15, 2)), "DECIMAL(15, 1)"),
    ("integer that is no double", pa.array([2**53 + 1]), "DOUBLE"),
    ("bytes that are no text", pa.array([b"\xff"]), "STRING"),
    ("text that is none", pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers()), "STRING"),
    ("such text in a list", pa.ListArray.from_arrays(
        [0, 1], pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())), "ARRAY<STRING>"),
    ("fixed bytes", pa.array([b"abc"], pa.binary(3)), "STRING"),
    ("duration beyond", pa.array([2**62], pa.duration("ms")), "INTERVAL DAY TO SECOND"),
    ("milliseconds beyond", pa.array([2**62], pa.timestamp("ms")), "TIMESTAMP"),
    ("byte for a boolean", pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())), "BOOLEAN"),
    ("day of 10000", pa.array([2_932_897], pa.int32()).view(pa.date32()), "DATE"),
    ("year 0 in a list of a map", pa.array([[("a", [-(2**62)])]], pa.map_(pa.string(), pa.list_(pa.timestamp("us")))),
     "MAP<STRING, ARRAY<TIMESTAMP>>"),
    ("a member that is not there", pa.array([{"a": 1}]), "STRUCT<b: BIGINT>"),
]  # fmt: skip


def named(cases: list[Any]) -> list[Any]:
    return [pytest.param(*rest, id=name) for name, *rest in cases]


@pytest.mark.parametrize("is_described", [True, False], ids=["by Arrow", "by others"])
@pytest.mark.parametrize(("held", "declared", "values"), named(READ))
def test_a_type_that_fits_is_read_with_its_values(
    tmp_path: Path, held: pa.Array, declared: str, values: list[Any], is_described: bool
) -> None:
    """Without Arrow's own schema in the file a reader has the logical types alone, as files of other writers do."""
    directory = written(tmp_path, pa.table({"v": held}), store_schema=is_described)
    assert [row["v"] for row in rows_of(tmp_path, directory, f"v {declared}")] == values


@pytest.mark.parametrize(("held", "declared"), named(REFUSED))
def test_a_value_that_does_not_fit_is_refused_by_the_name_of_its_column(
    tmp_path: Path, held: pa.Array, declared: str
) -> None:
    directory = written(tmp_path, pa.table({"odd one": held}))
    with pytest.raises(BadRow, match="column 'odd one' is declared"):
        rows_of(tmp_path, directory, f"`odd one` {declared}")
    (tmp_path / "workspace").rename(tmp_path / "former")
    (reject,) = rejected(rows_of(tmp_path, directory, f"`odd one` {declared}", on_bad_row="reject"))
    assert "'odd one'" in reject["reason"]


@pytest.mark.parametrize("declared", ["TIMESTAMP", "TIMESTAMP_NTZ"])
def test_int96_has_its_value_in_every_year(tmp_path: Path, declared: str) -> None:
    """In nanoseconds, Arrow's choice, the end of 9999 would be a day of 1816."""
    times = [
        NEVER,
        FIRST,
        dt.datetime(2262, 4, 12),
        dt.datetime(1677, 9, 21),
        dt.datetime(2020, 1, 2, 3, 4, 5, 6),
        None,
    ]
    table = pa.table({"v": pa.array(times, pa.timestamp("us")), "l": pa.array([[each] for each in times])})
    directory = written(tmp_path, table, use_deprecated_int96_timestamps=True)
    zone = UTC if declared == "TIMESTAMP" else None
    expected = [each and each.replace(tzinfo=zone) for each in times]
    rows = rows_of(tmp_path, directory, f"v {declared}, l ARRAY<{declared}>")
    assert rows == [{"v": each, "l": [each]} for each in expected]


@pytest.mark.parametrize("nested", [False, True])
def test_int96_beyond_the_microseconds_is_refused_and_not_another_time(tmp_path: Path, nested: bool) -> None:
    """In microseconds, which begin again after 584,554 years, it would be a day of 2023."""
    far = pa.array([2**64 // 1_000_000 + 1_700_000_000], pa.timestamp("s"))
    column = pa.ListArray.from_arrays([0, 1], far) if nested else far
    directory = written(tmp_path, pa.table({"v": column, "n": [1]}), use_deprecated_int96_timestamps=True)
    with pytest.raises(BadRow, match="column 'v': a value is outside"):
        rows_of(tmp_path, directory, "v ARRAY<TIMESTAMP>" if nested else "v TIMESTAMP")
    (tmp_path / "workspace").rename(tmp_path / "former")
    assert rows_of(tmp_path, directory, "n BIGINT") == [{"n": 1}]


@pytest.mark.parametrize("mark", [{"org.apache.spark.legacyDateTime": ""}, {"org.apache.spark.version": "2.4.8"}])
@pytest.mark.parametrize(
    ("early", "late"),
    [
        (dt.date(1582, 10, 14), dt.date(1582, 10, 15)),
        (dt.datetime(1899, 12, 31, 23), dt.datetime(1900, 1, 1)),
    ],
)
def test_days_of_the_julian_calendar_are_refused_and_not_read_as_others(
    tmp_path: Path, mark: dict[str, str], early: dt.date, late: dt.date
) -> None:
    """Spark, asked for its older calendar, writes 0100-01-01 as a number that is 0099-12-30 to others."""
    declared = "DATE" if type(early) is dt.date else "TIMESTAMP"
    held = pa.array([early, late]).type
    forms: list[tuple[str, pa.DataType, str, Any]] = [
        ("v", held, declared, lambda one: one),
        ("l", pa.list_(pa.struct([("v", held)])), f"ARRAY<STRUCT<v: {declared}>>", lambda one: [{"v": one}]),
        ("m", pa.map_(pa.string(), held), f"MAP<STRING, {declared}>", lambda one: [("a", one)]),
    ]
    for name, kind, ddl, form in forms:
        for number, (value, metadata) in enumerate([(early, {}), (late, mark), (early, mark)]):
            column = pa.array([form(value), None], kind)
            place = tmp_path / f"{name}{number}"
            directory = written(place, pa.table({name: column}).replace_schema_metadata(metadata))
            if number < 2:
                assert len(rows_of(place, directory, f"{name} {ddl}")) == 2
                continue
            with pytest.raises(BadRow, match=f"column '{name}' has a time before .* Julian calendar"):
                rows_of(place, directory, f"{name} {ddl}")


def test_a_duration_is_read_where_arrow_describes_it_and_else_is_a_number(tmp_path: Path) -> None:
    """Parquet itself has no type for it."""
    table = pa.table({"v": pa.array([5, None], pa.duration("s"))})
    directory = written(tmp_path, table)
    rows = rows_of(tmp_path, directory, "v INTERVAL DAY TO SECOND")
    assert [row["v"] for row in rows] == [dt.timedelta(seconds=5), None]
    other = written(tmp_path / "other", table, store_schema=False)
    with pytest.raises(BadRow, match="column 'v' is declared"):
        rows_of(tmp_path / "other", other, "v INTERVAL DAY TO SECOND")


def test_decimals_are_read_however_they_are_stored(tmp_path: Path) -> None:
    table = pa.table({"a": decimals(pa.decimal128(9, 1)), "b": decimals(pa.decimal128(18, 1))})
    directory = written(tmp_path, table, store_decimal_as_integer=True)
    stored = pq.ParquetFile(directory / "file.parquet").schema
    assert [stored.column(at).physical_type for at in range(2)] == ["INT32", "INT64"]
    (row, _) = rows_of(tmp_path, directory, "a DECIMAL(9, 1), b DECIMAL(18, 2)")
    assert row == {"a": Decimal("1.5"), "b": Decimal("1.50")}


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_a_part_of_a_row_group_has_its_own_nested_values(tmp_path: Path, rows: int) -> None:
    """A batch that begins within a row group has offsets of its own."""
    values = [None if n % 5 == 0 else list(range(n % 3)) for n in range(100)]
    table = pa.table({
        "vector": pa.array([None if n % 7 == 0 else [n, n + 1] for n in range(100)], pa.list_(pa.int8(), 2)),
        "list": pa.array(values, pa.large_list(pa.int8())),
        "map": pa.array([of and [(str(n), n) for n in of] for of in values], pa.map_(pa.large_string(), pa.int8())),
        "id": pa.array([None if n % 3 == 0 else struct.pack(">QQ", 0, n) for n in range(100)], pa.uuid()),
    })  # fmt: skip
    directory = written(tmp_path, table, row_group_size=60)
    schema = "vector ARRAY<INT>, list ARRAY<INT>, map MAP<STRING, INT>, id STRING"
    found = rows_of(tmp_path, directory, schema, max_rows_per_epoch=rows * 4)
    expected = [{**row, "id": row["id"] and str(row["id"])} for row in table.to_pylist()]
    assert found == expected


def test_the_schema_of_a_file_may_be_the_declared_one(tmp_path: Path) -> None:
    table = pa.table({name.replace(" ", "_"): held.slice(0, 1) for name, held, *_ in READ if name not in UNDECLARED})
    directory = written(tmp_path, table)
    declared = to_arrow(pq.read_schema(directory / "file.parquet"))
    source = source_over(directory, tmp_path / "workspace", declared, format="parquet")
    (row,) = everything(source)
    assert row["uuid"] == str(ONE)
    assert row["uint64"] == Decimal(2**64 - 1)
    assert row["vector"] == [1.5, 2.5]


UNDECLARED = ("nothing", "list of nothing", "decimal256", "wide decimal as double")


def written(tmp_path: Path, table: pa.Table, **options: Any) -> Path:
    directory = tmp_path / "in"
    directory.mkdir(parents=True)
    pq.write_table(table, directory / "file.parquet", **options)
    return directory


def rows_of(tmp_path: Path, directory: Path, schema: str, **options: Any) -> list[dict[str, Any]]:
    return everything(source_over(directory, tmp_path / "workspace", schema, format="parquet", **options))
