"""CSV: declared types come out, quotes are obeyed, every bad record is found and named."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast import read
from holdfast.errors import BadRow, InvalidPipeline
from tests.unit.sources.reading import good, rejected, rows_of, source_over

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
CSV = {"format": "csv"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("declared", "written", "value"),
    [
        ("TIMESTAMP", "2024-01-01T12:00:00Z", NOON),
        ("TIMESTAMP", "2024-01-01 12:00:00", NOON),
        ("TIMESTAMP", "2024-01-01T13:00:00.000000900+01:00", NOON),
        ("TIMESTAMP_NTZ", "2024-01-01T12:00:00", NOON.replace(tzinfo=None)),
        ("DATE", "2024-01-01", date(2024, 1, 1)),
        ("DECIMAL(10,2)", "1.5", Decimal("1.50")),
        ("BOOLEAN", "true", True),
        ("DOUBLE", "1e3", 1000.0),
        ("STRING", "NA", "NA"),
        ("STRING", '""', ""),
        ("STRING", '"a ""b"", c"', 'a "b", c'),
        ("STRING", "", None),
        ("BIGINT", "", None),
    ],
)
def test_values_come_out_in_the_declared_type(tmp_path: Path, declared: str, written: str, value: Any) -> None:
    assert rows_of(tmp_path, f"id,v\n1,{written}\n", f"v {declared}, id INT", **CSV) == [{"v": value, "id": 1}]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n", []),
        ("a,b", []),
        ("b,c,a\nx,y,1\n", [(1, "x")]),
        ("\ufeffa,b\r\n1,x\r\n\r\n2,y", [(1, "x"), (2, "y")]),
        ('a,b\n1,"x\ny"\n\n2,"\n\n"\n', [(1, "x\ny"), (2, "\n\n")]),
        ('"a","b"\n1,5" pipe\n2,"x"\n', [(1, '5" pipe'), (2, "x")]),
    ],
)
def test_files_are_what_people_write(tmp_path: Path, text: str, rows: list[tuple[int, str]]) -> None:
    assert [(row["a"], row["b"]) for row in rows_of(tmp_path, text, "a INT, b STRING", **CSV)] == rows


def test_without_a_header_columns_are_taken_by_place(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "1;x\n2;y,z\n", "a INT, b STRING", header=False, separator=";", **CSV)
    assert [(row["a"], row["b"]) for row in rows] == [(1, "x"), (2, "y,z")]


@pytest.mark.parametrize("end", ["", "\n"])
def test_an_empty_last_field_is_null_with_and_without_a_last_line_end(tmp_path: Path, end: str) -> None:
    rows = rows_of(tmp_path, f'a,b,c\n1,"x",{end}', "a INT, b STRING, c STRING", **CSV)
    assert [(row["a"], row["b"], row["c"]) for row in rows] == [(1, "x", None)]


def test_a_record_of_the_greatest_size_stays_beside_a_bad_one(tmp_path: Path) -> None:
    options = {"on_bad_row": "reject", "max_record_size": "6 B", **CSV}
    rows = rows_of(tmp_path, 'a,b\n1\n"\n\n",2\n', "a STRING, b STRING", **options)
    assert [(row["a"], row["b"]) for row in good(rows)] == [("\n\n", "2")]
    assert [one["position"] for one in rejected(rows)] == ["file:2"]


BAD = {
    "1": "1 fields where 2",
    "1,x,y": "3 fields where 2",
    "z,x": "column 'a' is declared int32 (invalid value 'z')",
    '1,"x': "never closed",
    '1,"x"y': "closing quote",
    "1,x\r2,y": "carriage return",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_record_stops_with_file_line_and_reason(tmp_path: Path, line: str) -> None:
    with pytest.raises(BadRow) as error:
        rows_of(tmp_path, f'a,b\n1,"x\ny"\n{line}\n2,y\n', "a INT, b STRING", **CSV)
    assert "/in/file, line 4, cannot be read" in str(error.value)
    assert BAD[line] in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("line", BAD)
@pytest.mark.parametrize("block_size", ["20 B", "1 MB"])
def test_a_rejected_record_leaves_its_neighbours(tmp_path: Path, line: str, block_size: str) -> None:
    text = f'b,a\n"x\ny",7\n{",".join(reversed(line.split(","))) if line in ("z,x",) else line}\nz,2\n\n{"w,3"}\n'
    rows = rows_of(tmp_path, text, "a INT, b STRING", on_bad_row="reject", block_size=block_size, **CSV)
    if line in ("1,x\r2,y", "1", "1,x,y", "z,x"):
        assert [row["a"] for row in good(rows)] == [7, 2, 3]
    assert rejected(rows)[0]["position"] == "file:4"
    assert len(rejected(rows)) == 1


def test_a_value_in_a_wrong_column_is_named_by_its_column(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "x,t,n\n,noon,1\n,2024-01-01,q\n", "n INT, t TIMESTAMP", on_bad_row="reject", **CSV)
    assert "column 't'" in rejected(rows)[0]["reason"]
    assert "column 'n'" in rejected(rows)[1]["reason"]


@pytest.mark.parametrize(("header", "said"), [("a,c", "no column 'b'"), ("a,b,b", "names it twice"), ("", "no column")])
def test_a_header_that_does_not_fit_is_an_error_of_every_record(tmp_path: Path, header: str, said: str) -> None:
    with pytest.raises(BadRow, match=said):
        rows_of(tmp_path, f"{header}\n1,x\n2,y\n", "a INT, b STRING", **CSV)
    (tmp_path / "workspace").rename(tmp_path / "former")
    rows = rows_of(tmp_path, f"{header}\n1,x\n2,y\n", "a INT, b STRING", on_bad_row="reject", **CSV)
    assert [(one["raw"], one["position"]) for one in rejected(rows)] == [("1,x", "file:2"), ("2,y", "file:3")]


def test_a_null_where_none_may_be_is_a_bad_record(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "a,b\n1,\n,x\n", "a INT NOT NULL, b STRING", on_bad_row="reject", **CSV)
    assert [row["a"] for row in good(rows)] == [1]
    assert "NOT NULL" in rejected(rows)[0]["reason"]


def test_a_quote_left_open_in_one_file_does_not_reach_into_the_next(tmp_path: Path) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "a").write_text('a,b\n1,"x\n')
    (directory / "b").write_text('a,b\n",2\n3,z\n')
    rows = rows_of(tmp_path, "a,b\n", "a INT, b STRING", on_bad_row="reject", **CSV)
    assert [row["a"] for row in good(rows)] == [3]
    assert sorted(one["position"] for one in rejected(rows)) == ["a:2", "b:2"]


@pytest.mark.parametrize("separator", ["", ";;", '"', "\n", "é"])
def test_a_separator_that_is_none_is_refused(separator: str) -> None:
    with pytest.raises(InvalidPipeline, match="separator"):
        read.files("in", schema="a INT", format="csv", separator=separator, name="source")


@pytest.mark.parametrize("declared", ["ARRAY<INT>", "STRUCT<a: INT>", "BINARY"])
def test_a_type_that_csv_cannot_hold_is_refused_while_building(declared: str) -> None:
    with pytest.raises(InvalidPipeline, match="column 'v'"):
        read.files("in", schema=f"v {declared}", format="csv", name="source")


@pytest.mark.slow
def test_a_header_of_any_length_names_the_columns_of_every_block(tmp_path: Path) -> None:
    """Only 64 KiB of it were read for all blocks but the first, and every record there was rejected."""
    quoted = '"' + "y\n" * 40_000 + '"'
    columns = ["a", *(f"column_{number:06d}" for number in range(5000)), quoted, "b"]
    row = "," * (len(columns) - 2)
    text = ",".join(columns) + "\n" + "".join(f"{number}{row},x{number}\n" for number in range(30))
    rows = rows_of(tmp_path, text, "a INT, b STRING", block_size="200 KB", on_bad_row="reject", **CSV)
    assert [(row["a"], row["b"]) for row in good(rows)] == [(number, f"x{number}") for number in range(30)]
    assert rejected(rows) == []


def test_a_cut_file_that_was_exchanged_for_one_without_a_line_end_gives_no_row(tmp_path: Path) -> None:
    """Its header was sought in ever more of it, until no number was large enough."""
    directory = tmp_path / "in"
    directory.mkdir()
    text = "a,b\n" + "1,x\n" * 50
    (directory / "file").write_text(text)
    options = {**CSV, "block_size": "40 B", "on_bad_row": "reject", "compare": "size"}
    source = source_over(directory, tmp_path / "w", "a INT, b STRING", **options)
    end = source.latest(source.initial(), bounded=False)
    (directory / "file").write_text("z" * len(text))
    spans = source.spans(source.initial(), end, parallelism=1)
    rows = [row for span in spans for batch in source.read(span) for row in batch.to_pylist()]
    assert good(rows) == []
    assert "its header does not name it" in rejected(rows)[0]["reason"]


def test_a_decimal_of_too_many_digits_before_the_point_is_a_bad_record(tmp_path: Path) -> None:
    text = "v,w\n12345678.25,a\n1234567890,b\n1e9,c\n-0000000000001.50,d\n"
    rows = rows_of(tmp_path, text, "v DECIMAL(10,2), w STRING", on_bad_row="reject", **CSV)
    assert [row["w"] for row in good(rows)] == ["a", "d"]
    assert [one["position"] for one in rejected(rows)] == ["file:3", "file:4"]


def test_a_decimal_that_no_128_bits_hold_is_a_bad_record_and_not_another_number(tmp_path: Path) -> None:
    """Arrow multiplies by the scale modulo 2**128: what comes out may be a value of the column."""
    most, beyond = f"{'9' * 20}.{'9' * 18}", "1" + "234567890" * 3
    fields = [most, beyond, f"-{beyond}", "1e30", f" -{most}\t", "", "1e-40", '""', "1.5"]
    text = "v,w\n" + "".join(f"{field},{at}\n" for at, field in enumerate(fields))
    rows = rows_of(tmp_path, text, "v DECIMAL(38,18), w INT", on_bad_row="reject", **CSV)
    held = [(row["w"], row["v"]) for row in good(rows)]
    assert held == [(0, Decimal(most)), (4, Decimal(f"-{most}")), (5, None), (8, Decimal("1.5"))]
    assert [one["position"] for one in rejected(rows)] == [f"file:{line}" for line in (3, 4, 5, 8, 9)]
    assert all("decimal128(38, 18)" in one["reason"] and "256" not in one["reason"] for one in rejected(rows))
