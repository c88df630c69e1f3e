"""Columns that are added to a schema file: what stands there stays, and the file reads as before, with these behind."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.types import ddl, schema_files
from holdfast.types.longer_schema import with_columns

STOPS = "stops ARRAY<STRUCT<a: BIGINT, b: ARRAY<STRING>>>"
NEW = ("tip BIGINT", "`of day` STRING", "rate DOUBLE", "is_new BOOLEAN", STOPS)
ID = '"id": {"type": "integer"}'
TEXTS = {
    "1.ddl": "id BIGINT NOT NULL, city STRING",
    "2.ddl": "id BIGINT NOT NULL -- a, b;\n,city STRING COMMENT 'a, -- b' /* c */ -- end\n",
    "3.ddl": "\n-- a ride\nid BIGINT NOT NULL,\ncity STRING;\n-- behind\n",
    "4.sql": "CREATE TABLE IF NOT EXISTS a.`b(` (\n  id BIGINT NOT NULL,\n  city CHAR(9) -- of\n)\nUSING json (x);",
    "5.sql": "create table t(id BIGINT NOT NULL, city DECIMAL(3, 2))",
    "6.json": f'{{"type": "object", "properties": {{{ID}, "city": {{"type": "string"}}}}, "required": ["id"]}}',
    "7.json": f'{{"$ref": "#/$defs/ride", "$defs": {{"ride": {{"type": "object", "properties": {{{ID}}}}}}}}}',
    "8.avsc": '{"type": "record", "name": "Ride", "fields": [{"name": "id", "type": "long", "doc": "its number"}]}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_columns_are_those_before_and_the_new_ones_behind(name: str) -> None:
    text = TEXTS[name]
    new = [column for column in NEW if not (name.endswith("avsc") and "`" in column)]
    read = schema_files.reader_of(name)
    longer = with_columns(name, text, new)
    expected = [*read(text), *(field for column in new for field in ddl.fields(column))]
    assert [(field.name, field.type, field.nullable) for field in read(longer)] == [
        (field.name, field.type, field.nullable) for field in expected
    ]
    assert with_columns(name, longer, new) == longer, "they are there"
    assert with_columns(name, longer, ["TIP STRING"]) == longer, "Spark does not distinguish them"


@pytest.mark.parametrize("name", [name for name in TEXTS if name.endswith(("ddl", "sql"))])
def test_what_stands_in_a_ddl_file_stays(name: str) -> None:
    longer = with_columns(name, TEXTS[name], ["tip BIGINT"])
    assert longer.replace(",\ntip BIGINT", "").replace("\ntip BIGINT", "").strip().replace(",", "") == TEXTS[
        name
    ].strip().replace(",", "")


def test_members_of_json_that_are_no_columns_stay() -> None:
    longer = json.loads(with_columns("r.avsc", TEXTS["8.avsc"], ["tip BIGINT"]))
    assert longer["fields"][0]["doc"] == "its number"
    assert longer["fields"][1] == {"name": "tip", "type": ["null", "long"], "default": None}
    assert longer["name"] == "Ride"


@pytest.mark.parametrize(("name", "text"), [("a.ddl", "id"), ("a.json", "[]"), ("a.avsc", "{")])
def test_what_is_no_schema_is_refused(name: str, text: str) -> None:
    with pytest.raises((ValueError, InvalidPipeline)):
        with_columns(name, text, ["tip BIGINT"])
