"""SQLite keeps the promises of a sink."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.ports import LedgerSpec, Sink
from tests.contract.explaining_contract import ExplainingContract
from tests.contract.ledger_contract import LedgerContract
from tests.contract.reject_contract import RejectContract
from tests.contract.rewind_contract import RewindContract
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row, SinkContract
from tests.specs import sqlite_spec

TestSinkContract = SinkContract
TestExplainingContract = ExplainingContract
TestLedgerContract = LedgerContract
TestRejectContract = RejectContract
TestRewindContract = RewindContract


class SqliteTarget:
    def __init__(self, path: Path, *, rewindable: bool = False) -> None:
        self._path = path
        self._rewindable = rewindable

    def connect(self, name: str = "target", pipeline: str = PIPELINE) -> Sink:
        return sqlite_spec(str(self._path), "words", rewindable=self._rewindable).connect(name, pipeline, SCHEMA)

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
