"""A row that one sink refuses stops the pipeline before the epoch is decided: no sink has it, the next start goes on.

The coordinator is the real one, and so are the sinks: whatever a row says by itself, and whatever only the database can
say, comes out before the decision, which nothing can take back (design/0002, "Admitting").
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import faults
from holdfast.cli.reject_rows import would_reject
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator, OnRefused
from holdfast.commit.ledger import survey
from holdfast.commit.records import Done
from holdfast.connectors.files.sink.sink import FilesSink
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.sqlite.sink import SqliteSink
from holdfast.errors import BadRow, Unavailable
from holdfast.ports import Carried, EpochRecord, Part, Refused, Sink, Task
from holdfast.retry import RetryPolicy
from holdfast.store.local import LocalStore
from holdfast.testing import SimulatedSink, SimulatedTarget
from tests.specs import postgres_spec, sqlite_spec

pytestmark = pytest.mark.slow

PIPELINE = "words"
OTHER = pa.schema([("id", pa.int64())])
ONCE = RetryPolicy(attempts=1)


@dataclass(frozen=True)
class Place:
    """One way for a row to be refused: a table, a row that it takes, and one that it does not."""

    name: str
    schema: pa.Schema
    good: Sequence[Any]
    bad: Sequence[Any]
    ddl: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    says: str = ""

    def __str__(self) -> str:
        return self.name


TEXT = pa.schema([("id", pa.int64()), ("word", pa.string())])
ID_UPSERT = {"mode": "upsert", "key": ("id",)}
WORD_UPSERT = {"mode": "upsert", "key": ("word",)}
YEAR_10000 = 253_402_300_800_000_000
"""Microseconds.  Spark and Arrow have such times, Python has not."""
NESTED_TIMES = pa.schema([("id", pa.int64()), ("seen", pa.list_(pa.struct([("at", pa.timestamp("us"))])))])
NESTED_DAYS = pa.schema([("id", pa.int64()), ("days", pa.map_(pa.string(), pa.date32()))])

SQLITE = [
    Place("check", TEXT, (1, "a"), (2, "b"), "CREATE TABLE t (id INTEGER, word TEXT CHECK (word = 'a'))", says="CHECK"),
    Place("unique", TEXT, (1, "a"), (1, "b"), "CREATE TABLE t (id INTEGER UNIQUE, word TEXT)", says="UNIQUE"),
    Place("rowid", TEXT, (1, "a"), (1, "b"), "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT)", says="UNIQUE"),
    Place("not null", TEXT, (1, "a"), (2, None), "CREATE TABLE t (id INTEGER, word TEXT NOT NULL)", says="word"),
    Place("null key", TEXT, (1, "a"), (2, None), arguments=WORD_UPSERT, says="word"),
    Place("upsert, other unique column", TEXT, (1, "a"), (2, "a"),
          "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT UNIQUE)", ID_UPSERT, "UNIQUE"),
    Place("trigger", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id INTEGER, word TEXT);"
          "CREATE TRIGGER no BEFORE INSERT ON t WHEN new.word = 'b' BEGIN SELECT RAISE(ABORT, 'no b'); END",
          says="no b"),
    Place("uint64", pa.schema([("id", pa.uint64())]), (1,), (2**63,), says="id"),
    Place("nested time", NESTED_TIMES, (1, [{"at": 1}]), (2, [{"at": YEAR_10000}]), says="seen"),
    Place("nested date", NESTED_DAYS, (1, [("a", 1)]), (2, [("a", -800_000)]), says="days"),
]  # fmt: skip

POSTGRES = [
    Place("NUL", TEXT, (1, "a"), (2, "b\0"), says="NUL"),
    Place("null key", TEXT, (1, "a"), (2, None), arguments=WORD_UPSERT, says="word"),
    Place("not null", TEXT, (1, "a"), (2, None), "CREATE TABLE t (id bigint, word text NOT NULL)", says="word"),
    Place("varchar", TEXT, (1, "abc   "), (2, "abcd"), "CREATE TABLE t (id bigint, word varchar(3))", says="word"),
    Place("char", TEXT, (1, "abc "), (2, "abcd"), "CREATE TABLE t (id bigint, word char(3))", says="word"),
    Place("uuid", TEXT, (1, "{A0EEBC99-9c0b4ef8-bb6d6bb9bd380a11}"), (2, "a0eebc99"),
          "CREATE TABLE t (id bigint, word uuid)", says="word"),
    Place("enum", TEXT, (1, "red"), (2, "blue"),
          "CREATE TYPE colour AS ENUM ('red'); CREATE TABLE t (id bigint, word colour)", says="word"),
    Place("json", TEXT, (1, '{"a": 1}'), (2, "{"), "CREATE TABLE t (id bigint, word json)"),
    Place("jsonb", TEXT, (1, '{"a": 1}'), (2, '"\\u0000"'), "CREATE TABLE t (id bigint, word jsonb)"),
    Place("inet", TEXT, (1, "10.0.0.1"), (2, "10.0.0.256"), "CREATE TABLE t (id bigint, word inet)"),
    Place("nested jsonb", pa.schema([("id", pa.int64()), ("word", pa.list_(pa.string()))]), (1, ["a"]), (2, ["\0"]),
          "CREATE TABLE t (id bigint, word jsonb)", says="word"),
    Place("nested time", NESTED_TIMES, (1, [{"at": 1}]), (2, [{"at": YEAR_10000}]), says="seen"),
    Place("nested date, as text", NESTED_DAYS, (1, [("a", 1)]), (2, [("a", -800_000)]),
          "CREATE TABLE t (id bigint, days text)", says="days"),
    Place("date", pa.schema([("day", pa.date32())]), (1,), (-2_500_000,), says="day"),
    Place("timestamp", pa.schema([("at", pa.timestamp("us"))]), (1,), (-(2**62) - 2**61,), says="at"),
    Place("numeric", pa.schema([("amount", pa.float64())]), (1.0,), (float("inf"),),
          "CREATE TABLE t (amount numeric CHECK (amount < 100))", says="check"),
    Place("check", TEXT, (1, "a"), (2, "b"), "CREATE TABLE t (id bigint, word text CHECK (word <> 'b'))", says="check"),
    Place("unique", TEXT, (1, "a"), (1, "b"), "CREATE TABLE t (id bigint UNIQUE, word text)", says="unique"),
    Place("deferred unique", TEXT, (1, "a"), (1, "b"),
          "CREATE TABLE t (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, word text)", says="unique"),
    Place("exclusion", TEXT, (1, "a"), (1, "b"),
          "CREATE TABLE t (id bigint, word text, EXCLUDE USING btree (id WITH =))", says="exclusion"),
    Place("foreign key", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (1);"
          "CREATE TABLE t (id bigint REFERENCES p, word text)", says="foreign key"),
    Place("domain", TEXT, (1, "a"), (2, "b"),
          "CREATE DOMAIN letter AS text CHECK (VALUE <> 'b'); CREATE TABLE t (id bigint, word letter)", says="check"),
    Place("trigger", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id bigint, word text);"
          "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
          " $$ BEGIN IF new.word = 'b' THEN RAISE check_violation USING MESSAGE = 'no b'; END IF; RETURN new; END $$;"
          "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()", says="no b"),
    Place("no partition", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id bigint, word text) PARTITION BY LIST (word);"
          "CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a')", says="partition"),
    Place("no partition for null", TEXT, (1, "a"), (2, None),
          "CREATE TABLE t (id bigint, word text) PARTITION BY RANGE (word);"
          "CREATE TABLE t_a PARTITION OF t FOR VALUES FROM ('a') TO ('c')", says="partition"),
    Place("no subpartition", TEXT, (1, "a"), (2, "a"),
          "CREATE TABLE t (id bigint, word text) PARTITION BY LIST (word);"
          "CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a') PARTITION BY LIST (id);"
          "CREATE TABLE t_a1 PARTITION OF t_a FOR VALUES IN (1)", says="partition"),
    Place("constraint of a partition", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id bigint, word text) PARTITION BY LIST (word);"
          "CREATE TABLE t_ab PARTITION OF t FOR VALUES IN ('a', 'b'); ALTER TABLE t_ab ADD CHECK (id < 2)",
          says="check"),
    Place("trigger of a partition", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id bigint, word text) PARTITION BY LIST (word);"
          "CREATE TABLE t_ab PARTITION OF t FOR VALUES IN ('a', 'b');"
          "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
          " $$ BEGIN IF new.word = 'b' THEN RAISE check_violation USING MESSAGE = 'no b'; END IF; RETURN new; END $$;"
          "CREATE TRIGGER no BEFORE INSERT ON t_ab FOR EACH ROW EXECUTE FUNCTION no()", says="no b"),
    Place("a partition itself", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE whole (id bigint, word text) PARTITION BY LIST (word);"
          "CREATE TABLE t PARTITION OF whole FOR VALUES IN ('a')", says="partition"),
    Place("trigger with an error of its own", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id bigint, word text);"
          "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
          " $$ BEGIN IF new.word = 'b' THEN RAISE EXCEPTION 'not b, please'; END IF; RETURN new; END $$;"
          "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()", says="not b, please"),
    Place("deferred trigger", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id bigint, word text);"
          "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
          " $$ BEGIN IF new.word = 'b' THEN RAISE check_violation USING MESSAGE = 'no b'; END IF; RETURN null; END $$;"
          "CREATE CONSTRAINT TRIGGER no AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED"
          " FOR EACH ROW EXECUTE FUNCTION no()", says="no b"),
    Place("deferred foreign key", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (1);"
          "CREATE TABLE t (id bigint REFERENCES p DEFERRABLE INITIALLY DEFERRED, word text)", says="foreign key"),
    Place("exclusion of ranges", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id bigint, word text, EXCLUDE USING gist (int8range(id, id + 2) WITH &&))",
          says="exclusion"),
    Place("domain of a domain, not null", TEXT, (1, "a"), (2, None),
          "CREATE DOMAIN letter AS text; CREATE DOMAIN known AS letter NOT NULL;"
          "CREATE TABLE t (id bigint, word known)", says="null"),
    Place("domain of an array", pa.schema([("id", pa.int64()), ("word", pa.list_(pa.int64()))]), (1, [1]), (2, [1, 2]),
          "CREATE DOMAIN one AS jsonb CHECK (jsonb_array_length(VALUE) = 1); CREATE TABLE t (id bigint, word one)",
          says="check"),
    Place("unique without regard to case", TEXT, (1, "a"), (2, "A"),
          "CREATE TABLE t (id bigint, word text); CREATE UNIQUE INDEX ON t (lower(word))", says="unique"),
    Place("identity at its end", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id bigint CHECK (id < 2), word text, n bigint GENERATED ALWAYS AS IDENTITY)", says="check"),
    Place("generated, not null", TEXT, (1, "a"), (2, None),
          "CREATE TABLE t (id bigint, word text, long bigint GENERATED ALWAYS AS (length(word)) STORED NOT NULL)",
          says="null"),
    Place("expression index", TEXT, (1, "a"), (0, "b"),
          "CREATE TABLE t (id bigint, word text); CREATE INDEX ON t ((1 / id))", says="zero"),
    Place("generated", TEXT, (1, "a"), (0, "b"),
          "CREATE TABLE t (id bigint, word text, part bigint GENERATED ALWAYS AS (1 / id) STORED)", says="zero"),
    Place("index size", TEXT, (1, "a"), (2, "".join(chr(0x4E00 + n * 7919 % 20000) for n in range(6000))),
          "CREATE TABLE t (id bigint, word text); CREATE INDEX ON t (word)", says="index"),
    Place("upsert, long key", TEXT, (1, "a"), (2, "".join(chr(0x4E00 + n * 7919 % 20000) for n in range(6000))),
          arguments=WORD_UPSERT, says="index"),
    Place("upsert, other unique column", TEXT, (1, "a"), (2, "a"),
          "CREATE TABLE t (id bigint PRIMARY KEY, word text UNIQUE)", ID_UPSERT, "unique"),
    Place("upsert, check", TEXT, (1, "a"), (2, "b"),
          "CREATE TABLE t (id bigint PRIMARY KEY, word text CHECK (word <> 'b'))", ID_UPSERT, "check"),
]  # fmt: skip

FILES = [
    Place("partition value", TEXT, (1, "a"), (2, "b" * 300), arguments={"partition_by": ("word",)}, says="word"),
    Place("partition text", TEXT, (1, "a"), (2, b"\xff"), arguments={"partition_by": ("word",)}, says="word"),
    Place(
        "partition date",
        pa.schema([("id", pa.int64()), ("day", pa.date32())]),
        (1, 1),
        (2, 3_000_000),
        arguments={"partition_by": ("day",)},
        says="day",
    ),
    Place("json text", TEXT, (1, "a"), (2, b"\xff"), arguments={"format": "json"}, says="word"),
]


def stage(sink: Sink, generation: int, epoch: int, rows: pa.Table) -> Part:
    """Stage rows as one task does."""
    writer = sink.writer_factory()(Task(PIPELINE, generation, epoch, 0, 0))
    try:
        for batch in rows.to_batches():
            writer.write(batch)
        return writer.stage()
    except BaseException:
        writer.abort()
        raise


class Driver:
    """A pipeline of two sinks; each run of it is a new process as far as the sinks and the ledger can tell."""

    def __init__(self, directory: Path, connect: Callable[[], Sink], *, is_first: bool = False) -> None:
        self._store = LocalStore(str(directory / "checkpoint"))
        self._connect = connect
        self._is_first = is_first
        self._other = sqlite_spec(str(directory / "other.db"), "other")
        self._other_path = directory / "other.db"

    def start(self, on_refused: OnRefused) -> None:
        """Do what ``resolve --reject-rows`` does."""
        sinks = [self._connect(), self._other.connect("other", PIPELINE, OTHER)]
        coordinator = Coordinator(
            pipeline=PIPELINE, store=self._store, sinks=sinks, clock=SystemClock(), retry=ONCE, commit_thread=False
        )
        try:
            coordinator.open(on_refused)
        finally:
            coordinator.close()

    def run(self, epoch: int, rows: pa.Table, *, staged: bool = False, **arguments: Any) -> None:
        """Start, commit one epoch, end."""
        ours, other = self._connect(), self._other.connect("other", PIPELINE, OTHER)
        coordinator = Coordinator(
            pipeline=PIPELINE,
            store=self._store,
            sinks=[ours, other] if self._is_first else [other, ours],
            clock=SystemClock(),
            retry=ONCE,
            **arguments,
        )
        try:
            coordinator.open()
            parts: dict[str, Sequence[Part]] = {
                "ours": [stage(ours, coordinator.generation, epoch, rows) if staged else Carried(rows)],
                "other": [Carried(pa.table({"id": [epoch]}, schema=OTHER))],
            }
            claim = coordinator.missing(epoch)
            record = EpochRecord(PIPELINE, epoch, coordinator.generation, {"lines": {"log": epoch}})
            coordinator.commit(claim, record, parts)
            coordinator.flush()
        finally:
            coordinator.close()

    def done(self, epoch: int) -> Done:
        """Return what is left of an epoch's decision."""
        found = next(entry.content for entry in survey(self._store) if entry.key.epoch == epoch)
        assert isinstance(found, Done)
        return found

    def held(self) -> tuple[int, list[int]]:
        """Return the highest epoch that the ledger has decided, and what the other sink has."""
        decided = max((entry.key.epoch for entry in survey(self._store)), default=0)
        with closing(sqlite3.connect(self._other_path)) as connection:
            return decided, [row[0] for row in connection.execute("SELECT id FROM other ORDER BY id")]


