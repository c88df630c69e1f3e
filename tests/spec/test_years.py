"""Days and times of other years than 1 to 9999 are refused by every reader, by the column's name.

Spark and Arrow count them and Python has none: what comes of such a value differs from one way of evaluation, and from
one sink, to another.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.checkpoint.given_state import given_states
from holdfast.checkpoint.manifest import StateSchema
from holdfast.connectors.kafka.avro_reading import AvroDecoder
from holdfast.connectors.kafka.source.payloads import column
from holdfast.errors import BadRow, Corrupt, InvalidPipeline
from holdfast.operators.lookup.tables import FrameTable, ParquetTable
from holdfast.state.step import StateTable
from holdfast.types.conversion import END_SECOND, FIRST_SECOND

KINDS = {
    "date": pa.date32(),
    "date of ms": pa.date64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "seconds": pa.timestamp("s"),
    "in a list": pa.list_(pa.date32()),
    "in a struct": pa.struct([("at", pa.timestamp("us"))]),
}
DAY_S = 86_400
SAID = "outside of the years 1 to 9999"


def rows(kind: str, second: int) -> pa.Table:
    """Return a row with a moment, in seconds since 1970, in the column ``seen``."""
    wanted = KINDS[kind]
    if kind == "in a list":
        values = pa.array([[second // DAY_S]], pa.list_(pa.int32())).cast(wanted)
    elif kind == "in a struct":
        values = pa.StructArray.from_arrays([pa.array([second * 10**6]).cast(pa.timestamp("us"))], fields=list(wanted))
    elif kind.startswith("date"):
        values = pa.array([second // DAY_S], pa.int32()).cast(pa.date32()).cast(wanted)
    else:
        values = pa.array([second if kind == "seconds" else second * 10**6]).cast(wanted)
    return pa.table({"k": [1], "seen": values})


def by_parquet(given: pa.Table, work: Path) -> Any:
    pq.write_table(given, work / "t.parquet")
    return ParquetTable(str(work / "t.parquet")).load(["k", "seen"])


def by_frame(given: pa.Table, work: Path) -> Any:
    return FrameTable(given).load(["k", "seen"])


def by_state(given: pa.Table, work: Path) -> Any:
    key = pa.schema([("k", pa.int64())])
    kept = StateTable(given.schema, ("k",))
    (state,) = given_states({"counted": given})
    return state.tables(StateSchema("stateful", "{}", key, {"counts": kept}))


def by_push(given: pa.Table, work: Path) -> Any:
    return hf.read.CallbackFeed(work / "feed", schema=given.schema).push(given)


WAYS: dict[Callable[[pa.Table, Path], Any], type[Exception]] = {
    by_parquet: Corrupt,
    by_frame: InvalidPipeline,
    by_state: InvalidPipeline,
    by_push: BadRow,
}


OF_SPARK = [kind for kind in KINDS if kind not in ("date of ms", "seconds")]


@pytest.mark.parametrize(("way", "kind"), [(w, k) for w in WAYS for k in (OF_SPARK if w is by_push else KINDS)])
def test_a_reader_of_tables_takes_the_first_and_the_last_moment_and_refuses_those_beyond_by_name(
    way: Callable[[pa.Table, Path], Any], kind: str, tmp_path: Path
) -> None:
    for second in (FIRST_SECOND, END_SECOND - DAY_S):
        way(rows(kind, second), tmp_path)
    for second in (FIRST_SECOND - DAY_S, END_SECOND):
        with pytest.raises(WAYS[way], match=SAID) as refused:
            way(rows(kind, second), tmp_path)
        assert "'seen'" in str(refused.value)


@pytest.mark.parametrize("logical", ["date", "timestamp-micros", "timestamp-millis"])
def test_an_avro_value_beyond_is_a_bad_row_by_columns_and_one_by_one(logical: str) -> None:
    plain = "int" if logical == "date" else "long"
    per_second = {"date": 1 / DAY_S, "timestamp-micros": 10**6, "timestamp-millis": 10**3}[logical]
    fields = [{"name": "seen", "type": {"type": plain, "logicalType": logical}}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    wanted = pa.schema([("seen", pa.date32() if logical == "date" else pa.timestamp("us", "UTC"))])
    values = []
    for second in (0, END_SECOND):
        out = io.BytesIO()
        as_number = {"type": "record", "name": "r", "fields": [{"name": "seen", "type": plain}]}
        fastavro.schemaless_writer(out, fastavro.parse_schema(as_number), {"seen": int(second * per_second)})
        values.append(out.getvalue())
    decoder = AvroDecoder(schema, wanted)
    assert decoder.columns(values[:1]) is not None
    assert decoder.columns(values) is None
    good, problems = decoder.columns_apart(values)
    assert (len(good[0]), [*problems]) == (1, [1])


def test_rows_of_a_program_are_held_to_it_too() -> None:
    with pytest.raises(InvalidPipeline, match=SAID):
        hf.read.rows([[{"seen": END_SECOND // DAY_S}]], schema="seen DATE")


def test_a_message_has_no_time_where_its_producer_wrote_one_beyond() -> None:
    class Messages:
        def timestamps(self) -> np.ndarray:
            return np.array([-1, 0, END_SECOND * 1000 - 1, END_SECOND * 1000, 2**63 - 1])

    told: Any = Messages()
    assert column("timestamp", "t", 0, told).is_valid().to_pylist() == [False, True, True, False, False]
