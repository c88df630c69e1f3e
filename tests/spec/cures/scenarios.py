"""Errors that are raised for real, with their cures: the advice is followed, and the same action passes."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from holdfast.cli.target import load_target
from holdfast.commit.checks import needs
from holdfast.commit.transaction import Event, State, step
from holdfast.ports import Held, RunIdentity
from holdfast.store import durable, sealed
from holdfast.testing import drive
from tests.specs import sqlite_spec

KEYED = "origin STRING, t TIMESTAMP, n BIGINT"


@dataclass(frozen=True)
class Scenario:
    """An error and its cure.

    Parameters
    ----------
    site : str
        Where it is raised: the name of a row of the table.
    wrong : callable
        Does what fails; it is given an empty directory.
    says : str
        The words of the advice that ``right`` follows.
    right : callable
        The same with the cure; it is given the same directory, after ``wrong``.
    """

    site: str
    wrong: Callable[[Path], Any]
    says: str
    right: Callable[[Path], Any]


def source(name: str = "flights", *, schema: str = KEYED, timestamp: str | None = "t") -> hf.Stream:
    """Return a stream of rows, none of which is there yet."""
    return hf.read.rows([], schema=schema, timestamp=timestamp, name=name)


def driven(stream: hf.Stream, *rows: dict[str, Any], **sources: Any) -> Any:
    """Return the rows that a graph gives, without Spark."""
    return drive(stream, {"flights": [list(rows)], **sources})


def numbers() -> hf.Stream:
    """Return a stream of one number."""
    return source(schema="n BIGINT", timestamp=None)


def merged(main: hf.Stream) -> hf.Stream:
    """Return a merge."""
    return hf.merge(main, {"weather": source("weather")}, by="origin", name="seen")


def synced(**given: Any) -> hf.Stream:
    """Return a sync of two streams."""
    given = {"by": "origin", "policy": hf.policy.settled(), **given}
    return hf.sync({"left": source("left"), "right": source("right")}, **given)


def hourly(**given: Any) -> Any:
    """Return an aggregate."""
    given = {"by": "origin", "window": hf.tumbling("1 hour"), "departures": hf.count(), **given}
    return source() | hf.aggregate(**given)


def opened(work: Path, generation: int) -> Any:
    """Open a SQLite sink as a run of a generation does."""
    sink = sqlite_spec(str(work / "out.db"), "rows").connect("out", "trips", pa.schema([("n", pa.int64())]))
    sink.open(RunIdentity("trips", generation))
    return sink


def fence_old(work: Path) -> Any:
    """Open a sink as a run does that another one has replaced."""
    opened(work, 2)
    return opened(work, 1)


def damaged(work: Path) -> Any:
    """Read an object of which one byte has changed; a copy of it lies beside."""
    sealed.prepare(str(work))
    sealed.put_if_absent(str(work / "0001"), b"epoch 1")
    shutil.copy(work / "0001", work / "copy")
    data = bytearray((work / "0001").read_bytes())
    data[-1] ^= 1
    (work / "0001").write_bytes(bytes(data))
    return sealed.read_sealed(str(work / "0001"))


def restored(work: Path) -> Any:
    """Read it again, from the copy."""
    shutil.copy(work / "copy", work / "0001")
    assert sealed.read_sealed(str(work / "0001")) == b"epoch 1"


def unsynced(work: Path) -> Any:
    """Write an object in a directory whose disk fails when its name is synced."""
    sealed.prepare(str(work))
    with mock.patch.object(durable, "sync_directory", side_effect=OSError(5, "Input/output error")):
        return sealed.put_if_absent(str(work / "0001"), b"epoch 1")


def read_after(work: Path) -> Any:
    """Start again: what is there is read."""
    assert not sealed.put_if_absent(str(work / "0001"), b"another")
    assert sealed.read_sealed(str(work / "0001")) == b"epoch 1"


def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fail as a function does whose system is away."""
    raise ConnectionError("connection refused")


def pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows."""
    return batch


def batched(fn: Any) -> Any:
    """Run rows through a function of batches."""
    return driven(numbers() | hf.map_batches(fn, schema="n BIGINT", name="asked"), {"n": 1})


def called(work: Path, fn: Any, **given: Any) -> Any:
    """Ask a service about a row."""

    async def ask(row: Any) -> Any:
        return fn(row)

    given = {"key": "n", "answers": work / "answers", "retry": 0, "name": "called", **given}
    return driven(numbers() | hf.call(ask, "said STRING", **given), {"n": 1})


def fail_recorded(work: Path) -> Any:
    """Record a failure, and ask with on_fail="stop" then."""
    called(work, refuse, on_fail="reject")
    return called(work, lambda row: {"said": "one"})


def ask_again(work: Path) -> Any:
    """Delete failures, and ask."""
    with closing(sqlite3.connect(work / "answers")) as connection, connection:
        connection.execute("DELETE FROM answers WHERE error IS NOT NULL")
    return called(work, lambda row: {"said": "one"})


def earlier(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows five seconds earlier."""
    return batch.set_column(1, batch.schema.field(1), pc.subtract(batch.column(1), pa.scalar(5, pa.duration("s"))))


def moved(offset: str) -> Any:
    """Run rows through it."""
    stream = source() | hf.map_batches(earlier, schema=KEYED, timestamp="t", timestamp_offset=offset, name="moved")
    return driven(stream, {"origin": "JFK", "t": datetime(2013, 3, 1, 6, tzinfo=UTC), "n": 1})


def gap(held: int) -> bool:
    """Ask whether a sink that holds everything up to a position needs the epoch from 5 to 7."""
    at = {"flights": {"0": held}}
    return needs("out", 3, Held(2, 1, at), {"flights": {"0": 5}}, {"flights": {"0": 7}}, RunIdentity("trips", 2))


def target_of(work: Path, text: str) -> Any:
    """Load a module's pipeline."""
    (work / "flow.py").write_text(f"import holdfast as hf\nrows = hf.read.rows([], schema='n BIGINT')\n{text}\n")
    return load_target(f"{work / 'flow.py'}:pipeline")


