"""A connection that breaks during COMMIT costs no row and doubles none: the sink is asked (design/0003).

A proxy cuts the connection, 10 times for each way of writing and each moment, in a night 50 times; each time a small
driver does what the coordinator does: publish, and after InDoubt ask until there is an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from holdfast.errors import InDoubt, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Part, Publication, RunIdentity, Sink, Task
from tests.proxy import CommitProxy, Cut, commit_proxy
from tests.servers import PostgresServer
from tests.specs import postgres_spec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

PIPELINE = "trips"
SCHEMA = pa.schema([("id", pa.int64()), ("epoch", pa.int64())])
ROWS_PER_EPOCH = 7
CUTS = [10, pytest.param(50, marks=pytest.mark.nightly)]


@dataclass
class Scene:
    """A database behind a proxy: sinks go through it, the audit goes around it."""

    direct: str
    through_proxy: str
    proxy: CommitProxy

    def opened(self, generation: int, **arguments: object) -> Sink:
        spec = postgres_spec(self.through_proxy, "trips", **arguments)  # type: ignore[arg-type]
        sink = spec.connect("trips_table", PIPELINE, SCHEMA)
        sink.open(RunIdentity(PIPELINE, generation))
        return sink

    def audit(self, epochs: int) -> None:
        """Every row of every epoch is there once, and nothing is left behind."""
        with psycopg.connect(self.direct) as connection:
            rows = connection.execute("SELECT epoch, count(*), count(DISTINCT id) FROM trips GROUP BY 1").fetchall()
            assert sorted(rows) == [(epoch, ROWS_PER_EPOCH, ROWS_PER_EPOCH) for epoch in range(1, epochs + 1)]
            left = connection.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                " UNION ALL SELECT relname FROM pg_class WHERE relname LIKE 'holdfast\\_stage%'"
            ).fetchall()
            assert left == []


@pytest.fixture
def scene(postgres_server_prepared: PostgresServer) -> Iterator[Scene]:
    with (
        postgres_server_prepared.database() as direct,
        commit_proxy(postgres_server_prepared.address) as proxy,
    ):
        yield Scene(direct, make_conninfo(direct, host="127.0.0.1", port=str(proxy.port), sslmode="disable"), proxy)


def rows_of(epoch: int) -> pa.RecordBatch:
    ids = [epoch * 1000 + number for number in range(ROWS_PER_EPOCH)]
    return pa.RecordBatch.from_pydict({"id": ids, "epoch": [epoch] * ROWS_PER_EPOCH}, schema=SCHEMA)


def parts_of(sink: Sink, epoch: int, generation: int, way: str) -> list[Part]:
    """The epoch's rows in the given way; staged ones by two tasks."""
    batch = rows_of(epoch)
    if way == "carried":
        return [Carried(pa.Table.from_batches([batch]))]
    parts: list[Part] = []
    for task, part in enumerate((batch.slice(0, 3), batch.slice(3))):
        writer = sink.writer_factory()(Task(PIPELINE, generation, epoch, task, 0))
        writer.write(part)
        parts.append(writer.stage())
    return parts


def published(sink: Sink, publication: Publication) -> int:
    """Publish as the coordinator does; return how often it was in doubt."""
    doubts = 0
    for _ in range(10):
        try:
            sink.publish([publication], Held())
        except InDoubt:
            doubts += 1
            if answer(sink, publication.record.epoch) is Outcome.PUBLISHED:
                return doubts
        except Unavailable:
            continue
        else:
            return doubts
    raise AssertionError("ten attempts were not enough")


def answer(sink: Sink, epoch: int) -> Outcome:
    """Ask until the sink knows."""
    deadline = time.monotonic() + 30
    while (outcome := sink.outcome(epoch)) is Outcome.UNKNOWN:
        assert time.monotonic() < deadline, "the sink never knew"
        time.sleep(0.005)
    return outcome


