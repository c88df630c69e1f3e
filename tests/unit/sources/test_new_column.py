"""Members that are no column (design/0055): ``on_new_column="fail"`` makes a row that has one a bad row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.formats.blocks import RowRules
from holdfast.connectors.formats.json_lines import JsonParser
from holdfast.connectors.kafka.source.payloads import json_rows
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.ports import REJECT_COLUMN
from holdfast.types.schema import to_arrow
from tests.unit.sources.reading import good, rejected, rows_of

SCHEMA = "id BIGINT, at TIMESTAMP, place STRUCT<x: DOUBLE>, stops ARRAY<STRUCT<name: STRING>>"
GOOD = [
    '{"id": 1}',
    '{"id": null, "at": "2024-01-01T12:00:00Z"}',
    '{"id": 2, "at": 1704110400}',
    '{"place": {"x": 1.5}, "stops": [{"name": "a"}, null, {}]}',
    "{}",
]
NEW = {
    '{"id": 3, "tip": 5}': "tip",
    '{"id": 3, "tip": null}': "tip",
    '{"tip": {"a": [1, {"b": 2}]}, "id": 3}': "tip",
    '{"Id": 3}': "Id",
    '{"id": 3, "ID": 4}': "ID",
    '{"ident": 3}': "ident",
    '{"tip": 1, "tip": 2}': "tip",
    '{"": 1}': "",
    '{"id": 3, "place": {"x": 1.0, "y": 2.0}}': "place.y",
    '{"id": 3, "stops": [{"name": "a"}, {"name": "b", "pier": null}]}': "stops.pier",
    '{"id": 3, "at": 1704110400, "tip": 5}': "tip",
}


def read(directory: Path, lines: list[str], **arguments: Any) -> list[dict[str, Any]]:
    schema = arguments.pop("schema", SCHEMA)
    return rows_of(directory, "".join(line + "\n" for line in lines), schema, **arguments)


def test_new_members_are_ignored_unless_they_are_to_fail(tmp_path: Path) -> None:
    lines = [line for line, member in NEW.items() if member == "tip" and line.count("tip") == 1]
    assert [row["id"] for row in read(tmp_path, lines)] == [3] * len(lines)


@pytest.mark.parametrize("new", list(NEW))
def test_a_row_with_a_new_member_is_rejected_and_its_neighbours_are_not(tmp_path: Path, new: str) -> None:
    rows = read(tmp_path, [*GOOD, new, *GOOD], on_bad_row="reject", on_new_column="fail")
    assert len(good(rows)) == 2 * len(GOOD)
    (reject,) = rejected(rows)
    assert (reject["raw"], reject["position"]) == (new, "file:6")
    assert reject["reason"] == f"it has the member {NEW[new]!r}, which is no column of schema="


def test_rows_that_have_only_columns_are_read_as_without_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert read(tmp_path / "a", GOOD, on_new_column="fail") == read(tmp_path / "b", GOOD)


def test_another_fault_of_a_row_is_named_first(tmp_path: Path) -> None:
    rows = read(tmp_path, ['{"id": "x", "tip": 1}', '{"tip": 1'], on_bad_row="reject", on_new_column="fail")
    first, second = rejected(rows)
    assert "column 'id' is declared int64" in first["reason"]
    assert "not complete" in second["reason"]


def test_many_rows_with_new_members_are_each_found(tmp_path: Path) -> None:
    lines = [f'{{"id": {n}}}' if n % 3 else f'{{"id": {n}, "tip": {n}}}' for n in range(3_000)]
    rows = read(tmp_path, lines, on_bad_row="reject", on_new_column="fail")
    assert [row["id"] for row in good(rows)] == [n for n in range(3_000) if n % 3]
    assert len(rejected(rows)) == 1_000


def test_the_run_stops_at_the_row_and_names_the_member(tmp_path: Path) -> None:
    with pytest.raises(BadRow, match=r"/file, line 2, cannot be read: it has the member 'tip'"):
        read(tmp_path, ['{"id": 1}', '{"id": 3, "tip": 5}'], on_new_column="fail")


def test_a_message_with_a_new_member_is_a_bad_row() -> None:
    columns = to_arrow("id BIGINT")
    parser = JsonParser(columns, ignores_new=False)
    payloads = [b'{"id": 1}', b'{"id": 2, "tip": 5}', b'{"id": 3}']
    rows = json_rows(parser, payloads, RowRules(columns, True), str).to_pylist()
    assert [row["id"] for row in rows] == [1, None, 3]
    assert rows[1][REJECT_COLUMN]["reason"] == "it has the member 'tip', which is no column of schema="
    with pytest.raises(BadRow, match="'tip', which is no column"):
        json_rows(parser, payloads, RowRules(columns, False), str)


def test_only_a_graph_that_has_it_is_another_one(tmp_path: Path) -> None:
    def shown(**arguments: Any) -> Any:
        return hf.read.files(str(tmp_path), schema=SCHEMA, name="s", **arguments).node.spec.arguments()

    assert shown() == shown(on_new_column="ignore")
    assert shown(on_new_column="fail") == {**shown(), "on_new_column": "fail"}


@pytest.mark.parametrize("arguments", [{"on_new_column": "drop"}, {"on_new_column": "fail", "format": "csv"}])
def test_what_is_not_known_of_it_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidPipeline, match="on_new_column="):
        hf.read.files("in", schema="a INT", name="s", **arguments)
    if "format" not in arguments:
        with pytest.raises(InvalidPipeline, match="on_new_column="):
            hf.read.kafka("localhost:9092", "t", schema="a INT", name="s", **arguments)


@pytest.mark.parametrize("on_bad_row", ["fail", "reject"])
def test_columns_to_add_are_of_all_values_that_are_seen_together(tmp_path: Path, on_bad_row: str) -> None:
    (tmp_path / "s.ddl").write_text(SCHEMA)
    lines = [*GOOD, '{"id": 2, "tip": 1, "of": null}', '{"id": 3, "tip": 2.5, "ID": 4}', '{"id": "x", "no": 1}']
    with pytest.raises(BadRow, match="'tip', which is no column") as caught:
        read(tmp_path, lines, schema=tmp_path / "s.ddl", on_new_column="add", on_bad_row=on_bad_row)
    assert caught.value.new_columns == "tip DOUBLE\nof STRING"
    assert caught.value.schema_file == str(tmp_path / "s.ddl")
    assert f", line {len(GOOD) + 1}," in caught.value.what


def test_a_member_that_cannot_be_a_column_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "s.ddl").write_text(SCHEMA)
    with pytest.raises(BadRow, match="'ID', which is no column") as caught:
        read(tmp_path, ['{"id": 1, "ID": 2}'], schema=tmp_path / "s.ddl", on_new_column="add")
    assert caught.value.new_columns == ""


def test_columns_of_messages_are_added_too() -> None:
    rules = RowRules(to_arrow("id BIGINT"), True, "/s.ddl")
    with pytest.raises(BadRow, match="'tip', which is no column") as caught:
        json_rows(JsonParser(rules.schema, ignores_new=False), [b'{"id": 1}', None, b'{"tip": true}'], rules, str)
    assert caught.value.new_columns == "tip BOOLEAN"


def test_only_a_file_can_get_columns() -> None:
    with pytest.raises(InvalidPipeline, match="needs schema= to be a file"):
        hf.read.files("in", schema="a INT", on_new_column="add", name="s")
    with pytest.raises(InvalidPipeline, match="needs schema= to be a file"):
        hf.read.kafka("localhost:9092", "t", schema="a INT", on_new_column="add", name="s")


@pytest.mark.parametrize("value", ["{}", '[1, "a"]', '[{"a": {}}]'])
def test_a_member_that_no_column_can_hold_is_a_bad_row(tmp_path: Path, value: str) -> None:
    (tmp_path / "s.ddl").write_text(SCHEMA)
    lines = [f'{{"odd": {value}}}', '{"tip": 1}']
    with pytest.raises(BadRow, match="'tip', which is no column") as caught:
        read(tmp_path, lines, schema=tmp_path / "s.ddl", on_new_column="add")
    assert caught.value.new_columns == "tip BIGINT"


def test_names_that_no_file_can_have_and_the_same_in_another_case_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "s.ddl").write_text(SCHEMA)
    lines = ['{"a\\rb": 1, "a\\nb": 1, "Tip": 1}', '{"tip": 1.5, "": 1}']
    with pytest.raises(BadRow) as caught:
        read(tmp_path, lines, schema=tmp_path / "s.ddl", on_new_column="add")
    assert caught.value.new_columns == "Tip BIGINT"
