"""SQLite keeps the promises of a sink."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.sqlite.dialect import SQLITE
from holdfast.connectors.sqlite.spec import SqliteSpec
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
from tests.specs import sqlite_spec

pytestmark = pytest.mark.slow

TestSinkContract = SinkContract
TestColumnContract = ColumnContract
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


class TestComparableContract(ComparableContract):
    """Comparing and repairing."""


class TestComparableTablesContract(ComparableTablesContract):
    """The same of upserts."""


class SqliteTarget:
    has_one_writer = True

    def __init__(self, path: Path, *, rewindable: bool = False) -> None:
        self._path = path
        self._rewindable = rewindable

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        return sqlite_spec(str(self._path), "words", rewindable=self._rewindable).connect(name, pipeline, schema)

    @property
    def spec(self) -> LedgerSpec:
        return sqlite_spec(str(self._path), "words", rewindable=self._rewindable)

    def is_there(self) -> bool:
        return self._path.exists()

    def rows(self) -> list[Row]:
        connection = sqlite3.connect(self._path)
        try:
            return connection.execute("SELECT id, word FROM words").fetchall()
        finally:
            connection.close()

    def leftovers(self) -> list[str]:
        directory = Path(f"{self._path}-holdfast")
        return [path.name for path in directory.iterdir()] if directory.exists() else []

    def lose_ledger(self) -> None:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("DELETE FROM holdfast_ledger")

    def refuse(self, word: str) -> bool:
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute(
                f"CREATE TRIGGER no_{word} BEFORE INSERT ON words WHEN new.word = '{word}'"
                " BEGIN SELECT RAISE(ABORT, 'not this word'); END"
            )
        return True


@pytest.fixture
def target(tmp_path: Path) -> SqliteTarget:
    return SqliteTarget(tmp_path / "words.db")


@pytest.fixture
def refusing(target: SqliteTarget) -> SqliteTarget:
    return target


@pytest.fixture
def rewindable(tmp_path: Path) -> SqliteTarget:
    return SqliteTarget(tmp_path / "words.db", rewindable=True)


@dataclass
class GrowingSqlite:
    path: Path

    def spec(self, table: str = "words", **arguments: Any) -> SqliteSpec:
        return sqlite_spec(str(self.path), table, **arguments)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(statement).fetchall()

    def columns(self, table: str = "words") -> list[str]:
        return [name for _, name, *_ in self.execute(f"PRAGMA table_info({table})")]


@pytest.fixture
def growing(tmp_path: Path) -> GrowingSqlite:
    return GrowingSqlite(tmp_path / "growing.db")


@dataclass
class SqliteTables(comparable_contract.Targets):
    """A new table each time; with a rowid or without one."""

    path: Path
    has_rowid: bool

    def fresh(
        self, schema: pa.Schema, key: tuple[str, ...] = (), delete: str | None = None, rewindable: bool = False
    ) -> Sink:
        number = len(self.sinks)
        table = f"compared_{number}"
        if not self.has_rowid:
            columns = ", ".join(
                f'"{each.name}" {SQLITE.declared_type(each.type)}' for each in schema if each.name != delete
            )
            primary = ", ".join(key) or "line"
            line = "" if key else "line BLOB DEFAULT (randomblob(16)), "
            line += "__holdfast_epoch INTEGER, " if rewindable else ""
            with closing(sqlite3.connect(self.path)) as connection:
                connection.execute(f"CREATE TABLE {table} ({line}{columns}, PRIMARY KEY ({primary})) WITHOUT ROWID")
        mode = "upsert" if key else "append"
        spec = sqlite_spec(str(self.path), table, mode, key, delete, rewindable=rewindable)
        return self.connected(partial(spec.connect, f"target_{number}", comparable_contract.PIPELINE, schema))


@pytest.fixture(params=["rowid", "without rowid"])
def comparable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteTables]:
    tables = SqliteTables(tmp_path / "compared.db", request.param == "rowid")
    yield tables
    tables.close()
