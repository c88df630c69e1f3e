"""The coordinator, call by call, against simulated sinks and store."""

import logging
import pickle
import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.commit.commit_thread import ThreadLane
from holdfast.commit.coordinator import Claim, Coordinator
from holdfast.commit.ledger import Standing, survey
from holdfast.commit.records import Decided, encode
from holdfast.commit.recovery import Decision, Verdict
from holdfast.commit.transaction import Event, State
from holdfast.errors import BadRow, Corrupt, Diverged, Fenced, InDoubt, InternalError, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Guarantee, Held, Outcome, Publication, RunIdentity, Staged, Task
from holdfast.retry import RetryPolicy
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


class VolatileSink(SimulatedSink):
    is_volatile = True


class Bench:
    """A store, targets and failures that outlive coordinators."""

    def __init__(self):
        self.store = SimulatedStore()
        self.targets = {}
        self.failures = ScriptedFailures()
        self.clock = SimulatedClock()
        self.process = Process()
        self.transitions = []
        self.guarantees = {}
        self.opened = []

    def target(self, name):
        return self.targets.setdefault(name, SimulatedTarget())

    def coordinator(self, *names, **options):
        sinks = [
            SimulatedSink(
                name,
                self.target(name),
                process=self.process,
                failures=self.failures,
                guarantee=self.guarantees.get(name, Guarantee.EXACTLY_ONCE),
            )
            for name in names
        ]
        made: Any = Coordinator(
            pipeline=PIPELINE,
            store=FaultyStore(options.pop("store", self.store), self.process, self.failures),
            sinks=sinks,
            clock=self.clock,
            retry=options.pop("retry", RetryPolicy(seed=1)),
            on_transition=self.transitions.append,
            **options,
        )
        made.sinks_for_tests = {sink.name: sink for sink in sinks}
        self.opened.append(made)
        return made

    def open(self, *names, **options):
        made = self.coordinator(*names, **options)
        made.open()
        return made

    def standings(self):
        return {entry.key.epoch: entry.standing for entry in survey(self.store)}


@pytest.fixture
def bench():
    made = Bench()
    yield made
    for coordinator in made.opened:
        coordinator.close()


def record(coordinator, epoch, pts=None):
    return EpochRecord(PIPELINE, epoch, coordinator.generation, {"flights": {"log": epoch}}, pts)


def carried(epoch):
    return (Carried(pa.table({"id": [epoch]})),)


def staged(coordinator, name, epoch, task=0):
    writer = coordinator.sinks_for_tests[name].writer_factory()(Task(PIPELINE, coordinator.generation, epoch, task, 0))
    writer.write(pa.RecordBatch.from_pydict({"id": [epoch]}))
    return (writer.stage(),)


def commit(coordinator, epoch, *, pts=None, as_staged=False):
    claim = coordinator.missing(epoch)
    parts = {name: staged(coordinator, name, epoch) if as_staged else carried(epoch) for name in claim.sinks}
    coordinator.commit(claim, record(coordinator, epoch, pts), parts)


def ids(bench, name):
    return [row[0] for row in bench.target(name).rows()]


# --- the way of one epoch -------------------------------------------------------------------------------------------


def test_with_one_sink_the_sinks_own_commit_is_the_decision(bench):
    coordinator = bench.open("table")
    before = bench.process.write_count
    commit(coordinator, 1)
    assert bench.process.write_count == before + 1
    assert bench.store.keys("ledger/") == []
    assert ids(bench, "table") == [1]
    assert [line.event for line in coordinator.story(1)] == [Event.STAGE, Event.PUBLISH, Event.HOLD, Event.COMPLETE]


def test_with_two_sinks_an_epoch_costs_a_decision_a_publish_each_and_a_forget(bench):
    coordinator = bench.open("table", "files")
    bench.process.trace.clear()
    commit(coordinator, 1)
    key = "ledger/000000000001-00000001"
    assert bench.process.trace == [
        f"store put_if_absent {key}",
        "sink table commit 1",
        "sink files commit 1",
        f"store put {key}",
    ]
    assert bench.standings() == {1: Standing.DONE}
    assert coordinator.story(1)[-1].after is State.FORGOTTEN


def test_what_is_left_of_a_decision_keeps_positions_pts_generation_and_rows(bench):
    coordinator = bench.open("table", "files")
    commit(coordinator, 1, pts=17)
    (entry,) = survey(bench.store)
    assert entry.content.record == EpochRecord(PIPELINE, 1, 1, {"flights": {"log": 1}}, 17)
    assert entry.content.row_counts == {"table": 1, "files": 1}


def test_every_transition_is_told(bench):
    coordinator = bench.open("table")
    commit(coordinator, 1)
    assert bench.transitions == coordinator.story(1)


def test_statistics_say_what_is_published_and_what_waits(bench):
    coordinator = bench.open("table", "files", commit_every_ticks=100)
    commit(coordinator, 1, pts=1000)
    commit(coordinator, 2, pts=1050)
    seen = coordinator.statistics()
    assert seen.published["table"].epoch == 1
    assert seen.published["files"].row_count == 1
    assert seen.decided_unpublished == 1
    assert (seen.retries, seen.queue_length, seen.last_error) == (0, 0, None)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_epochs_ascend(bench):
    coordinator = bench.open("table")
    commit(coordinator, 2)
    for epoch in (1, 2):
        with pytest.raises(InternalError, match=f"cannot commit epoch {epoch}"):
            coordinator.commit(coordinator.missing(epoch), record(coordinator, epoch), {"table": carried(epoch)})
    assert ids(bench, "table") == [2]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"table": ()}, "what is missing is"),
        ({"table": (), "files": (), "other": ()}, "not sinks of it"),
        ({}, "what is missing is"),
    ],
)
def test_parts_are_for_exactly_the_missing_sinks(bench, parts, says):
    coordinator = bench.open("table", "files")
    with pytest.raises(InternalError, match=says):
        coordinator.commit(coordinator.missing(1), record(coordinator, 1), parts)
    commit(coordinator, 1)
    assert ids(bench, "table") == ids(bench, "files") == [1]


