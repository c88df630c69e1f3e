"""MySQL under the real coordinator: killed before and after each statement that makes something durable.

Carried and staged, append and upsert, alone and beside a database file; a machine that is lost with its locks; and the
server killed in the middle.  A dead driver sends nothing more, its sockets are shut; its workers live on.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from holdfast.connectors.mysql import session as mysql_session
from holdfast.connectors.mysql.session import MysqlConnection
from holdfast.errors import InDoubt, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Sink
from holdfast.store.local import LocalStore
from holdfast.testing import SCHEMA, Failures, Load, Process, Setting, SimulatedCrash, SinkUnderTest, World
from holdfast.testing.servers.mysql import MysqlServer
from holdfast.testing.simulation.rows import rows_between
from holdfast.testing.simulation.world import PIPELINE
from tests.crash.mortal import as_killed
from tests.crash.surviving import survive, survive_pairs
from tests.everyday import everyday
from tests.mysql_servers import database_of, executed
from tests.sim.test_unlike_sinks import sqlite
from tests.specs import mysql_spec

pytestmark = pytest.mark.slow

NewPath = Callable[[], Path]

UPSERT: dict[str, Any] = {"mode": "upsert", "key": ("id",)}
WAYS: dict[str, dict[str, Any]] = {"carried": {}, "staged": {}, "upsert carried": UPSERT, "upsert staged": UPSERT}
DIES_AT = {
    "carried": ["COMMIT"],
    "staged": ["COMMIT", "DELETE FROM holdfast_staged"],
    "upsert carried": ["COMMIT"],
    "upsert staged": ["COMMIT", "DELETE FROM holdfast_staged"],
}
SEED = 361
SHORT = {"row_count": 2, "epoch_rows_min": 2, "epoch_rows_max": 2}
TWO_EPOCHS: dict[str, Any] = {**SHORT, "row_count": 4}


class MortalConnection(MysqlConnection):
    """A driver's connection: each statement that makes something durable is a place to die, before and after it."""

    process = Process()
    label = ""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        self.process.check()
        text = " ".join(statement.split()[:3])
        is_alone = not self.is_in_transaction
        is_durable = text == "COMMIT" or (is_alone and text.startswith(("CREATE", "DELETE", "INSERT", "UPDATE")))
        if not is_durable:
            return super().execute(statement, values)
        work = super().execute
        return self.process.write(f"sink {self.label} {text}", lambda: work(statement, values))

    def send(self, statement: bytes) -> None:
        self.process.check()
        super().send(statement)

    def stream(self, statement: str) -> Any:
        self.process.check()
        return super().stream(statement)

    def close(self) -> None:
        """Say goodbye, unless the process is dead: then the socket stays as death left it."""
        if self.process.is_alive:
            super().close()

    def bury(self) -> None:
        super().close()

    def cut(self) -> None:
        """Shut the socket as the kernel does for a dead process."""
        with suppress(OSError, AttributeError):
            self._raw._sock.shutdown(socket.SHUT_RDWR)


class Database:
    """A database whose drivers die; emptied between worlds."""

    def __init__(self, url: str, *, is_deaf: bool = False) -> None:
        self.url = url
        self._is_deaf = is_deaf
        self._opened: list[MortalConnection] = []
        self._process = Process()
        self._reset_count = 0

    def connect(self, parameters: dict[str, Any]) -> MysqlConnection:
        """Stand in for the class of connections: a worker's is its own, a driver's dies with the driver."""
        name = str(parameters["program_name"])
        if name.startswith("holdfast writer"):
            return MysqlConnection(parameters)
        MortalConnection.process, MortalConnection.label = self._process, name.rpartition("/")[2]
        connection = MortalConnection(parameters)
        connection.process, connection.label = self._process, MortalConnection.label
        self._opened.append(connection)
        return connection

    def sink(self, name: str, **arguments: Any) -> SinkUnderTest:
        spec = mysql_spec(self.url, name, **arguments)

        def connect(process: Process, _: Failures) -> Sink:
            self._process = process
            if not self._is_deaf and self._cut not in process.at_death:
                process.at_death.append(self._cut)
            return spec.connect(name, PIPELINE, SCHEMA)

        columns = ", ".join(SCHEMA.names)
        return SinkUnderTest(
            name, connect, lambda: executed(self.url, f"SELECT {columns} FROM `{name}` ORDER BY 1"), self.leftovers
        )

    def take(self, name: str, **arguments: Any) -> None:
        """Let a run have existed before: tables and ledger row are there, owned by generation 1."""
        self._process = Process()
        first = mysql_spec(self.url, name, **arguments).connect(name, PIPELINE, SCHEMA)
        first.open(RunIdentity(PIPELINE, 1))
        first.close()

    def leftovers(self) -> list[str]:
        if ("holdfast_staged",) not in executed(self.url, "SHOW TABLES"):
            return []
        return [task for (task,) in executed(self.url, "SELECT task FROM holdfast_staged")]

    def reset(self) -> None:
        """Empty the tables; drop them some times, as DDL takes long."""
        self._let_go()
        for number, *_ in executed(self.url, "SHOW PROCESSLIST") if self._is_deaf else ():
            with suppress(pymysql.err.OperationalError):  # our own, and those that have just ended
                executed(self.url, f"KILL {number}")
        self._reset_count += 1
        empty = "DROP TABLE" if self._reset_count % 10 == 0 else "DELETE FROM"
        for (name,) in executed(self.url, "SHOW TABLES"):
            executed(self.url, f"{empty} `{name}`")

    def _cut(self) -> None:
        for connection in self._opened:
            connection.cut()

    def _let_go(self) -> None:
        self._cut()
        for connection in self._opened:
            connection.bury()
        self._opened.clear()


