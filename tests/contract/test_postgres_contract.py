"""PostgreSQL keeps the promises of a sink, in each way of staging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.connectors.postgres import sink as postgres_sink
from holdfast.connectors.postgres.spec import PostgresSpec
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.ports import LedgerSpec, RunIdentity, Sink, Task
from tests.contract import column_contract, comparable_contract
from tests.contract.column_contract import ColumnContract
from tests.contract.comparable_contract import ComparableContract, ComparableTablesContract
from tests.contract.explaining_contract import ExplainingContract
from tests.contract.ledger_contract import LedgerContract
from tests.contract.reject_contract import RejectContract
from tests.contract.reset_contract import LostLedgerContract, ResetContract, ResetWithoutRowsContract
from tests.contract.rewind_contract import RewindContract
from tests.contract.shard_contract import (
    ShardContract,
    ShardLedgerContract,
    ShardRewindContract,
    ShardsOfTablesContract,
    SharedTableContract,
)
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row, SinkContract
from tests.specs import postgres_spec

pytestmark = pytest.mark.postgres

TestSinkContract = SinkContract
TestColumnContract = ColumnContract
TestComparableContract = ComparableContract
TestComparableTablesContract = ComparableTablesContract
TestExplainingContract = ExplainingContract
TestLedgerContract = LedgerContract
TestLostLedgerContract = LostLedgerContract
TestResetContract = ResetContract
TestResetWithoutRowsContract = ResetWithoutRowsContract
TestRejectContract = RejectContract
TestRewindContract = RewindContract
TestShardContract = ShardContract
TestShardLedgerContract = ShardLedgerContract
TestShardRewindContract = ShardRewindContract
TestShardsOfTablesContract = ShardsOfTablesContract
TestSharedTableContract = SharedTableContract


@dataclass(frozen=True)
class PostgresTarget:
    dsn: str
    arguments: dict[str, Any]

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        return postgres_spec(self.dsn, "words", **self.arguments).connect(name, pipeline, schema)

    @property
    def spec(self) -> LedgerSpec:
        return postgres_spec(self.dsn, "words", **self.arguments)

    def is_there(self) -> bool:
        with psycopg.connect(self.dsn) as connection:
            tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        return tables != (0,)

    def rows(self) -> list[Row]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute("SELECT id, word FROM words").fetchall()

    def leftovers(self) -> list[str]:
        with psycopg.connect(self.dsn) as connection:
            found = connection.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                " UNION ALL SELECT relname FROM pg_class WHERE relname LIKE 'holdfast\\_stage%' AND relkind = 'r'"
            ).fetchall()
        return [name for (name,) in found]

    def lose_ledger(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("DELETE FROM holdfast_ledger")

    def refuse(self, word: str) -> bool:
        with psycopg.connect(self.dsn) as connection:
            connection.execute(f"ALTER TABLE words ADD CHECK (word <> '{word}') NOT VALID")
        return True


@pytest.fixture(params=["prepared", "table", pytest.param("no-prepared", marks=pytest.mark.nightly)])
def target(request: pytest.FixtureRequest) -> PostgresTarget:
    if request.param == "no-prepared":
        return PostgresTarget(request.getfixturevalue("postgres_plain"), {})
    return PostgresTarget(request.getfixturevalue("postgres_prepared"), {"stage": request.param})


def test_staging_is_chosen_by_what_the_server_allows(postgres_prepared: str, postgres_plain: str) -> None:
    prepared = PostgresTarget(postgres_prepared, {}).connect()
    plain = PostgresTarget(postgres_plain, {}).connect()
    assert (prepared.staging, plain.staging) == ("prepared transactions", "staging tables")
    prepared.close()
    plain.close()


@pytest.fixture
def refusing(postgres_plain: str) -> PostgresTarget:
    """Rows that are prepared have met every rule, and their lock on the table lets nobody make another one."""
    return PostgresTarget(postgres_plain, {})


@pytest.fixture(params=["prepared", "table"])
def rewindable(request: pytest.FixtureRequest, postgres_prepared: str) -> PostgresTarget:
    return PostgresTarget(postgres_prepared, {"stage": request.param, "rewindable": True})


@dataclass
class GrowingPostgres:
    dsn: str
    stage: str

    def spec(self, table: str = "words", **arguments: Any) -> PostgresSpec:
        upserts = arguments.get("mode") == "upsert"
        return postgres_spec(self.dsn, table, **{"stage": "auto" if upserts else self.stage, **arguments})

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def columns(self, table: str = "words") -> list[str]:
        query = f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
        return [name for (name,) in self.execute(query)]


@pytest.fixture(params=["prepared", "table"])
def growing(request: pytest.FixtureRequest, postgres_prepared: str) -> GrowingPostgres:
    return GrowingPostgres(postgres_prepared, request.param)


def test_a_column_waits_for_rows_that_are_still_prepared_and_is_added_when_they_are_swept(
    postgres_prepared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a dead driver may prepare its rows when recovery has swept already: the next try sweeps again."""
    monkeypatch.setattr(postgres_sink, "ADD_LOCK_TIMEOUT", "50ms")
    target = GrowingPostgres(postgres_prepared, "prepared")
    column_contract.before(target)
    dead = target.spec().connect("target", PIPELINE, SCHEMA)
    dead.open(RunIdentity(PIPELINE, 2))
    writer = dead.writer_factory()(Task(PIPELINE, 2, 2, 0, 0))
    writer.write(pa.record_batch({"id": [9], "word": ["late"]}))
    writer.stage()
    sink = column_contract.connected(target)
    sink.open(RunIdentity(PIPELINE, 3))
    growing = column_contract.evolving(sink)
    with pytest.raises(Unavailable, match=r"cannot be added to table public\.words now"):
        growing.add_columns()
    sink.sweep(below_epoch=2)
    assert [*growing.add_columns()] == ["cents", "at"]
    sink.close()
    dead.close()


def test_a_role_that_does_not_own_the_table_is_told_the_statement(postgres_plain: str) -> None:
    target = GrowingPostgres(postgres_plain, "auto")
    column_contract.before(target)
    target.execute("CREATE ROLE growing_writer LOGIN PASSWORD 'growing'")
    try:
        target.execute("GRANT USAGE, CREATE ON SCHEMA public TO growing_writer")
        target.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO growing_writer")
        address: dict[str, Any] = conninfo_to_dict(postgres_plain)
        writer = make_conninfo(**{**address, "user": "growing_writer", "password": "growing"})
        with pytest.raises(InvalidPipeline, match=r'ALTER TABLE public\.words ADD COLUMN "cents" numeric') as caught:
            postgres_spec(writer, "words").connect("target", PIPELINE, column_contract.WIDER)
        assert "does not own the table" in str(caught.value)
    finally:
        target.execute("DROP OWNED BY growing_writer; DROP ROLE growing_writer")


@dataclass
class PostgresTables(comparable_contract.Targets):
    """A new table each time."""

    dsn: str

    def fresh(
        self, schema: pa.Schema, key: tuple[str, ...] = (), delete: str | None = None, rewindable: bool = False
    ) -> Sink:
        number = len(self.sinks)
        mode = "upsert" if key else "append"
        spec = postgres_spec(self.dsn, f"compared_{number}", mode, key, delete, rewindable=rewindable)
        return self.connected(partial(spec.connect, f"target_{number}", comparable_contract.PIPELINE, schema))


@pytest.fixture
def comparable(postgres_plain: str) -> Iterator[PostgresTables]:
    tables = PostgresTables(postgres_plain)
    yield tables
    tables.close()