def table(place: Place, *rows: Sequence[Any]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    arrays = []
    for field_, column in zip(place.schema, columns, strict=True):
        if any(isinstance(value, bytes) for value in column):  # text that is none
            raw = pa.array([value.encode() if isinstance(value, str) else value for value in column], pa.binary())
            arrays.append(pa.Array.from_buffers(pa.string(), len(raw), raw.buffers()))
        else:
            arrays.append(pa.array(column, field_.type))
    return pa.Table.from_arrays(arrays, schema=place.schema)


def check_refused_before_the_decision(driver: Driver, place: Place, *, staged: bool, **arguments: Any) -> None:
    """Each start stops alike, all sinks equal; without the row the pipeline goes on."""
    driver.run(1, table(place, place.good), staged=staged, **arguments)
    for _ in range(2):
        with pytest.raises(BadRow) as caught:
            driver.run(2, table(place, place.bad), staged=staged, **arguments)
        assert place.says.lower() in caught.value.message.lower()
        assert driver.held() == (1, [1])
    driver.run(2, table(place, place.bad).slice(1), staged=staged, **arguments)
    assert driver.held() == (2, [1, 2])


@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("place", SQLITE, ids=str)
def test_a_row_that_sqlite_refuses_is_refused_before_the_decision(
    place: Place, is_first: bool, staged: bool, tmp_path: Path
) -> None:
    path = tmp_path / "ours.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(place.ddl)
    spec = sqlite_spec(str(path), "t", **place.arguments)
    driver = Driver(tmp_path, lambda: spec.connect("ours", PIPELINE, place.schema), is_first=is_first)
    check_refused_before_the_decision(driver, place, staged=staged)


@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
@pytest.mark.parametrize("place", FILES, ids=str)
def test_a_row_that_files_cannot_keep_is_refused_before_the_decision(
    place: Place, staged: bool, tmp_path: Path
) -> None:
    spec = FilesSinkSpec(str(tmp_path / "ours"), **place.arguments)
    driver = Driver(tmp_path, lambda: spec.connect("ours", PIPELINE, place.schema))
    check_refused_before_the_decision(driver, place, staged=staged)


WAYS = ("carried", "staging table", "prepared")
IN_TURN = [
    pytest.param(place, way, id=f"{place}-{way}", marks=[pytest.mark.nightly] * ((number + turn) % 3 > 0))
    for number, place in enumerate(POSTGRES)
    for turn, way in enumerate(WAYS)
]
"""Each place by one of the ways; the other two at night."""


@pytest.mark.postgres
@pytest.mark.parametrize(("place", "way"), IN_TURN)
def test_a_row_that_postgres_refuses_is_refused_before_the_decision(
    place: Place, way: str, postgres_prepared: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres_prepared) as connection:
        connection.execute(place.ddl)
    stage = {"prepared": "auto", "staging table": "table"}.get(way, "auto")
    spec = postgres_spec(postgres_prepared, "t", **{"stage": stage, **place.arguments})
    driver = Driver(tmp_path, lambda: spec.connect("ours", PIPELINE, place.schema))
    check_refused_before_the_decision(driver, place, staged=way != "carried")


class Killed(BaseException):
    """The process is gone."""


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    """Die at a point, at the first time that it is reached."""

    def kill(reached: str, epoch: int) -> None:
        if reached == point:
            raise Killed

    faults.install(kill)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        faults.install(None)


class Several:
    """A pipeline of several sinks of one kind; each run is a new process."""

    def __init__(self, directory: Path, connects: Mapping[str, Callable[[], Sink]]) -> None:
        self._store = LocalStore(str(directory / "checkpoint"))
        self._connects = connects

    def run(self, epoch: int, rows: Mapping[str, pa.Table], *, staged: bool = False, **arguments: Any) -> None:
        sinks = {name: connect() for name, connect in self._connects.items()}
        coordinator = Coordinator(
            pipeline=PIPELINE,
            store=self._store,
            sinks=list(sinks.values()),
            clock=SystemClock(),
            retry=ONCE,
            **arguments,
        )
        try:
            coordinator.open()
            parts: dict[str, Sequence[Part]] = {
                name: [stage(sinks[name], coordinator.generation, epoch, table) if staged else Carried(table)]
                for name, table in rows.items()
            }
            claim = coordinator.missing(epoch)
            record = EpochRecord(PIPELINE, epoch, coordinator.generation, {"lines": {"log": epoch}})
            coordinator.commit(claim, record, parts)
            coordinator.flush()
        finally:
            coordinator.close()

    def reject(self) -> dict[str, list[int]]:
        """Do what ``resolve --reject-rows`` does; return the numbers of each sink's rows, which a dry run told too."""
        found: dict[str, list[int]] = {}

        def keep(sink: str, record: EpochRecord, refused: Sequence[Refused]) -> None:
            found.setdefault(sink, []).extend(each.number for each in refused)

        sinks = [connect() for connect in self._connects.values()]
        told: dict[str, list[int]] = {}
        for letter in would_reject(self._store, sinks, rows_max=1).letters:
            told.setdefault(letter.source, []).append(letter.address.ordinal)
        coordinator = Coordinator(
            pipeline=PIPELINE, store=self._store, sinks=sinks, clock=SystemClock(), retry=ONCE, commit_thread=False
        )
        try:
            coordinator.open(keep)
        finally:
            coordinator.close()
        assert told == found
        return found

    def decided(self) -> int:
        return max((entry.key.epoch for entry in survey(self._store)), default=0)


def words(*rows: tuple[int, str | None]) -> pa.Table:
    return pa.table({"id": [row[0] for row in rows], "word": [row[1] for row in rows]}, schema=TEXT)


@pytest.mark.postgres
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_a_foreign_key_to_rows_that_another_sink_gets_in_the_same_epoch_is_taken(
    staged: bool, postgres_plain: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres_plain) as connection:
        connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, word text);"
            "CREATE TABLE lines (id bigint REFERENCES orders, word text)"
        )
    several = Several(
        tmp_path,
        {
            name: lambda name=name: postgres_spec(postgres_plain, name).connect(name, PIPELINE, TEXT)
            for name in ("orders", "lines")
        },
    )
    several.run(1, {"orders": words((1, "a")), "lines": words((1, "x"), (1, "y"))}, staged=staged)
    with pytest.raises(BadRow, match="foreign key"):
        several.run(2, {"orders": words((2, "b")), "lines": words((3, "z"))}, staged=staged)
    assert several.decided() == 1
    several.run(2, {"orders": words((2, "b")), "lines": words((2, "z"))}, staged=staged)
    with psycopg.connect(postgres_plain) as connection:
        assert connection.execute("SELECT id FROM lines ORDER BY 1").fetchall() == [(1,), (1,), (2,)]