@pytest.mark.parametrize(("pipeline", "generation"), [("other", 1), (PIPELINE, 2)])
def test_a_record_of_another_pipeline_or_generation_is_refused(bench, pipeline, generation):
    coordinator = bench.open("table")
    with pytest.raises(InternalError, match="it belongs to"):
        coordinator.commit(coordinator.missing(1), EpochRecord(pipeline, 1, generation, {}), {"table": carried(1)})


def test_nothing_is_committed_before_open(bench):
    claim = Claim(1, frozenset({"table"}), generation=0, number=1)
    with pytest.raises(InternalError, match="generation 0 of pipeline 'trips' cannot commit"):
        bench.coordinator("table").commit(claim, EpochRecord(PIPELINE, 1, 0, {}), {"table": carried(1)})


def claimed(bench, *epochs):
    """Return a coordinator, claims that it made one after the other, and how to commit by one of them."""
    coordinator = bench.open("table", "files")
    claims = [coordinator.missing(epoch, at(epoch), at(epoch - 1)) for epoch in epochs]

    def commit_by(claim, epoch):
        parts = {name: carried(epoch) for name in ("table", "files")}
        coordinator.commit(claim, record(coordinator, epoch), parts)

    return coordinator, claims, commit_by


def test_a_claim_is_used_once(bench):
    coordinator, (claim,), commit_by = claimed(bench, 1)
    commit_by(claim, 1)
    with pytest.raises(InternalError, match="its claim, number 1, was used or replaced"):
        commit_by(claim, 1)
    assert ids(bench, "table") == ids(bench, "files") == [1]
    assert not coordinator.has_failed, "nothing was changed"


def test_a_claim_is_for_one_epoch(bench):
    _, (claim,), commit_by = claimed(bench, 1)
    with pytest.raises(InternalError, match="its claim is for epoch 1"):
        commit_by(claim, 2)
    commit_by(claim, 1)
    assert ids(bench, "table") == ids(bench, "files") == [1]


def test_a_claim_is_for_one_end(bench):
    coordinator, _, commit_by = claimed(bench)
    claim = coordinator.missing(1, at(2), at(0))
    with pytest.raises(InternalError, match="its claim is for other positions"):
        commit_by(claim, 1)


def test_a_claim_is_replaced_by_the_next_one(bench):
    """What the sinks hold was looked at again: the newest answer counts."""
    _, (first, second), commit_by = claimed(bench, 1, 1)
    assert first != second
    with pytest.raises(InternalError, match="its claim, number 1, was used or replaced: 2 were made"):
        commit_by(first, 1)
    commit_by(second, 1)
    assert ids(bench, "table") == ids(bench, "files") == [1]


def test_a_claim_dies_with_its_generation(bench):
    _, (claim,), _ = claimed(bench, 1)
    _, _, commit_by = claimed(bench, 1)
    with pytest.raises(InternalError, match="its claim is of generation 1"):
        commit_by(claim, 1)


def test_what_every_sink_holds_is_not_committed_again(bench):
    coordinator, (claim,), commit_by = claimed(bench, 1)
    commit_by(claim, 1)
    again = coordinator.missing(1, at(1), at(0))
    assert again.sinks == frozenset()
    with pytest.raises(InternalError, match="every sink holds it"):
        coordinator.commit(again, record(coordinator, 1), {})


def test_two_sinks_of_one_name_are_refused(bench):
    with pytest.raises(InternalError, match="same name"):
        bench.coordinator("table", "table")


def test_a_checkpoint_of_another_pipeline_is_refused_before_anything_is_fenced(bench):
    bench.store.put("identity.json", b'{"pipeline": "taxis", "format": 1}')
    with pytest.raises(InvalidPipeline, match="belongs to pipeline 'taxis'"):
        bench.open("table")
    assert bench.target("table").ledger == {}


# --- retry and doubt ------------------------------------------------------------------------------------------------


def test_a_sink_that_is_away_for_a_minute_is_waited_for(bench):
    coordinator = bench.open("table")
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=8)
    commit(coordinator, 1)
    assert ids(bench, "table") == [1]
    assert coordinator.statistics().retries == 8
    assert bench.clock.slept_s > 45


def test_a_sink_that_stays_away_stops_the_run_with_the_story(bench):
    coordinator = bench.open("table", "files")
    bench.failures.add("files", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable) as caught:
        commit(coordinator, 1)
    error = caught.value
    assert "epoch 1 of pipeline 'trips' could not be published in sink 'files': 10 attempts failed" in error.what
    assert "start the pipeline again" in error.do
    assert (error.pipeline, error.participant, error.epoch, error.generation) == (PIPELINE, "files", 1, 1)
    (story,) = error.__notes__
    assert story.splitlines()[0] == "History of epoch 1, oldest first:"
    assert "STAGED --DECIDE--> DECIDED" in story
    assert pickle.loads(pickle.dumps(error)).__notes__ == [story]
    with pytest.raises(Unavailable):
        coordinator.missing(2)
    assert "could not be published" in coordinator.statistics().last_error
    assert bench.open("table", "files").missing(1).sinks == frozenset()
    assert ids(bench, "files") == [1]


def test_a_refused_row_of_a_single_sink_is_told_as_the_sink_tells_it(bench):
    """Nothing is decided: there is no other error that it would come from."""
    coordinator = bench.open("table")
    bench.target("table").refuses = lambda row: row["id"] == 1
    with pytest.raises(BadRow) as caught:
        commit(coordinator, 1)
    assert (caught.value.is_decided, caught.value.__cause__) == (False, None)


