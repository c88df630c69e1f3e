"""Avro: values become columns and columns values, as another implementation reads and writes them (design/0041)."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.connectors.formats.blocks import RowRules
from holdfast.connectors.kafka import avro_registry as registry_module
from holdfast.connectors.kafka.avro_reading import AvroDecoder, NotForColumns
from holdfast.connectors.kafka.avro_registry import Registry, Schemas
from holdfast.connectors.kafka.avro_schemas import schema_of
from holdfast.connectors.kafka.avro_writing import AvroEncoder, Unwritable, unfit
from holdfast.connectors.kafka.sink.avro_form import AvroSchema
from holdfast.connectors.kafka.sink.form import Limits, MessageForm
from holdfast.connectors.kafka.source.avro_payloads import AvroReader
from holdfast.errors import BadRow, InvalidPipeline, Unavailable
from holdfast.ports import REJECT_COLUMN
from tests.everyday import examples
from tests.schema_registry import SchemaRegistry, schema_registry

UTC = dt.UTC
RIDE: dict[str, Any] = {
    "type": "record",
    "name": "Ride",
    "namespace": "city.rides",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "km", "type": "float"},
        {"name": "stops", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": [{"type": "int", "logicalType": "date"}, "null"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["CITY", "AIRPORT"]}},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {
            "name": "car",
            "type": {
                "type": "record",
                "name": "Car",
                "fields": [{"name": "plate", "type": "string"}, {"name": "seats", "type": ["null", "int"]}],
            },
        },
    ],
}
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("city", pa.string()),
        ("km", pa.float64()),
        ("stops", pa.list_(pa.int64())),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("kind", pa.string()),
        ("fare", pa.decimal128(12, 2)),
        ("raw", pa.binary()),
        ("car", pa.struct([("seats", pa.int32()), ("plate", pa.string()), ("owner", pa.string())])),
        ("absent", pa.string()),
    ]
)
RIDES = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "city": st.none() | st.text(),
        "km": st.floats(width=32, allow_nan=False),
        "stops": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "at": st.integers(-(10**12), 10**13).map(
            lambda ms: dt.datetime(1970, 1, 1, tzinfo=UTC) + dt.timedelta(0, 0, 0, ms)
        ),
        "day": st.none() | st.dates(),
        "kind": st.sampled_from(["CITY", "AIRPORT"]),
        "fare": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda cents: Decimal(cents).scaleb(-2)),
        "raw": st.binary(max_size=20),
        "car": st.fixed_dictionaries({"plate": st.text(), "seats": st.none() | st.integers(0, 9)}),
    }
)
ONE = {
    "id": 1, "city": "Köln", "km": 1.5, "stops": [1, None], "at": dt.datetime(2024, 1, 1, tzinfo=UTC), "day": None,
    "kind": "CITY", "fare": Decimal("12.34"), "raw": b"\0", "car": {"plate": "K 1", "seats": None},
}  # fmt: skip


def encoded(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return stream.getvalue()


def as_columns(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "car": {**row["car"], "owner": None}, "absent": None}


def table_of(columns: list[pa.Array]) -> list[dict[str, Any]]:
    return list(pa.RecordBatch.from_arrays(columns, schema=COLUMNS).to_pylist())


DECODER = AvroDecoder(json.dumps(RIDE), COLUMNS)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.lists(RIDES, min_size=1, max_size=8))
def test_many_values_together_and_each_by_itself_are_the_rows_that_were_written(rides: list[Any]) -> None:
    values = [encoded(RIDE, ride) for ride in rides]
    wanted = [as_columns(ride) for ride in rides]
    together = DECODER.columns(values)
    assert together is not None
    assert table_of(together) == wanted
    apart, problems = DECODER.columns_apart(values)
    assert (table_of(apart), problems) == (wanted, {})


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.lists(RIDES, min_size=1, max_size=5), st.data())
def test_a_value_that_is_cut_or_goes_on_is_found_and_no_other_is_read_wrongly(rides: list[Any], data: Any) -> None:
    values = [encoded(RIDE, ride) for ride in rides]
    at = data.draw(st.integers(0, len(rides) - 1))
    good = values[at]
    values[at] = data.draw(
        st.integers(0, len(good) - 1).map(lambda size: good[:size])
        | st.binary(min_size=1, max_size=9).map(lambda more: good + more)
    )
    assert DECODER.columns(values) is None
    columns, problems = DECODER.columns_apart(values)
    assert set(problems) == {at}
    assert table_of(columns) == [as_columns(ride) for place, ride in enumerate(rides) if place != at]


def test_maps_and_fields_that_no_column_takes_are_read_one_by_one_or_left_out() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "of", "type": {"type": "map", "values": "long"}},
            {"name": "either", "type": ["string", "long"]},
            {"name": "next", "type": ["null", "R"]},
        ],
    }
    decoder = AvroDecoder(json.dumps(schema), pa.schema([("of", pa.map_(pa.string(), pa.int64()))]))
    values = [encoded(schema, {"of": {"a": 1}, "either": "x", "next": None})]
    assert decoder.columns(values) is None
    assert decoder.columns_apart(values)[0][0].to_pylist() == [[("a", 1)]]
    with pytest.raises(NotForColumns, match="'either' is a union of several types"):
        AvroDecoder(json.dumps(schema), pa.schema([("either", pa.string())]))


@pytest.mark.parametrize(
    ("of", "wanted", "fits"),
    [
        ("int", pa.int64(), True),
        ("int", pa.float64(), True),
        ("long", pa.float64(), True),
        ("string", pa.binary(), True),
        ("long", pa.int32(), False),
        ("string", pa.int64(), False),
        ("double", pa.float32(), False),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us"), False),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us"), True),
        ({"type": "string", "logicalType": "uuid"}, pa.string(), True),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), True),
        ({"type": "long", "logicalType": "unheard-of"}, pa.int64(), True),
    ],
)
def test_types_are_promoted_as_avro_does_and_no_other_way(of: Any, wanted: pa.DataType, fits: bool) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": of}]})
    if not fits:
        with pytest.raises(NotForColumns, match="'a' is"):
            AvroDecoder(schema, pa.schema([("a", wanted)]))
        return
    value = {"int": 1, "long": 1, "string": "x"}.get(of) if isinstance(of, str) else None
    if value is None:
        value = {"string": "x", "fixed": b"ab", "long": 1}[of["type"]]
    decoder = AvroDecoder(schema, pa.schema([("a", wanted)]))
    values = [encoded(json.loads(schema), {"a": value})]
    apart, problems = decoder.columns_apart(values)
    assert (apart[0].type, problems) == (wanted, {})
    together = decoder.columns(values)
    assert together is None or together[0].equals(apart[0])


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as made:
        yield made


def reader(registry: SchemaRegistry, columns: str = "id BIGINT, city STRING") -> tuple[AvroReader, RowRules]:
    from holdfast.types.schema import to_arrow

    wanted = to_arrow(columns)
    return AvroReader(Schemas(Registry(registry.url), "source 'rides'"), wanted), RowRules(wanted, True)


def message(number: int, schema: Any, row: Any) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + encoded(schema, row)


OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
NEW = {"type": "record", "name": "R", "fields": [{"name": "city", "type": "string"}, {"name": "id", "type": "long"}]}


@pytest.mark.slow
def test_schemas_may_alternate_within_an_epoch_and_each_is_asked_for_once(registry: SchemaRegistry) -> None:
    old, new = registry.add(OLD), registry.add(NEW)
    payloads = [
        message(old, OLD, {"id": at}) if at % 3 else message(new, NEW, {"id": at, "city": "x"}) for at in range(9)
    ]
    rides, rows = reader(registry)
    for _ in range(2):
        batch = rides.rows(payloads, rows, str)
        assert batch.column("id").to_pylist() == list(range(9))
        assert batch.column("city").to_pylist() == ["x", None, None] * 3
    assert len(registry.asked) == 2


@pytest.mark.slow
def test_what_cannot_be_read_is_rejected_with_its_reason_and_the_value(registry: SchemaRegistry) -> None:
    old = registry.add(OLD)
    other = registry.add({"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]})
    good = message(old, OLD, {"id": 5})
    payloads = [good, None, b"", b"{}", message(99, OLD, {"id": 1}), message(other, OLD, {"id": 1}), good + b"\0", good]
    rides, rows = reader(registry)
    batch = rides.rows(payloads, rows, lambda at: f"rides/0/{at}")
    assert batch.column("id").to_pylist() == [5, *[None] * 6, 5]
    rejects = batch.column(REJECT_COLUMN).to_pylist()
    assert [each and each["reason"] for each in rejects] == [
        None,
        "it has no value (a tombstone), and columns are wanted",
        "it is empty",
        "it does not begin with the id of a schema",
        "its schema 99 is not in the registry",
        f"its schema {other} does not fit the columns: 'id' is string there, and the column is int64",
        "it is not of its schema (it goes on for 1 bytes)",
        None,
    ]
    assert base64.b64decode(rejects[6]["raw"]) == good + b"\0"
    registry.add(OLD | {"doc": "late"})  # a schema that comes later is found
    registry._schemas[99] = json.dumps(OLD)
    assert rides.rows(payloads[4:5], rows, str).column("id").to_pylist() == [1]


@pytest.mark.slow
def test_a_null_where_none_may_be_is_a_bad_row(registry: SchemaRegistry) -> None:
    old, new = registry.add(OLD), registry.add(NEW)
    rides, rows = reader(registry, "id BIGINT, city STRING NOT NULL")
    batch = rides.rows([message(old, OLD, {"id": 1}), message(new, NEW, {"id": 2, "city": "x"})], rows, str)
    assert batch.column("id").to_pylist() == [None, 2]
    assert batch.column(REJECT_COLUMN)[0].as_py()["reason"] == "'city' is declared NOT NULL and is null or missing"


@pytest.mark.slow
def test_without_rejects_the_first_bad_message_is_named(registry: SchemaRegistry) -> None:
    old = registry.add(OLD)
    rides, rows = reader(registry)
    with pytest.raises(BadRow, match=r"rides/0/1, cannot be read: its schema 4711 is not in the registry\."):
        rides.rows(
            [message(old, OLD, {"id": 1}), message(4711, OLD, {"id": 1})],
            RowRules(rows.schema, False),
            lambda at: f"rides/0/{at}",
        )


@pytest.mark.slow
def test_a_registry_that_is_away_or_refuses_says_so_and_shows_no_password(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_RETRIES", {"max.retries": 0, "timeout": 5})
    registry.status = 503
    with pytest.raises(Unavailable, match="cannot answer now"):
        Schemas(Registry(registry.url), "source 'rides'").schema(1)
    with pytest.raises(Unavailable, match="does not answer"):
        Schemas(Registry("http://127.0.0.1:9"), "source 'rides'").schema(1)
    with schema_registry(login="app:right") as closed:
        wrong = Registry(closed.url, (("password", "wrong-secret"), ("username", "app")))
        with pytest.raises(InvalidPipeline, match="refuses this user") as refused:
            Schemas(wrong, "source 'rides'").schema(1)
        assert "wrong-secret" not in str(refused.value) + repr(wrong)
        number = closed.add(OLD)
        asked = Registry.of({"url": closed.url, "username": "app", "password": "${WORD}"}, "read.kafka")
        found = Schemas(asked.expanded("read.kafka", {"WORD": "right"}), "source 'rides'").schema(number)
        assert found == json.dumps(OLD)


# --- writing ----------------------------------------------------------------------------------------------------------

WRITTEN = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("km", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("here", pa.timestamp("us")),
        ("day", pa.date32()),
        ("fare", pa.decimal128(9, 2)),
        ("ok", pa.bool_()),
        ("small", pa.int16()),
        ("tags", pa.list_(pa.string())),
        ("by", pa.map_(pa.string(), pa.int64())),
        ("car", pa.struct([("plate", pa.string())])),
    ]
)
FULL = {
    "id": 1, "city": "Köln", "km": 0.1, "at": dt.datetime(2024, 1, 1, 0, 0, 0, 1, UTC),
    "here": dt.datetime(2024, 1, 1), "day": dt.date(1969, 1, 1), "fare": Decimal("-1.05"), "ok": True, "small": -3,
    "tags": ["a", None], "by": {"k": 1}, "car": {"plate": None},
}  # fmt: skip


def test_another_implementation_reads_the_rows_that_were_written() -> None:
    empty: dict[str, Any] = dict.fromkeys(FULL, None) | {"id": 2}
    rows = pa.RecordBatch.from_pylist([{**FULL, "by": [("k", 1)]}, empty], WRITTEN)
    encoder = pickle.loads(pickle.dumps(AvroEncoder(json.dumps(schema_of(WRITTEN, "rides.v1")), 258)))
    found = encoder.values(rows).to_pylist()
    assert all(value.startswith(b"\0\0\0\1\2") for value in found)
    schema = fastavro.parse_schema(json.loads(encoder.schema))
    assert [fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None) for value in found] == [FULL, empty]


@pytest.mark.slow
def test_what_is_written_is_read_back(registry: SchemaRegistry) -> None:
    encoder = AvroSchema(Registry(registry.url), "rides-value").encoder("sink 'rides'", COLUMNS)
    rows = pa.RecordBatch.from_pylist([as_columns(ONE)], COLUMNS)
    rides = AvroReader(Schemas(Registry(registry.url), "source 'rides'"), COLUMNS)
    assert rides.rows(encoder.values(rows).to_pylist(), RowRules(COLUMNS, False), str).to_pylist() == rows.to_pylist()


def test_a_schema_of_the_users_is_held_against_the_columns() -> None:
    def schema(*fields: dict[str, Any]) -> str:
        return json.dumps({"type": "record", "name": "R", "fields": list(fields)})

    columns = pa.schema([("a", pa.int64())])
    assert unfit(schema({"name": "a", "type": "long"}, {"name": "b", "type": "int", "default": 3}), columns) is None
    assert "no field of the schema" in str(unfit(schema(), columns))
    assert "without a default" in str(
        unfit(schema({"name": "a", "type": "long"}, {"name": "b", "type": "int"}), columns)
    )
    assert "is int64, and the schema has string" in str(unfit(schema({"name": "a", "type": "string"}), columns))
    assert "no schema of a record" in str(unfit('"long"', columns))
    with pytest.raises(Unwritable):
        AvroEncoder(schema({"name": "a", "type": "long"}), 1).values(pa.RecordBatch.from_pydict({"a": [None]}, columns))


def test_a_deleted_row_is_a_tombstone_and_needs_no_values() -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": c, "type": "long"} for c in "kv"]})
    form = MessageForm("t", "avro", "upsert", ("k",), delete="gone", avro=AvroEncoder(schema, 1))
    rows = pa.RecordBatch.from_pydict({"k": [1, 2, 3], "v": [4, None, 6], "gone": [False, True, None]})
    found = [value for chunk in form.messages("sink 's'", rows, Limits({"t": 1})) for value in chunk.values.to_pylist()]
    assert found == [b"\0\0\0\0\1\2\x08", None, b"\0\0\0\0\1\6\x0c"]
    with pytest.raises(BadRow, match="cannot be written with its schema, 1 of the registry"):
        form.check("sink 's'", rows.slice(1).set_column(2, "gone", pa.array([False, False])), Limits({"t": 1}))


@pytest.mark.slow
def test_the_schema_is_registered_once_or_the_one_that_is_there_is_used(registry: SchemaRegistry) -> None:
    columns = pa.schema([("a", pa.int64())])
    at = Registry(registry.url)
    first = AvroSchema(at, "rides-value").encoder("sink 's'", columns)
    assert AvroSchema(at, "rides-value").encoder("sink 's'", columns) == first
    assert json.loads(registry.newest("rides-value") or "")["name"] == "rides"
    assert AvroSchema(at, "rides-value", registers=False).encoder("sink 's'", columns) == first
    with pytest.raises(InvalidPipeline, match="has no schema in the registry"):
        AvroSchema(at, "other-value", registers=False).encoder("sink 's'", columns)
    with pytest.raises(InvalidPipeline, match="would be lost"):
        AvroSchema(at, "rides-value", registers=False).encoder("sink 's'", columns.append(pa.field("b", pa.string())))
    strict = json.dumps({"type": "record", "name": "rides", "fields": [{"name": "b", "type": "long"}]})
    with pytest.raises(InvalidPipeline, match="does not fit those that its subject has"):
        AvroSchema(at, "rides-value", strict).encoder("sink 's'", pa.schema([("b", pa.int64())]))
    with pytest.raises(InvalidPipeline, match="no Avro schema can be made"):
        AvroSchema(at, "odd-value").encoder("sink 's'", pa.schema([("a b", pa.int64())]))


# --- declarations -----------------------------------------------------------------------------------------------------


def refused(**arguments: Any) -> str:
    with pytest.raises(InvalidPipeline) as error:
        hf.read.kafka("localhost:9092", "t", name="s", **{"schema": "id BIGINT", **arguments})
    return str(error.value)


def test_what_contradicts_itself_is_refused_while_building() -> None:
    assert 'format="avro" without registry=' in refused(format="avro")
    assert 'format="json" with registry=' in refused(registry="http://localhost:8081")
    assert "registry= with 'localhost' is not known" in refused(format="avro", registry="localhost")
    assert "has a password in it" in refused(format="avro", registry="http://a:b@localhost")
    assert "key 'user'" in refused(format="avro", registry={"url": "http://a", "user": "b"})
    wrong: Any = (
        ({}, 'format="avro" without registry='),
        ({"registry": "http://a", "topic_by": "t", "topics": ["a", "b"], "topic": None}, "without subject="),
        ({"registry": "http://a", "value_schema": {}, "register": False}, "register=False"),
        ({"registry": "http://a", "format": "json"}, "with arguments of Avro"),
    )
    for more, what in wrong:
        with pytest.raises(InvalidPipeline, match=what):
            hf.write.kafka("localhost:9092", **{"topic": "t", "format": "avro", "name": "s", **more})


def test_a_declaration_shows_the_registry_and_no_secret() -> None:
    spec = hf.read.kafka(
        "localhost:9092",
        "t",
        format="avro",
        schema="id BIGINT",
        registry={"url": "http://a", "username": "u", "password": "p-secret"},
        name="s",
    ).node.spec
    assert spec.arguments()["registry"] == "http://a"
    assert spec.sends_secret
    assert "p-secret" not in repr(spec)
