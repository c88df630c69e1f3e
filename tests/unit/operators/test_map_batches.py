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
