"""PostgreSQL under the real coordinator, in each way of staging, alone and beside unlike sinks: killed at every write.

A place to die lies before and after each durable statement of the driver (COMMIT, COMMIT PREPARED, ROLLBACK PREPARED,
DROP TABLE of an orphan, the ledger row's update), each write of the checkpoint and of the engine's logs, each handle
that a worker reports.  A death is one by SIGKILL, see ``mortal.py``.  Afterwards every target equals the reference
result, the ledger is clean, and nothing is prepared, staged or in progress (design/0001, sections 3 and 8).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.connectors.postgres import sink as postgres_sink
from holdfast.graph.trigger import SinkPace
from holdfast.store.local import LocalStore
from holdfast.testing import Load, Process, Setting, SimulatedCrash, SinkUnderTest, World
from tests.crash.mortal import Database, as_killed
from tests.crash.surviving import survive, survive_pairs
from tests.everyday import everyday
from tests.sim.test_unlike_sinks import files, sqlite

pytestmark = pytest.mark.postgres

NewPath = Callable[[], Path]

UPSERT: dict[str, Any] = {"mode": "upsert", "key": ("id",)}
WAYS: dict[str, dict[str, Any]] = {
    "carried": {},
    "prepared": {"stage": "prepared"},
    "table": {"stage": "table"},
    "upsert carried": UPSERT,
    "upsert table": UPSERT,
}
UNLIKE = ["sqlite + prepared", "table + files", "sqlite + prepared + files"]
"""In the order in which they publish."""

NIGHTLY = pytest.mark.nightly
EVERYDAY_UNLIKE = [*(pytest.param(names, marks=NIGHTLY) for names in UNLIKE[:2]), UNLIKE[2]]
"""Each day the three of them together; two at a time at night."""

SEED = 361
"""Of an engine whose first driver has, in one staged epoch: two tasks, an attempt that staged and was not heard (an
orphan), and one that lives on and stages late; with ``MIXED`` it carries the other epoch."""

SHORT = {"row_count": 2, "epoch_rows_min": 2, "epoch_rows_max": 2}
TWO_EPOCHS = {**SHORT, "row_count": 4}
MIXED = {**TWO_EPOCHS, "carried_share": 0.5}

DIES_AT = {
    "carried": ["COMMIT"],
    "prepared": ["COMMIT", "COMMIT PREPARED", "UPDATE", "ROLLBACK PREPARED"],
    "table": ["COMMIT", "DROP TABLE"],
    "upsert carried": ["COMMIT"],
    "upsert table": ["COMMIT", "DROP TABLE"],
}
"""Way -> the sink's durable statements: some driver died before, and some after each of them."""