@pytest.mark.parametrize("names", [["table"], ["table", "files"]])
@pytest.mark.parametrize("failure", [Failure.BREAK_BEFORE, Failure.BREAK_AFTER])
def test_a_connection_that_breaks_during_commit_is_asked_about(bench, caplog, names, failure):
    caplog.set_level(logging.INFO, "holdfast.commit")
    coordinator = bench.open(*names)
    bench.failures.add("table", "publish", failure, times=2)
    bench.failures.add("table", "outcome", Failure.UNKNOWN)
    bench.failures.add("table", "outcome", Failure.UNAVAILABLE)
    commit(coordinator, 1)
    assert ids(bench, "table") == [1]
    told = [line.getMessage() for line in caplog.records]
    answer = "ABSENT" if failure is Failure.BREAK_BEFORE else "PUBLISHED"
    assert "asked sink 'table' whether it holds epoch 1: answered UNKNOWN" in told
    assert "asked sink 'table' whether it holds epoch 1: no answer ('table' does not answer (outcome).)" in told
    assert f"asked sink 'table' whether it holds epoch 1: answered {answer}" in told
    events = [line.event for line in coordinator.story(1)]
    assert events.count(Event.DOUBT) == events.count(Event.ANSWER) > 0


def test_a_sink_that_never_says_what_it_holds_leaves_the_epoch_in_doubt(bench):
    coordinator = bench.open("table")
    bench.failures.add("table", "publish", Failure.BREAK_AFTER)
    bench.failures.add("table", "outcome", Failure.UNKNOWN, times=10)
    with pytest.raises(
        InDoubt, match="epoch 1 of pipeline 'trips' may or may not be visible in sink 'table'"
    ) as caught:
        commit(coordinator, 1)
    assert "Delete nothing" in caught.value.do
    assert coordinator.story(1)[-1].after is State.IN_DOUBT
    assert bench.open("table").missing(1).sinks == frozenset()


def test_a_sink_that_does_not_answer_at_the_start_is_waited_for(bench):
    bench.failures.add("table", "open", Failure.UNAVAILABLE, times=8)
    assert bench.open("table").generation == 1


def test_a_lost_reply_to_the_fence_is_settled_by_a_higher_generation(bench):
    bench.failures.add("table", "open", Failure.BREAK_AFTER)
    assert bench.open("table").generation == 2


def test_a_sink_that_stays_in_doubt_at_the_start_says_so_itself_and_costs_few_generations(bench):
    bench.failures.add("table", "open", Failure.BREAK_AFTER, times=10)
    started = bench.clock.now_us()
    coordinator = bench.coordinator("table", "files")
    with pytest.raises(InDoubt):
        coordinator.open()
    assert len(bench.store.keys("generations/")) == 10
    assert bench.clock.now_us() - started > 60_000_000
    assert coordinator.statistics().retries == 9
    assert bench.open("table", "files").generation == 11


def test_anything_can_be_called_with_the_coordinators_patience(bench):
    coordinator = bench.open("table")
    calls = []

    def work():
        calls.append(1)
        if len(calls) < 3:
            raise Unavailable("an executor was lost")
        return "done"

    assert coordinator.retry(work, doing="stage epoch 1") == "done"
    assert coordinator.statistics().retries == 2


def test_an_error_of_another_kind_stops_the_run_too(bench):
    coordinator = bench.open("table", "files")
    bench.targets["files"].staged.clear()
    handle = Staged(f"{PIPELINE}/1/1/0/0", 1, {"handle": "gone"})
    claim, parts = coordinator.missing(1), {"table": carried(1), "files": (handle,)}
    with pytest.raises(Diverged, match="sink 'files': the rows staged as") as caught:
        coordinator.commit(claim, record(coordinator, 1), parts)
    assert caught.value.__notes__
    with pytest.raises(Diverged):
        coordinator.flush()


# --- takeover -------------------------------------------------------------------------------------------------------


def test_a_fresh_pipeline_holds_nothing(bench):
    resumption = bench.coordinator("table").open()
    assert resumption.generation == 1
    assert resumption.held == {"table": Held()}
    assert (resumption.resolved, resumption.last_epoch) == ((), 0)


def test_an_older_run_is_fenced_and_changes_nothing(bench):
    older = bench.open("table", "files")
    newer = bench.open("table", "files")
    with pytest.raises(Fenced):
        older.check_fenced()
    with pytest.raises(Fenced):
        commit(older, 1)
    assert ids(bench, "table") == ids(bench, "files") == []
    commit(newer, 1)
    assert ids(bench, "table") == ids(bench, "files") == [1]


def test_an_older_run_with_one_sink_is_fenced_by_the_sink(bench):
    older = bench.open("table")
    bench.open("table")
    with pytest.raises(Fenced, match="stale"):
        commit(older, 1)
    assert ids(bench, "table") == []


def test_a_lost_checkpoint_goes_above_the_generations_that_the_sinks_know(bench):
    for _ in range(5):
        bench.open("table", "files")
    bench.target("files").ledger[PIPELINE, "files"].generation = 1000
    bench.store.objects.clear()
    assert bench.open("table", "files").generation == 1001


def test_a_run_that_loses_the_race_for_the_sinks_is_fenced(bench):
    rival = bench.coordinator("table")
    slow = bench.coordinator("table")
    sink = slow.sinks_for_tests["table"]
    opened = sink.open

    def overtaken(run):
        sink.open = opened
        rival.open()
        return opened(run)

    sink.open = overtaken
    with pytest.raises(Fenced):
        slow.open()
    commit(rival, 1)


def test_held_is_what_the_sinks_say_after_recovery(bench):
    older = bench.open("table", "files")
    bench.failures.add("files", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable):
        commit(older, 1, pts=5)
    resumption = bench.coordinator("table", "files").open()
    assert resumption.held["table"] == resumption.held["files"]
    assert resumption.held["files"] == Held(1, 1, {"flights": {"log": 1}}, 5)
    assert [(each.sink, each.decision, each.outcome, each.verdict) for each in resumption.resolved] == [
        ("table", Decision.COMMIT, Outcome.PUBLISHED, Verdict.SKIP),
        ("files", Decision.COMMIT, Outcome.ABSENT, Verdict.PUBLISH),
    ]
    assert bench.standings() == {1: Standing.DONE}


def test_nothing_that_is_decided_is_swept_by_a_takeover(bench):
    older = bench.open("table", "files", commit_thread=False)
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable):
        commit(older, 1, as_staged=True)
    staged(older, "table", 2)
    bench.open("table", "files")
    assert ids(bench, "table") == ids(bench, "files") == [1]
    assert bench.target("table").leftovers() == []