def orders_and_lines(work: Path, dsn: str) -> Several:
    """Return two sinks of one database that name it in different words."""
    words_of = {"orders": dsn, "lines": make_conninfo(dsn, connect_timeout="20")}
    specs = {name: postgres_spec(words, name) for name, words in words_of.items()}
    connects = {name: lambda name=name: specs[name].connect(name, PIPELINE, TEXT) for name in specs}
    return Several(work, connects)


@pytest.mark.postgres
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_a_foreign_key_to_rows_of_a_sink_that_names_the_database_otherwise_is_taken(
    staged: bool, postgres_plain: str, tmp_path: Path
) -> None:
    """Only a row that points to no table of an earlier sink is refused: what that sink writes cannot be tried here."""
    with psycopg.connect(postgres_plain) as connection:
        connection.execute(
            "CREATE TABLE kinds (name text PRIMARY KEY); INSERT INTO kinds VALUES ('a');"
            "CREATE TABLE orders (id bigint PRIMARY KEY, word text);"
            "CREATE TABLE lines (id bigint REFERENCES orders, word text REFERENCES kinds)"
        )
    several = orders_and_lines(tmp_path, postgres_plain)
    several.run(1, {"orders": words((1, "a")), "lines": words((1, "a"))}, staged=staged)
    with pytest.raises(BadRow, match="foreign key"):
        several.run(2, {"orders": words((2, "b")), "lines": words((1, "b"))}, staged=staged)
    assert several.decided() == 1
    several.run(2, {"orders": words((2, "b")), "lines": words((2, "a"))}, staged=staged)
    with psycopg.connect(postgres_plain) as connection:
        assert connection.execute("SELECT id FROM lines ORDER BY 1").fetchall() == [(1,), (2,)]


