"""Where a row goes is checked before its epoch is decided, in every sink whose rows say so (design/0002, "Where a row
goes").

One table of all sinks: what rows decide there, and values that are nobody's.  Refused means: ``admit`` raises, or the
writer of a task does; then the sink holds nothing, and takes the rows that are good.  Kafka: test_kafka_ledgers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors.http.bodies import Bodies, key_of
from holdfast.connectors.kafka.sink.form import Limits, MessageForm
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Sink, Task

DEEP = [f"c{number}" for number in range(17)]
"""Partition columns whose directories, each as long as may be, are more than a path can have."""

NO_TEXT = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())


@dataclass(frozen=True)
class Rows:
    """Rows of one schema: a good one, and of each kind that is refused one."""

    good: Mapping[str, Any]
    bad: Mapping[str, Mapping[str, Any]]

    def table(self, row: Mapping[str, Any]) -> pa.Table:
        columns = {**self.good, **row}
        return pa.table({name: value if isinstance(value, pa.Array) else [value] for name, value in columns.items()})


STREAMS = Rows(
    {"at": 1, "data": "x", "stream": "front"},
    {
        "no name": {"stream": ""},
        "too long": {"stream": "ä" * 40},
        "NUL": {"stream": "a\0b"},
        "no text": {"stream": NO_TEXT},
    },
)
DIRECTORIES = Rows(
    {"id": 1, **dict.fromkeys(DEEP, "x")},
    {
        "a name that is too long": {"c0": "x" * 254},
        "a path that is too long": dict.fromkeys(DEEP, "x" * 250),
        "no text": {"c0": NO_TEXT},
    },
)
COMMANDS = Rows(
    {"id": 1, "control": pa.nulls(1, pa.string())},
    {
        "a column of the sink's own": {"control": hf.control.add_column("seen", "int").replace("seen", "__Holdfast_x")},
        "a column that is not there": {"control": hf.control.drop_partition(nowhere="1")},
    },
)


def connected(of: Callable[[Path], Any], rows: Rows) -> Callable[[Path], Sink]:
    return lambda path: of(path).spec.connect("out", "places", rows.table({}).schema)


SINKS: Mapping[str, tuple[Callable[[Path], Sink], Rows]] = {
    "byte_stream": (
        connected(lambda path: hf.write.byte_stream(path / "o", timestamp="at", data="data", stream="stream"), STREAMS),
        STREAMS,
    ),
    "files": (connected(lambda path: hf.write.files(path / "o", partition_by=DEEP), DIRECTORIES), DIRECTORIES),
    "segments": (connected(lambda path: hf.write.segments(path / "o", partition_by=DEEP), DIRECTORIES), DIRECTORIES),
    "segments, by commands": (
        connected(lambda path: hf.write.segments(path / "o", control="control"), COMMANDS),
        COMMANDS,
    ),
    "sqlite, by commands": (
        connected(lambda path: hf.write.sqlite(path / "o.db", table="t", control="control"), COMMANDS),
        COMMANDS,
    ),
}
FORMS = {
    "http": "the key of its request",
    "kafka": "topic and partition",
    "redis": "the key of its hash, always below key=",
}
"""Sinks of servers: what their rows decide is looked at by what writes the rows, below."""

NOTHING = {"console", "foreach_batch", "memory", "mysql", "postgres"}
"""Sinks whose rows decide nothing of the kind: one table, or a list.  Commands to PostgreSQL are tried there."""

CASES = [(sink, bad) for sink, (_, rows) in SINKS.items() for bad in rows.bad]


def published(*parts: Any, epoch: int = 1) -> Publication:
    return Publication(EpochRecord("places", epoch, 1, {"s": {"log": epoch}}), parts)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["carried", "staged"])
@pytest.mark.parametrize(("sink", "bad"), CASES)
def test_a_row_that_names_a_place_to_which_it_cannot_go_is_refused_before_the_decision(
    tmp_path: Path, sink: str, bad: str, way: str
) -> None:
    connect, rows = SINKS[sink]
    opened = connect(tmp_path)
    opened.open(RunIdentity("places", 1))
    wrong = rows.table(rows.bad[bad])
    given = Carried if way == "carried" else partial(staged, opened)
    with pytest.raises(BadRow):
        opened.admit(published(given(wrong)))
    assert opened.outcome(1) is Outcome.ABSENT
    good = published(Carried(rows.table({})))
    opened.admit(good)
    opened.publish([good], Held())
    assert opened.outcome(1) is Outcome.PUBLISHED
    opened.close()


def staged(sink: Sink, rows: pa.Table) -> Any:
    writer = sink.writer_factory()(Task("places", 1, 1, 0, 0))
    try:
        for batch in rows.to_batches():
            writer.write(batch)
        return writer.stage()
    except BaseException:
        writer.abort()
        raise


def test_every_sink_says_what_its_rows_decide() -> None:
    """A new one needs a line above."""
    write: Any = hf.write
    names = write.__all__
    assert {name.partition(",")[0] for name in SINKS} | FORMS.keys() | NOTHING == set(names)


def batch(**columns: Sequence[Any] | pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_topic_that_is_no_text_is_a_bad_row() -> None:
    with pytest.raises(BadRow, match="column 'to'"):
        MessageForm(None, topic_by="to").check("sink 's'", batch(id=[1], to=NO_TEXT), Limits({"t": 1}))


@pytest.mark.parametrize("key", ["holdfast", "holdfast:ids", "holdfast:other/out"])
@pytest.mark.parametrize("kind", ["stream", "hash", "fields"])
def test_no_id_of_a_row_leads_to_the_ledger_of_a_redis_sink(key: str, kind: Any) -> None:
    """Of ``kind="hash"`` a key is ``<key>:<id>``: an id ``victim/out:ledger`` was the ledger of another pipeline."""
    with pytest.raises(InvalidPipeline, match="cannot be written"):
        hf.write.redis("redis://localhost", key=key, kind=kind, id="id")


@pytest.mark.parametrize("wrong", ["", "x" * 4_001, "ä" * 700], ids=["empty", "too long", "too long when encoded"])
def test_an_id_that_makes_no_key_of_a_request_is_a_bad_row(wrong: str) -> None:
    with pytest.raises(BadRow, match="cannot go to the key"):
        Bodies("id").check("sink 's'", pa.table({"id": ["a", wrong]}))
    Bodies("id", batch_rows=2).check("sink 's'", pa.table({"id": ["a", wrong]}))


def test_two_ids_never_make_one_key_of_a_request() -> None:
    """The server would take the second row for the first one, sent again."""
    ids = ["caf\u00e9", "caf%C3%A9", "caf%25C3%25A9", "a b", "a%20b", " a", "%20a"]
    assert len({key_of([each]) for each in ids}) == len(ids)


@pytest.mark.parametrize(
    "table", ["holdfast_ledger", "holdfast_epochs", "holdfast_control", "holdfast_positions", "holdfast_lease"]
)
def test_no_table_of_rows_is_one_of_the_sinks_own(table: str) -> None:
    with pytest.raises(InvalidPipeline, match="the sink's own"):
        hf.write.sqlite("f.db", table=table.upper())
    with pytest.raises(InvalidPipeline, match="the sink's own"):
        hf.write.mysql("mysql://localhost/shop", table=table.upper())
    from holdfast.connectors.postgres.catalog import split_name

    for name in (table, f"public.{table}"):
        with pytest.raises(InvalidPipeline, match="the sink's own"):
            split_name("sink 's'", name)
