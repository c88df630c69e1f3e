"""What the SQL sinks share."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.commit.coordinator import Coordinator
from holdfast.connectors.kit import sql
from holdfast.connectors.kit.sql import LedgerRow, TableMode
from holdfast.errors import BadRow, Diverged, Fenced, InvalidPipeline
from holdfast.ports import RunIdentity, Sink
from holdfast.testing import SimulatedClock, SimulatedStore
from tests.specs import postgres_spec, sqlite_spec

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("gone", pa.bool_())])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "replace"}, "mode='replace' is not known"),
        ({"mode": "upsert"}, "without a key"),
        ({"key": ("id",)}, "key=['id'] has no meaning"),
        ({"delete": "gone"}, "delete='gone' has no meaning"),
        ({"mode": "upsert", "key": ("id", "id")}, "name a column twice"),
        ({"mode": "upsert", "key": ("id",), "delete": "id"}, "name a column twice"),
    ],
)
@pytest.mark.parametrize("spec", [sqlite_spec, postgres_spec])
def test_arguments_that_contradict_each_other_are_refused(spec: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPipeline) as caught:
        spec("somewhere", "words", **arguments)
    assert words in caught.value.what
    assert caught.value.do


def test_a_key_that_the_rows_lack_is_found_while_building() -> None:
    spec = sqlite_spec("words.db", "words", "upsert", ("id", "langage"))
    spec.check_columns(None)
    with pytest.raises(InvalidPipeline, match="column 'langage' is not among the rows' columns"):
        spec.check_columns(["id", "language"])


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([("id", pa.int64()), ("id", pa.int64())]), "'id' twice"),
        (pa.schema([("id", pa.int64()), ("__holdfast_row", pa.int64())]), "__holdfast_row"),
        (pa.schema([("id", pa.int64()), ("gone", pa.string())]), "'gone' is string, not boolean"),
    ],
)
def test_a_schema_that_no_table_can_hold_is_refused(schema: pa.Schema, words: str) -> None:
    mode = TableMode("upsert", ("id",), "gone" if "gone" in schema.names else None)
    with pytest.raises(InvalidPipeline, match=words):
        mode.check_schema("sink 'words'", schema)


def test_the_delete_column_is_not_stored() -> None:
    assert TableMode("upsert", ("id",), "gone").stored(SCHEMA).names == ["id", "word"]


def test_a_null_key_is_refused_before_anything_is_written() -> None:
    rows = pa.table({"id": [1, None], "word": ["a", "b"]})
    with pytest.raises(BadRow, match="1 rows have a null in the key column 'id'"):
        sql.check_keys("sink 'words'", TableMode("upsert", ("id",)), rows)


def test_the_generation_decides_who_may_publish() -> None:
    row = LedgerRow(3, 2, "{}", None)
    assert sql.check_generation("sink", "words", 2, row) is row
    with pytest.raises(Fenced) as refusal:
        sql.check_generation("sink", "words", 1, row)
    assert refusal.value.generation == 2, "the higher one: a takeover goes above it"
    with pytest.raises(Diverged, match="older than this run"):
        sql.check_generation("sink", "words", 3, row)
    with pytest.raises(Diverged, match="gone"):
        sql.check_generation("sink", "words", 3, None)


def test_a_checkpoint_that_was_lost_goes_above_the_sink_at_once(tmp_path: Path) -> None:
    def sink() -> Sink:
        return sqlite_spec(str(tmp_path / "words.db"), "words").connect("words_table", "words", SCHEMA)

    owner = sink()
    owner.open(RunIdentity("words", 4000))
    owner.close()
    successor = sink()
    coordinator = Coordinator(pipeline="words", store=SimulatedStore(), sinks=[successor], clock=SimulatedClock())
    resumption = coordinator.open()
    coordinator.close()
    successor.close()
    assert resumption.generation == 4001, "by doubling steps it would be another one"


def test_nested_values_become_json() -> None:
    values = pa.array(
        [
            {
                "list": [1.5, float("nan")],
                "map": [("k", b"\x00\xff")],
                "at": dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
                "price": Decimal("1.10"),
                "text": 'say "ü"\n',
            },
            None,
        ],
        pa.struct(
            [
                ("list", pa.list_(pa.float64())),
                ("map", pa.map_(pa.string(), pa.binary())),
                ("at", pa.timestamp("us", "UTC")),
                ("price", pa.decimal128(10, 2)),
                ("text", pa.string()),
            ]
        ),
    )
    first, second = sql.json_text(values).to_pylist()
    assert json.loads(first) == {
        "list": [1.5, "NaN"],
        "map": {"k": "AP8="},
        "at": "2024-01-02T03:04:05.000006+00:00",
        "price": "1.10",
        "text": 'say "ü"\n',
    }
    assert second is None


def test_encodings_are_taken_off() -> None:
    words = pa.array(["a", None, "a"]).dictionary_encode()
    assert sql.flat(words).type == pa.string()
    assert sql.flat_type(words.type) == pa.string()
    runs = pa.compute.run_end_encode(pa.array([1, 1, 2]))
    assert sql.flat(runs).to_pylist() == [1, 1, 2]
    assert sql.flat_type(runs.type) == pa.int64()
