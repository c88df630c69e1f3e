"""map_batches as a declaration."""

import pickle

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.operators.map_batches import MapBatches
from tests.graphs import source


def same(batch):
    return batch


def with_model(batch, model):
    return batch


def test_it_holds_the_functions_and_the_schema_and_travels():
    stream = source() | hf.map_batches(with_model, "a INT, b STRING NOT NULL", setup=dict)
    spec = stream.node.spec
    schema = pa.schema([("a", pa.int32()), pa.field("b", pa.string(), nullable=False)])
    assert spec == MapBatches(with_model, schema, dict)
    assert pickle.loads(pickle.dumps(spec)).schema == schema
    assert stream.columns == ("a", "b")
    assert spec.arguments()["schema"] == ["a: int32", "b: string not null"]
    assert spec.arguments()["setup"].startswith("dict#")


def test_the_timestamp_stays_when_a_timestamp_column_of_its_name_does():
    flights = source(timestamp="time_hour")
    assert (flights | hf.map_batches(same, "time_hour TIMESTAMP")).timestamp == "time_hour"
    assert (flights | hf.map_batches(same, "time_hour STRING")).timestamp is None
    assert (flights | hf.map_batches(same, "origin STRING")).timestamp is None


@pytest.mark.parametrize(
    ("offset", "schema", "says"),
    [
        ("-1 s", "time_hour BIGINT", "does not fit timestamps of type int64"),
        (5, "time_hour TIMESTAMP", "does not fit timestamps of type timestamp"),
        ("soon", "time_hour TIMESTAMP", "not a number with a unit"),
        (0.5, "time_hour TIMESTAMP", "no distance in time"),
        (0, "origin STRING", "has no timestamp to be about"),
    ],
)
def test_an_offset_that_cannot_be_is_refused_with_its_cure(offset, schema, says):
    with pytest.raises(hf.InvalidPipeline, match=says) as raised:
        source(timestamp="time_hour") | hf.map_batches(same, schema, timestamp_offset=offset)
    assert raised.value.do


def test_an_offset_is_part_of_what_is_compared_and_its_absence_is_not():
    without, with_one = (hf.map_batches(same, "a INT", timestamp_offset=offset).spec for offset in (None, 0))
    assert "timestamp_offset" not in without.arguments()
    assert with_one.arguments()["timestamp_offset"] == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((with_model, "a INT"), r"cannot be called with \(batch\)"),
        (("same", "a INT"), "is not a function"),
        ((same, "a FOO"), "'foo'|column 'a'"),
        ((same, None), "is not a schema"),
    ],
)
def test_what_cannot_work_is_refused(arguments, text):
    with pytest.raises(hf.InvalidPipeline, match=text):
        hf.map_batches(*arguments)


def test_a_function_without_room_for_what_setup_loads_is_refused():
    with pytest.raises(hf.InvalidPipeline, match=r"cannot be called with \(batch, loaded\)"):
        hf.map_batches(same, "a INT", setup=dict)
    with pytest.raises(hf.InvalidPipeline, match=r"cannot be called with \(\)"):
        hf.map_batches(with_model, "a INT", setup=same)