@pytest.fixture
def database(mysql_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    database = Database(mysql_url)
    monkeypatch.setattr(mysql_session, "MysqlConnection", database.connect)
    yield database
    database._let_go()


@pytest.fixture
def deaf(mysql_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database that is not told when a driver dies."""
    database = Database(mysql_url, is_deaf=True)
    monkeypatch.setattr(mysql_session, "MysqlConnection", database.connect)
    monkeypatch.setattr(mysql_session, "LOCK_TIMEOUT_S", 1)
    yield database
    database._let_go()


def one(database: Database, way: str, load: dict[str, Any]) -> World:
    """A new world with one table."""
    database.reset()
    carried_share = 1.0 if "carried" in way else 0.0
    drawn = Load(**{"carried_share": carried_share, "task_failure_rate": 0.2, **load})
    return World([database.sink("rows", **WAYS[way])], seed=SEED, setting=Setting(drawn))


def beside(database: Database, new_path: NewPath, **setting: Any) -> World:
    """A new world with a file of SQLite, which publishes first, and the checkpoint in files."""
    database.reset()
    drawn = Load(**{"carried_share": 0.5, "task_failure_rate": 0.2, **TWO_EPOCHS})
    sinks = [as_killed(sqlite, "embedded", new_path()), database.sink("rows")]
    store = LocalStore(os.fspath(new_path()))
    return World(sinks, seed=SEED, setting=Setting(drawn, **setting), store=store)


def test_a_dead_driver_tells_the_server_nothing(database: Database) -> None:
    sink, process = database.sink("rows"), Process()
    opened: Any = sink.connect(process, lambda *_: None)
    connection = opened._session.connection()
    connection.execute("START TRANSACTION")
    connection.execute("INSERT INTO `rows` VALUES (1, 'segment1', 0, 0.5)")
    with pytest.raises(SimulatedCrash):
        process.die("here")
    with pytest.raises(SimulatedCrash):
        connection.execute("COMMIT")
    with pytest.raises(pymysql.err.Error):
        connection._raw.query("COMMIT")  # past the check: the way is cut too
    assert sink.rows() == []


@pytest.mark.parametrize("way", everyday(WAYS, ["staged"]))
def test_one_table_survives_a_crash_at_every_write(database: Database, way: str) -> None:
    survive(lambda: one(database, way, TWO_EPOCHS), *DIES_AT[way], pairs=False)


@pytest.mark.nightly
def test_beside_another_sink_it_survives_a_crash_at_every_fifth_write(database: Database, new_path: NewPath) -> None:
    survive(lambda: beside(database, new_path), pairs=False, stride=5)


@pytest.mark.nightly
@pytest.mark.parametrize("setting", [{"commit_thread": True}, {"commit_every_ticks": 3_000}])
def test_the_commit_thread_and_grouping_change_nothing(
    database: Database, new_path: NewPath, setting: dict[str, Any]
) -> None:
    survive(lambda: beside(database, new_path, **setting), pairs=False)


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["staged"])
def test_one_table_survives_a_second_crash_during_recovery(database: Database, way: str) -> None:
    survive(lambda: one(database, way, SHORT), stride=13, second_stride=17)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS)
def test_one_table_survives_pairs_of_crashes(database: Database, way: str) -> None:
    survive_pairs(lambda: one(database, way, TWO_EPOCHS), *DIES_AT[way])


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["carried", "staged"])
def test_one_table_survives_the_loss_of_the_drivers_machine_at_every_write(
    deaf: Database, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server holds on to the transactions of the dead: a takeover ends them."""

    def make_world() -> World:
        made = one(deaf, way, TWO_EPOCHS)
        deaf.take("rows")
        return made

    with caplog.at_level("INFO", logger="holdfast.connectors.mysql"):
        survive(make_world, pairs=False)
    assert "which still held the ledger row" in caplog.text


# --- the server dies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill_count", [3, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_server_that_is_killed_while_it_writes_has_each_row_once(mortal_mysql: MysqlServer, kill_count: int) -> None:
    """At any moment of a large epoch and of small ones: what the ledger says afterwards is what the table has."""
    with database_of(mortal_mysql.url) as url:
        sink = mysql_spec(url, "rows").connect("rows", PIPELINE, SCHEMA)
        sink.open(RunIdentity(PIPELINE, 1))
        chance, wanted, kills, epoch, held = random.Random(7), 0, 0, 0, Held()
        while kills < kill_count:
            epoch += 1
            count = chance.choice([400, 20_000])
            rows = rows_between(wanted, wanted + count, 0, 0.5)
            wanted += count
            record = EpochRecord(PIPELINE, epoch, 1, {"s": {"log": wanted}})
            killer = threading.Timer(chance.random() * (0.02 if count == 400 else 0.6), mortal_mysql.stop)
            killer.start()
            while sink.outcome(epoch) is not Outcome.PUBLISHED:
                try:
                    sink.publish([Publication(record, (Carried(rows),))], held)
                except (InDoubt, Unavailable):
                    killer.join()
                    mortal_mysql.start()
                    kills += 1
            killer.cancel()
            killer.join()
            mortal_mysql.start()
            held = Held(epoch, 1, record.positions)
        found = executed(url, "SELECT count(*), count(DISTINCT id), max(id) FROM `rows`")
        assert found == [(wanted, wanted, wanted - 1)]
        sink.close()