def test_a_sink_that_does_not_answer_holds_up_no_other_one_at_a_takeover(bench):
    """What it leaves open in another one would hide from readers what others write there (design/0048, section 5)."""
    bench.guarantees["console"] = Guarantee.AT_LEAST_ONCE
    sinks = ("table", "topic", "console")
    older = bench.open(*sinks, commit_thread=False)
    commit(older, 1)
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=1000)
    with pytest.raises(Unavailable):
        commit(older, 2, as_staged=True)
    staged(older, "topic", 3)
    for _ in range(2):
        with pytest.raises(Unavailable, match="could not be published in sink 'table'"):
            bench.open(*sinks, commit_thread=False)
        assert (ids(bench, "table"), ids(bench, "topic"), ids(bench, "console")) == ([1], [1, 2], [1])
        assert bench.target("topic").leftovers() == []
        assert bench.standings()[2] is Standing.OPEN
    bench.failures = ScriptedFailures()
    bench.open(*sinks)
    assert ids(bench, "table") == ids(bench, "topic") == ids(bench, "console") == [1, 2]
    assert bench.target("table").leftovers() == []


def test_after_a_sink_that_does_not_answer_all_epochs_stay_open(bench):
    """None that comes later is forgotten, and the sink gets them in their order."""
    older = bench.open("table", "topic", commit_thread=False, commit_every_ticks=1000)
    for epoch in (1, 2, 3, 4):
        commit(older, epoch, pts=epoch)
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=1000)
    with pytest.raises(Unavailable):
        bench.open("table", "topic")
    assert (ids(bench, "table"), ids(bench, "topic")) == ([1], [1, 2, 3, 4])
    assert [bench.standings()[epoch] for epoch in (2, 3, 4)] == [Standing.OPEN] * 3
    bench.failures = ScriptedFailures()
    bench.open("table", "topic")
    assert ids(bench, "table") == ids(bench, "topic") == [1, 2, 3, 4]


# --- edges of recovery ----------------------------------------------------------------------------------------------


def test_an_epoch_that_one_sink_holds_without_a_decision_is_missing_in_the_other_alone(bench):
    """The checkpoint's ledger was lost, or the other sink is new."""
    commit(bench.open("table"), 1)
    bench.store.objects.clear()
    coordinator = bench.open("table", "files")
    assert coordinator.missing(1).sinks == {"files"}
    commit(coordinator, 1)
    assert ids(bench, "table") == ids(bench, "files") == [1]


def test_a_new_sink_is_not_said_to_have_lost_what_the_others_finished(bench):
    coordinator = bench.open("table", "files")
    commit(coordinator, 1)
    grown = bench.open("table", "files", "new")
    assert grown.missing(1).sinks == {"new"}
    assert grown.missing(2).sinks == {"table", "files", "new"}


def test_a_sink_may_hold_more_than_the_ledger_knows(bench):
    commit(bench.open("table", "files"), 1)
    for name in ("table", "files"):
        publication = Publication(EpochRecord(PIPELINE, 7, 1, {"flights": {"log": 7}}), carried(7))
        sink = SimulatedSink(name, bench.target(name))
        sink.open(RunIdentity(PIPELINE, 5))
        sink.publish([publication], Held())
    coordinator = bench.coordinator("table", "files")
    resumption = coordinator.open()
    assert resumption.last_epoch == 7
    assert resumption.generation > 5
    assert coordinator.missing(7).sinks == frozenset()
    assert coordinator.missing(8).sinks == {"table", "files"}


def go_back(bench, name, epoch):
    """Let a sink be a copy of an older moment."""
    target = bench.target(name)
    row = target.ledger[PIPELINE, name]
    row.epoch, row.record = epoch, replace(row.record, epoch=epoch, positions=at(epoch))
    target.tables[:] = [table for table in target.tables if max(table["id"].to_pylist(), default=0) <= epoch]


def test_a_sink_that_lost_the_newest_epoch_is_told_as_behind_and_gets_it_again_where_spark_replays_it(bench):
    coordinator = bench.open("table", "files")
    for epoch in (1, 2):
        commit(coordinator, epoch)
    go_back(bench, "files", 1)
    coordinator = bench.coordinator("table", "files")
    (found,) = coordinator.open().resolved
    assert (found.sink, found.epoch, found.verdict) == ("files", 2, Verdict.REPLAY)
    claim = coordinator.missing(2, at(2), at(1))
    assert claim.sinks == {"files"}
    coordinator.commit(claim, record(coordinator, 2), {"files": carried(2)})
    assert ids(bench, "table") == ids(bench, "files") == [1, 2]


def test_a_decision_is_not_published_over_the_gap_of_a_sink_that_lost_earlier_epochs(bench):
    coordinator = bench.open("table", "files")
    for epoch in (1, 2):
        commit(coordinator, epoch)
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable):
        commit(coordinator, 3)
    go_back(bench, "files", 1)
    coordinator = bench.open("table", "files")
    assert ids(bench, "table") == [1, 2, 3]
    assert ids(bench, "files") == [1]
    assert bench.standings()[3] is Standing.DONE
    with pytest.raises(Diverged, match=r"holds everything up to .*'log': 1.*epoch 4 begins at"):
        coordinator.missing(4, at(4), at(3))


def test_what_is_decided_for_a_sink_that_went_back_stays_open_where_it_cannot_be_replayed(bench):
    """The ledger may be the last to have those rows: a source lets go of what is decided."""
    coordinator = bench.open("table", "files")
    for epoch in (1, 2):
        commit(coordinator, epoch)
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable):
        commit(coordinator, 3)
    whole = list(bench.target("files").tables)
    go_back(bench, "files", 1)

    def refuse(lost_it, held):
        assert (lost_it, held["files"].epoch) == ({"files"}, 1)
        raise Diverged("its rows are gone.")

    with pytest.raises(Diverged, match="its rows are gone"):
        bench.coordinator("table", "files").open(on_behind=refuse)
    assert bench.standings()[3] is Standing.OPEN
    assert ids(bench, "table") == [1, 2], "nothing is resolved"
    go_back(bench, "files", 2)  # forward: a copy that has all of what was published
    bench.target("files").tables[:] = whole
    bench.coordinator("table", "files").open(on_behind=refuse)
    assert ids(bench, "table") == ids(bench, "files") == [1, 2, 3]


