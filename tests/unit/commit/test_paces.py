"""A sink with a pace of its own beside one without, call by call, against simulated sinks and store."""

import threading

import pyarrow as pa
import pytest

from holdfast.commit import backlog
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.ledger import Standing, survey
from holdfast.commit.paced import HELD_KEY, CommitRequests, RequestReader, ask_to_commit
from holdfast.commit.transaction import State
from holdfast.errors import BadRow, Fenced, Unavailable
from holdfast.graph.trigger import SinkPace
from holdfast.ports import Carried, EpochRecord, Guarantee, Task
from holdfast.retry import RetryPolicy
from holdfast.store import sealed
from holdfast.testing import (
    Failure,
    FaultyStore,
    Process,
    ScriptedFailures,
    SimulatedClock,
    SimulatedSink,
    SimulatedStore,
    SimulatedTarget,
)

PIPELINE = "trips"
NAMES = ("fast", "slow")
EVERY_TEN_SECONDS = {"slow": SinkPace(every_us=10_000_000)}
EVERY_THOUSAND = {"slow": SinkPace(every_epochs=1000)}
EVERY_THREE = {"slow": SinkPace(every_epochs=3)}


class Bench:
    """Two targets and a checkpoint that outlive coordinators."""

    def __init__(self):
        self.store, self.clock = SimulatedStore(), SimulatedClock()
        self.targets = {name: SimulatedTarget() for name in NAMES}
        self.failures, self.process = ScriptedFailures(), Process()

    def open(self, paces=None, names=NAMES, *, is_first=False, keeps_trace=False, **options):
        self.sinks = {
            name: SimulatedSink(
                name, self.targets[name], process=self.process, failures=self.failures, **options.pop(name, {})
            )
            for name in names
        }
        made = Coordinator(
            pipeline=PIPELINE,
            store=FaultyStore(self.store, self.process, self.failures),
            sinks=list(self.sinks.values()),
            clock=self.clock,
            retry=RetryPolicy(attempts=2, seed=1),
            paces=EVERY_TEN_SECONDS if paces is None else paces,
            **{"commit_thread": False, **options},
        )
        self.process.trace.clear()
        made.open()
        if not is_first:
            made._held_back.begin(())  # as if they held something: the first epoch of a sink does not wait
        if not keeps_trace:
            self.process.trace.clear()
        return made

    def ids(self, name):
        return [row[0] for row in self.targets[name].rows()]

    def standings(self):
        return {entry.key.epoch: entry.standing for entry in survey(self.store)}

    def floor(self):
        data = self.store.get(HELD_KEY)
        return None if data is None else sealed.load(data)


@pytest.fixture
def bench():
    return Bench()


def commit(coordinator, epoch, stage=None):
    claim = coordinator.missing(epoch)
    parts = {name: (Carried(pa.table({"id": [epoch]})),) if stage is None else stage(name) for name in claim.sinks}
    record = EpochRecord(PIPELINE, epoch, coordinator.generation, {"flights": {"log": epoch}})
    coordinator.commit(claim, record, parts)


def staged(bench, coordinator, name, epoch, attempt=0):
    factory = bench.sinks[name].writer_factory()
    writer = factory(Task(PIPELINE, coordinator.generation, epoch, 0, attempt))
    writer.write(pa.RecordBatch.from_pydict({"id": [epoch]}))
    return (writer.stage(),)


def test_the_durable_writes_of_epochs_that_wait_and_of_the_commit_they_wait_for(bench):
    coordinator = bench.open({"slow": SinkPace(every_epochs=2)})
    keys = [f"ledger/{epoch:012d}-00000001" for epoch in (1, 2)]
    commit(coordinator, 1)
    assert bench.process.trace == [f"store put_if_absent {keys[0]}", "sink fast commit 1"]
    bench.process.trace.clear()
    commit(coordinator, 2)
    assert bench.process.trace == [
        f"store put_if_absent {keys[1]}",
        "sink fast commit 2",
        "sink slow commit 2",
        f"store put {HELD_KEY}",
        f"store put {keys[0]}",
        f"store put {keys[1]}",
    ]
    assert coordinator.story(1)[-1].after is State.FORGOTTEN


def test_the_first_epoch_of_a_sink_that_holds_nothing_does_not_wait(bench):
    """It could not be told from one that was added, if the checkpoint were lost."""
    coordinator = bench.open(EVERY_THREE, is_first=True)
    commit(coordinator, 1)
    assert bench.ids("slow") == [1]
    commit(coordinator, 2)
    assert bench.ids("slow") == [1]
    coordinator = bench.open(EVERY_THREE, is_first=True)
    assert bench.ids("slow") == [1, 2]
    commit(coordinator, 3)
    assert bench.ids("slow") == [1, 2]


