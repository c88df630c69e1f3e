"""What a dead run left is resolved before a start asks for a session (design/0002, "A start resolves before Spark").

Spark takes seconds to come up.  A prepared transaction of a dead run holds its locks that long, and everybody else who
wants the table waits.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

import holdfast as hf
from holdfast import faults
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.graph_record import described, write_graph
from holdfast.checkpoint.schemas import note_schema
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator
from holdfast.config import Settings
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.errors import Unavailable
from holdfast.graph.trigger import available_now
from holdfast.ports import EpochRecord, Sink, Staged, Store, Task
from holdfast.starts import context
from holdfast.starts.context import StartOptions, context_of
from holdfast.starts.in_doubt import coordinator_of, open_decisions, resolve_dead_run
from holdfast.store.paths import open_store
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore

pytestmark = pytest.mark.postgres

SCHEMA = pa.schema([("id", pa.int64())])
NOBODY = 2**22 + 1
"""A process number that the kernel does not give."""


class Dies(BaseException):
    """The driver is dead."""


class Asked(Exception):
    """The session is asked for."""


def pipeline_of(dsn: str, tables: Sequence[str], name: str = "trips") -> hf.Pipeline:
    rows = hf.read.rows([[{"id": 1}]], schema="id BIGINT", name="given")
    return hf.Pipeline(
        name, *(rows | hf.write.postgres(dsn, table=table, stage="prepared", name=table) for table in tables)
    )


class Life:
    """A checkpoint, and a run on it that an engine is not needed for: two epochs, of which it dies in the second."""

    def __init__(self, work: Path, dsn: str, tables: Sequence[str]) -> None:
        self.work, self.dsn, self.pipeline = work / "checkpoint", dsn, pipeline_of(dsn, tables)
        self.store: Store = open_store(str(self.work))

    def dies(self, at: str) -> None:
        """Publish epoch 1; stage epoch 2 in every sink, and die at a named point of it, or before it is committed."""
        sinks = {n.name: n.spec.connect(n.name, self.pipeline.name, SCHEMA) for n in self.pipeline.sinks}
        coordinator = coordinator_of(self.pipeline, self.store, [*sinks.values()], Settings(), clock=SystemClock())
        coordinator.open()
        for name in sinks:
            note_schema(self.store, name, SCHEMA)
        write_graph(self.store, "spark/1", described(self.pipeline, {}))
        self.store.put("spark/1/origin.json", DirectoryHeader(1, graph="").to_json())
        try:
            self._epoch(coordinator, sinks, 1)
            self._epoch(coordinator, sinks, 2, at)
        except Dies:
            pass
        finally:
            faults.install(None)
            coordinator.close()
        self.belongs_to(NOBODY)

    def _epoch(self, coordinator: Coordinator, sinks: dict[str, Sink], epoch: int, dies_at: str = "") -> None:
        claim = coordinator.missing(epoch)
        parts: dict[str, list[Staged]] = {}
        for name in claim.sinks:
            writer = sinks[name].writer_factory()(Task(self.pipeline.name, coordinator.generation, epoch, 0, 0))
            writer.write(pa.record_batch({"id": [epoch * 10]}, SCHEMA))
            parts[name] = [writer.stage()]
        if dies_at == "staged":
            raise Dies
        faults.install(_dying_at(dies_at))
        record = EpochRecord(self.pipeline.name, epoch, coordinator.generation, {"given": {"rows": epoch}})
        coordinator.commit(claim, record, parts)

    def belongs_to(self, pid: int, host: str | None = None) -> None:
        """Let the run that took over last be another process."""
        for key in self.store.keys("generations/"):
            who = json.loads(self.store.get(key) or b"")
            self.store.put(key, json.dumps(who | {"pid": pid, "host": host or socket.gethostname()}).encode())

    @property
    def generation(self) -> int:
        return len(self.store.keys("generations/"))

    def prepared(self) -> list[str]:
        """Return the transactions that are prepared, and hold their locks."""
        return self._asked("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")

    def rows(self, table: str) -> list[int]:
        """Return what the table shows."""
        return self._asked(f"SELECT id FROM {table} ORDER BY id")

    def _asked(self, question: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return [row[0] for row in connection.execute(question.encode()).fetchall()]


def _dying_at(wanted: str) -> Callable[[str, int], None]:
    def hook(point: str, epoch: int) -> None:
        if point == wanted:
            raise Dies

    return hook


def starts(monkeypatch: pytest.MonkeyPatch, life: Life, pipeline: hf.Pipeline | None = None) -> None:
    """Start until the session is asked for."""

    def session_of(*_: object, **__: object) -> None:
        raise Asked

    monkeypatch.setattr(context, "session_of", session_of)
    asked = StartOptions(pipeline or life.pipeline, str(life.work), available_now(), None, True, None, Settings())
    with pytest.raises(Asked):
        context_of(asked)


TWO = ("first", "second")
ALL = [10, 20]
WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")


@pytest.mark.parametrize(
    ("at", "tables", "shown"),
    [
        pytest.param("staged", ("first",), [10], id="staged, in one sink: nobody's"),
        pytest.param("publish-begun", ("first",), ALL, id="in one sink, between its own record and the commit"),
        pytest.param("staged", TWO, [10], id="staged, and not decided"),
        pytest.param("after-decide", TWO, ALL, id="decided"),
        pytest.param("publish-begun", TWO, ALL, id="decided, and half published"),
        pytest.param("after-publish", TWO, ALL, id="published in the first sink"),
    ],
)
def test_when_the_session_is_asked_for_nothing_holds_a_lock(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    postgres_prepared: str,
    at: str,
    tables: Sequence[str],
    shown: list[int],
) -> None:
    life = Life(tmp_path, postgres_prepared, tables)
    life.dies(at)
    assert life.prepared()
    starts(monkeypatch, life)
    assert not life.prepared()
    assert {table: life.rows(table) for table in tables} == dict.fromkeys(tables, shown)
    assert open_decisions(life.store) == {}
    assert life.generation == 2


@pytest.mark.parametrize("at", ["staged", "after-decide"])
def test_a_run_that_may_be_alive_is_not_fenced_before_the_graph_is_known_to_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_prepared: str, at: str
) -> None:
    life = Life(tmp_path, postgres_prepared, TWO)
    life.dies(at)
    for pid, host in ((os.getpid(), None), (NOBODY, "elsewhere")):
        life.belongs_to(pid, host)
        starts(monkeypatch, life)
        assert (len(life.prepared()), life.generation) == (2, 1)


def test_another_graph_leaves_it_to_the_rest_of_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_prepared: str
) -> None:
    """Its sinks may be others under the same names; and it may be refused."""
    life = Life(tmp_path, postgres_prepared, TWO)
    life.dies("after-decide")
    others = (
        pipeline_of(postgres_prepared, ["first"]),
        pipeline_of(postgres_prepared, [*TWO, "third"]),
        pipeline_of(postgres_prepared, TWO, name="another"),
    )
    for other in others:
        starts(monkeypatch, life, other)
        assert (len(life.prepared()), life.generation) == (2, 1)


def test_a_sink_that_has_lost_what_is_done_leaves_the_decision_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_prepared: str
) -> None:
    """To resolve forgets what is decided for it; whether its sources can give that again only the start can tell."""
    life = Life(tmp_path, postgres_prepared, TWO)
    life.dies("after-decide")
    with psycopg.connect(postgres_prepared, autocommit=True) as connection:
        connection.execute("UPDATE holdfast_ledger SET epoch = 0 WHERE sink = 'second'")
    starts(monkeypatch, life)
    assert open_decisions(life.store) == {2: TWO}
    assert len(life.prepared()) == 2


def test_where_nothing_is_in_doubt_nothing_is_taken_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_prepared: str
) -> None:
    life = Life(tmp_path, postgres_prepared, TWO)
    life.dies("after its end")
    assert life.rows("second") == ALL
    starts(monkeypatch, life)
    assert life.generation == 1


def test_what_hides_from_a_look_may_be_in_doubt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_prepared: str
) -> None:
    """A transaction of the dead run that is open does so in Kafka; to take over ends it."""

    def hidden(_: Sink) -> None:
        raise Unavailable("the table cannot be read to its end.", why="a transaction is open there.", do="wait.")

    life = Life(tmp_path, postgres_prepared, ("first",))
    life.dies("staged")
    monkeypatch.setattr(PostgresSink, "inspect", hidden)
    starts(monkeypatch, life)
    assert not life.prepared()
    assert life.generation == 2


@pytest.mark.parametrize("record", ["schemas/second.json", "spark/1/graph.json", "generations/00000001.json"])
def test_a_record_that_cannot_be_read_is_told_of_where_it_always_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_prepared: str, record: str
) -> None:
    life = Life(tmp_path, postgres_prepared, TWO)
    life.dies("after-decide")
    life.store.put(record, b"{")
    starts(monkeypatch, life)
    assert (len(life.prepared()), life.generation) == (2, 1)


def test_what_somebody_rolled_back_is_left_to_the_rest_of_the_start_which_asks_the_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_prepared: str
) -> None:
    life = Life(tmp_path, postgres_prepared, TWO)
    life.dies("after-decide")
    with psycopg.connect(postgres_prepared, autocommit=True) as connection:
        for gid in life.prepared():
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))
    starts(monkeypatch, life)
    assert list(open_decisions(life.store)) == [2]
    assert [life.rows(table) for table in TWO] == [ALL[:1], ALL[:1]]


def test_a_start_that_dies_at_any_write_of_it_is_done_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_prepared: str
) -> None:
    for n in count(1):
        for when in WHEN:
            tables = (f"first_{n}_{when}", f"second_{n}_{when}")
            life = Life(tmp_path / f"{n} {when}", postgres_prepared, tables)
            life.dies("after-decide")
            process = Process(CrashAt(n, when))
            with process.counting_points(), suppress(SimulatedCrash):
                resolve_dead_run(life.pipeline, FaultyStore(life.store, process), Settings())
            life.belongs_to(NOBODY)
            starts(monkeypatch, life)
            assert not life.prepared(), (n, when)
            assert [life.rows(table) for table in tables] == [ALL, ALL], (n, when)
            assert open_decisions(life.store) == {}, (n, when)
        if process.is_alive:
            break
    assert n > 5