SCENARIOS = {
    # --- one of each class ---------------------------------------------------------------------------------------
    "BadRow: a divisor is zero": Scenario(
        "expressions/logic.py:Columnar.evaluate BadRow",
        lambda work: driven(numbers() | hf.select("*", x="1 / n"), {"n": 0}),
        "leave such rows out with a filter before",
        lambda work: driven(numbers() | hf.filter("n <> 0") | hf.select("*", x="1 / n"), {"n": 0}),
    ),
    "Unavailable: a system that a function asks is away": Scenario(
        "plan/batches.py:explained any",
        lambda work: batched(refuse),
        "make sure that the system answers, then start again",
        lambda work: batched(pass_on),
    ),
    "a service that does not answer": Scenario(
        "operators/calling.py:Service._ask Unavailable",
        lambda work: called(work, refuse),
        'write on_fail="reject"',
        lambda work: called(work, refuse, on_fail="reject"),
    ),
    "a service whose failure was recorded by a call that went on": Scenario(
        "operators/calling.py:Service._require_answers Unavailable",
        fail_recorded,
        "delete them from",
        ask_again,
    ),
    "a service whose answer has another schema": Scenario(
        "operators/calling.py:Service._row_of InvalidPipeline",
        lambda work: called(work, lambda row: {"other": 1}),
        "return a dict with the columns of schema=",
        lambda work: called(work, lambda row: {"said": "one"}),
    ),
    "Fenced: an older run": Scenario(
        "connectors/kit/sql.py:fenced Fenced",
        fence_old,
        "leave the newer run alone",
        lambda work: opened(work, 3),
    ),
    "InDoubt: a name that was not synced": Scenario(
        "store/durable.py:_sync_name InDoubt", unsynced, "start again: what is there is then read", read_after
    ),
    "Diverged: a sink that was restored from a backup": Scenario(
        "commit/checks.py:needs Diverged",
        lambda work: gap(3),
        "restore sink 'out'",
        lambda work: gap(5),
    ),
    "Corrupt: a byte has changed": Scenario(
        "store/sealed.py:read_sealed Corrupt", damaged, "restore the file", restored
    ),
    "InternalError: an event that may not happen": Scenario(
        "commit/transaction.py:step InternalError",
        lambda work: step(State.PUBLISHED, Event.STAGE),
        "report",
        lambda work: step(State.STAGED, Event.DECIDE),
    ),
    # --- event time ----------------------------------------------------------------------------------------------
    "merge behind a source without event time": Scenario(
        "graph/event_time.py:no_timestamp InvalidPipeline",
        lambda work: merged(source(timestamp=None)),
        'timestamp="..." where the source is built',
        lambda work: merged(source(timestamp="t")),
    ),
    "merge behind a map": Scenario(
        "graph/event_time.py:no_timestamp InvalidPipeline",
        lambda work: merged(source() | hf.map(lambda df: df, name="mapped")),
        'hf.map(..., timestamp="t")',
        lambda work: merged(source() | hf.map(lambda df: df, timestamp="t", name="mapped")),
    ),
    "merge behind map_batches": Scenario(
        "graph/event_time.py:no_timestamp InvalidPipeline",
        lambda work: merged(source() | hf.map_batches(pass_on, schema="origin STRING, at TIMESTAMP", name="called")),
        'hf.map_batches(..., timestamp="...")',
        lambda work: merged(
            source() | hf.map_batches(pass_on, schema="origin STRING, at TIMESTAMP", timestamp="at", name="called")
        ),
    ),
    "merge behind a select": Scenario(
        "graph/event_time.py:no_timestamp InvalidPipeline",
        lambda work: merged(source() | hf.select("origin", "n")),
        "keep the column 't'",
        lambda work: merged(source() | hf.select("origin", "n", "t")),
    ),
    "merge behind a total": Scenario(
        "graph/event_time.py:no_timestamp InvalidPipeline",
        lambda work: merged(source() | hf.reduce(by="origin", n=hf.count())),
        'window=hf.tumbling("1 hour")',
        lambda work: hf.merge(
            source() | hf.aggregate(by="origin", window=hf.tumbling("1 hour"), n=hf.count()),
            {"weather": source("weather")},
            by="origin",
        ),
    ),
    "clip without event time": Scenario(
        "graph/event_time.py:no_timestamp InvalidPipeline",
        lambda work: source(timestamp=None) | hf.clip("2013-03-01", "2013-04-01"),
        'hf.clip(..., timestamp="time_hour")',
        lambda work: source(timestamp=None) | hf.clip("2013-03-01", "2013-04-01", timestamp="t"),
    ),
    "rows below what a function promises": Scenario(
        "plan/batches.py:TimePromise.check InvalidPipeline 2",
        lambda work: moved("-1 s"),
        'timestamp_offset="-5 s"',
        lambda work: moved("-5 s"),
    ),
    # --- aggregates ----------------------------------------------------------------------------------------------
    "reduce with an argument of windows": Scenario(
        "operators/aggregate/aggregates.py:no_aggregate InvalidPipeline",
        lambda work: hf.reduce(by="origin", n=hf.count(), disorder="5 s"),  # type: ignore[arg-type]
        "hf.aggregate(..., disorder=...)",
        lambda work: hourly(disorder="5 s"),
    ),
    "reduce with a slip": Scenario(
        "operators/aggregate/aggregates.py:no_aggregate InvalidPipeline 2",
        lambda work: hf.reduce(by="origin", n=hf.count(), forget_aftr="1 d"),  # type: ignore[arg-type]
        "write forget_after=",
        lambda work: hf.reduce(by="origin", n=hf.count(), forget_after="1 d"),
    ),
    "a quantile of no column": Scenario(
        "operators/aggregate/aggregates.py:_column InvalidPipeline",
        lambda work: hf.quantile(7, 0.95),  # type: ignore[arg-type]
        'hf.quantile("dep_delay", 0.95)',
        lambda work: hf.quantile("dep_delay", 0.95),
    ),
    "strict and in disorder": Scenario(
        "operators/arguments.py:check_promise InvalidPipeline",
        lambda work: hourly(timestamps="strict", disorder="5 s"),
        "leave one of them out",
        lambda work: hourly(disorder="5 s"),
    ),
    "disorder of a total": Scenario(
        "operators/aggregate/spec.py:declare InvalidPipeline",
        lambda work: hourly(window=hf.total(), disorder="5 s"),
        'hf.tumbling("1 hour")',
        lambda work: hourly(window=hf.tumbling("1 hour"), disorder="5 s"),
    ),
    "an unknown emit": Scenario(
        "graph/building.py:check_choice InvalidPipeline",
        lambda work: hourly(emit="all"),
        "emit='settled'",
        lambda work: hourly(emit="settled"),
    ),
    # --- sync and merge ------------------------------------------------------------------------------------------
    "within with no base": Scenario(
        "operators/sync/policy.py:_check_name InvalidPipeline",
        lambda work: hf.policy.within("20 ms", base=1),  # type: ignore[arg-type]
        'hf.policy.within("20 ms", base="camera")',
        lambda work: hf.policy.within("20 ms", base="camera"),
    ),
    "a policy without parentheses": Scenario(
        "operators/sync/checks.py:check_policy InvalidPipeline",
        lambda work: synced(policy=hf.policy.settled),
        "hf.policy.settled(), with its parentheses",
        lambda work: synced(policy=hf.policy.settled()),
    ),
    "disorder of rows as they arrive": Scenario(
        "operators/sync/checks.py:check_together InvalidPipeline",
        lambda work: synced(policy=hf.policy.immediate(), disorder="5 s"),
        "leave disorder= out",
        lambda work: synced(policy=hf.policy.immediate()),
    ),
    "disorder of no such input": Scenario(
        "operators/sync/checks.py:of_each InvalidPipeline",
        lambda work: synced(disorder={"lft": "5 s"}),
        "name one of these",
        lambda work: synced(disorder={"left": "5 s"}),
    ),
    "a merge of no slow stream": Scenario(
        "operators/stateful/merge.py:_checked_streams InvalidPipeline",
        lambda work: hf.merge(source(), {}, by="origin"),
        'hf.merge(flights, {"weather": weather}, by="origin")',
        lambda work: merged(source()),
    ),
    "a duration without a unit": Scenario(
        "types/units.py:_quantity InvalidPipeline",
        lambda work: synced(idle_after="5"),
        'idle_after="',
        lambda work: synced(idle_after="5 s"),
    ),
    # --- graph ---------------------------------------------------------------------------------------------------
    "a pipeline without a name": Scenario(
        "graph/checks.py:check_arguments InvalidPipeline",
        lambda work: hf.Pipeline(numbers() | hf.write.memory("kept")),  # type: ignore[arg-type]
        "give the name first",
        lambda work: hf.Pipeline("trips", numbers() | hf.write.memory("kept")),
    ),
    "rejects of a source that fails": Scenario(
        "graph/side_outputs.py:no_rejects InvalidPipeline",
        lambda work: hf.read.files("in", format="json", schema="n BIGINT").rejects,
        'on_bad_row="reject"',
        lambda work: hf.read.files("in", format="json", schema="n BIGINT", on_bad_row="reject").rejects,
    ),
    "upsert without a key": Scenario(
        "connectors/kit/sql.py:TableMode.check InvalidPipeline 2",
        lambda work: hf.write.sqlite(str(work / "a.db"), table="rows", mode="upsert"),
        'key=["id"]',
        lambda work: hf.write.sqlite(str(work / "a.db"), table="rows", mode="upsert", key=["id"]),
    ),
    # --- the command line ----------------------------------------------------------------------------------------
    "a module without that pipeline": Scenario(
        "cli/target.py:_named InvalidPipeline",
        lambda work: target_of(work, "trips = hf.Pipeline('t', rows | hf.write.memory('kept'))"),
        "name one of these",
        lambda work: load_target(f"{work / 'flow.py'}:trips"),
    ),
}
