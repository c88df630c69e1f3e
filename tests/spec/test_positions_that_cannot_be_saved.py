"""Saving positions is tried ten times, then the run stops; nothing is acknowledged before it is durable (design/0002).

Of every sink that keeps positions, and of what these mean: the write that saves them fails, as on a full disk.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.capabilities import offers
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.ledger import Standing, survey
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.kit.book import SqlBook
from holdfast.connectors.segments.policies import Policy, Segment
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.errors import Unavailable
from holdfast.ports import Carried, EpochRecord, Explaining, Explanation, Outcome, Sink
from holdfast.retry import RetryPolicy
from holdfast.testing import SimulatedClock, SimulatedStore
from holdfast.testing.sink import SimulatedSink, SimulatedTarget
from tests.specs import sqlite_spec

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
ATTEMPTS = 10


def always(segment: Segment) -> str:
    return "always"


def segments(path: str, *seal: Policy) -> Sink:
    return SegmentsSinkSpec(path, seal=seal).connected("subject", "words", SCHEMA, is_tended=False)


CONNECT: dict[str, Callable[[str], Sink]] = {
    "sqlite": lambda path: sqlite_spec(f"{path}/words.db", "words").connect("subject", "words", SCHEMA),
    "files": lambda path: FilesSinkSpec(path).connect("subject", "words", SCHEMA),
    "segments": segments,
    "sealed": lambda path: segments(path, always),
    "byte_stream": lambda path: ByteStreamSinkSpec(path, MessageColumns("id", "word")).connect(
        "subject", "words", SCHEMA
    ),
}
LOGS = {"files": "/log/", "segments": "/manifest/", "sealed": "/manifest/", "byte_stream": "/log/"}


@dataclass
class Disk:
    """A disk on which what is to appear below a directory does not find room, so many times."""

    times: int = 0
    below: str = ""
    failed: int = 0
    link: Callable[[str, str], None] = field(default=os.link, repr=False)
    rename: Callable[[str, str], None] = field(default=os.rename, repr=False)

    def fails(self, path: str) -> bool:
        if self.failed < self.times and self.below in path:
            self.failed += 1
            return True
        return False

    def linked(self, source: str, target: str) -> None:
        if self.fails(target):
            raise OSError(errno.ENOSPC, "No space left on device", target)
        self.link(source, target)

    def renamed(self, source: str, target: str) -> None:
        if self.fails(target):
            raise OSError(errno.ENOSPC, "No space left on device", target)
        self.rename(source, target)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "link", made.linked)
    monkeypatch.setattr(os, "rename", made.renamed)
    insert = SqlBook._explain

    def inserted(self: SqlBook, *arguments: object) -> None:
        if made.fails("/positions/"):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        insert(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlBook, "_explain", inserted)
    return made


@dataclass
class Bench:
    """A sink under test, beside one that never fails, with a coordinator for each life."""

    connect: Callable[[], Sink]
    store: SimulatedStore = field(default_factory=SimulatedStore)
    other: SimulatedTarget = field(default_factory=SimulatedTarget)

    def begin(self) -> Coordinator:
        self.sink = self.connect()
        clock = SimulatedClock()
        sinks = [SimulatedSink("other", self.other), self.sink]
        retry = RetryPolicy(attempts=ATTEMPTS)
        made = Coordinator(pipeline="words", store=self.store, sinks=sinks, clock=clock, retry=retry)
        made.open()
        return made

    def commit(self, coordinator: Coordinator, epoch: int) -> None:
        told = tuple(Explanation("lines", number, f'{{"at": {number}}}') for number in range(epoch, epoch + 1))
        record = EpochRecord("words", epoch, coordinator.generation, {"lines": {"log": epoch}}, explanations=told)
        rows = Carried(pa.table({"id": [epoch], "word": ["w"]}, schema=SCHEMA))
        coordinator.commit(coordinator.missing(epoch), record, {"other": [rows], "subject": [rows]})

    def standings(self) -> dict[int, Standing]:
        return {entry.key.epoch: entry.standing for entry in survey(self.store)}


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    kind = request.param
    (tmp_path / "target").mkdir()
    return Bench(lambda: CONNECT[kind](str(tmp_path / "target")))


CASES = [
    ("sqlite", "/positions/"),
    *((kind, LOGS[kind]) for kind in ("files", "segments", "byte_stream")),
]
IDS = [f"{kind} {'explanations' if below == '/positions/' else 'entry'}" for kind, below in CASES]


@pytest.mark.slow
@pytest.mark.parametrize(("bench", "below"), CASES, ids=IDS, indirect=["bench"])
def test_the_tenth_attempt_may_still_save_them(bench: Bench, below: str, disk: Disk) -> None:
    coordinator = bench.begin()
    bench.commit(coordinator, 1)
    disk.times, disk.below = ATTEMPTS - 1, below
    bench.commit(coordinator, 2)
    assert disk.failed == ATTEMPTS - 1 == coordinator.statistics().retries
    assert bench.sink.outcome(2) is Outcome.PUBLISHED
    assert [each.number for each in explained(bench.sink)] == [1, 2]
    coordinator.close()


@pytest.mark.slow
@pytest.mark.parametrize(("bench", "below"), CASES, ids=IDS, indirect=["bench"])
def test_after_ten_attempts_the_run_stops_and_nothing_was_acknowledged(bench: Bench, below: str, disk: Disk) -> None:
    coordinator = bench.begin()
    bench.commit(coordinator, 1)
    disk.times, disk.below = 1000, below
    with pytest.raises(Unavailable, match=f"{ATTEMPTS} attempts failed") as stopped:
        bench.commit(coordinator, 2)
    assert disk.failed == ATTEMPTS
    assert (stopped.value.epoch, stopped.value.participant) == (2, "subject")
    assert bench.sink.outcome(2) is Outcome.ABSENT
    assert bench.standings() == {1: Standing.DONE, 2: Standing.OPEN}
    with pytest.raises(Unavailable):
        coordinator.missing(3)
    coordinator.close()
    disk.times = 0
    again = bench.begin()  # the decision has the epoch, and what it explains
    assert bench.sink.outcome(2) is Outcome.PUBLISHED
    assert [each.number for each in explained(bench.sink)] == [1, 2]
    assert bench.standings()[2] is Standing.DONE
    again.close()


COPYING = pytest.mark.parametrize("bench", ["files", "segments", "byte_stream"], indirect=True)
"""Sinks whose log entries have what their positions mean; it is copied after the entry, and before the next one."""


@pytest.mark.slow
@COPYING
def test_the_tenth_attempt_of_the_next_epoch_may_still_copy_what_positions_mean(bench: Bench, disk: Disk) -> None:
    coordinator = bench.begin()
    bench.commit(coordinator, 1)
    disk.times, disk.below = ATTEMPTS, "/positions/"
    bench.commit(coordinator, 2)
    assert (disk.failed, coordinator.statistics().retries) == (1, 0), "its entry has it"
    bench.commit(coordinator, 3)
    assert (disk.failed, coordinator.statistics().retries) == (ATTEMPTS, ATTEMPTS - 1)
    assert bench.sink.outcome(3) is Outcome.PUBLISHED
    assert [each.number for each in explained(bench.sink)] == [1, 2, 3]
    coordinator.close()


@pytest.mark.slow
@COPYING
def test_where_what_positions_mean_cannot_be_copied_nothing_of_the_next_epoch_is_acknowledged(
    bench: Bench, disk: Disk
) -> None:
    coordinator = bench.begin()
    bench.commit(coordinator, 1)
    disk.times, disk.below = 1000, "/positions/"
    bench.commit(coordinator, 2)
    assert bench.sink.outcome(2) is Outcome.PUBLISHED
    assert [each.number for each in explained(bench.sink)] == [1, 2]
    with pytest.raises(Unavailable, match=f"{ATTEMPTS} attempts failed") as stopped:
        bench.commit(coordinator, 3)
    assert (stopped.value.epoch, stopped.value.participant) == (3, "subject")
    assert bench.sink.outcome(3) is Outcome.ABSENT
    assert bench.standings() == {1: Standing.DONE, 2: Standing.DONE, 3: Standing.OPEN}
    coordinator.close()
    disk.times = 0
    again = bench.begin()
    assert bench.sink.outcome(3) is Outcome.PUBLISHED
    assert [each.number for each in explained(bench.sink)] == [1, 2, 3]
    again.close()


@pytest.mark.parametrize("bench", ["segments"], indirect=True)
def test_a_base_of_the_manifest_has_what_is_not_copied_yet(bench: Bench, disk: Disk) -> None:
    coordinator = bench.begin()
    bench.commit(coordinator, 1)
    disk.times, disk.below = 1, "/positions/"
    bench.commit(coordinator, 2)
    manifest = bench.sink._manifest  # type: ignore[attr-defined]
    manifest.write_base(manifest.holdings())
    coordinator.close()
    again = bench.begin()
    assert [each.number for each in explained(bench.sink)] == [1, 2]
    bench.commit(again, 3)
    assert [each.number for each in explained(bench.sink)] == [1, 2, 3]
    again.close()


@pytest.mark.parametrize("bench", ["sealed"], indirect=True)
def test_a_segment_whose_positions_cannot_be_saved_stops_the_run_after_ten_attempts(bench: Bench, disk: Disk) -> None:
    """The thread that seals has failed; who publishes next tries in his turn."""
    coordinator = bench.begin()
    bench.commit(coordinator, 1)
    disk.times, disk.below = 1000, LOGS["sealed"]
    with pytest.raises(Unavailable):
        bench.sink.sealing.tend()  # type: ignore[attr-defined]
    assert disk.failed == 1
    with pytest.raises(Unavailable, match=f"{ATTEMPTS} attempts failed"):
        bench.commit(coordinator, 2)
    assert disk.failed == 1 + ATTEMPTS
    assert bench.sink.outcome(2) is Outcome.ABSENT
    assert bench.standings() == {1: Standing.DONE, 2: Standing.OPEN}
    held = bench.sink.holdings  # type: ignore[attr-defined]
    assert (list(held.growing), list(held.recent)) == ([""], []), "the segment grows: its rows are in the journal"
    coordinator.close()
    disk.times = 0
    again = bench.begin()
    bench.sink.sealing.tend()  # type: ignore[attr-defined]
    held = bench.sink.holdings  # type: ignore[attr-defined]
    assert [(each.row_count, each.start, each.end) for each in held.recent] == [(2, {}, {"lines": {"log": 2}})]
    again.close()


def explained(sink: Sink) -> list[Explanation]:
    assert offers(sink, Explaining)
    return list(sink.explanations())
