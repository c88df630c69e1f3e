"""``on_new_column="rescue"`` (design/0055): members that are no column are the text of a column of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.connectors.formats.blocks import RowRules
from holdfast.connectors.formats.json_members import rest_of
from holdfast.connectors.formats.json_new_columns import parser_of, with_rescue
from holdfast.connectors.kafka.source.payloads import json_rows
from holdfast.errors import InvalidPipeline
from holdfast.types.schema import to_arrow
from tests.unit.sources.reading import good, rejected, rows_of
from tests.unit.sources.test_new_column import GOOD, SCHEMA

RESCUED = {
    '{"id": 3, "tip": 5}': '{"tip":5}',
    '{"id": 3, "tip": null}': '{"tip":null}',
    '{"id": 3, "tip": 5.10}': '{"tip":5.10}',
    '{"id": 3, "tip": 0.12345678901234567890123}': '{"tip":0.12345678901234567890123}',
    '{"id": 3, "tip": 123456789012345678901234567890}': '{"tip":123456789012345678901234567890}',
    '{"id": 3, "tip": 1e3, "z": [1.0, "a"]}': '{"tip":1e3,"z":[1.0,"a"]}',
    '{"tip": {"a": [1, {"b": "\\u00e9\\n\\""}]}, "id": 3, "b": true}': '{"tip":{"a":[1,{"b":"é\\n\\""}]},"b":true}',
    '{"Id": 3}': '{"Id":3}',
    '{"tip": 1, "tip": 2}': '{"tip":2}',
    '{"": 1}': '{"":1}',
    '{"_rescued": "x"}': '{"_rescued":"x"}',
    '{"id": 3, "place": {"x": 1.0, "y": 2.0}}': '{"place":{"y":2.0}}',
    '{"stops": [{"name": "a"}, {"name": "b", "pier": null}, null]}': '{"stops":[null,{"pier":null},null]}',
    '{"id": 3, "at": 1704110400, "tip": NaN}': '{"tip":"NaN"}',
    '{"id": 3, "tip": [-Infinity]}': '{"tip":["-Infinity"]}',
}


def read(directory: Path, lines: list[str], **arguments: Any) -> list[dict[str, Any]]:
    directory.mkdir(exist_ok=True)
    text = "".join(line + "\n" for line in lines)
    return rows_of(directory, text, arguments.pop("schema", SCHEMA), on_new_column="rescue", **arguments)


@pytest.mark.parametrize("line", list(RESCUED))
def test_what_is_no_column_is_text_and_the_columns_are_as_without_it(tmp_path: Path, line: str) -> None:
    rows = read(tmp_path, [*GOOD, line, *GOOD])
    assert [row.pop("_rescued") for row in rows] == [None] * len(GOOD) + [RESCUED[line]] + [None] * len(GOOD)
    (tmp_path / "plain").mkdir()
    assert rows == rows_of(tmp_path / "plain", "".join(each + "\n" for each in [*GOOD, line, *GOOD]), SCHEMA)


@pytest.mark.parametrize("line", list(RESCUED))
def test_the_text_is_the_same_whichever_rows_are_beside_it(tmp_path: Path, line: str) -> None:
    assert [row["_rescued"] for row in read(tmp_path / "alone", [line])] == [RESCUED[line]]
    for beside in ("{broken", '{"id": "x"}', '{"tip": "text"}'):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        rows = good(read(directory, [beside, line], on_bad_row="reject"))
        assert rows[-1]["_rescued"] == RESCUED[line]


def test_a_rejected_row_has_nothing_rescued_for_it_is_there_as_a_whole(tmp_path: Path) -> None:
    rows = read(tmp_path, ['{"id": "x", "tip": 1}', '{"id": 1, "tip": 2}'], on_bad_row="reject")
    assert [row["_rescued"] for row in rows] == [None, '{"tip":2}']
    assert [each["raw"] for each in rejected(rows)] == ['{"id": "x", "tip": 1}']


@pytest.mark.parametrize(
    ("tip", "why"),
    [("[" * 300 + "1.5" + "]" * 300, "more than 200 times"), ("Inf", "no column, and cannot be rescued")],
)
def test_what_json_cannot_say_again_is_a_bad_row(tmp_path: Path, tip: str, why: str) -> None:
    rows = read(tmp_path, [*GOOD, f'{{"id": 3, "tip": {tip}}}'], on_bad_row="reject")
    (reject,) = rejected(rows)
    assert why in reject["reason"]
    assert len(good(rows)) == len(GOOD)


def test_numbers_beyond_json_in_columns_are_no_fault_where_all_are_columns(tmp_path: Path) -> None:
    rows = read(tmp_path, ['{"place": {"x": Inf}}', '{"id": 1, "tip": 1}'])
    assert [row["_rescued"] for row in rows] == [None, '{"tip":1}']


def test_many_rows_with_and_without(tmp_path: Path) -> None:
    lines = [f'{{"id": {n}}}' if n % 9_000 else f'{{"id": {n}, "tip": {n}}}' for n in range(20_000)]
    rows = read(tmp_path, lines)
    assert [row["id"] for row in rows] == list(range(20_000))
    assert {n: row["_rescued"] for n, row in enumerate(rows) if row["_rescued"]} == {
        n: f'{{"tip":{n}}}' for n in (0, 9_000, 18_000)
    }


def test_what_a_directory_names_is_no_column_of_the_lines(tmp_path: Path) -> None:
    (tmp_path / "in" / "day=1").mkdir(parents=True)
    (tmp_path / "in" / "day=1" / "file").write_text('{"id": 1, "day": 7}\n')
    given: dict[str, Any] = {
        "schema": "id BIGINT, day INT",
        "partition_by": "day",
        "name": "s",
        "on_new_column": "rescue",
    }
    source: Any = hf.read.files(str(tmp_path / "in"), **given).node.source_spec.open("s", str(tmp_path / "w"))
    end = source.latest(source.initial(), bounded=False)
    (span,) = source.spans(source.initial(), end, parallelism=1)
    assert [row for batch in source.read(span) for row in batch.to_pylist()] == [
        {"id": 1, "day": 1, "_rescued": '{"day":7}'}
    ]


def test_members_of_messages_are_rescued() -> None:
    columns = with_rescue(to_arrow("id BIGINT"), "rescue")
    payloads = [b'{"id": 1}', b'{"id": 2,\n "tip": 5}', None, b'{"id": 3}']
    rows = json_rows(parser_of(columns, "rescue"), payloads, RowRules(columns, True), str).to_pylist()
    assert [(row["id"], row["_rescued"]) for row in rows] == [(1, None), (2, '{"tip":5}'), (None, None), (3, None)]


def test_the_column_is_one_of_the_stream_and_of_the_graph() -> None:
    files = hf.read.files("in", schema="id BIGINT", on_new_column="rescue", name="s")
    kafka = hf.read.kafka("localhost:9092", "t", schema="id BIGINT", on_new_column="rescue", metadata=["key"], name="s")
    assert files.columns == ("id", "_rescued")
    assert kafka.columns == ("id", "_rescued", "key")
    for stream in (files, kafka):
        assert stream.node.spec.arguments()["on_new_column"] == "rescue"


@pytest.mark.parametrize("arguments", [{"schema": "a INT, _Rescued STRING"}, {"format": "csv"}, {"format": "parquet"}])
def test_what_cannot_be_rescued_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidPipeline, match="rescue"):
        hf.read.files("in", on_new_column="rescue", name="s", **{"schema": "a INT", **arguments})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans())
def test_the_text_is_json_that_holds_the_same(members: dict[str, Any], is_ascii: bool) -> None:
    content = json.dumps({"id": 1, **members}, ensure_ascii=is_ascii).encode()
    (text,) = rest_of([content], pa.schema([("id", pa.int64())]))
    others = {name: value for name, value in members.items() if name != "id"}
    assert others == ({} if text is None else json.loads(text))
    # A number with a point takes the slow way; without one the text is written by another hand, and is the same.
    (slow,) = rest_of([content[:-1] + b', "\\u0000": 1.5}'], pa.schema([("id", pa.int64())]))
    if "\0" not in members and not _has_point(others):
        assert slow == (text or "{}")[:-1] + ("," if text else "") + '"\\u0000":1.5}'


def _has_point(value: Any) -> bool:
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, float) or any(map(_has_point, within))
