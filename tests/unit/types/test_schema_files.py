"""Schemas that are files (design/0055): Avro, JSON Schema and DDL, as the columns that a DDL string would declare."""

import json
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.types.schema import to_arrow

AVRO = {
    "type": "record",
    "name": "Ride",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "km", "type": "double", "default": 0.0},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}
JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id", "at", "kind", "place"],
    "properties": {
        "id": {"type": "integer"},
        "city": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "km": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "stops": {"type": "array", "items": {"type": ["string", "null"]}},
        "kind": {"enum": ["A", "B"]},
        "place": {"$ref": "#/$defs/place"},
    },
    "$defs": {"place": {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}},
}


def written(directory: Path, name: str, content: object) -> str:
    path = directory / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_record_of_avro_is_its_fields(tmp_path):
    """A field is NOT NULL unless null is one of its types, or it has a default: then a writer may leave it out."""
    assert to_arrow(written(tmp_path, "ride.avsc", AVRO)) == to_arrow(
        "id BIGINT NOT NULL, city STRING, at TIMESTAMP NOT NULL, km DOUBLE, stops ARRAY<STRING> NOT NULL, "
        "kind STRING NOT NULL"
    )


def test_an_object_of_json_schema_is_its_properties(tmp_path):
    """A property is NOT NULL if it is required and null is none of its types."""
    found = to_arrow(written(tmp_path, "ride.json", JSON_SCHEMA))
    assert found == to_arrow(
        "id BIGINT NOT NULL, city STRING, at TIMESTAMP NOT NULL, day DATE, km DOUBLE, stops ARRAY<STRING>, "
        "kind STRING NOT NULL, place STRUCT<x: DOUBLE NOT NULL> NOT NULL"
    )


@pytest.mark.parametrize(
    "text",
    [
        "id BIGINT NOT NULL, city STRING",
        "-- rides\nid BIGINT NOT NULL, -- never null, 'really'\n/* several\nlines */ city STRING\n",
        "CREATE TABLE IF NOT EXISTS `a(b`.rides (id BIGINT NOT NULL, city STRING) USING parquet;",
        "create or replace table rides (\n id BIGINT NOT NULL COMMENT 'a ) and -- no comment',\n city STRING\n)\n",
    ],
)
@pytest.mark.parametrize("name", ["ride.ddl", "ride.SQL"])
def test_columns_in_the_words_of_sql_are_read_as_a_ddl_string_is(tmp_path, name, text):
    assert to_arrow(written(tmp_path, name, text)) == to_arrow("id BIGINT NOT NULL, city STRING")


def test_a_path_may_be_a_path_object_and_a_text_of_columns_is_never_a_path(tmp_path):
    path = Path(written(tmp_path, "ride.ddl", "id BIGINT"))
    assert to_arrow(path) == to_arrow("id BIGINT")
    assert to_arrow("`a.sql` INT").names == ["a.sql"]


def test_a_source_that_reads_by_a_file_is_the_same_as_one_with_its_columns(tmp_path):
    path = written(tmp_path, "ride.ddl", "id BIGINT,\n city STRING\n")

    def arguments(schema: str):
        return hf.read.files(str(tmp_path / "in"), schema=schema, name="rides").node.spec.arguments()

    assert arguments(path) == arguments("id BIGINT, city STRING")


HOSTILE: dict[str, list[tuple[object, str]]] = {
    "a.avsc": [
        ("{", "it is not JSON"),
        ("[]", "it is no record"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "KeyError: 'name'"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}, "'a' has no type"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}, "'a' has no type"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}, "'a' has no type"),
        ({"type": "record", "name": "R", "fields": []}, "has no column"),
        (
            {"type": "record", "name": "R", "fields": [{"name": n, "type": "int"} for n in ("a", "A")]},
            "does not distinguish 'a' and 'A'",
        ),
    ],
    "a.json": [
        ("{", "it is not JSON"),
        ("3", "the schema is no object"),
        ({"type": "array"}, 'not of "type": "object"'),
        ({"type": "object", "properties": {"a": {}}}, "'a' has no single type"),
        ({"type": "object", "properties": {"a": {"type": ["integer", "string"]}}}, "'a' has no single type"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, "what it holds is not said"),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, "what it holds is not said"),
        ({"type": "object", "properties": {"a": {"$ref": "other.json"}}}, "not in this file"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}}, "'a' is no object"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "not in this file"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, "contains itself"),
        ({"type": "object", "required": 3, "properties": {"a": {"type": "integer"}}}, "TypeError"),
        ({"type": "object", "properties": {"a": 3}}, "'a' is no object"),
        ({"type": "object", "properties": {n: {"type": "integer"} for n in ("a", "A")}}, "does not distinguish"),
    ],
    "a.ddl": [
        ("", "cannot be read at column"),
        ("a TEXT", "Spark's word for it is STRING"),
        ("CREATE TABLE x (a INT", "have no end"),
        ("a INT, a STRING", "twice"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "why"), [(name, *case) for name, cases in HOSTILE.items() for case in cases]
)
def test_what_is_no_schema_of_columns_is_refused_with_the_reason(tmp_path, name, content, why):
    with pytest.raises(InvalidPipeline) as refused:
        to_arrow(written(tmp_path, name, content))
    assert why in str(refused.value)


def test_a_file_that_is_away_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(InvalidPipeline, match="relative to the working directory"):
        to_arrow(str(tmp_path / "none.avsc"))
    with pytest.raises(InvalidPipeline, match=r"does not end in \.avsc"):
        to_arrow(tmp_path / "none.proto")