def test_a_sink_that_is_alone_has_its_epochs_decided(bench):
    coordinator = bench.open(EVERY_THREE, names=("slow",))
    for epoch in (1, 2):
        commit(coordinator, epoch)
    assert set(bench.standings().values()) == {Standing.OPEN}
    commit(coordinator, 3)
    assert bench.ids("slow") == [1, 2, 3]


def test_what_is_due_by_the_clock_is_published_while_no_epoch_arrives(bench):
    coordinator = bench.open()
    commit(coordinator, 1)
    coordinator.publish_due()
    assert bench.ids("slow") == []
    seen = coordinator.statistics().waiting["slow"]
    assert (seen.epochs, seen.rows, seen.since_us) == (1, 1, bench.clock.now_us())
    bench.clock.advance_us(10_000_000)
    coordinator.publish_due()
    assert bench.ids("slow") == [1]
    assert bench.standings() == {1: Standing.DONE}
    assert coordinator.statistics().waiting["slow"].epochs == 0


def test_what_is_due_by_the_clock_is_published_with_the_next_epoch(bench):
    coordinator = bench.open()
    commit(coordinator, 1)
    bench.clock.advance_us(10_000_000)
    commit(coordinator, 2)
    assert bench.ids("slow") == [1, 2]


def test_what_is_asked_for_is_published_of_these_sinks_alone(bench):
    paces = {"slow": SinkPace(every_epochs=9), "fast": SinkPace(every_epochs=9)}
    coordinator = bench.open(paces)
    commit(coordinator, 1)
    coordinator.publish_held(["slow"])
    assert (bench.ids("slow"), bench.ids("fast")) == ([1], [])
    assert bench.standings() == {1: Standing.OPEN}
    commit(coordinator, 2)
    coordinator.publish_held()
    assert (bench.ids("slow"), bench.ids("fast")) == ([1, 2], [1, 2])
    assert set(bench.standings().values()) == {Standing.DONE}


def test_the_floor_of_sources_is_what_all_sinks_with_a_pace_hold(bench):
    paces = {"slow": SinkPace(every_epochs=2), "fast": SinkPace(every_epochs=3)}
    coordinator = bench.open(paces)
    floors = []
    for epoch in range(1, 7):
        commit(coordinator, epoch)
        floors.append(bench.floor())
    held = [{}, {"flights": {"log": 2}}, {"flights": {"log": 3}}, {"flights": {"log": 6}}]
    assert floors == [None, held[0], held[1], held[2], held[2], held[3]]


def test_a_lost_reply_to_its_commit_is_settled_for_all_that_waited(bench):
    coordinator = bench.open(EVERY_THREE)
    commit(coordinator, 1)
    commit(coordinator, 2)
    bench.failures.add("slow", "publish", Failure.BREAK_AFTER)
    commit(coordinator, 3)
    assert bench.ids("slow") == [1, 2, 3]
    assert set(bench.standings().values()) == {Standing.DONE}


def test_a_sink_that_does_not_answer_when_it_is_due_stops_the_run_and_loses_nothing(bench):
    coordinator = bench.open()
    commit(coordinator, 1)
    bench.clock.advance_us(10_000_000)
    for _ in range(2):
        bench.failures.add("slow", "publish", Failure.UNAVAILABLE)
    with pytest.raises(Unavailable, match="2 attempts failed"):
        coordinator.publish_due()
    with pytest.raises(Unavailable, match="2 attempts failed"):
        commit(coordinator, 2)
    coordinator = bench.open()
    assert bench.ids("slow") == bench.ids("fast") == [1]