def test_a_sink_that_was_ahead_of_the_newest_done_epoch_is_asked_about_its_own(bench):
    """It was left out while others were brought up to it; then all took part in an epoch that is decided."""
    coordinator = bench.open("table", "old")
    for epoch in (1, 2):
        commit(coordinator, epoch)
    coordinator = bench.open("table", "old", "new", "other", backfilled=["new", "other"])
    claim = coordinator.missing(3, at(2), at(0))
    assert claim.sinks == {"new", "other"}
    record_of_3 = EpochRecord(PIPELINE, 3, coordinator.generation, at(2))
    coordinator.commit(claim, record_of_3, {name: carried(3) for name in ("new", "other")})
    everyone = ("table", "old", "new", "other")
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=10)
    claim = coordinator.missing(4, at(4), at(2))
    with pytest.raises(Unavailable):
        coordinator.commit(claim, record(coordinator, 4), {name: carried(4) for name in everyone})
    go_back(bench, "table", 1)
    bench.open(*everyone)
    assert ids(bench, "table") == [1]
    assert ids(bench, "old") == [1, 2, 4]


def lag_before_it_is_resolved(bench, name, epoch, *others, **options):
    """Let a sink go back before a start; return what that tells of it, and the sinks that it said to be behind."""
    go_back(bench, name, epoch)
    told = []
    resumption = bench.coordinator(name, *others, **options).open(on_behind=lambda names, held: told.append(set(names)))
    assert ids(bench, name)[-1] == epoch, "published over the gap"
    assert bench.standings()
    (found,) = (each for each in resumption.resolved if each.verdict is Verdict.REPLAY)
    return found.sink, found.epoch, told


def test_the_first_decision_of_two_sinks_is_not_published_over_what_one_of_them_had_got_alone(bench):
    """Of those epochs the ledger has no "done": the decision says behind which one the sink stood."""
    coordinator = bench.open("table")
    for epoch in (1, 2, 3):
        commit(coordinator, epoch)
    coordinator = bench.open("table", "files")
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable):
        commit(coordinator, 4)
    assert lag_before_it_is_resolved(bench, "table", 1, "files") == ("table", 3, [{"table"}])
    assert ids(bench, "files") == [4]
    assert bench.standings() == {4: Standing.DONE}


def test_the_first_group_of_a_sink_is_not_published_over_what_it_got_without_grouping(bench):
    coordinator = bench.open("table")
    for epoch in (1, 2, 3):
        commit(coordinator, epoch, pts=1000)
    coordinator = bench.open("table", commit_every_ticks=100)
    for epoch in (4, 5):
        commit(coordinator, epoch, pts=1000)
    assert bench.standings() == {4: Standing.OPEN, 5: Standing.OPEN}
    assert lag_before_it_is_resolved(bench, "table", 2, commit_every_ticks=100) == ("table", 3, [{"table"}])


def test_a_decision_is_not_published_over_what_the_same_run_gave_a_sink_alone(bench):
    """A sink that was added is filled; the first epoch for all of them is decided."""
    for epoch in (1, 2):
        commit(bench.open("table"), epoch)
    coordinator = bench.open("new", "table", backfilled=["new"])
    for epoch, end in ((3, 1), (4, 2)):
        claim = coordinator.missing(epoch, at(end), at(end - 1))
        assert claim.sinks == {"new"}
        ended = EpochRecord(PIPELINE, epoch, coordinator.generation, at(end))
        coordinator.commit(claim, ended, {"new": carried(epoch)})
    bench.failures.add("new", "publish", Failure.UNAVAILABLE, times=10)
    claim = coordinator.missing(5, at(3), at(2))
    ended = EpochRecord(PIPELINE, 5, coordinator.generation, at(3))
    with pytest.raises(Unavailable):
        coordinator.commit(claim, ended, {name: carried(5) for name in ("new", "table")})
    assert lag_before_it_is_resolved(bench, "new", 3, "table") == ("new", 4, [{"new"}])
    assert ids(bench, "table") == [1, 2, 5]


@pytest.mark.parametrize("held", [1, 2, 3, 4])
def test_a_group_of_which_a_sink_holds_a_part_is_published_from_there_on(bench, held):
    """Each decision comes behind the one before it, which may be open too: nothing is lost."""
    coordinator = bench.open("table", "files", commit_every_ticks=100)
    for epoch in (1, 2, 3, 4):
        commit(coordinator, epoch, pts=1000)
    sink = coordinator.sinks_for_tests["table"]
    waiting = [Publication(record(coordinator, epoch, 1000), carried(epoch)) for epoch in range(2, held + 1)]
    if waiting:
        sink.publish(waiting, Held(1, 1, at(1), 1000))
    bench.coordinator("table", "files").open(on_behind=lambda *_: pytest.fail("no sink lost anything"))
    assert ids(bench, "table") == ids(bench, "files") == [1, 2, 3, 4]


def test_a_decision_that_does_not_say_what_came_before_it_is_published(bench):
    """A version before this one made it."""
    commit(bench.open("table"), 1)
    coordinator = bench.open("table", "files")
    coordinator.missing(3)
    decided = Decided(record(coordinator, 3), {"table": carried(3), "files": carried(3)})
    bench.store.put(f"ledger/{3:012d}-{coordinator.generation:08d}", encode(decided))
    bench.open("table", "files")
    assert (ids(bench, "table"), ids(bench, "files")) == ([1, 3], [3])


def test_a_sink_that_cannot_be_asked_is_not_held_against_what_came_before(bench):
    bench.guarantees["console"] = Guarantee.AT_LEAST_ONCE
    commit(bench.open("console"), 1)
    coordinator = bench.open("console", "table")
    bench.failures.add("console", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable):
        commit(coordinator, 2)
    bench.targets["console"] = SimulatedTarget()
    bench.open("console", "table")
    assert ids(bench, "console") == [2]


