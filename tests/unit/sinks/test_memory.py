"""The memory sink: rows in this process, under a name."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from holdfast.connectors.memory import MemorySink, MemorySpec, clear, memory, rows
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.ports import Carried, EpochRecord, Guarantee, Held, Publication, RunIdentity, Staged

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    clear("out")
    yield
    clear("out")


def _opened(generation: int = 1, *, name: str = "out") -> MemorySink:
    sink = MemorySpec("out").connect(name, "numbers", SCHEMA)
    sink.open(RunIdentity("numbers", generation))
    return sink


def _publication(epoch: int, *ids: int) -> Publication:
    return Publication(EpochRecord("numbers", epoch, 1, {}), (Carried(pa.table({"id": ids}, schema=SCHEMA)),))


def test_the_node_and_the_table_have_the_name() -> None:
    node = memory("out")
    assert node.name == "out"
    assert node.guarantee is Guarantee.EXACTLY_ONCE
    assert node.arguments() == {"table": "out"}


def test_rows_are_in_the_order_of_their_epochs() -> None:
    sink = _opened()
    assert rows("out") == SCHEMA.empty_table()
    sink.publish([_publication(1, 3, 1), _publication(2, 2)], Held())
    assert rows("out")["id"].to_pylist() == [3, 1, 2]


def test_an_unknown_table_is_refused_with_those_there_are() -> None:
    _opened()
    with pytest.raises(InvalidPipeline, match="'outt'") as caught:
        rows("outt")
    assert "out" in caught.value.why


def test_clear_forgets_rows_and_ledger_and_a_live_sink_goes_on() -> None:
    sink = _opened()
    sink.publish([_publication(1, 1)], Held())
    clear("out")
    clear("out")
    sink.publish([_publication(2, 2)], Held())
    assert rows("out")["id"].to_pylist() == [2]
    clear("out")
    again = MemorySpec("out").connect("out", "numbers", SCHEMA)
    assert again.open(RunIdentity("numbers", 1)) == Held()


def test_another_schema_under_the_same_name_is_refused_naming_column_and_types() -> None:
    _opened()
    with pytest.raises(
        InvalidPipeline, match="Column 'id' of memory table 'out' is int64 there and string in the rows"
    ):
        MemorySpec("out").connect("other", "numbers", pa.schema([("id", pa.string())]))
    with pytest.raises(InvalidPipeline, match="Column 'more' of memory table 'out' is absent there"):
        MemorySpec("out").connect("other", "numbers", SCHEMA.append(pa.field("more", pa.int64())))


def test_a_damaged_handle_is_refused() -> None:
    sink = _opened()
    record = EpochRecord("numbers", 1, 1, {})
    with pytest.raises(Corrupt, match="damaged"):
        sink.publish([Publication(record, (Staged("numbers/1/1/0/0", 1, {"arrow": "bm90IGFycm93"}),))], Held())
    assert rows("out").num_rows == 0
