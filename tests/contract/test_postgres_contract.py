"""PostgreSQL keeps the promises of a sink, in each way of staging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.ports import LedgerSpec, Sink
from tests.contract import comparable_contract
from tests.contract.comparable_contract import ComparableContract, ComparableTablesContract
from tests.contract.explaining_contract import ExplainingContract
from tests.contract.ledger_contract import LedgerContract
from tests.contract.reject_contract import RejectContract
from tests.contract.rewind_contract import RewindContract
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row, SinkContract
from tests.specs import postgres_spec

pytestmark = pytest.mark.postgres

TestSinkContract = SinkContract
TestComparableContract = ComparableContract
TestComparableTablesContract = ComparableTablesContract
TestExplainingContract = ExplainingContract
TestLedgerContract = LedgerContract
TestRejectContract = RejectContract
TestRewindContract = RewindContract


@dataclass(frozen=True)
class PostgresTarget:
    dsn: str
    arguments: dict[str, Any]

    def connect(self, name: str = "target", pipeline: str = PIPELINE) -> Sink:
        return postgres_spec(self.dsn, "words", **self.arguments).connect(name, pipeline, SCHEMA)

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
