"""What is judged bad without Arrow is what Arrow refuses alone; and nearly all that Arrow refuses is judged."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connectors.formats.blocks import Parser, Unreadable
from holdfast.connectors.formats.csv_lines import CsvParser
from holdfast.connectors.formats.json_lines import JsonParser
from holdfast.types.schema import to_arrow
from tests.everyday import examples
from tests.unit.sources.reading import good, rejected, rows_of

TIMES = [
    "noon",
    "",
    " 2024-01-01",
    "2024-01-01 ",
    "2024-1-1",
    "20240101",
    "0000-01-01",
    "9999-12-31",
    "10000-01-01",
    "-001-01-01",
    *(f"{year}-02-29" for year in (1900, 2000, 2023, 2024, 2100)),
    *(f"2024-{month}-31" for month in ("02", "04", "06", "09", "11", "12", "13")),
    "2024-02-30",
    *(
        f"2024-01-01{end}"
        for end in ("T12", "T12:00Z", "T1200", "T12:60", "T24:00", "T25:00", "Z", "t12:00", "T", "+01")
    ),
    *(
        f"2024-01-01T12:00:00{end}"
        for end in (
            "+0230",
            "+02",
            "+25:00",
            "+02:60",
            " Z",
            "z",
            ".",
            ".1",
            ".1234567Z",
            ".1234567899",
            "-00:00",
            "+2",
        )
    ),
    "2024-01-01T12:00:60",
    "1677-01-01T00:00:00.123456789",
]
NUMBERS = [
    *(
        "0",
        "-0",
        "1",
        "127",
        "128",
        "-128",
        "-129",
        "255",
        "256",
        "1.0",
        "1.5",
        "1e2",
        "-0.0",
        "1.555",
        "1.550",
        "0.001",
    ),
    *(
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775809",
        "1234567890",
        "12345678901",
        "1" + "0" * 40,
    ),
    *("123456789012.5", "99999999999999999999", "1e30", "1e400", "1e-400", "1.5e1", "253402300800", "-253402300801"),
]
ONLY_JSON = [
    *("NaN", "Inf", "-NaN", "-Infinity", "true", "null", "[]", "[1]", "{}", '{"a":1}', '{"a":"x"}', '["2024-01-01"]'),
    *("01", "1.", ".5", "+1", "-", "nan", "True", "[1", "'x'", '"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\\q"'),
    *(
        '"a\x01"',
        '"\\u00zz"',
        "1 2",
        "1}\0",
        "1\0",
        "1}\0{",
        "1} \0 {}",
        "\0 1",
        '1,"w":2',
        '1},{"v":1',
        '1}{"v":1',
        '1}\0{"v":1',
        '"é"',
        '{"a":1,"a":2}',
        "[1.5]",
    ),
    *(f"[{one}, null]" for one in ('"noon"', "1", '"2024-02-30"', "true")),
]
ONLY_CSV = [
    *(
        "+1",
        " 1",
        "1 ",
        "\t1",
        " ",
        "0x1F",
        "-0x1F",
        "0X1f",
        "0xFFFF",
        "0" * 50 + "1",
        "1_0",
        "x",
        "nan",
        "-nan",
        "INF",
    ),
    *(
        "infinity",
        "nan(x)",
        ".5",
        "5.",
        "1e",
        "1.5.5",
        "0x1p3",
        "1d",
        "NULL",
        "True",
        "TRUE",
        "tRUE",
        " true",
        "T",
        "yes",
    ),
    *(
        '""',
        '"x"',
        '"1"',
        '"true"',
        '"a,b"',
        '"a\nb"',
        "a\rb",
        "\ra",
        "a\r",
        "-",
        ".",
        "+.5",
        "-.",
        "é",
        '5" pipe',
        '"a""b"',
    ),
]
TYPES = ["BIGINT", "TINYINT", "INT", "DOUBLE", "FLOAT", "BOOLEAN", "STRING", "DECIMAL(10,2)", "DECIMAL(38,0)"]
TYPES += ["DATE", "TIMESTAMP", "TIMESTAMP_NTZ"]
NESTED = [
    *("STRUCT<a: INT>", "ARRAY<INT>", "ARRAY<TIMESTAMP>", "STRUCT<a: STRUCT<b: DATE>>", "BIGINT NOT NULL"),
    "ARRAY<STRUCT<a: TINYINT>>",
]


def is_refused(parser: Parser, record: bytes) -> bool:
    try:
        parser.parse(record + b"\n")
    except Unreadable:
        return True
    return False


def check(parser: Parser, record: bytes) -> bool:
    """Assert that a verdict is right, and return whether the record is one that Arrow alone finds."""
    judged = parser.judge([record])
    refused = is_refused(parser, record)
    if judged:
        assert refused, f"{record!r} is judged {judged[0]!r}, and Arrow takes it"
        assert 0 < len(judged[0].encode()) < 400
    return refused and not judged


def json_parser(declared: str) -> JsonParser:
    return JsonParser(to_arrow(f"v {declared}"))


def csv_parser(declared: str) -> CsvParser:
    return CsvParser(to_arrow(f"v {declared}, w STRING"), ("v", "w"), ",")


@pytest.mark.slow
@pytest.mark.parametrize("declared", [*TYPES, *NESTED])
def test_a_json_line_that_is_judged_is_one_that_arrow_refuses(declared: str) -> None:
    values = [*ONLY_JSON, *NUMBERS, *map(json.dumps, TIMES), *map(json.dumps, NUMBERS)]
    parser = json_parser(declared)
    left = [value for value in values if check(parser, f'{{"v":{value}}}'.encode())]
    # What is wrong with these is found one line at a time.
    known = {'"\\ud800"', '"\\udc00"', "1e400", '{"a":1,"a":2}', "Inf", "-NaN", "NaN", "-Infinity", '"1e400"'}
    precise = {one for number in ("1e30", "1.5e1", "1e-400", "1" + "0" * 40) for one in (number, f'"{number}"')}
    assert set(left) <= known | (precise if "DECIMAL" in declared else set())


@pytest.mark.parametrize(
    ("value", "is_bad"),
    [
        ('{"s":{"a":1,"a":null}}', True),
        ('{"s":{"b":[{"c":"x","c":"x"}]}}', True),
        ('{"s":{"b":null,"b":[]}}', True),
        ('{"s":{"x":1,"x":2},"x":{"a":1,"a":1}}', False),
        ('{"s":{"b":[{"c":"x"},{"c":"x"}]}}', False),
        ('{"s":null,"s":null}', True),
    ],
)
def test_a_member_that_is_named_twice_is_found_wherever_a_column_holds_it(value: str, is_bad: bool) -> None:
    parser = JsonParser(to_arrow("s STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING>>>"))
    assert is_refused(parser, value.encode()) == is_bad
    found = parser.judge([value.encode()], Unreadable("Column(/other) was specified twice in row 0"))
    assert "specified twice" in found[0] if is_bad else not found


@pytest.mark.slow
@pytest.mark.parametrize("declared", ["TIMESTAMP", "DATE", "DECIMAL(10,2)", "INT"])
@pytest.mark.parametrize("written", [f'"{"x" * 100_000}"', "1" * 4000, "1" * 100_000, '"\\ud800"', f'"{"é" * 1000}"'])
def test_a_reason_is_a_short_text_whatever_the_value_is(declared: str, written: str) -> None:
    for kind, value in ((declared, written), (f"ARRAY<STRUCT<a: {declared}>>", f'[{{"a":{written}}}]')):
        assert_short_reason(json_parser(kind), f'{{"v":{value}}}'.encode())
    assert_short_reason(csv_parser(declared), f"{written},w".encode())


def assert_short_reason(parser: Parser, record: bytes) -> None:
    check(parser, record)
    if is_refused(parser, record):
        with pytest.raises(Unreadable) as error:
            parser.parse(record + b"\n")
        assert 0 < len(parser.reason(record, error.value).encode()) < 600


@pytest.mark.slow
@pytest.mark.parametrize("declared", TYPES)
def test_a_csv_record_that_is_judged_is_one_that_arrow_refuses(declared: str) -> None:
    parser = csv_parser(declared)
    fields = [*ONLY_CSV, *NUMBERS, *TIMES]
    left = [field for field in fields if check(parser, f"{field},w".encode())]
    precise = {"1e30", "1e400", "1e-400"} if "DECIMAL" in declared else set()
    assert set(left) <= precise | {"0xFFFF", "a\rb", "1" + "0" * 40}
    assert not check(parser, b"\xff,w")
    assert not check(parser, b"1")
    assert not check(parser, b"1,2,3")


characters = st.sampled_from('019-+.:eETZ tfanx/"\\{}[],u\x00é')


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from([*TYPES, *NESTED]), st.text(characters, max_size=12), st.booleans())
def test_whatever_a_json_line_holds_a_verdict_is_right(declared: str, text: str, is_text: bool) -> None:
    check(json_parser(declared), f'{{"v":{json.dumps(text) if is_text else text}}}'.encode())


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from(TYPES), st.text(characters, max_size=12))
def test_whatever_a_csv_field_holds_a_verdict_is_right(declared: str, text: str) -> None:
    parser = csv_parser(declared)
    records = parser.records(f"{text},w\n".encode())
    for at, (start, end) in enumerate(zip(records.starts, records.ends, strict=True)):
        if at not in records.problems:
            check(parser, f"{text},w\n".encode()[start:end])


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from(TIMES), st.integers(0, 30), characters, st.sampled_from(["DATE", "TIMESTAMP"]))
def test_whatever_is_changed_in_a_time_a_verdict_is_right(text: str, at: int, put: str, declared: str) -> None:
    changed = text[:at] + put + text[at + 1 :]
    check(json_parser(declared), json.dumps({"v": changed}, ensure_ascii=False).encode())
    if '"' not in changed:
        check(csv_parser(declared), f"{changed},w".encode())


def test_verdicts_do_not_depend_on_the_records_beside() -> None:
    parser = JsonParser(pa.schema([("v", pa.int32()), ("t", pa.timestamp("us", "UTC"))]))
    lines = [
        b'{"v":1}',
        b'{"v":"x","t":"noon"}',
        b"{}",
        b'{"t":"2024-02-30"}',
        b'{"v":',
        b'{"v":1.5,"t":1e99}',
        b'{"v":2}',
    ]
    alone = {at: parser.judge([line])[0] for at, line in enumerate(lines) if parser.judge([line])}
    assert parser.judge(lines) == alone
    assert list(alone) == [1, 3, 4, 5]


RETURNS = [
    *(b"1,2", b"x,8", b"7,8", b"1,2\r3,4", b"5\r6,7", b"\r1,2", b'"1","2"\r"3","4"', b'3,"4\r"', b'"5\r\n6",7'),
    *(b'5" pipe,8', b'5" pi\rpe,8', b'x","\ry",8', b'\r"y', b'z",9', b"1", b"1,2,3"),
]


@pytest.mark.slow
@pytest.mark.parametrize("declared", ["INT", "STRING"])
def test_verdicts_of_csv_do_not_depend_on_the_records_beside(declared: str) -> None:
    """For Arrow a carriage return ends a row: where another record is no row, as many as expected may come out."""
    parser = CsvParser(to_arrow(f"v {declared}, w {declared}"), ("v", "w"), ",")
    alone = {record: parser.judge([record]).get(0) for record in RETURNS}
    for record in RETURNS:
        check(parser, record)
    for some in product(RETURNS, repeat=2):
        found = parser.judge([*some, b"7,8"])
        for at, record in enumerate([*some, b"7,8"]):
            assert found.get(at, alone[record]) == alone[record], f"{record!r} among {some!r}"


def test_a_carriage_return_moves_no_verdict_to_another_record() -> None:
    parser = CsvParser(to_arrow("v INT, w INT"), ("v", "w"), ",")
    records = [b"1,2\r3,4", b"5,6", b"x,8", b"7,8", b'\r"y', b'z",9']
    assert set(parser.judge(records)) <= {0, 2, 4, 5}
    assert 2 in parser.judge(records)


def test_arrow_skips_no_line_that_is_counted(tmp_path: Path) -> None:
    """Then another line, which is two rows for Arrow, would be good in silence."""
    rows = rows_of(tmp_path, "1,2\r3,4\n\r\r\n5,6\n", "v INT, w INT", format="csv", header=False, on_bad_row="reject")
    assert [(row["v"], row["w"]) for row in good(rows)] == [(5, 6)]
    assert [one["position"] for one in rejected(rows)] == ["file:1"]