@pytest.fixture
def database(postgres_prepared: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    database = Database(postgres_prepared)
    monkeypatch.setattr(psycopg, "connect", database.connect)
    yield database
    database.close()


@pytest.fixture
def deaf(postgres_prepared: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database that is not told when a driver dies; a takeover need not wait long before it ends old sessions."""
    database = Database(postgres_prepared, is_deaf=True)
    monkeypatch.setattr(psycopg, "connect", database.connect)
    monkeypatch.setattr(postgres_sink, "TAKEOVER_LOCK_TIMEOUT", "20ms")
    yield database
    database.close()


def one(database: Database, way: str, load: dict[str, Any]) -> World:
    """A new world with one table."""
    database.reset()
    carried_share = 1.0 if "carried" in way else 0.0
    drawn = Load(**{"carried_share": carried_share, "task_failure_rate": 0.2, **load})
    return World([database.sink("rows", **WAYS[way])], seed=SEED, setting=Setting(drawn))


def several(database: Database, names: str, new_path: NewPath, load: dict[str, Any], **setting: Any) -> World:
    """A new world with unlike sinks, and the checkpoint in files."""
    database.reset()
    make: dict[str, Callable[[], SinkUnderTest]] = {
        "sqlite": lambda: as_killed(sqlite, "embedded", new_path()),
        "files": lambda: as_killed(files, "directory", new_path()),
        "prepared": lambda: database.sink("rows", stage="prepared"),
        "table": lambda: database.sink("rows", stage="table"),
    }
    sinks = [make[name]() for name in names.split(" + ")]
    drawn = Load(**{"carried_share": 0.0, "task_failure_rate": 0.2, **load})
    return World(sinks, seed=SEED, setting=Setting(drawn, **setting), store=LocalStore(os.fspath(new_path())))


def test_a_dead_driver_tells_the_server_nothing(database: Database) -> None:
    sink = database.sink("rows")
    process = Process()
    sink.connect(process, lambda *_: None).close()
    connection: Any = psycopg.connect(database.dsn, application_name="holdfast simulated/rows", autocommit=True)
    connection.execute("BEGIN")
    connection.execute("INSERT INTO rows VALUES (1, 'segment1', 0, 0.5)")
    with pytest.raises(SimulatedCrash):
        process.die("here")
    with pytest.raises(SimulatedCrash):
        connection.execute("COMMIT")
    result = connection.pgconn.exec_(b"COMMIT")  # past the check: the way is cut too
    assert result.status == psycopg.pq.ExecStatus.FATAL_ERROR
    assert database.rows("rows") == []


# --- once -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", everyday(WAYS, ["carried", "prepared"]))
def test_one_table_survives_a_crash_at_every_write(database: Database, way: str) -> None:
    survive(lambda: one(database, way, TWO_EPOCHS), *DIES_AT[way], pairs=False)


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("way", ["prepared", *(pytest.param(way, marks=NIGHTLY) for way in ("carried", "table"))])
def test_one_table_survives_the_loss_of_the_drivers_machine_at_every_write(
    deaf: Database, way: str, stride: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The server holds on to the transactions of the dead: a takeover ends them.

    Not so while the very first run creates tables or its ledger row: then a start waits until the server notices.
    """

    def make_world() -> World:
        made = one(deaf, way, TWO_EPOCHS)
        deaf.take("rows", **WAYS[way])
        return made

    with caplog.at_level("INFO", logger="holdfast.connectors.postgres"):
        survive(make_world, *(DIES_AT[way] if stride == 1 else ()), pairs=False, stride=stride)
    assert "which still held the ledger row" in caplog.text


@pytest.mark.parametrize("names", EVERYDAY_UNLIKE)
def test_unlike_sinks_survive_a_crash_at_every_third_write(database: Database, new_path: NewPath, names: str) -> None:
    load = MIXED if names.count("+") == 1 else SHORT
    survive(lambda: several(database, names, new_path, load), pairs=False, stride=3)


SETTINGS = {"thread": {"commit_thread": True}, "grouping": {"commit_every_ticks": 3_000}}
PACES = {"paces": {"rows": SinkPace(every_epochs=9)}}


@pytest.mark.parametrize(
    "setting",
    [*SETTINGS.values(), pytest.param(PACES, marks=pytest.mark.nightly)],
    ids=[*SETTINGS, "pace"],
)
def test_the_commit_thread_and_grouping_change_nothing(
    database: Database, new_path: NewPath, setting: dict[str, Any]
) -> None:
    survive(lambda: several(database, "sqlite + prepared", new_path, TWO_EPOCHS, **setting), pairs=False, stride=5)


# --- and again during recovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["carried", "prepared", pytest.param("table", marks=NIGHTLY)])
def test_one_table_survives_a_second_crash_during_recovery(database: Database, way: str) -> None:
    survive(lambda: one(database, way, SHORT), stride=13, second_stride=17)


@pytest.mark.parametrize("names", EVERYDAY_UNLIKE)
def test_unlike_sinks_survive_a_second_crash_during_recovery(database: Database, new_path: NewPath, names: str) -> None:
    survive(lambda: several(database, names, new_path, SHORT), stride=23, second_stride=29)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS)
def test_one_table_survives_pairs_of_crashes(database: Database, way: str) -> None:
    survive_pairs(lambda: one(database, way, TWO_EPOCHS), *DIES_AT[way])


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("names", UNLIKE)
def test_unlike_sinks_survive_pairs_of_crashes(database: Database, new_path: NewPath, names: str) -> None:
    survive_pairs(lambda: several(database, names, new_path, SHORT))
