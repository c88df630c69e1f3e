"""What sinks say of rows and epochs by declaration alone, for ``holdfast trace``: each that can, in one way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.capabilities import offers
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import SinkNode
from holdfast.ports import Carried, EpochRecord, LineageSpec, Publication, RunIdentity

SCHEMA = pa.schema([("row_id", pa.string()), ("n", pa.int64())])


MYSQL = pytest.param("mysql", marks=pytest.mark.slow)
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(params=["sqlite", "files", "json files", MYSQL, POSTGRES], ids=str)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkNode]:
    match request.param:
        case "sqlite":
            yield hf.write.sqlite(tmp_path / "out.db", table="rows", name="target")
        case "mysql":
            yield hf.write.mysql(request.getfixturevalue("mysql_url"), table="rows", name="target")
        case "files":
            yield hf.write.files(tmp_path / "out", name="target")
        case "json files":
            yield hf.write.files(tmp_path / "out", format="json", name="target")
        case _:
            yield hf.write.postgres(request.getfixturevalue("postgres_plain"), table="traced", name="target")


def asked(node: SinkNode) -> LineageSpec:
    assert offers(node.spec, LineageSpec)
    return node.spec


def published(node: SinkNode, *groups: list[int]) -> None:
    """Publish epochs, each group in one transaction, of ten rows each."""
    sink = node.spec.connect("target", "traced", SCHEMA)
    expected = sink.open(RunIdentity("traced", 3))
    for epochs in groups:
        several = []
        for epoch in epochs:
            rows = [{"row_id": f"{epoch}-{n}", "n": n} for n in range(10)]
            record = EpochRecord("traced", epoch, 3, {"given": {"log": epoch * 10}})
            several.append(Publication(record, (Carried(pa.Table.from_pylist(rows, SCHEMA)),)))
        sink.publish(several, expected)
        last = several[-1].record
        expected = type(expected)(last.epoch, 3, last.positions)
    sink.close()


def test_the_last_epochs_are_told_with_generation_end_and_time(node: SinkNode) -> None:
    assert asked(node).history("target", "traced") == [] or node.kind == "postgres"
    published(node, [1], [2], [5])
    found = asked(node).history("target", "traced")
    assert [(each.epoch, each.generation, each.positions) for each in found] == [
        (epoch, 3, {"given": {"log": epoch * 10}}) for epoch in (1, 2, 5)
    ]
    times = [each.at_us for each in found]
    assert times == sorted(times)
    assert times[0] > 1_700_000_000_000_000


def test_rows_are_found_by_a_value_and_by_a_condition(node: SinkNode) -> None:
    published(node, [1], [2])
    assert [row["n"] for row in asked(node).find("target", ("row_id", "2-7"), limit=10)] == [7]
    assert asked(node).find("target", ("row_id", 'it\'s "none"'), limit=10) == []
    found = asked(node).find("target", "n = 3 OR n = 4", limit=10)
    assert sorted(row["row_id"] for row in found) == ["1-3", "1-4", "2-3", "2-4"]
    assert len(asked(node).find("target", "n >= 0", limit=3)) == 3
    with pytest.raises(InvalidPipeline):
        asked(node).find("target", "nothing = 1 AND", limit=3)


def test_epochs_of_one_transaction_are_told_each_where_the_ledger_has_them(node: SinkNode) -> None:
    """Of two in one place of the list the later one stays; a log of files has one entry for a group."""
    published(node, [1, 2, 1001, 1002])
    told = [each.epoch for each in asked(node).history("target", "traced")]
    assert told == ([1002] if node.kind == "files" else [1001, 1002])
