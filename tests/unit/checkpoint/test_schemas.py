"""The schemas of sinks, for what connects them without Spark."""

from contextlib import suppress

import pyarrow as pa
import pytest

from holdfast.checkpoint.schemas import note_schema, noted_schema
from holdfast.errors import Corrupt
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.flips import flipped

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))])


def test_a_schema_comes_back_as_it_was_and_there_is_none_of_a_sink_that_was_never_opened():
    store = SimulatedStore()
    note_schema(store, "target", SCHEMA)
    assert noted_schema(store, "target") == SCHEMA
    assert noted_schema(store, "other") is None


@pytest.mark.slow
def test_a_damaged_schema_is_named_and_none_is_another_schema():
    store = SimulatedStore()
    note_schema(store, "target", SCHEMA)
    (key,) = store.keys("schemas/")
    for damaged in flipped(store.get(key)):
        store.put(key, damaged)
        with suppress(Corrupt):
            assert noted_schema(store, "target") == SCHEMA
    store.put(key, b"")
    with pytest.raises(Corrupt, match=r"schemas/target\.json"):
        noted_schema(store, "target")
