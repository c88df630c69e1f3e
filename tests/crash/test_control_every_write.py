"""Sinks with control rows die before each file operation, and before each statement; then a new one recovers.

Commands of each kind stand among the rows of every epoch, carried and staged: columns are added and widened, partitions
dropped that are sealed, that grow, and that begin again.  n grows until a run survives (design/0020).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast as hf
from holdfast import segments
from holdfast.connectors.control.columns import ControlColumns
from holdfast.connectors.kit.files import own_files
from holdfast.connectors.postgres.spec import PostgresSpec
from holdfast.connectors.segments import manifest
from holdfast.connectors.segments.policies import Segment
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.ports import Held, Outcome, Publication, RunIdentity, Sink
from tests.controlled import (
    GUST,
    PIPELINE,
    SCHEMA,
    WIDE_GUST,
    WIDE_ID,
    Item,
    NaiveTable,
    carried,
    publication,
    staged,
)
from tests.crash.operations import MORTAL, Death, survived

CONTROL = ControlColumns("control", "extra")
DROP_MO, DROP_TU = hf.control.drop_partition(day="mo"), hf.control.drop_partition(day="tu")
EPOCHS: list[tuple[list[Item], list[Item]]] = [
    ([(10, "mo"), (11, "tu")], [(12, "mo"), GUST, (13, "mo", {"gust": "1.5"})]),
    ([(20, "tu", {"gust": "2.5"}), DROP_MO, (21, "mo")], [(22, "we"), WIDE_GUST, (23, "we", {"gust": "0.1"})]),
    ([DROP_TU, WIDE_ID, (30, "tu"), (31, "mo")], [DROP_MO, (32, "we"), GUST]),
]
"""The rows that a task stages, and those that the driver carries."""

# A process that dies leaves its files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed database")


OPENED: list[Any] = []
"""Connections of processes, dead or alive."""


class MortalSqlite(sqlite3.Connection):
    """Each statement is a place to die; what a dead process tries afterwards is not done."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        OPENED.append(self)

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        _may_die()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        _may_die()
        return super().executemany(*arguments)


def _may_die() -> None:
    if not MORTAL.directory:
        return
    MORTAL.left -= 1
    if MORTAL.is_dead or MORTAL.left < 0:
        MORTAL.is_dead = True
        raise Death


class SqliteTarget:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "words.db"

    def connect(self) -> Sink:
        return SqliteSpec(os.fspath(self.path), "words", control=CONTROL).connect("out", PIPELINE, SCHEMA)

    def tend(self, sink: Sink) -> None:
        return None

    def rows(self) -> list[dict[str, Any]]:
        connection = sqlite3.connect(self.path)
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute("SELECT * FROM words ORDER BY id").fetchall()]
        connection.close()
        return found

    def leftovers(self) -> list[str]:
        return [os.fspath(path) for path in Path(f"{self.path}-holdfast").glob("*")]


def at_its_own_pace(segment: Segment) -> str | None:
    """One partition seals each epoch, one every second, and one grows on."""
    epochs = segment.last_epoch - segment.first_epoch + 1
    return {"day=mo": "each", "day=tu": "second" if epochs > 1 else None}.get(segment.partition)


class SegmentsTarget:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "words"

    def connect(self) -> Sink:
        spec = SegmentsSinkSpec(
            os.fspath(self.path), partition_by=("day",), target_size="1 GB", seal=(at_its_own_pace,), control=CONTROL
        )
        return spec.connected("out", PIPELINE, SCHEMA, is_tended=False)

    def tend(self, sink: Sink) -> None:
        assert isinstance(sink, SegmentsSink)
        sink.sealing.tend()

    def rows(self) -> list[dict[str, Any]]:
        return segments.open(self.path).to_arrow().sort_by("id").to_pylist()

    def leftovers(self) -> list[str]:
        own = self.path / "_holdfast" / PIPELINE / "out"
        found = manifest.SegmentsManifest(os.fspath(own / "manifest"))
        holdings = found.holdings()
        known = {os.fspath(self.path / segment.path) for segment in found.sealed(holdings)}
        known |= {os.fspath(own / "journal" / name) for name in holdings.files}
        there = [*self.path.glob("day=*/*"), *(path for name in _SWEPT for path in own.glob(f"{name}/*"))]
        return [os.fspath(path) for path in there if os.fspath(path) not in known]


class MortalPostgres(psycopg.Connection[tuple[Any, ...]]):
    """Before and after each durable statement of a driver are places to die; a dead process sends nothing more."""

    dies_everywhere = False
    """Whether the others are, too: the server rolls back what they did."""

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
        text = query if isinstance(query, str) else query.as_string(None)
        is_alone = self.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        is_durable = text == "COMMIT" or (is_alone and not text.lstrip().startswith(("SELECT", "BEGIN", "SET")))
        if MORTAL.is_dead or is_durable or self.dies_everywhere:
            _may_die()
        result = super().execute(query, *arguments, **options)
        if is_durable:
            _may_die()
        return result

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        if MORTAL.directory and MORTAL.is_dead:
            raise Death
        return super().cursor(*arguments, **options)