@pytest.mark.postgres
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_a_foreign_key_to_a_sink_that_names_the_database_otherwise_and_gets_no_row_is_refused(
    staged: bool, postgres_plain: str, tmp_path: Path
) -> None:
    """Nobody is about to write the row that it points to."""
    with psycopg.connect(postgres_plain) as connection:
        connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, word text);"
            "CREATE TABLE lines (id bigint REFERENCES orders, word text)"
        )
    several = orders_and_lines(tmp_path, postgres_plain)
    with pytest.raises(BadRow, match="foreign key"):
        several.run(1, {"orders": words(), "lines": words((999, "x"))}, staged=staged)
    assert several.decided() == 0


@pytest.mark.postgres
def test_a_foreign_key_to_rows_that_another_database_gets_is_refused(
    postgres_plain: str, postgres_prepared: str, tmp_path: Path
) -> None:
    """A table of that name is here too."""
    for dsn in (postgres_plain, postgres_prepared):
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "CREATE TABLE orders (id bigint PRIMARY KEY, word text);"
                "CREATE TABLE lines (id bigint REFERENCES orders, word text)"
            )
    specs = {"orders": postgres_spec(postgres_prepared, "orders"), "lines": postgres_spec(postgres_plain, "lines")}
    several = Several(
        tmp_path,
        {name: lambda name=name: specs[name].connect(name, PIPELINE, TEXT) for name in specs},
    )
    with pytest.raises(BadRow, match="foreign key"):
        several.run(1, {"orders": words((1, "a")), "lines": words((1, "x"))})
    assert several.decided() == 0