def test_a_single_sink_restored_from_a_backup_is_noticed_by_the_gap(bench):
    coordinator = bench.open("table")
    for epoch in (1, 2, 3):
        commit(coordinator, epoch)
    bench.target("table").ledger[PIPELINE, "table"].epoch = 1
    coordinator = bench.open("table")
    with pytest.raises(Diverged, match="holds everything up to epoch 1, and epoch 4 comes next"):
        commit(coordinator, 4)


def test_an_epoch_held_with_other_positions_is_diverged(bench):
    commit(bench.open("table"), 1)
    coordinator = bench.open("table")
    assert coordinator.missing(1, {"flights": {"log": 1}}).sinks == frozenset()
    with pytest.raises(Diverged, match="up to other positions"):
        coordinator.missing(1, {"flights": {"log": 2}})


def at(position):
    return {"flights": {"log": position}}


@pytest.mark.parametrize("names", [("table",), ("table", "files")])
def test_a_number_that_the_sinks_know_does_not_hide_rows_that_they_have_never_seen(bench, names):
    """Spark's log is older than the sinks: it gives epoch 2, of which they hold one, to what came later."""
    coordinator = bench.open(*names)
    for epoch in (1, 2, 3, 4):
        commit(coordinator, epoch)
    coordinator = bench.open(*names)
    assert coordinator.missing(1, at(1), at(0)).sinks == frozenset()
    assert coordinator.missing(2, at(4), at(1)).sinks == frozenset()  # another cut, and all of it is held
    with pytest.raises(Diverged, match=r"holds epoch 3 up to other positions.*'log': 9") as caught:
        coordinator.missing(3, at(9), at(4))
    assert "remove <checkpoint>/spark and start again" in caught.value.do
    assert ids(bench, "table") == [1, 2, 3, 4]


def test_a_sink_that_is_volatile_is_not_asked_for_positions(bench, monkeypatch):
    coordinator = bench.open("table", "memory")
    for epoch in (1, 2):
        commit(coordinator, epoch)
    bench.targets["memory"] = SimulatedTarget()
    coordinator = bench.coordinator("table", "memory")
    monkeypatch.setattr(coordinator.sinks_for_tests["memory"], "__class__", VolatileSink)
    coordinator.open()
    assert coordinator.missing(1, at(1), at(0)).sinks == frozenset()
    assert coordinator.missing(2, at(2), at(1)).sinks == frozenset()


def test_by_positions_a_sink_holds_an_epoch_under_whatever_number_it_came(bench):
    """Spark's directory was lost: epochs are counted on, and the first ones are cut at what the sinks hold."""
    commit(bench.open("table"), 4)
    coordinator = bench.open("table", "new", backfilled=["new"])
    claim = coordinator.missing(5, at(4), at(0))
    assert claim.sinks == {"new"}
    ended = EpochRecord(PIPELINE, 5, coordinator.generation, at(4))
    coordinator.commit(claim, ended, {"new": carried(5)})
    assert coordinator.missing(6, at(6), at(4)).sinks == {"table", "new"}


def test_a_new_sink_begins_where_the_others_go_on(bench):
    """The last epoch before it came is replayed: Spark's commit log lacked it."""
    commit(bench.open("table"), 4)
    coordinator = bench.open("table", "new")
    assert coordinator.missing(4, at(4), at(3)).sinks == frozenset()
    assert coordinator.missing(5, at(5), at(4)).sinks == {"table", "new"}
    assert bench.open("new", "other").missing(4, at(4), at(3)).sinks == {"new", "other"}, "nobody holds it"


@pytest.mark.parametrize("start", [3, 5])
def test_by_positions_a_sink_may_neither_lack_what_lies_before_nor_hold_a_part(bench, start):
    commit(bench.open("table"), 4)
    with pytest.raises(Diverged, match=r"holds everything up to .*'log': 4"):
        bench.open("table").missing(5, at(9), at(start))


def test_a_sink_that_is_volatile_is_not_blamed_for_forgetting(bench, monkeypatch):
    commit(bench.open("table", "memory"), 1)
    bench.targets["memory"] = SimulatedTarget()
    coordinator = bench.coordinator("table", "memory")
    monkeypatch.setattr(coordinator.sinks_for_tests["memory"], "__class__", VolatileSink)
    coordinator.open()
    assert coordinator.missing(1).sinks == frozenset()


def test_a_decision_for_a_sink_that_was_taken_out_of_the_graph_is_not_dropped(bench):
    coordinator = bench.open("table", "files")
    bench.failures.add("files", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable):
        commit(coordinator, 1)
    with pytest.raises(InvalidPipeline, match="'files', which pipeline 'trips' no longer has"):
        bench.open("table")
    bench.open("table", "files")
    assert ids(bench, "files") == [1]
    assert bench.open("table").missing(1).sinks == frozenset()


def test_an_at_least_once_sink_is_driven_the_same_way_and_not_blamed_for_forgetting(bench):
    bench.guarantees["console"] = Guarantee.AT_LEAST_ONCE
    coordinator = bench.open("table", "console")
    for epoch in (1, 2):
        commit(coordinator, epoch)
    coordinator = bench.open("table", "console")
    assert coordinator.missing(2).sinks == frozenset()
    commit(coordinator, 3)
    assert ids(bench, "console") == ids(bench, "table") == [1, 2, 3]


def test_an_at_least_once_sink_gets_a_decided_epoch_again(bench):
    bench.guarantees["console"] = Guarantee.AT_LEAST_ONCE
    coordinator = bench.open("console", "table")
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable):
        commit(coordinator, 1)
    bench.open("console", "table")
    assert ids(bench, "console") == [1, 1]
    assert ids(bench, "table") == [1]