def test_a_sink_with_a_pace_that_does_not_answer_holds_up_no_other_one_at_a_takeover(bench):
    """Of two with a pace the other gets what waits; one without gets what is decided after that, and is swept."""
    paces, names = {"slow": SinkPace(every_epochs=9), "slower": SinkPace(every_epochs=9)}, ("slow", "slower", "fast")
    bench.targets["slower"] = SimulatedTarget()
    older = bench.open(paces, names=names)
    for epoch in (1, 2):
        commit(older, epoch)
    bench.failures.add("fast", "publish", Failure.UNAVAILABLE, times=2)
    with pytest.raises(Unavailable):
        commit(older, 3, lambda name: staged(bench, older, name, 3))
    staged(bench, older, "fast", 4)
    bench.failures.add("slow", "publish", Failure.UNAVAILABLE, times=1000)
    with pytest.raises(Unavailable, match="in sink 'slow'"):
        bench.open(paces, names=names)
    assert (bench.ids("slow"), bench.ids("slower"), bench.ids("fast")) == ([], [1, 2, 3], [1, 2, 3])
    assert bench.targets["fast"].leftovers() == []
    assert set(bench.standings().values()) == {Standing.OPEN}
    bench.failures = ScriptedFailures()
    bench.open(paces, names=names)
    assert set(bench.standings().values()) == {Standing.DONE}
    assert bench.ids("slow") == bench.ids("slower") == bench.ids("fast") == [1, 2, 3]


def test_a_run_that_was_fenced_publishes_nothing_that_waits(bench):
    old = bench.open()
    commit(old, 1)
    sinks = bench.sinks
    new = bench.open()
    assert bench.ids("slow") == [1]
    commit(new, 2)
    bench.sinks = sinks
    bench.clock.advance_us(10_000_000)
    with pytest.raises(Fenced):
        old.publish_due()
    assert bench.ids("slow") == [1]
    new.flush()
    assert bench.ids("slow") == bench.ids("fast") == [1, 2]


def test_orphans_of_a_sink_are_swept_while_epochs_wait_for_another(bench):
    coordinator = bench.open()
    commit(coordinator, 1, lambda name: staged(bench, coordinator, name, 1))
    coordinator.flush()
    commit(coordinator, 2, lambda name: staged(bench, coordinator, name, 2))
    for name in NAMES:
        staged(bench, coordinator, name, 3, attempt=7)
    assert coordinator.sweep(4) == 1
    assert bench.targets["fast"].leftovers() == []
    assert len(bench.targets["slow"].leftovers()) == 2, "the rows that wait, and for now the orphan"
    coordinator.flush()
    assert coordinator.sweep(4) == 1
    assert bench.ids("slow") == [1, 2]


def test_a_sink_that_publishes_later_is_not_counted_on_by_those_that_are_asked_after_it(bench):
    """A foreign key from the second to the first: its rows will not be there."""
    earlier = []
    coordinator = bench.open({"fast": SinkPace(every_epochs=3)})
    admit = bench.sinks["slow"].admit
    bench.sinks["slow"].admit = lambda publication, before=(): (
        earlier.append([sink.name for sink, _ in before]),
        admit(publication, before),
    )[1]
    commit(coordinator, 1)
    assert earlier == [[]]


def test_a_row_that_is_refused_is_refused_before_it_waits(bench):
    coordinator = bench.open()
    bench.targets["slow"].refuses = lambda row: row["id"] == 2
    commit(coordinator, 1)
    with pytest.raises(BadRow):
        commit(coordinator, 2)
    assert bench.standings() == {1: Standing.OPEN}


def test_a_sink_that_waits_is_told_so_and_the_others_are_not(bench):
    told = {}

    class Noting(SimulatedSink):
        def open(self, run):
            told[self.name] = run.is_grouped
            return super().open(run)

    sinks = [Noting(name, bench.targets[name]) for name in NAMES]
    made = Coordinator(
        pipeline=PIPELINE,
        store=bench.store,
        sinks=sinks,
        clock=bench.clock,
        paces=EVERY_THREE,
        retry=RetryPolicy(seed=1),
    )
    made.open()
    assert told == {"fast": False, "slow": True}


def test_a_rewind_withdraws_after_what_waits_is_there(bench):
    coordinator = bench.open()
    for epoch in (1, 2):
        commit(coordinator, epoch)
    published = []
    publish = bench.sinks["slow"].publish
    bench.sinks["slow"].publish = lambda several, expected: (
        published.append([(each.record.epoch, each.record.rewound_to) for each in several]),
        publish(several, expected),
    )[1]
    coordinator.rewind(EpochRecord(PIPELINE, 3, 1, {"flights": {"log": 1}}, rewound_to=1))
    assert published == [[(1, None), (2, None)], [(3, 1)]]


def test_another_thread_that_finds_a_sink_due_waits_for_nobody(bench):
    coordinator = bench.open()
    commit(coordinator, 1)
    bench.clock.advance_us(10_000_000)
    publish, entered, may_go_on = bench.sinks["slow"].publish, threading.Event(), threading.Event()

    def slow_publish(several, expected):
        entered.set()
        assert may_go_on.wait(10)
        publish(several, expected)

    bench.sinks["slow"].publish = slow_publish
    engine = threading.Thread(target=commit, args=(coordinator, 2))
    engine.start()
    assert entered.wait(10)
    coordinator.publish_due()
    may_go_on.set()
    engine.join(10)
    assert bench.ids("slow") == [1, 2]