def one_table(spec: Callable[[], Any]) -> dict[str, Callable[[], Sink]]:
    return {
        "one": lambda: spec().connect("one", PIPELINE, TEXT),
        "two": lambda: spec().connect("two", PIPELINE, TEXT),
    }


def check_two_sinks_of_one_table(several: Several, *, staged: bool) -> None:
    """What the second is refused because of the first comes out before the decision, and nobody waits for anybody."""
    several.run(1, {"one": words((1, "a")), "two": words((2, "b"))}, staged=staged)
    with pytest.raises(BadRow, match=r"(?i)unique"):
        several.run(2, {"one": words((3, "c")), "two": words((3, "d"))}, staged=staged)
    assert several.decided() == 1
    several.run(2, {"one": words((3, "c")), "two": words((4, "d"))}, staged=staged)


@pytest.mark.postgres
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_two_sinks_of_one_postgres_table_are_tried_together(staged: bool, postgres_plain: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_plain) as connection:
        connection.execute("CREATE TABLE t (id bigint UNIQUE, word text)")
    check_two_sinks_of_one_table(
        Several(tmp_path, one_table(lambda: postgres_spec(postgres_plain, "t"))), staged=staged
    )


@pytest.mark.postgres
def test_two_sinks_that_upsert_the_same_rows_do_not_wait_for_each_other(postgres_plain: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_plain) as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, word text CHECK (word <> 'no'))")
    spec = postgres_spec(postgres_plain, "t", mode="upsert", key=("id",))
    several = Several(tmp_path, one_table(lambda: spec))
    for epoch in (1, 2, 3):
        rows = {"one": words((1, "a"), (2, "a")), "two": words((2, "b"), (1, "b"))}
        several.run(epoch, rows, staged=epoch == 2)


