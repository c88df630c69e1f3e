"""SQLite under a living run: the file is renamed, removed, or replaced by an older copy of itself."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import faults
from holdfast.commit.coordinator import Coordinator
from holdfast.connectors.sqlite.file import DatabaseFile
from holdfast.errors import Diverged, HoldfastError, InDoubt, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Sink
from holdfast.retry import RetryPolicy
from holdfast.testing import SimulatedClock, SimulatedStore
from tests.specs import sqlite_spec

SCHEMA = pa.schema([("id", pa.int64())])


def positions(epoch: int) -> dict[str, dict[str, int]]:
    return {"rows": {"log": epoch}}


def carried(epoch: int) -> Carried:
    return Carried(pa.table({"id": [epoch]}, schema=SCHEMA))


def publication(epoch: int) -> Publication:
    return Publication(EpochRecord("words", epoch, 1, positions(epoch)), (carried(epoch),))


def held(epoch: int) -> Held:
    return Held(epoch, 1, positions(epoch) if epoch else {})


def ids(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [row[0] for row in connection.execute("SELECT id FROM words ORDER BY id")]


def copied(path: Path) -> Path:
    """Return a copy as a backup makes it."""
    copy = path.with_suffix(".copy")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "words.db"


def commit_in(coordinator: Coordinator, epoch: int) -> None:
    record = EpochRecord("words", epoch, coordinator.generation, positions(epoch))
    coordinator.commit(coordinator.missing(epoch), record, {"table": [carried(epoch)]})


@pytest.fixture
def sink(path: Path) -> Iterator[Sink]:
    made = sqlite_spec(str(path), "words").connect("table", "words", SCHEMA)
    made.open(RunIdentity("words", 1))
    yield made
    made.close()


def test_a_copy_of_epoch_1_put_in_the_place_of_the_file_is_not_published_over(path: Path) -> None:
    """The scenario of a run: epochs 1 and 2 are published, the backup comes back, epoch 3 must not follow."""
    sink = sqlite_spec(str(path), "words").connect("table", "words", SCHEMA)
    coordinator = Coordinator(pipeline="words", store=SimulatedStore(), sinks=[sink], clock=SimulatedClock())
    coordinator.open()

    def commit(epoch: int) -> None:
        commit_in(coordinator, epoch)

    commit(1)
    backup = copied(path)
    commit(2)
    os.replace(backup, path)
    with pytest.raises(Diverged, match="holds epoch 1, and this run had published epoch 2"):
        commit(3)
    with pytest.raises(Diverged):
        commit(4)
    coordinator.close()
    assert ids(path) == [1]


def test_a_copy_that_holds_everything_is_written_on(sink: Sink, path: Path) -> None:
    sink.publish([publication(1)], held(0))
    os.replace(copied(path), path)
    sink.publish([publication(2)], held(1))
    assert ids(path) == [1, 2]


def test_the_log_of_the_former_file_does_not_spoil_the_one_that_takes_its_place(sink: Sink, path: Path) -> None:
    """SQLite finds a -wal by its name alone: the former file's would overwrite pages of the new one."""
    sink.publish([publication(1)], held(0))
    backup = copied(path)
    former = path.with_suffix(".former")
    for epoch in range(2, 30):
        sink.publish([publication(epoch)], held(epoch - 1))
    assert os.path.getsize(f"{path}-wal") > 0
    os.rename(path, former)
    os.rename(backup, path)
    with pytest.raises(Diverged):
        sink.publish([publication(30)], held(29))
    assert os.path.getsize(f"{path}-wal") == 0
    assert ids(path) == [1]
    assert ids(former) == list(range(1, 30))


def test_trials_do_not_take_away_what_was_published_to_the_file_that_took_the_place(sink: Sink, path: Path) -> None:
    """They have a connection of their own; of the former file, it would empty the new one's log into that."""
    sink.admit(publication(1))
    sink.publish([publication(1)], held(0))
    os.replace(copied(path), path)
    sink.publish([publication(2)], held(1))
    sink.admit(publication(3))
    assert ids(path) == [1, 2]
    sink.publish([publication(3)], held(2))
    assert ids(path) == [1, 2, 3]


def test_a_sink_does_not_take_away_what_another_one_published_to_the_file_that_took_the_place(
    sink: Sink, path: Path
) -> None:
    other = sqlite_spec(str(path), "others").connect("other", "words", SCHEMA)
    with closing(other):
        other.open(RunIdentity("words", 1))
        for each in (sink, other):
            each.publish([publication(1)], held(0))
        os.replace(copied(path), path)
        for each in (sink, other):
            each.publish([publication(2)], held(1))
        assert ids(path) == [1, 2]
        assert [each.outcome(2) for each in (sink, other)] == [Outcome.PUBLISHED] * 2


def test_a_file_is_not_opened_while_a_transaction_of_this_process_is_open_in_the_former_one(path: Path) -> None:
    first, second = DatabaseFile(str(path), "sink 'a'"), DatabaseFile(str(path), "sink 'b'")
    first.connection().execute("CREATE TABLE words (id INTEGER)")
    first.connection().execute("BEGIN IMMEDIATE")
    os.replace(copied(path), path)
    with pytest.raises(Unavailable, match="has not ended yet"):
        second.connection()
    first.close()
    second.connection().execute("INSERT INTO words VALUES (1)")
    second.close()
    assert ids(path) == [1]