def test_a_damaged_open_decision_stops_the_run(bench):
    coordinator = bench.open("table", "files", commit_thread=False)
    bench.failures.add("files", "publish", Failure.UNAVAILABLE, times=10)
    with pytest.raises(Unavailable):
        commit(coordinator, 1, as_staged=True)
    key = "ledger/000000000001-00000001"
    whole = bench.store.objects[key]
    bench.store.damage(key, keep=len(whole) // 2)
    with pytest.raises(Corrupt, match=key) as caught:
        bench.open("table", "files")
    assert "restore" in caught.value.do
    bench.store.objects[key] = whole
    bench.open("table", "files")
    assert ids(bench, "table") == ids(bench, "files") == [1]


def test_a_damaged_record_that_is_not_needed_stops_nothing(bench):
    coordinator = bench.open("table", "files")
    for epoch in (1, 2, 3):
        commit(coordinator, epoch)
    for epoch in (1, 3):
        bench.store.damage(f"ledger/{epoch:012d}-00000001", keep=30)
    coordinator = bench.open("table", "files")
    commit(coordinator, 4)
    assert ids(bench, "table") == [1, 2, 3, 4]


# --- sweep, close ---------------------------------------------------------------------------------------------------


def test_sweeping_never_touches_what_a_decision_names(bench):
    coordinator = bench.open("table", "files", commit_every_ticks=100)
    commit(coordinator, 1, pts=1000)
    for epoch in (2, 3):
        commit(coordinator, epoch, pts=1001, as_staged=True)
    staged(coordinator, "table", 1, task=9)
    assert coordinator.sweep(below_epoch=99) == 1
    coordinator.flush()
    assert ids(bench, "table") == ids(bench, "files") == [1, 2, 3]


def test_a_sink_that_cannot_be_swept_now_is_swept_later(bench):
    coordinator = bench.open("table")
    staged(coordinator, "table", 1)
    bench.failures.add("table", "sweep", Failure.UNAVAILABLE)
    assert coordinator.sweep(below_epoch=2) == 0
    assert coordinator.sweep(below_epoch=2) == 1


def test_orphans_that_this_user_may_not_remove_stop_no_run(bench, monkeypatch):
    coordinator = bench.open("table")
    staged(coordinator, "table", 1)

    def refused(*_, **__):
        raise InvalidPipeline("Removing 1.arrow in /data failed.", why="Permission denied.")

    with monkeypatch.context() as closed:
        closed.setattr(SimulatedSink, "sweep", refused)
        assert coordinator.sweep(below_epoch=2) == 0
    assert coordinator.sweep(below_epoch=2) == 1


def test_close_may_be_called_at_any_time_and_again(bench):
    bench.coordinator("table").close()
    coordinator = bench.open("table")
    coordinator.close()
    coordinator.close()


def test_a_sink_that_raises_when_it_is_closed_keeps_no_other_one_open(bench, caplog):
    coordinator = bench.open("table", "files")
    closed = []

    def refuse():
        raise OSError("the connection is gone")

    coordinator.sinks_for_tests["table"].close = refuse
    coordinator.sinks_for_tests["files"].close = lambda: closed.append("files")
    coordinator.close()
    assert closed == ["files"]
    assert "sink 'table' could not be closed" in caplog.text


@pytest.mark.slow
def test_stories_are_bounded(bench):
    coordinator = bench.open("table")
    for epoch in range(1, 200):
        commit(coordinator, epoch)
    assert coordinator.story(1) == []
    assert coordinator.story(199) != []


# --- grouping -------------------------------------------------------------------------------------------------------


def test_a_group_becomes_visible_when_pts_has_moved(bench):
    coordinator = bench.open("table", commit_every_ticks=100)
    seen = []
    for epoch, pts in enumerate([1000, 1040, 1099, 1100, 1150, 1250], start=1):
        commit(coordinator, epoch, pts=pts)
        seen.append(len(ids(bench, "table")))
    assert seen == [1, 1, 1, 4, 4, 6]
    assert [line for line in bench.process.trace if "commit" in line] == [
        "sink table commit 1",
        "sink table commit 4",
        "sink table commit 6",
    ]


def test_flush_publishes_the_rest_of_a_group(bench):
    coordinator = bench.open("table", "files", commit_every_ticks=100)
    for epoch in (1, 2, 3):
        commit(coordinator, epoch, pts=1000)
    assert ids(bench, "files") == [1]
    coordinator.flush()
    assert ids(bench, "table") == ids(bench, "files") == [1, 2, 3]
    assert set(bench.standings().values()) == {Standing.DONE}


@pytest.mark.slow
def test_a_group_may_have_more_epochs_than_stories_are_kept(bench):
    coordinator = bench.open("table", commit_every_ticks=10**9)
    for epoch in range(1, 151):
        commit(coordinator, epoch, pts=1000 + epoch)
    coordinator.flush()
    assert ids(bench, "table") == list(range(1, 151))
    assert set(bench.standings().values()) == {Standing.DONE}
    assert coordinator.story(1) == []


def test_a_group_that_was_decided_is_published_by_the_next_run_and_pts_goes_on(bench):
    coordinator = bench.open("table", commit_every_ticks=100)
    for epoch in (1, 2, 3):
        commit(coordinator, epoch, pts=1000 + epoch)
    coordinator = bench.open("table", commit_every_ticks=100)
    assert ids(bench, "table") == [1, 2, 3]
    commit(coordinator, 4, pts=1050)
    assert ids(bench, "table") == [1, 2, 3]
    commit(coordinator, 5, pts=1103)
    assert ids(bench, "table") == [1, 2, 3, 4, 5]


def test_a_group_is_published_early_when_the_driver_holds_too_many_rows(bench):
    coordinator = bench.open("table", commit_every_ticks=10**9, carried_limit_bytes=24)
    for epoch in range(1, 5):
        commit(coordinator, epoch, pts=epoch)
    assert ids(bench, "table") == [1, 2, 3, 4]


def test_an_epoch_without_a_timestamp_is_published_at_once_with_whatever_waits(bench):
    """An input declares a timestamp and has had no row yet."""
    coordinator = bench.open("table", commit_every_ticks=100)
    seen = []
    for epoch, pts in enumerate([None, None, 1000, 1040, None, 1050, 1099, 1100], start=1):
        commit(coordinator, epoch, pts=pts)
        seen.append(len(ids(bench, "table")))
    assert seen == [1, 2, 3, 3, 5, 5, 5, 8]
    assert set(bench.standings().values()) == {Standing.DONE}


@pytest.mark.parametrize("failure", [Failure.BREAK_BEFORE, Failure.BREAK_AFTER])
def test_a_lost_reply_to_a_groups_commit_is_settled_for_the_whole_group(bench, failure):
    coordinator = bench.open("table", "files", commit_every_ticks=100)
    commit(coordinator, 1, pts=1000)
    commit(coordinator, 2, pts=1001)
    bench.failures.add("table", "publish", failure)
    commit(coordinator, 3, pts=1100)
    assert ids(bench, "table") == ids(bench, "files") == [1, 2, 3]
    assert coordinator.story(2)[-1].after is State.FORGOTTEN


# --- the commit thread ----------------------------------------------------------------------------------------------


class Gate:
    """Holds a sink's publish until it is opened."""

    def __init__(self, sink):
        self._publish, sink.publish = sink.publish, self.publish
        self.entered, self.opened = threading.Event(), threading.Event()

    def publish(self, publications, expected):
        self.entered.set()
        assert self.opened.wait(10)
        self._publish(publications, expected)


def test_staged_epochs_are_published_behind_the_engines_back(bench):
    coordinator = bench.open("table", "files")
    gate = Gate(coordinator.sinks_for_tests["table"])
    for epoch in (1, 2, 3):
        commit(coordinator, epoch, as_staged=True)
    assert ids(bench, "table") == []
    assert gate.entered.wait(10)
    seen = coordinator.statistics()
    assert (seen.queue_length, seen.decided_unpublished) == (3, 3)
    gate.opened.set()
    coordinator.flush()
    assert ids(bench, "table") == ids(bench, "files") == [1, 2, 3]
    assert coordinator.statistics().decided_unpublished == 0


class Admitting:
    """Lets the commit thread finish before a sink's answer, whether it takes an epoch, is heard."""

    def __init__(self, sink, gate, lane):
        self._gate, self._lane = gate, lane
        self._admit, sink.admit = sink.admit, self.admit

    def admit(self, publication, earlier=()):
        try:
            return self._admit(publication, earlier)
        finally:
            self._gate.opened.set()
            self._lane.wait()


def test_a_sink_that_tried_rows_is_asked_again_though_the_commit_thread_is_done_by_then(bench):
    """The trial was before the publishing: what this epoch collides with came in between."""
    lane = ThreadLane("commit", 4)
    coordinator = bench.open("table", "files", lane=lane)
    gate = Gate(coordinator.sinks_for_tests["table"])
    commit(coordinator, 1, as_staged=True)
    assert gate.entered.wait(10)
    bench.target("table").refuses = lambda row: 1 in ids(bench, "table") and row["id"] == 2
    Admitting(coordinator.sinks_for_tests["files"], gate, lane)
    with pytest.raises(BadRow) as caught:
        commit(coordinator, 2, as_staged=True)
    assert not caught.value.is_decided
    assert bench.standings() == {1: Standing.DONE}


def test_a_sink_that_refuses_rows_is_asked_again_when_the_commit_thread_is_done(bench):
    """What a foreign key points to may be in the epoch before."""
    lane = ThreadLane("commit", 4)
    coordinator = bench.open("table", "files", lane=lane)
    gate = Gate(coordinator.sinks_for_tests["table"])
    commit(coordinator, 1, as_staged=True)
    assert gate.entered.wait(10)
    bench.target("table").refuses = lambda row: 1 not in ids(bench, "table") and row["id"] == 2
    Admitting(coordinator.sinks_for_tests["table"], gate, lane)
    commit(coordinator, 2, as_staged=True)
    coordinator.flush()
    assert ids(bench, "table") == ids(bench, "files") == [1, 2]


def test_a_carried_epoch_waits_until_the_queue_is_empty(bench):
    coordinator = bench.open("table", "files")
    commit(coordinator, 1, as_staged=True)
    commit(coordinator, 2, as_staged=True)
    commit(coordinator, 3)
    assert ids(bench, "table") == ids(bench, "files") == [1, 2, 3]


def test_without_the_thread_a_staged_epoch_is_visible_when_commit_returns(bench):
    coordinator = bench.open("table", "files", commit_thread=False)
    commit(coordinator, 1, as_staged=True)
    assert ids(bench, "files") == [1]


def test_a_failure_of_the_thread_stops_the_run_at_the_next_call(bench):
    coordinator = bench.open("table", "files")
    bench.failures.add("table", "publish", Failure.UNAVAILABLE, times=10)
    commit(coordinator, 1, as_staged=True)
    with pytest.raises(Unavailable, match="epoch 1 of pipeline 'trips' could not be published") as caught:
        coordinator.flush()
    assert "History of epoch 1" in caught.value.__notes__[0]
    with pytest.raises(Unavailable):
        coordinator.missing(2)
    bench.open("table", "files")
    assert ids(bench, "table") == ids(bench, "files") == [1]


def test_sweeping_does_not_wait_for_a_sink_that_is_publishing(bench):
    coordinator = bench.open("table", "files")
    gate = Gate(coordinator.sinks_for_tests["table"])
    commit(coordinator, 1, as_staged=True)
    assert gate.entered.wait(10)
    coordinator.sweep(below_epoch=1)
    gate.opened.set()
    coordinator.flush()


def test_closing_leaves_what_waits_to_the_next_run(bench):
    coordinator = bench.open("table", "files")
    gate = Gate(coordinator.sinks_for_tests["table"])
    for epoch in (1, 2, 3):
        commit(coordinator, epoch, as_staged=True)
    assert gate.entered.wait(10)
    closing = threading.Thread(target=coordinator.close)
    closing.start()
    gate.opened.set()
    closing.join()
    assert ids(bench, "table") in ([1], [1, 2], [1, 2, 3])
    bench.open("table", "files")
    assert ids(bench, "table") == ids(bench, "files") == [1, 2, 3]