@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_two_sinks_of_one_sqlite_table_are_tried_together(staged: bool, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER UNIQUE, word TEXT)")
    check_two_sinks_of_one_table(Several(tmp_path, one_table(lambda: sqlite_spec(str(path), "t"))), staged=staged)


def test_a_table_without_rules_of_its_own_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Holdfast created needs no trial; a rule that is added later is seen at once."""
    tried: list[str] = []
    real = SqliteSink._try

    def counted(self: SqliteSink, writes: Any) -> None:
        tried.append(self.name)
        real(self, writes)

    monkeypatch.setattr(SqliteSink, "_try", counted)
    path = tmp_path / "t.db"
    spec = sqlite_spec(str(path), "t", mode="upsert", key=("id",))
    driver = Driver(tmp_path, lambda: spec.connect("ours", PIPELINE, TEXT))
    driver.run(1, words((1, "a")))
    driver.run(2, words((2, "b")), staged=True)
    assert tried == []
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE UNIQUE INDEX later ON t (word)")
    with pytest.raises(BadRow, match="UNIQUE"):
        driver.run(3, words((3, "b")))
    assert tried == ["ours"]
    assert driver.held() == (2, [1, 2])


# --- behind the decision ----------------------------------------------------------------------------------------------


@dataclass
class Wedged:
    """A sink that gets a rule when the epoch is decided: what was admitted is refused."""

    connect: Callable[[], Sink]
    refuse: Callable[[], object]
    refuse_more: Callable[[], object]
    rows: Callable[[], list[Any]]


SQLITE_RULES = {
    "index": "CREATE UNIQUE INDEX later ON t (word)",
    "rollback": "CREATE TRIGGER later BEFORE INSERT ON t WHEN EXISTS (SELECT 1 FROM t WHERE word = new.word)"
    " BEGIN SELECT RAISE(ROLLBACK, 'there already'); END",
}
"""Of equal sense; the second one ends the whole transaction."""


def wedged_sqlite(directory: Path, rule: str) -> Wedged:
    path = directory / "ours.db"

    def execute(statement: str) -> list[Any]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(statement).fetchall()

    return Wedged(
        lambda: sqlite_spec(str(path), "t").connect("ours", PIPELINE, TEXT),
        lambda: execute(SQLITE_RULES[rule]),
        lambda: execute(
            "CREATE TRIGGER more BEFORE INSERT ON t WHEN new.id = 4 BEGIN SELECT RAISE(ABORT, 'no 4'); END"
        ),
        lambda: execute("SELECT id, word FROM t ORDER BY id"),
    )


def wedged_postgres(dsn: str, **arguments: Any) -> Wedged:
    def execute(statement: str) -> list[Any]:
        with psycopg.connect(dsn) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    return Wedged(
        lambda: postgres_spec(dsn, "t", **arguments).connect("ours", PIPELINE, TEXT),
        lambda: execute("CREATE UNIQUE INDEX ON t (word)"),
        lambda: execute("ALTER TABLE t ADD CHECK (id <> 4)"),
        lambda: execute("SELECT id, word FROM t ORDER BY id"),
    )


def wedged_simulated() -> Wedged:
    target = SimulatedTarget()

    def refuse(*ids: int) -> None:
        target.refuses = lambda row: row["id"] in ids

    return Wedged(
        lambda: SimulatedSink("ours", target),
        lambda: refuse(3, 5),
        lambda: refuse(3, 4, 5),
        lambda: sorted(target.rows()),
    )


def refused_behind_the_decision(wedged: Wedged, directory: Path, *, staged: bool) -> Driver:
    """Return a pipeline whose epoch 2 is decided when the sink begins to refuse two of its five rows."""
    driver = Driver(directory, wedged.connect, is_first=True)
    driver.run(1, words((1, "a")), staged=staged)
    rows = words((2, "b"), (3, "a"), (4, "c"), (5, "b"), (6, "d"))

    def rule(point: str, epoch: int) -> None:
        if point == "after-decide":
            faults.install(None)
            wedged.refuse()

    faults.install(rule)
    try:
        with pytest.raises(BadRow, match="--reject-rows") as caught:
            driver.run(2, rows, staged=staged)
    finally:
        faults.install(None)
    assert caught.value.is_decided
    return driver


def check_rows_are_rejected(wedged: Wedged, directory: Path, *, staged: bool) -> None:
    """Each start says that rows are refused, until they are rejected."""
    driver = refused_behind_the_decision(wedged, directory, staged=staged)
    with pytest.raises(BadRow, match="--reject-rows"):
        driver.run(3, words((7, "e")), staged=staged)
    assert wedged.rows() == [(1, "a")]

    kept: list[tuple[str, int, list[Any]]] = []
    driver.start(lambda sink, record, refused: kept.extend(
        (sink, each.number, list(each.row.to_pylist()[0].values())) for each in refused
    ))  # fmt: skip
    assert [(sink, number, [str(value) for value in row]) for sink, number, row in kept] == [
        ("ours", 1, ["3", "a"]),
        ("ours", 3, ["5", "b"]),
    ]
    assert wedged.rows() == [(1, "a"), (2, "b"), (4, "c"), (6, "d")]
    assert driver.held() == (2, [1, 2])
    driver.run(3, words((7, "e")), staged=staged)
    assert wedged.rows()[-1] == (7, "e")


def check_rows_are_rejected_twice(wedged: Wedged, directory: Path, *, staged: bool) -> None:
    """Another rule comes between the decision without the first rows and its publishing: no two rows share a number."""
    driver = refused_behind_the_decision(wedged, directory, staged=staged)
    kept: dict[int, str] = {}

    def keep(sink: str, record: EpochRecord, refused: Sequence[Refused]) -> None:
        for each in refused:
            kept.setdefault(each.number, str(each.row.to_pylist()[0]["id"]))  # as letters: a name that is there stays

    with killed_at("rejected-decided"):
        driver.start(keep)
    wedged.refuse_more()
    driver.start(keep)
    assert kept == {1: "3", 2: "4", 3: "5"}
    assert wedged.rows() == [(1, "a"), (2, "b"), (6, "d")]
    assert driver.done(2).row_counts == {"ours": 2, "other": 1}


@pytest.mark.parametrize("rule", SQLITE_RULES)
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_rows_that_sqlite_refuses_of_what_an_earlier_rejection_left_are_rejected_too(
    staged: bool, rule: str, tmp_path: Path
) -> None:
    check_rows_are_rejected_twice(wedged_sqlite(tmp_path, rule), tmp_path, staged=staged)


@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_rows_that_a_simulated_sink_refuses_of_what_an_earlier_rejection_left_are_rejected_too(
    staged: bool, tmp_path: Path
) -> None:
    check_rows_are_rejected_twice(wedged_simulated(), tmp_path, staged=staged)


@pytest.mark.postgres
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_that_postgres_refuses_of_what_an_earlier_rejection_left_are_rejected_too(
    mode: str, staged: bool, postgres_plain: str, tmp_path: Path
) -> None:
    arguments = ID_UPSERT if mode == "upsert" else {}
    check_rows_are_rejected_twice(wedged_postgres(postgres_plain, **arguments), tmp_path, staged=staged)


@pytest.mark.parametrize("rule", SQLITE_RULES)
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_rows_that_sqlite_refuses_behind_the_decision_can_be_rejected(staged: bool, rule: str, tmp_path: Path) -> None:
    check_rows_are_rejected(wedged_sqlite(tmp_path, rule), tmp_path, staged=staged)


@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_rows_that_a_simulated_sink_refuses_behind_the_decision_can_be_rejected(staged: bool, tmp_path: Path) -> None:
    check_rows_are_rejected(wedged_simulated(), tmp_path, staged=staged)


@pytest.mark.postgres
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_that_postgres_refuses_behind_the_decision_can_be_rejected(
    mode: str, staged: bool, postgres_plain: str, tmp_path: Path
) -> None:
    arguments = ID_UPSERT if mode == "upsert" else {}
    check_rows_are_rejected(wedged_postgres(postgres_plain, **arguments), tmp_path, staged=staged)


@pytest.mark.postgres
@pytest.mark.parametrize("words_of_dsn", [{}, {"connect_timeout": "20"}], ids=["one dsn", "two dsns"])
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_rows_whose_foreign_key_points_to_what_another_sink_gets_of_the_epoch_are_not_rejected(
    staged: bool, words_of_dsn: dict[str, str], postgres_plain: str, tmp_path: Path
) -> None:
    """The order is published before its lines are looked at; a dry run looks at them behind it too."""
    with psycopg.connect(postgres_plain) as connection:
        connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, word text);"
            "CREATE TABLE lines (id bigint REFERENCES orders, word text)"
        )
    other_words = make_conninfo(postgres_plain, **words_of_dsn) if words_of_dsn else postgres_plain
    specs = {"orders": postgres_spec(postgres_plain, "orders"), "lines": postgres_spec(other_words, "lines")}
    several = Several(
        tmp_path,
        {name: lambda name=name: specs[name].connect(name, PIPELINE, TEXT) for name in specs},
    )
    with killed_at("after-decide"):
        several.run(1, {"orders": words((1, "a")), "lines": words((1, "x"), (1, "no"), (1, "y"))}, staged=staged)
    with psycopg.connect(postgres_plain) as connection:
        connection.execute("ALTER TABLE lines ADD CHECK (word <> 'no')")
    assert several.reject() == {"lines": [1]}
    with psycopg.connect(postgres_plain) as connection:
        assert connection.execute("SELECT word FROM lines ORDER BY 1").fetchall() == [("x",), ("y",)]


@pytest.mark.postgres
def test_no_row_is_rejected_that_points_to_what_a_sink_that_does_not_answer_lacks(
    postgres_plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows once left out of a decision are out of it for good; the order comes with the next start."""
    with psycopg.connect(postgres_plain) as connection:
        connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, word text);"
            "CREATE TABLE lines (id bigint REFERENCES orders, word text)"
        )
    specs = {name: postgres_spec(postgres_plain, name) for name in ("orders", "lines")}
    several = Several(tmp_path, {name: lambda name=name: specs[name].connect(name, PIPELINE, TEXT) for name in specs})
    with killed_at("after-decide"):
        several.run(1, {"orders": words((1, "a")), "lines": words((1, "x"), (1, "y"))})
    publish = PostgresSink.publish

    def away(sink: PostgresSink, *arguments: Any, **more: Any) -> Any:
        if sink.name == "orders":
            raise Unavailable("orders does not answer.", why="its table is locked.", do="wait.")
        return publish(sink, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresSink, "publish", away)
        with pytest.raises(Unavailable, match="orders"):
            several.reject()
    assert several.reject() == {}
    with psycopg.connect(postgres_plain) as connection:
        assert connection.execute("SELECT word FROM lines ORDER BY 1").fetchall() == [("x",), ("y",)]