@pytest.mark.slow
def test_what_is_committed_by_a_snapshots_thread_and_by_the_engine_is_committed_once(bench):
    coordinator = bench.open(EVERY_THREE, commit_thread=True)
    stops = threading.Event()

    def snapshots():
        while not stops.is_set():
            coordinator.publish_held()

    thread = threading.Thread(target=snapshots)
    thread.start()
    for epoch in range(1, 200):
        commit(coordinator, epoch)
    stops.set()
    thread.join(10)
    coordinator.flush()
    assert bench.ids("slow") == bench.ids("fast") == list(range(1, 200))
    assert set(bench.standings().values()) == {Standing.DONE}


class Blocked:
    """Holds a sink's publish until it may go on."""

    def __init__(self, sink):
        self._publish, sink.publish = sink.publish, self.publish
        self.entered, self.may_go_on = threading.Event(), threading.Event()

    def publish(self, several, expected):
        self.entered.set()
        assert self.may_go_on.wait(10)
        self._publish(several, expected)


def test_while_a_sink_with_a_pace_commits_the_others_get_their_epochs(bench):
    coordinator = bench.open({"slow": SinkPace(every_epochs=2)}, commit_thread=True)
    blocked = Blocked(bench.sinks["slow"])
    commit(coordinator, 1)
    commit(coordinator, 2)
    assert blocked.entered.wait(10)
    commit(coordinator, 3)
    assert (bench.ids("fast"), bench.ids("slow")) == ([1, 2, 3], [])
    assert coordinator.story(1)[-1].after is State.PUBLISHING
    blocked.may_go_on.set()
    coordinator.flush()
    assert bench.ids("slow") == [1, 2, 3]
    assert set(bench.standings().values()) == {Standing.DONE}
    coordinator.close()


@pytest.mark.slow
def test_no_other_sink_gets_a_second_epoch_before_a_sink_with_a_pace_has_its_first(bench):
    """However slow that is: while it holds nothing, a lost checkpoint would leave it without what the others have."""
    coordinator = bench.open(EVERY_THREE, commit_thread=True, is_first=True)
    blocked = Blocked(bench.sinks["slow"])
    threading.Timer(0.1, blocked.may_go_on.set).start()
    commit(coordinator, 1)
    assert bench.ids("slow") == [1]
    coordinator.close()


def test_epochs_that_a_sink_got_at_once_are_forgotten_little_by_little_in_order(bench):
    coordinator = bench.open({"slow": SinkPace(every_epochs=20)})
    counts = []
    for epoch in range(1, 26):
        commit(coordinator, epoch)
        standings = bench.standings()
        assert list(standings.values()) == sorted(standings.values(), key=[Standing.DONE, Standing.OPEN].index)
        counts.append(list(standings.values()).count(Standing.DONE))
    assert counts[18:] == [0, 9, 18, 20, 20, 20, 20]
    coordinator.publish_held()
    assert bench.ids("slow") == list(range(1, 26))
    coordinator.publish_due()
    assert set(bench.standings().values()) == {Standing.DONE}


def test_a_failure_of_the_thread_of_sinks_with_a_pace_is_told_though_no_epoch_arrives(bench):
    coordinator = bench.open({"slow": SinkPace(every_epochs=1)}, commit_thread=True)
    for _ in range(2):
        bench.failures.add("slow", "publish", Failure.UNAVAILABLE)
    commit(coordinator, 1)
    with pytest.raises(Unavailable, match="2 attempts failed"):
        coordinator.flush()
    with pytest.raises(Unavailable, match="2 attempts failed"):
        coordinator.check_published()
    coordinator.close()
    bench.open()
    assert bench.ids("slow") == bench.ids("fast") == [1]


# --- a start --------------------------------------------------------------------------------------------------------


def left_by_a_dead_run(bench, count, dies_in_fast=False):
    """Leave epochs that wait for the slow sink; the last one, if asked for, the fast one lacks too."""
    coordinator = bench.open(EVERY_THOUSAND)
    for epoch in range(1, count + 1):
        if dies_in_fast and epoch == count:
            for _ in range(2):
                bench.failures.add("fast", "publish", Failure.UNAVAILABLE)
            with pytest.raises(Unavailable):
                commit(coordinator, epoch)
        else:
            commit(coordinator, epoch)


