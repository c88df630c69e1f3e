"""JSON lines: declared types come out, every bad line is found and named, and neighbours do not matter."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.json as arrow_json
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import read
from holdfast.connectors.formats import texts
from holdfast.connectors.formats.json_lines import JsonParser
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.types.schema import to_arrow
from tests.everyday import examples
from tests.unit.sources.reading import good, rejected, rows_of, source_over

pytestmark = pytest.mark.slow

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def parsed(text: str | bytes, schema: str) -> list[dict[str, Any]]:
    data = text.encode() if isinstance(text, str) else text
    return [row for batch in JsonParser(to_arrow(schema)).parse(data) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("declared", "written", "value"),
    [
        ("TIMESTAMP", '"2024-01-01T12:00:00Z"', NOON),
        ("TIMESTAMP", '"2024-01-01T12:00:00"', NOON),
        ("TIMESTAMP", '"2024-01-01 12:00:00.000000999Z"', NOON),
        ("TIMESTAMP", '"2024-01-01T14:00:00+02:00"', NOON),
        ("TIMESTAMP", "1704110400", NOON),
        ("TIMESTAMP", "1704110400.25", NOON.replace(microsecond=250_000)),
        ("TIMESTAMP", '"2024-01-01"', NOON.replace(hour=0)),
        ("TIMESTAMP_NTZ", '"2024-01-01T12:00:00"', NOON.replace(tzinfo=None)),
        ("TIMESTAMP_NTZ", '"2024-01-01T14:00:00+02:00"', NOON.replace(tzinfo=None)),
        ("TIMESTAMP_NTZ", "1704110400", NOON.replace(tzinfo=None)),
        ("DATE", '"2024-01-01"', date(2024, 1, 1)),
        ("DECIMAL(10,2)", "1.5", Decimal("1.50")),
        ("DECIMAL(10,2)", '"1.5"', Decimal("1.50")),
        ("DECIMAL(38,0)", f'"-{"9" * 38}"', Decimal(f"-{'9' * 38}")),
        ("BOOLEAN", "true", True),
        ("DOUBLE", "1", 1.0),
        ("TINYINT", "-128", -128),
        ("STRING", '"\\u00e9\\n"', "é\n"),
        ("ARRAY<TIMESTAMP>", '["2024-01-01T12:00:00Z", null]', [NOON, None]),
        ("ARRAY<TIMESTAMP>", "[1704110400]", [NOON]),
        ("STRUCT<a: DATE, b: ARRAY<INT>>", '{"b": [1], "a": "2024-01-01", "c": {}}', {"a": date(2024, 1, 1), "b": [1]}),
        ("STRUCT<t: TIMESTAMP>", '{"t": 1704110400}', {"t": NOON}),
        ("BIGINT", "null", None),
    ],
)
def test_values_come_out_in_the_declared_type(declared: str, written: str, value: Any) -> None:
    rows = parsed(f'{{"v": {written}}}\n', f"v {declared}")
    assert rows == [{"v": value}]
    (batch,) = JsonParser(to_arrow(f"v {declared}")).parse(f'{{"v": {written}}}\n'.encode())
    assert batch.schema == to_arrow(f"v {declared}")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("\n\n", []),
        ('{"id":1}', [1]),
        ('{"id":1}\n\n{"id":2}\n\n', [1, 2]),
        ('{"id":1}\r\n{"id":2}\r\n', [1, 2]),
        ('{"id":1}\r\n\r\n{"id":2}', [1, 2]),
        ('\ufeff{"id":1}\n', [1]),
        ('{"id":1, "other": [null, {"a": "}"}]}\n{"other": 1, "id":2}\n', [1, 2]),
        ('  {"id":1}  \n \t \n{"id":2}\n', [1, 2]),
        ("{}\n", [None]),
    ],
)
def test_lines_are_what_people_write(tmp_path: Path, text: str, ids: list[int | None]) -> None:
    assert [row["id"] for row in rows_of(tmp_path, text, "id BIGINT")] == ids


BAD_LINES = {
    "null": "not a JSON object",
    "true": "not a JSON object",
    '[{"id":1}]': "an array",
    '{"id":1}{"id":2}': "exactly one object",
    '{"id":1},': "not complete",
    '{"id":': "not complete",
    '{"id":1} x': "not complete",
    '{"id":"1"}': "column 'id' is declared int64 and holds \"1\"",
    '{"id":1.5}': "column 'id'",
    '{"id":99999999999999999999}': "column 'id'",
    '{"id":1,"id":2}': "twice",
    '{"id":1,"at":"noon"}': "column 'at'",
    '{"id":1,"at":1704110400000}': "milliseconds",
    '{"id":1,"d":"2024-02-30"}': "column 'd'",
    '{"id":1,"d":1.555}': "column 'd'",
    '{"id":NaN}': "column 'id'",
    '{"id":{"a":1}}': "column 'id'",
    '{"id":1,"at":{"a":1}}': "column 'at'",
    '{"id":1,"s":"a\x01b"}': "encoding",
}


@pytest.mark.parametrize("line", BAD_LINES)
@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_bad_line_stops_with_file_line_and_reason(tmp_path: Path, line: str, place: int) -> None:
    lines = [f'{{"id":{number}}}' for number in range(4)]
    lines.insert(place, line)
    with pytest.raises(BadRow) as error:
        rows_of(tmp_path, "\n".join(lines), "id BIGINT, at TIMESTAMP, d DATE, s STRING")
    message = str(error.value)
    assert f"/in/file, line {place + 1}, cannot be read" in message
    assert BAD_LINES[line] in message
    assert line[:20] in message or "\\x01" in message
    assert 'on_bad_row="reject"' in message


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_rejected_line_leaves_its_neighbours(tmp_path: Path, line: str) -> None:
    text = f'{{"id":0}}\n\n{line}\n{{"id":1,"at":1704110400}}\n{line}\n'
    rows = rows_of(tmp_path, text, "id BIGINT, at TIMESTAMP, d DATE, s STRING", on_bad_row="reject")
    assert [row["id"] for row in good(rows)] == [0, 1]
    assert [one["position"] for one in rejected(rows)] == ["file:3", "file:5"]
    assert [one["raw"] for one in rejected(rows)] == [line, line]
    assert all(BAD_LINES[line] in one["reason"] for one in rejected(rows))


def test_bytes_that_are_not_utf8_are_a_bad_line(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'{"s":"a"}\n{"s":"\xff"}\n{"s":"\xc3\xa9"}\n', "s STRING", on_bad_row="reject")
    assert [row["s"] for row in good(rows)] == ["a", "é"]
    assert rejected(rows)[0]["reason"] == "it is not UTF-8"
    assert rejected(rows)[0]["position"] == "file:2"


def test_a_null_where_none_may_be_is_a_bad_line(tmp_path: Path) -> None:
    text = '{"a":1,"l":[1]}\n{"l":[1]}\n{"a":null,"l":[1]}\n{"a":2,"s":{"x":null}}\n{"a":3,"s":{"x":1}}\n{"a":4}\n'
    schema = "a INT NOT NULL, l ARRAY<INT>, s STRUCT<x: INT NOT NULL>"
    rows = rows_of(tmp_path, text, schema, on_bad_row="reject")
    assert [row["a"] for row in good(rows)] == [1, 3, 4]
    assert ["NOT NULL" in one["reason"] for one in rejected(rows)] == [True, True, True]


@pytest.mark.parametrize("block_size", ["60 B", "1 KB"])
def test_the_line_number_counts_from_the_file_and_not_from_the_block(tmp_path: Path, block_size: str) -> None:
    lines = [json.dumps({"id": number, "s": "x" * (number % 7)}) for number in range(100)]
    lines[41], lines[77] = "{", '{"id":"x"}'
    rows = rows_of(tmp_path, "\r\n".join(lines), "id INT", on_bad_row="reject", block_size=block_size)
    assert [one["position"] for one in rejected(rows)] == ["file:42", "file:78"]
    assert [row["id"] for row in good(rows)] == [number for number in range(100) if number not in (41, 77)]


def test_times_in_several_forms_in_one_file_are_all_read(tmp_path: Path) -> None:
    lines = [
        '{"at":"2024-01-01T12:00:00Z"}',
        '{"at":1704110400}',
        '{"at":null}',
        '{"at":"2024-01-01 12:00:00.0000001"}',
    ]
    rows = rows_of(tmp_path, "\n".join(lines * 3), "at TIMESTAMP")
    assert [row["at"] for row in rows] == [NOON, NOON, None, NOON] * 3


def test_a_line_longer_than_arrows_block_is_read(tmp_path: Path) -> None:
    long = "x" * 5_000_000
    text = f'{{"s":"a"}}\n{{"s":"{long}"}}\n{{"s":"b"}}\n'
    assert [len(row["s"]) for row in rows_of(tmp_path, text, "s STRING", block_size="1 MB")] == [1, len(long), 1]


def test_what_is_shown_of_a_bad_line_is_short_and_what_is_rejected_whole(tmp_path: Path) -> None:
    line = "x" * 10_000
    with pytest.raises(BadRow) as error:
        rows_of(tmp_path, line, "id INT")
    assert len(str(error.value)) < 1000
    (tmp_path / "workspace").rename(tmp_path / "former")
    assert rejected(rows_of(tmp_path, line, "id INT", on_bad_row="reject"))[0]["raw"] == line


lines = st.sampled_from(
    [
        '{"id":1}',
        '{"id":2,"at":"2024-01-01"}',
        '{"id":3,"at":5}',
        "",
        *list(BAD_LINES)[:12],
        " ",
        '{"id":4,"at":null}\r',
    ]
)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(lines, max_size=10), st.integers(20, 200), st.integers(1, 4))
def test_a_line_gives_the_same_whatever_stands_beside_it(
    tmp_path_factory: pytest.TempPathFactory, text: list[str], block_size: int, together: int
) -> None:
    """A replay may join or divide blocks in another way: rows and rejects must not depend on it."""
    alone = [
        row
        for line in text
        for row in rows_of(tmp_path_factory.mktemp("one"), line, "id INT, at TIMESTAMP", on_bad_row="reject")
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "PARSED_TOGETHER", together)
        joined = rows_of(
            tmp_path_factory.mktemp("all"),
            "\n".join(text),
            "id INT, at TIMESTAMP",
            on_bad_row="reject",
            block_size=f"{block_size} B",
        )
    assert good(joined) == good(alone)
    assert [(one["raw"], one["reason"]) for one in rejected(joined)] == [
        (o["raw"], o["reason"]) for o in rejected(alone)
    ]
    numbers = [number for number, line in enumerate(text, 1) if line in BAD_LINES]
    assert [one["position"] for one in rejected(joined)] == [f"file:{number}" for number in numbers]


@pytest.mark.parametrize(
    "declared", ["BINARY", "MAP<STRING, INT>", "ARRAY<STRUCT<a: BINARY>>", "INTERVAL DAY TO SECOND"]
)
def test_a_type_that_json_cannot_hold_is_refused_while_building(declared: str) -> None:
    with pytest.raises(InvalidPipeline, match="column 'v'"):
        read.files("in", schema=f"v {declared}", name="source")


def test_many_small_files_are_read_in_order(tmp_path: Path) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    for number in range(300):
        (directory / f"{number:03d}").write_text(f'{{"id":{number}}}')
    source = source_over(directory, tmp_path / "workspace", "id INT")
    end = source.latest({"log": 0}, bounded=False)
    spans = source.spans({"log": 0}, end, parallelism=2)
    rows = [row["id"] for span in spans for batch in source.read(span) for row in batch.to_pylist()]
    assert sorted(rows) == list(range(300))
    assert source.size_between({"log": 0}, end) == sum(file.stat().st_size for file in directory.iterdir())


TIMES = "id BIGINT, at TIMESTAMP, n STRUCT<t: ARRAY<TIMESTAMP>>"
BY_TURNS = [
    '{"id":1,"at":"2024-01-01T12:00:00Z"}',
    '{"at":1704110400,"id":2}',
    '{"id":3,"n":{"t":["2024-01-01T12:00:00Z"]},"at":1704110400}',
    '{"id":4,"n":{"t":[null,1704110400]}}',
]


def test_times_may_be_texts_and_numbers_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow takes the one or the other: such lines were parsed one by one."""
    calls = 0
    read_json = arrow_json.read_json

    def counting(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return read_json(*arguments, **named)

    monkeypatch.setattr("holdfast.connectors.formats.json_lines.arrow_json.read_json", counting)
    alone = [row for line in BY_TURNS for row in parsed(line, TIMES)]
    assert [row["id"] for row in alone] == [1, 2, 3, 4]
    calls = 0
    assert parsed("\n".join(BY_TURNS * 1000), TIMES) == alone * 1000
    assert calls < 50


@pytest.mark.parametrize(
    "line",
    ['{"at":true}', '{"at":"noon"}', '{"at":1,"at":"2024-01-01"}', '{"n":{"t":[1,"2024-01-01"]}}', '{"at":1e99}'],
)
def test_a_bad_line_beside_times_of_both_kinds_is_found(tmp_path: Path, line: str) -> None:
    rows = rows_of(tmp_path, "\n".join([*BY_TURNS, line, *BY_TURNS]), TIMES, on_bad_row="reject")
    assert [row["id"] for row in good(rows)] == [1, 2, 3, 4] * 2
    assert [(one["raw"], one["position"]) for one in rejected(rows)] == [(line, "file:5")]


@pytest.mark.parametrize("declared", ["v DECIMAL(10,2)", "v STRUCT<a: ARRAY<DECIMAL(10,2)>>"])
def test_a_decimal_of_too_many_digits_before_the_point_is_a_bad_row(tmp_path: Path, declared: str) -> None:
    """Arrow counts the digits that are written, and not those that it appends: no reader of the column takes these."""
    values = ["12345678.25", "1234567890", '"123456789.5"', "-100000000", '"1e9"', "99999999.99", "1e7", "null"]
    form = '{{"v":{}}}' if declared.startswith("v DEC") else '{{"v":{{"a":[null,{}]}}}}'
    rows = rows_of(tmp_path, "\n".join(form.format(value) for value in values), declared, on_bad_row="reject")
    assert [one["position"] for one in rejected(rows)] == [f"file:{line}" for line in (2, 3, 4, 5)]
    assert all("decimal128(10, 2)" in one["reason"] for one in rejected(rows))
    held = [row["v"] if declared.startswith("v DEC") else row["v"]["a"][1] for row in good(rows)]
    assert held == [Decimal("12345678.25"), Decimal("99999999.99"), Decimal("1e7"), None]


@pytest.mark.parametrize("declared", ["v DECIMAL(38,18)", "v STRUCT<a: ARRAY<DECIMAL(38,18)>>"])
def test_a_decimal_that_no_128_bits_hold_is_a_bad_row_and_not_another_number(tmp_path: Path, declared: str) -> None:
    """Arrow multiplies by the scale modulo 2**128: what comes out may be a value of the column."""
    most = f"{'9' * 20}.{'9' * 18}"
    values = [f'"{most}"', "1" + "234567890" * 3, "-1" + "234567890" * 3, '"1e30"', "1e30", f'"-{most}"', "null", "1.5"]
    form = '{{"v":{}}}' if declared.startswith("v DEC") else '{{"v":{{"a":[null,{}]}}}}'
    rows = rows_of(tmp_path, "\n".join(form.format(value) for value in values), declared, on_bad_row="reject")
    assert [one["position"] for one in rejected(rows)] == [f"file:{line}" for line in (2, 3, 4, 5)]
    assert all("decimal128(38, 18)" in one["reason"] and "256" not in one["reason"] for one in rejected(rows))
    held = [row["v"] if declared.startswith("v DEC") else row["v"]["a"][1] for row in good(rows)]
    assert held == [Decimal(most), Decimal(f"-{most}"), None, Decimal("1.5")]


def test_the_reason_of_a_wide_decimal_names_the_type_that_is_declared(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, '{"v":"1e-40"}\n{"v":"1e38"}\n', "v DECIMAL(38,18)", on_bad_row="reject")
    assert [("decimal128(38, 18)" in row["reason"], "256" in row["reason"]) for row in rejected(rows)] == [
        (True, False)
    ] * 2


@pytest.mark.parametrize(
    ("value", "schema", "blamed"),
    [
        ('"b":1e999', "a INT, b DOUBLE", "column 'b' is declared double and holds 1e999"),
        ('"b":-1e39', "a INT, b FLOAT", "column 'b' is declared float and holds -1e+39"),
        (f'"b":{"1" * 400}', "a INT, b DOUBLE", "column 'b' is declared double and holds 111"),
        ('"b":1e999', "a INT, b DECIMAL(10,2)", "column 'b' is declared decimal128(10, 2) and holds 1e999"),
        ('"b":{"c":[1,1e39]}', "a INT, b STRUCT<c: ARRAY<FLOAT>>", "column 'b' is declared struct<"),
        ('"b":{"c":[1,1e999]}', "a INT, c DOUBLE", "member 'b.c.1' holds 1e999"),
    ],
)
def test_a_number_that_is_too_large_is_blamed_on_its_own_column(
    tmp_path: Path, value: str, schema: str, blamed: str
) -> None:
    """It was blamed on the first column, or was infinity without a word."""
    rows = rows_of(tmp_path, f'{{"a":1,{value}}}\n{{"a":2}}\n', schema, on_bad_row="reject")
    assert [row["a"] for row in good(rows)] == [2]
    assert rejected(rows)[0]["reason"].startswith(blamed)


def test_an_infinity_that_is_written_as_one_is_a_value(tmp_path: Path) -> None:
    text = '{"v":Infinity,"x":1e300}\n{"v":-Inf}\n{"v":3.4028235e38}\n{"v":null}\n'
    rows = rows_of(tmp_path, text, "v FLOAT, x DOUBLE")
    assert [row["v"] for row in rows] == [float("inf"), float("-inf"), 3.4028234663852886e38, None]


@pytest.mark.parametrize(
    "value", ['"0000-12-31T23:00:00Z"', '"9999-12-31T23:00:00-02:00"', "-62135596801", "253402300800"]
)
def test_a_time_is_of_the_years_1_to_9999(tmp_path: Path, value: str) -> None:
    rows = rows_of(tmp_path, f'{{"t":{value}}}\n{{"t":-62135596800}}\n', "t TIMESTAMP", on_bad_row="reject")
    assert [row["t"] for row in good(rows)] == [datetime(1, 1, 1, tzinfo=UTC)]