def check_two_sinks_of_one_table_reject(several: Several, add_rule: Callable[[], None], *, staged: bool) -> None:
    """Of two rows that one table does not take both, that of the second sink is rejected."""
    with killed_at("after-decide"):
        several.run(1, {"one": words((1, "a"), (2, "b")), "two": words((3, "c"), (2, "d"))}, staged=staged)
    add_rule()
    assert several.reject() == {"two": [1]}


@pytest.mark.postgres
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_what_two_sinks_of_one_postgres_table_refuse_each_other_is_rejected(
    staged: bool, postgres_plain: str, tmp_path: Path
) -> None:
    def add_rule() -> None:
        with psycopg.connect(postgres_plain) as connection:
            connection.execute("CREATE UNIQUE INDEX ON t (id)")

    several = Several(tmp_path, one_table(lambda: postgres_spec(postgres_plain, "t")))
    check_two_sinks_of_one_table_reject(several, add_rule, staged=staged)


@pytest.mark.parametrize("way", ["ABORT", "ROLLBACK"])
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_what_two_sinks_of_one_sqlite_table_refuse_each_other_is_rejected(
    staged: bool, way: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"

    def add_rule() -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(
                "CREATE TRIGGER later BEFORE INSERT ON t WHEN EXISTS (SELECT 1 FROM t WHERE id = new.id)"
                f" BEGIN SELECT RAISE({way}, 'there already'); END"
            )

    several = Several(tmp_path, one_table(lambda: sqlite_spec(str(path), "t")))
    check_two_sinks_of_one_table_reject(several, add_rule, staged=staged)


def test_files_of_a_decision_of_before_can_be_published_without_the_rows_that_have_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided by a version that did not ask: partition values that are too long for a directory's name."""
    spec = FilesSinkSpec(str(tmp_path / "ours"), partition_by=("word",))
    driver = Driver(tmp_path, lambda: spec.connect("ours", PIPELINE, TEXT))
    with monkeypatch.context() as before:
        before.setattr(FilesSink, "admit", lambda *asked: False)
        with pytest.raises(BadRow, match="--reject-rows"):
            driver.run(1, words((1, "a"), (2, "b" * 300), (3, "c")))
    kept: list[int] = []
    driver.start(lambda sink, record, refused: kept.extend(each.number for each in refused))
    assert kept == [1]
    found = pq.read_table(tmp_path / "ours")
    assert sorted(found.column("id").to_pylist()) == [1, 3]
    assert driver.held() == (1, [1])