@pytest.mark.slow  # the reader is waited for
def test_a_replaced_file_is_not_asked_while_the_log_of_the_former_one_lies_beside_it(sink: Sink, path: Path) -> None:
    """Somebody reads the former file: its log cannot be emptied, and would be taken for the new one's."""
    sink.publish([publication(1)], held(0))
    backup = copied(path)
    former = path.with_suffix(".former")
    sink.publish([publication(2)], held(1))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM words").fetchone() == (2,)
        os.rename(path, former)
        os.rename(backup, path)
        assert [sink.outcome(2), sink.outcome(2)] == [Outcome.UNKNOWN] * 2
    assert sink.outcome(2) is Outcome.ABSENT
    assert (ids(path), ids(former)) == ([1], [1, 2])


def test_a_run_that_ends_leaves_no_log_of_a_file_that_was_replaced(sink: Sink, path: Path) -> None:
    """Nobody publishes any more, and the next start opens what lies there."""
    sink.publish([publication(1)], held(0))
    backup = copied(path)
    sink.publish([publication(2)], held(1))
    os.replace(backup, path)
    sink.close()
    assert ids(path) == [1]


def test_a_file_that_is_away_is_waited_for_and_no_empty_one_is_made_in_its_place(sink: Sink, path: Path) -> None:
    sink.publish([publication(1)], held(0))
    away = path.with_suffix(".away")
    os.rename(path, away)
    with pytest.raises(Unavailable):
        sink.publish([publication(2)], held(1))
    assert not path.exists()
    assert sink.outcome(2) is Outcome.UNKNOWN
    assert not path.exists()
    os.rename(away, path)
    sink.publish([publication(2)], held(1))
    assert ids(path) == [1, 2]


def test_an_empty_file_in_the_place_of_the_database_diverges(sink: Sink, path: Path) -> None:
    sink.publish([publication(1)], held(0))
    os.remove(path)
    sqlite3.connect(path).close()
    path.touch()
    with pytest.raises(Diverged, match="gone"):
        sink.publish([publication(2)], held(1))


@pytest.mark.parametrize("statement", ["DROP TABLE holdfast_ledger", "DELETE FROM holdfast_ledger"])
def test_a_ledger_that_is_gone_diverges(sink: Sink, path: Path, statement: str) -> None:
    sink.publish([publication(1)], held(0))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    with pytest.raises(Diverged, match="gone"):
        sink.publish([publication(2)], held(1))
    assert sink.outcome(2) is Outcome.ABSENT
    assert ids(path) == [1]


def at(point: str, act: Callable[[], object]) -> Callable[[str, int], None]:
    def hook(reached: str, epoch: int) -> None:
        if reached == point:
            act()

    return hook


def test_a_file_that_is_replaced_before_the_commit_is_left_as_it_is(sink: Sink, path: Path) -> None:
    sink.publish([publication(1)], held(0))
    backup = copied(path)
    faults.install(at("publish-uncommitted", lambda: os.replace(backup, path)))
    try:
        with pytest.raises(Unavailable):
            sink.publish([publication(2)], held(1))
    finally:
        faults.install(None)
    assert ids(path) == [1]
    sink.publish([publication(2)], held(1))
    assert ids(path) == [1, 2]


def test_a_file_that_is_replaced_during_the_commit_is_asked_what_it_holds(
    sink: Sink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look and COMMIT: the rows went into a file that nobody finds any more."""
    sink.publish([publication(1)], held(0))
    backup = copied(path)
    file = sink._session.file  # type: ignore[attr-defined]
    looks = iter([lambda: None, lambda: None, lambda: os.replace(backup, path)])
    is_ours = file.is_ours

    def looked() -> bool:
        seen = is_ours()
        next(looks, lambda: None)()
        return bool(seen)

    monkeypatch.setattr(file, "is_ours", looked)
    with pytest.raises(InDoubt):
        sink.publish([publication(2)], held(1))
    assert sink.outcome(2) is Outcome.ABSENT
    sink.publish([publication(2)], held(1))
    assert ids(path) == [1, 2]


def test_the_story_says_what_to_do(sink: Sink, path: Path) -> None:
    sink.publish([publication(1)], held(0))
    with pytest.raises(HoldfastError) as caught:
        sink.publish([publication(3)], held(2))
    text = str(caught.value)
    assert "standby" in text
    assert "start the pipeline again" in text


def test_retries_are_not_spent_on_a_sink_that_went_back(path: Path) -> None:
    clock = SimulatedClock()
    sink = sqlite_spec(str(path), "words").connect("table", "words", SCHEMA)
    coordinator = Coordinator(
        pipeline="words", store=SimulatedStore(), sinks=[sink], clock=clock, retry=RetryPolicy(attempts=10)
    )
    coordinator.open()
    for epoch in (1, 2):
        commit_in(coordinator, epoch)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE holdfast_ledger SET epoch = 1, positions = ?", ('{"rows": {"log": 1}}',))
        connection.execute("DELETE FROM words WHERE id = 2")
    with pytest.raises(Diverged):
        commit_in(coordinator, 3)
    assert coordinator.statistics().retries == 0
    coordinator.close()
