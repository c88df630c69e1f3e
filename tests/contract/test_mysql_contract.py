"""MySQL keeps the promises of a sink: a MariaDB of the tests' own, or the server of ``HOLDFAST_MYSQL``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.mysql.spec import MysqlSpec
from holdfast.ports import LedgerSpec, Sink
from tests.contract import comparable_contract
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
from tests.mysql_servers import executed
from tests.specs import mysql_spec

pytestmark = pytest.mark.slow

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
class MysqlTarget:
    url: str
    rewindable: bool = False

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        return mysql_spec(self.url, "words", rewindable=self.rewindable).connect(name, pipeline, schema)

    @property
    def spec(self) -> LedgerSpec:
        return mysql_spec(self.url, "words", rewindable=self.rewindable)

    def is_there(self) -> bool:
        return bool(executed(self.url, "SHOW TABLES"))

    def rows(self) -> list[Row]:
        return executed(self.url, "SELECT id, word FROM words")

    def leftovers(self) -> list[str]:
        if not executed(self.url, "SHOW TABLES LIKE 'holdfast_staged'"):
            return []
        return [name for (name,) in executed(self.url, "SELECT DISTINCT nonce FROM holdfast_staged")]

    def lose_ledger(self) -> None:
        executed(self.url, "DELETE FROM holdfast_ledger")

    def refuse(self, word: str) -> bool:
        executed(self.url, f"ALTER TABLE words ADD CHECK (word <> '{word}')")
        return True


@pytest.fixture
def target(mysql_url: str) -> MysqlTarget:
    return MysqlTarget(mysql_url)


@pytest.fixture
def refusing(mysql_url: str) -> MysqlTarget:
    return MysqlTarget(mysql_url)


@pytest.fixture
def rewindable(mysql_url: str) -> MysqlTarget:
    return MysqlTarget(mysql_url, rewindable=True)


@dataclass
class GrowingMysql:
    url: str

    def spec(self, table: str = "words", **arguments: Any) -> MysqlSpec:
        return mysql_spec(self.url, table, **arguments)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return executed(self.url, statement)

    def columns(self, table: str = "words") -> list[str]:
        return [name for name, *_ in self.execute(f"SHOW COLUMNS FROM {table}")]


@pytest.fixture
def growing(mysql_url: str) -> GrowingMysql:
    return GrowingMysql(mysql_url)


@dataclass
class MysqlTables(comparable_contract.Targets):
    """A new table each time: one with a primary key has places by it, one without by all of its columns."""

    url: str

    def fresh(
        self, schema: pa.Schema, key: tuple[str, ...] = (), delete: str | None = None, rewindable: bool = False
    ) -> Sink:
        number = len(self.sinks)
        mode = "upsert" if key else "append"
        spec = mysql_spec(self.url, f"compared_{number}", mode, key, delete, rewindable=rewindable)
        return self.connected(partial(spec.connect, f"target_{number}", comparable_contract.PIPELINE, schema))


@pytest.fixture
def comparable(mysql_url: str) -> Iterator[MysqlTables]:
    tables = MysqlTables(mysql_url)
    yield tables
    tables.close()
