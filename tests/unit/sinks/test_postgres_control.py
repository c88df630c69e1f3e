"""Control rows in PostgreSQL: what becomes of the table, of staged blobs, and beside other sinks."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import holdfast as hf
from holdfast.connectors.control.columns import ControlColumns
from holdfast.connectors.kit.sql import TableMode
from holdfast.connectors.postgres import command_blobs as blobs
from holdfast.connectors.postgres.spec import PostgresSpec
from holdfast.errors import BadRow, Diverged, InvalidPipeline
from holdfast.ports import Held, RunIdentity, Sink
from tests.controlled import GUST, PIPELINE, SCHEMA, WIDE_GUST, WIDE_ID, carried, publication, staged

pytestmark = pytest.mark.postgres

CONTROL = ControlColumns("control", "extra")
STAGES = "SELECT relname FROM pg_class WHERE relname LIKE 'holdfast\\_stage%' AND relkind = 'r'"
UPSERT = TableMode.of("upsert", ["id"], None, rewindable=False)


def opened(dsn: str, generation: int = 1, **arguments: Any) -> Sink:
    sink = PostgresSpec(dsn, "words", control=CONTROL, **arguments).connect("out", PIPELINE, SCHEMA)
    sink.open(RunIdentity(PIPELINE, generation))
    return sink


def query(dsn: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else []


def types(dsn: str) -> dict[str, str]:
    return dict(query(dsn, "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'words'"))


def test_the_table_gets_the_columns_and_the_types(postgres_plain: str) -> None:
    query(postgres_plain, "CREATE TABLE words (id integer, day varchar(2))")
    sink = opened(postgres_plain)
    items = [(1, "mo"), GUST, WIDE_GUST, WIDE_ID, hf.control.widen("day", "string"), (2, "long", {"id": "5000000000"})]
    sink.publish([publication(1, carried(items))], Held())  # type: ignore[arg-type]
    assert types(postgres_plain) == {"id": "bigint", "day": "text", "gust": "double precision"}
    assert query(postgres_plain, "SELECT * FROM words ORDER BY id") == [(1, "mo", None), (5_000_000_000, "long", None)]
    noted = query(postgres_plain, "SELECT number, epoch, kind, command FROM holdfast_control ORDER BY number")
    assert noted[0] == (1, 1, "schema", GUST)
    assert [row[0] for row in noted] == [1, 2, 3, 4]
    sink.close()


def test_an_upsert_keeps_its_order_around_commands(postgres_plain: str) -> None:
    sink = opened(postgres_plain, mode=UPSERT)
    items = [(1, "mo"), (2, "mo"), GUST, (1, "tu", {"gust": "1.5"}), hf.control.drop_partition(day="mo"), (3, "mo")]
    whole = publication(1, carried(items[:2]), staged(sink, 1, items[2:]))  # type: ignore[arg-type]
    assert sink.admit(whole)
    sink.publish([whole], Held())
    assert query(postgres_plain, "SELECT * FROM words ORDER BY id") == [(1, "tu", 1.5), (3, "mo", None)]
    sink.close()


def test_a_column_that_somebody_has_made_is_taken_if_it_fits(postgres_plain: str) -> None:
    sink = opened(postgres_plain)
    query(postgres_plain, "ALTER TABLE words ADD COLUMN gust double precision, ADD COLUMN rain text")
    sink.publish([publication(1, carried([GUST, (1, "mo", {"gust": "1.5"})]))], Held())
    assert types(postgres_plain)["gust"] == "double precision"
    with pytest.raises(BadRow, match="'rain' is int32, but text"):
        sink.admit(publication(2, carried([hf.control.add_column("rain", "int")])))
    sink.close()


def test_large_epochs_are_staged_as_blobs_and_read_back_in_order(
    postgres_plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "BLOB_BYTES", 64)
    monkeypatch.setattr(blobs, "BLOBS_AT_ONCE", 3)
    sink = opened(postgres_plain)
    items = [*[(number, "mo") for number in range(100)], hf.control.drop_partition(day="mo"), (100, "mo")]
    first, second = staged(sink, 1, items), staged(sink, 1, [(101, "mo")], task=1)  # type: ignore[arg-type]
    assert first.row_count == 102
    assert sink.staging.startswith("staging tables (of Arrow blobs")
    sink.publish([publication(1, first, second)], Held())
    assert query(postgres_plain, "SELECT id FROM words ORDER BY id") == [(100,), (101,)]
    assert query(postgres_plain, STAGES) == []
    lost = staged(sink, 2, [(102, "mo"), (103, "mo")])
    ((name,),) = query(postgres_plain, STAGES)
    query(postgres_plain, f"DELETE FROM {name}")
    with pytest.raises(Diverged, match="are gone"):
        sink.publish([publication(2, lost)], Held())
    sink.close()


def test_prepared_transactions_and_commands_are_refused_together() -> None:
    with pytest.raises(InvalidPipeline, match="contradict each other"):
        hf.write.postgres("postgresql://h/d", table="words", stage="prepared", control="control")