def test_a_start_publishes_what_waits_at_once_and_asks_each_sink_little(bench, caplog):
    left_by_a_dead_run(bench, 20)
    with caplog.at_level("INFO", logger="holdfast.commit"):
        made = bench.open(EVERY_THOUSAND, keeps_trace=True)
    assert [line for line in bench.process.trace if "commit" in line] == ["sink slow commit 20"]
    assert len([line for line in caplog.messages if line.startswith("asked sink")]) == 3
    assert bench.ids("slow") == list(range(1, 21))
    assert set(bench.standings().values()) == {Standing.DONE}
    assert made.sweep(100) == 0


def test_a_start_publishes_an_epoch_by_itself_that_another_sink_lacks_too(bench):
    left_by_a_dead_run(bench, 5, dies_in_fast=True)
    bench.open(EVERY_THOUSAND, keeps_trace=True)
    commits = [line for line in bench.process.trace if "commit" in line]
    assert commits == ["sink slow commit 4", "sink fast commit 5", "sink slow commit 5"]
    assert bench.ids("slow") == bench.ids("fast") == [1, 2, 3, 4, 5]


def test_a_start_publishes_before_it_has_read_too_much(bench, monkeypatch):
    monkeypatch.setattr(backlog, "TOGETHER_BYTES_MAX", 24)
    left_by_a_dead_run(bench, 5)
    bench.open(EVERY_THOUSAND, keeps_trace=True)
    commits = [line for line in bench.process.trace if "commit" in line]
    assert commits == ["sink slow commit 3", "sink slow commit 5"]


def test_a_start_after_one_that_died_in_the_middle_does_the_rest(bench):
    left_by_a_dead_run(bench, 6)
    bench.failures.add("slow", "publish", Failure.BREAK_AFTER)
    bench.open(EVERY_THOUSAND)
    assert bench.ids("slow") == [1, 2, 3, 4, 5, 6]
    assert set(bench.standings().values()) == {Standing.DONE}


def test_a_sink_that_cannot_be_asked_gets_nothing_again_because_epochs_wait_for_another(bench):
    for crash in (False, True):
        coordinator = bench.open(EVERY_THOUSAND, fast={"guarantee": Guarantee.AT_LEAST_ONCE})
        assert bench.ids("fast") == ([1, 2, 3] if crash else [])
        assert bench.ids("slow") == ([1, 2, 3] if crash else [])
        for epoch in (4, 5) if crash else (1, 2, 3):
            commit(coordinator, epoch)
    coordinator.flush()
    assert bench.ids("fast") == bench.ids("slow") == [1, 2, 3, 4, 5]
    assert set(bench.standings().values()) == {Standing.DONE}


# --- requests -------------------------------------------------------------------------------------------------------


def test_requests_are_of_the_sinks_that_have_a_pace_and_gone_when_forgotten():
    store = SimulatedStore()
    run = RequestReader(store, ["slow", "slower"])
    assert run.pending() == CommitRequests()
    ask_to_commit(store, ["slow", "other"])
    ask_to_commit(store, ["slower"])
    found = run.pending()
    assert (found.sinks, len(found.keys)) == ({"slow", "slower"}, 2)
    assert run.pending() == CommitRequests(), "it is at work on them"
    ask_to_commit(store, ["slow"])
    run.forget(found)
    found = run.pending()
    assert (found.sinks, len(found.keys)) == ({"slow"}, 1)
    assert RequestReader(store, ["slow"]).pending() == found, "a run that died has left it"
    run.forget(found)
    assert RequestReader(store, ["slow"]).pending().sinks == frozenset()


def test_a_run_lists_requests_when_there_is_a_new_one_and_finds_it_where_the_listing_lags():
    class Lagging(SimulatedStore):
        lists = 0

        def keys(self, prefix: str) -> list[str]:
            self.lists += 1
            return []

    store = Lagging()
    run = RequestReader(store, ["slow"])
    for _ in range(5):
        assert run.pending() == CommitRequests()
    ask_to_commit(store, ["slow"])
    assert run.pending().sinks == {"slow"}
    assert run.pending() == CommitRequests()
    assert store.lists == 2


def test_a_request_that_cannot_be_read_is_one_to_all():
    store = SimulatedStore()
    store.put("flush/cut.json", b'{"sinks": ["sl')
    assert RequestReader(store, ["slow", "slower"]).pending().sinks == {"slow", "slower"}