STATEMENTS = [
    ("carried", "COMMIT\0"),
    ("table", "COMMIT\0"),
    ("prepared", "COMMIT\0"),
    ("prepared", "COMMIT PREPARED"),
]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER, Cut.DURING], ids=lambda cut: cut.name.lower())
@pytest.mark.parametrize(("way", "statement"), STATEMENTS, ids=lambda text: text.strip("\0").lower().replace(" ", "-"))
def test_a_connection_cut_during_commit_loses_nothing_and_doubles_nothing(
    scene: Scene, way: str, statement: str, cut: Cut, cuts: int, caplog: pytest.LogCaptureFixture
) -> None:
    stage = {"carried": "auto", "table": "table", "prepared": "prepared"}[way]
    sink = scene.opened(1, stage=stage)
    caplog.set_level(logging.INFO, "holdfast.connectors.postgres")
    for epoch in range(1, cuts + 1):
        publication = Publication(
            EpochRecord(PIPELINE, epoch, 1, {"lines": {"log": epoch}}), tuple(parts_of(sink, epoch, 1, way))
        )
        caplog.clear()
        # Of two COMMIT PREPARED the first is cut in even epochs, the second in odd ones.
        scene.proxy.arm(statement, cut, skip=epoch % 2 if statement == "COMMIT PREPARED" else 0)
        assert published(sink, publication) == 1
        questions = [record.message for record in caplog.records if f"asked about epoch {epoch}" in record.message]
        assert questions
        assert all("its ledger row says epoch" in question and "; answered " in question for question in questions)
    assert scene.proxy.cut_count == cuts
    sink.sweep(below_epoch=cuts + 1)
    sink.close()
    scene.audit(cuts)


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER, Cut.DURING], ids=lambda cut: cut.name.lower())
@pytest.mark.parametrize(("way", "statement"), STATEMENTS, ids=lambda text: text.strip("\0").lower().replace(" ", "-"))
def test_a_driver_that_dies_in_doubt_leaves_an_epoch_that_its_successor_decides(
    scene: Scene, way: str, statement: str, cut: Cut
) -> None:
    """The successor knows no transaction id: it has the ledger row, and waits for whoever still holds it."""
    stage = {"carried": "auto", "table": "table", "prepared": "prepared"}[way]
    for epoch in range(1, 6):
        sink = scene.opened(epoch, stage=stage)
        parts = tuple(parts_of(sink, epoch, epoch, way))
        publication = Publication(EpochRecord(PIPELINE, epoch, epoch, {"lines": {"log": epoch}}), parts)
        scene.proxy.arm(statement, cut)
        with pytest.raises(InDoubt):
            sink.publish([publication], Held())
        sink.close()
        successor = postgres_spec(scene.direct, "trips", stage=stage).connect("trips_table", PIPELINE, SCHEMA)
        held = successor.open(RunIdentity(PIPELINE, epoch + 100))
        assert held.epoch in (epoch - 1, epoch)
        expected = Outcome.PUBLISHED if held.epoch == epoch else Outcome.ABSENT
        assert successor.outcome(epoch) is expected
        successor.publish([publication], Held())
        successor.sweep(below_epoch=epoch + 1)
        successor.close()
        scene.audit(epoch)
        with psycopg.connect(scene.direct) as connection:  # the next round begins with a low generation again
            connection.execute("UPDATE holdfast_ledger SET generation = %s", (epoch,))


def test_a_server_process_left_waiting_in_our_transaction_is_ended_when_the_sink_is_asked(scene: Scene) -> None:
    """The network is gone without a word: the server does not know that nobody will ever send the COMMIT."""
    sink = scene.opened(1)
    publication = Publication(
        EpochRecord(PIPELINE, 1, 1, {"lines": {"log": 1}}), tuple(parts_of(sink, 1, 1, "carried"))
    )
    scene.proxy.arm("COMMIT\0", Cut.SILENT)
    with pytest.raises(InDoubt):
        sink.publish([publication], Held())
    assert sink.outcome(1) is Outcome.UNKNOWN
    assert answer(sink, 1) is Outcome.ABSENT
    sink.publish([publication], Held())
    sink.close()
    scene.audit(1)


def test_a_takeover_ends_the_server_process_that_a_dead_driver_left_holding_the_ledger_row(scene: Scene) -> None:
    sink = scene.opened(1)
    publication = Publication(
        EpochRecord(PIPELINE, 1, 1, {"lines": {"log": 1}}), tuple(parts_of(sink, 1, 1, "carried"))
    )
    scene.proxy.arm("COMMIT\0", Cut.SILENT)
    with pytest.raises(InDoubt):
        sink.publish([publication], Held())
    successor = postgres_spec(scene.direct, "trips").connect("trips_table", PIPELINE, SCHEMA)
    assert successor.open(RunIdentity(PIPELINE, 2)).epoch == 0
    successor.publish([publication], Held())
    successor.close()
    sink.close()
    scene.audit(1)
