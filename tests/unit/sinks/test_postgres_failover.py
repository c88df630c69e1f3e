"""PostgreSQL with a real standby: the primary dies, the standby is promoted, and may lack what was published last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from holdfast.commit.coordinator import Coordinator
from holdfast.connectors.postgres.dsn import Dsn
from holdfast.connectors.postgres.session import PostgresSession
from holdfast.connectors.postgres.sink import Attempt, PostgresSink
from holdfast.errors import Diverged, Unavailable
from holdfast.ports import Carried, EpochRecord, Outcome, Part, Task
from holdfast.retry import RetryPolicy
from holdfast.testing import SimulatedClock, SimulatedStore
from tests.servers import MortalPostgres
from tests.specs import postgres_spec

pytestmark = pytest.mark.postgres

SCHEMA = pa.schema([("id", pa.int64())])


class Waiting(SimulatedClock):
    """A clock that does something once, when somebody waits."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._acts = [act]

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(seconds)
        if self._acts:
            self._acts.pop()()


@dataclass
class Driver:
    """The coordinator over one real table; each epoch has one row."""

    dsn: str
    clock: SimulatedClock
    stage: str
    sink: PostgresSink = field(init=False)
    coordinator: Coordinator = field(init=False)

    def __post_init__(self) -> None:
        spec = postgres_spec(self.dsn, "words", stage=self.stage)
        sink = spec.connect("table", "words", SCHEMA)
        assert isinstance(sink, PostgresSink)
        self.sink = sink
        self.coordinator = Coordinator(
            pipeline="words", store=SimulatedStore(), sinks=[sink], clock=self.clock, retry=RetryPolicy(seed=0)
        )
        self.coordinator.open()

    def commit(self, epoch: int, *, staged: bool = False) -> None:
        generation = self.coordinator.generation
        part: Part = Carried(pa.table({"id": [epoch]}, schema=SCHEMA))
        if staged:
            writer = self.sink.writer_factory()(Task("words", generation, epoch, 0, 0))
            writer.write(pa.RecordBatch.from_pydict({"id": [epoch]}, schema=SCHEMA))
            part = writer.stage()
        record = EpochRecord("words", epoch, generation, {"rows": {"log": epoch}})
        self.coordinator.commit(self.coordinator.missing(epoch), record, {"table": [part]})


@pytest.fixture
def standby(mortal_postgres: MortalPostgres) -> Iterator[MortalPostgres]:
    made = mortal_postgres.standby()
    try:
        yield made
    finally:
        made.stop()


def cluster(*servers: MortalPostgres) -> str:
    """Return the DSN of several servers: their hosts, and nothing about which of them takes writes."""
    ports = ",".join(str(psycopg.conninfo.conninfo_to_dict(server.dsn)["port"]) for server in servers)
    return make_conninfo(servers[0].dsn, host=",".join(["127.0.0.1"] * len(servers)), port=ports)


def ids(server: MortalPostgres) -> list[int]:
    with psycopg.connect(server.dsn) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM words ORDER BY id")]


def test_a_standby_that_lagged_when_it_was_promoted_is_not_published_over(
    mortal_postgres: MortalPostgres, standby: MortalPostgres
) -> None:
    """Epoch 2 is on the primary alone when it dies.  The table must never end as 1, 3, 4 (design/0003)."""
    # The standby is named first: the one that takes writes is looked for, without a word in the DSN.
    driver = Driver(cluster(standby, mortal_postgres), Waiting(standby.promote), "table")
    driver.commit(1, staged=True)
    standby.catch_up(mortal_postgres)
    standby.lag()
    driver.commit(2, staged=True)
    assert ids(mortal_postgres) == [1, 2]
    assert ids(standby) == [1]
    lost = mortal_postgres.asked("SELECT xmin::text FROM holdfast_ledger")

    mortal_postgres.stop()
    with pytest.raises(Diverged, match="holds epoch 1, and this run had published epoch 2") as caught:
        driver.commit(3)
    assert driver.coordinator.statistics().retries == 1, (
        "while nobody took writes, it was waited; then it ended at once"
    )
    assert any("3: " in note for note in caught.value.__notes__), "the story of the epoch"
    assert ids(standby) == [1]

    # The COMMIT of epoch 2, had it been in doubt: its transaction's id is given again, to somebody else's.
    while int(standby.asked("SELECT pg_current_xact_id()::text")) < int(lost):
        pass
    assert standby.asked(f"SELECT pg_xact_status('{lost}'::xid8)") == "committed"
    driver.sink._attempt = Attempt(2, 2, lost)
    assert driver.sink.outcome(2) is Outcome.ABSENT
    driver.coordinator.close()


def test_a_run_goes_on_with_a_promoted_standby_that_has_everything(
    mortal_postgres: MortalPostgres, standby: MortalPostgres
) -> None:
    """And while only a standby answers, that is waiting for a server, and no reason to end."""
    alone = PostgresSession(Dsn(standby.dsn), "sink 'table'", "words", "test")
    with pytest.raises(Unavailable, match="is a standby"):
        alone.connection()
    assert alone._connection is None

    driver = Driver(cluster(mortal_postgres, standby), Waiting(standby.promote), "auto")
    driver.commit(1, staged=True)
    driver.commit(2)
    standby.catch_up(mortal_postgres)
    mortal_postgres.stop()
    driver.commit(3)
    driver.commit(4, staged=True)
    assert ids(standby) == [1, 2, 3, 4]
    assert driver.coordinator.statistics().retries == 1
    driver.coordinator.close()


def test_a_standby_that_is_noticed_when_a_transaction_begins_costs_the_connection(
    mortal_postgres: MortalPostgres, standby: MortalPostgres
) -> None:
    """As behind a pooler, whose connection outlives the server behind it."""
    session = PostgresSession(Dsn(mortal_postgres.dsn), "sink 'table'", "words", "test")
    session._connection = psycopg.connect(standby.dsn, autocommit=True)
    with pytest.raises(Unavailable, match="is a standby"), session.transaction():
        raise AssertionError("a standby takes no writes")
    with session.transaction() as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)

    # A session that must not write, on a server that may: the primary, as a pooler's reader sees it.
    with pytest.raises(Unavailable), session.transaction() as connection:
        connection.execute("SET TRANSACTION READ ONLY; CREATE TABLE never (id int)")
    assert session._connection is None
    session.drop()