class PostgresTarget:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        for name in ("words", "holdfast_ledger", "holdfast_control"):
            self._query(f"DROP TABLE IF EXISTS {name}")

    def connect(self) -> Sink:
        return PostgresSpec(self.dsn, "words", control=CONTROL).connect("out", PIPELINE, SCHEMA)

    def tend(self, sink: Sink) -> None:
        return None

    def rows(self) -> list[dict[str, Any]]:
        return self._query("SELECT * FROM words ORDER BY id")

    def leftovers(self) -> list[dict[str, Any]]:
        return self._query(
            "SELECT relname FROM pg_class WHERE starts_with(relname, 'holdfast_stage') AND relkind = 'r'"
        )

    def _query(self, query: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=psycopg.rows.dict_row) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []


_SWEPT = ("arriving", "journal", "sealing", "writing")
TARGETS: dict[str, Callable[[Path], Any]] = {"sqlite": SqliteTarget, "segments": SegmentsTarget}


class ControlDriver:
    """What the coordinator does with one sink, and what survives a death: the decisions and the generation."""

    def __init__(self, target: Any, directory: Path, *, is_decided: bool) -> None:
        self.target = target
        self.directory = directory
        self.is_decided = is_decided
        self.generation = 0
        self.decisions: dict[int, Publication] = {}

    def run(self) -> None:
        """Start, recover, go on to the last epoch, seal, sweep."""
        self.generation += 1
        while OPENED:  # of the process that died
            OPENED.pop().close()
        sink = self.target.connect()
        held = sink.open(RunIdentity(PIPELINE, self.generation))
        for epoch, decided in sorted(self.decisions.items()):
            if sink.outcome(epoch) is not Outcome.PUBLISHED:
                sink.publish([decided], Held())
        self.decisions.clear()
        sink.sweep(below_epoch=1)
        self.target.tend(sink)
        last = max((epoch for epoch in (1, 2, 3) if sink.outcome(epoch) is Outcome.PUBLISHED), default=0)
        for epoch in range(max(held.epoch, last) + 1, len(EPOCHS) + 1):
            task, rest = EPOCHS[epoch - 1]
            part = staged(sink, epoch, task, generation=self.generation)
            whole = publication(epoch, part, carried(rest), generation=self.generation)
            if self.is_decided:
                sink.admit(whole)
                self.decisions[epoch] = whole
            sink.publish([whole], Held())
            self.decisions.pop(epoch, None)
            self.target.tend(sink)
            sink.sweep(below_epoch=epoch + 1)
        sink.close()

    def check(self) -> None:
        """The sink has what a list of rows would have, and nothing else is left."""
        model = NaiveTable()
        for task, rest in EPOCHS:
            model.take([*task, *rest])
        assert self.target.rows() == model.sorted()
        assert self.target.leftovers() == []


@pytest.fixture(autouse=True)
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "ENTRIES_MAX", 3)
    monkeypatch.setattr(manifest, "CHUNK_SEGMENTS", 2)
    monkeypatch.setattr(own_files, "RUN", 2)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **given: connect(*args, **{"factory": MortalSqlite, **given}))


@pytest.mark.slow
@pytest.mark.parametrize("parity", [None, pytest.param(0, marks=pytest.mark.nightly)], ids=["in turn", "the other way"])
@pytest.mark.parametrize("name", TARGETS)
def test_a_death_before_any_write_leaves_rows_and_commands_exactly_once(
    tmp_path: Path, name: str, parity: int | None
) -> None:
    """A decided epoch is published again by recovery, one without a decision is evaluated again: in turn."""
    for n in count():
        directory = tmp_path / str(n)
        directory.mkdir()
        driver = ControlDriver(TARGETS[name](directory), directory, is_decided=bool(n % 2) is (parity is None))
        if survived(driver.run, directory, n):
            break
        driver.run()
        driver.check()
    driver.check()
    assert n > 60, "somebody counts"


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize(
    "dies_everywhere",
    [False, pytest.param(True, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])],
    ids=["durable", "every statement"],
)
def test_a_death_around_any_durable_statement_leaves_them_in_postgres_exactly_once(
    tmp_path: Path, postgres_plain: str, dies_everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MortalPostgres, "dies_everywhere", dies_everywhere)
    connect = psycopg.connect

    def connected(*arguments: Any, **options: Any) -> Any:
        name = str(options.get("application_name"))
        is_driver = name.startswith("holdfast ") and not name.startswith("holdfast writer")
        if not is_driver:
            return connect(*arguments, **options)
        OPENED.append(MortalPostgres.connect(*arguments, **options))
        return OPENED[-1]

    monkeypatch.setattr(psycopg, "connect", connected)
    for n in count():
        driver = ControlDriver(PostgresTarget(postgres_plain), tmp_path, is_decided=bool(n % 2))
        if survived(driver.run, tmp_path, n):
            break
        driver.run()
        driver.check()
    driver.check()
    assert n >= 12, "somebody counts"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_second_death_during_recovery_leaves_them_exactly_once(tmp_path: Path, name: str) -> None:
    """Every third first death, each with every seventh second one; where these begin moves on with the first."""
    for n in count(0, 3):
        for m in count(n % 7, 7):
            directory = tmp_path / f"{n}-{m}"
            directory.mkdir()
            driver = ControlDriver(TARGETS[name](directory), directory, is_decided=bool(n % 2))
            if survived(driver.run, directory, n):
                return
            is_last = survived(driver.run, directory, m)
            driver.run()
            driver.check()
            if is_last:
                break
