"""Sinks are asked without being opened; one that does not answer hides nothing of the others."""

from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.schemas import note_schema
from holdfast.cli.words import inspection_lines, verdict_lines
from holdfast.commit.ledger import Standing
from holdfast.commit.owner import Owner
from holdfast.commit.recovery import Decision, Verdict
from holdfast.errors import Unavailable
from holdfast.graph.trigger import SinkPace
from holdfast.json_values import as_json
from holdfast.observe.inspection import DecisionSummary, Inspection, SparkHeads
from holdfast.observe.sink_answers import held_when_resolved, highest_held, inspect_sinks, questions
from holdfast.observe.transactions import transaction_lines
from holdfast.ports import Guarantee, Held, OpenTransaction, Outcome, WaitingReaders
from holdfast.testing.store import SimulatedStore

SCHEMA = pa.schema([("x", pa.int64())])


@dataclass
class FakeSink:
    """Holds everything up to an epoch."""

    holds: int
    name: str = "target"
    staging: str = "fake"
    asked: int = 0
    is_closed: bool = False
    is_away: bool = False

    def outcome(self, epoch):
        self.asked += 1
        if self.is_away:
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if epoch <= self.holds else Outcome.ABSENT

    def close(self):
        self.is_closed = True


class TalkativeSink(FakeSink):
    def inspect(self):
        return Held(self.holds, generation=9, positions={"rides": {"log": 5}}), ["p/1/2/3/0"]


@dataclass
class FakeNode:
    sink: FakeSink
    kind: str = "fake"
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    error: Exception | None = None
    pace: object = None

    @property
    def name(self):
        return self.sink.name

    @property
    def spec(self):
        return self

    def connect(self, name, pipeline, schema):
        if self.error:
            raise self.error
        assert schema == SCHEMA
        return self.sink


@dataclass
class FakePipeline:
    sinks: list
    name: str = "trips"
    sources: tuple = ()
    commit_at: object = None


def a_store():
    store = SimulatedStore()
    note_schema(store, "target", SCHEMA)
    return store


def an_inspection(*decisions, planned=0, last_done=0):
    return Inspection("ckpt", "trips", 1, Owner(), last_done, decisions, (SparkHeads("spark/1", 1, planned, 0),))


def asked(node, inspection=None, store=None):
    (report,) = inspect_sinks(FakePipeline([node]), store or a_store(), inspection or an_inspection())
    return report


@pytest.mark.slow
@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_highest_held_epoch_is_found_by_asking_few_questions(holds, guess):
    sink = FakeSink(holds)
    assert highest_held(sink, guess) == holds
    assert sink.asked <= 3 * 31 + 5


def test_a_sink_that_claims_to_hold_everything_ends_the_search():
    assert highest_held(FakeSink(2**100)) >= 2**62 - 1


def test_a_sink_that_does_not_answer_is_not_taken_for_empty():
    with pytest.raises(Unavailable, match="'target' does not answer"):
        highest_held(FakeSink(7, is_away=True))
    report = asked(FakeNode(sink := FakeSink(7, is_away=True)))
    assert report.held is None
    assert "does not answer" in report.problem
    assert sink.is_closed


def test_a_sink_without_more_to_say_is_asked_by_epoch_and_placed_by_the_ledger():
    done = DecisionSummary(7, 1, Standing.DONE, {"rides": {"log": 70}}, rows={"target": 3})
    report = asked(FakeNode(sink := FakeSink(7)), an_inspection(done, last_done=7))
    assert report.held == Held(7, positions={"rides": {"log": 70}})
    assert report.orphans is None
    assert sink.is_closed


def test_a_sink_that_can_say_more_is_listened_to():
    report = asked(FakeNode(TalkativeSink(7)))
    assert (report.held.generation, report.orphans) == (9, ("p/1/2/3/0",))


class ControlledSink(FakeSink):
    def control_counts(self):
        return {"schema": 2, "partition": 1}


def test_a_sink_says_how_many_control_rows_it_has_carried_out():
    inspection = replace(an_inspection(), sinks=(asked(FakeNode(ControlledSink(7))),))
    assert "  control rows: 2 changed its columns, 1 dropped partitions" in list(inspection_lines(inspection))
    assert asked(FakeNode(FakeSink(7))).controls == {}


def open_epochs(*epochs):
    return [
        DecisionSummary(epoch, 1, Standing.OPEN, {"rides": {"log": epoch}}, rows={"target": 3, "other": 1})
        for epoch in epochs
    ]


def test_what_a_start_will_find_in_a_sink_is_all_that_the_last_decision_says():
    node = FakeNode(FakeSink(4))
    waiting = [replace(each, recent_ends=f"to {each.epoch}") for each in open_epochs(5, 6)]
    inspection = an_inspection(*waiting, planned=6, last_done=4)
    inspection = replace(inspection, sinks=(asked(node, inspection),))
    found = held_when_resolved(FakePipeline([node]), inspection)
    assert found is not None
    held = found["target"]
    assert (held.epoch, held.positions, held.recent_ends) == (6, {"rides": {"log": 6}}, "to 6")
    assert "recent_ends" not in str(as_json(inspection)), "up to fifty epochs long, and for nobody to read"


def test_what_waits_for_a_sink_with_a_pace_is_no_finding_while_a_run_is_alive():
    node = FakeNode(FakeSink(4), pace=SinkPace(every_us=30_000_000))
    waiting = [replace(each, rows={"target": 3}) for each in open_epochs(5, 6, 7)]
    inspection = an_inspection(*waiting, planned=7, last_done=4)
    report = asked(node, inspection)
    assert (report.pace, report.waiting, report.waiting_rows) == ("30 s", (5, 6, 7), 9)
    for is_alive, is_found in ((True, False), (False, True)):
        seen = replace(inspection, owner=Owner(1, is_alive=is_alive), sinks=(report,))
        text = "\n".join(inspection_lines(seen))
        assert "commits every 30 s; epochs 5 to 7 wait for it in the ledger, 9 rows" in text
        assert "epoch 6: it will be published" not in text
        assert ("! decided, and not known to be published everywhere: epoch 5, 6, 7." in text) == is_found
    assert "nothing waits for it" in "\n".join(inspection_lines(an_inspection_of(node)))


def test_of_many_epochs_that_wait_a_dry_run_says_what_becomes_of_all_at_once():
    node = FakeNode(FakeSink(4), pace=SinkPace(every_us=30_000_000))
    for count, lines in ((3, ["epoch 5", "epoch 6", "epoch 7"]), (40, ["epochs 5 to 44"])):
        inspection = an_inspection(*open_epochs(*range(5, 5 + count)), last_done=4)
        said = verdict_lines(replace(inspection, sinks=(asked(node, inspection),)))
        assert [line.partition(" -> ")[0] for line in said] == [
            f"{line}, target: ledger commit, sink absent" for line in lines
        ]


def an_inspection_of(node):
    return replace(an_inspection(), sinks=(asked(node),))


def test_an_epoch_that_another_sink_lacks_too_is_a_finding():
    slow, other = FakeNode(FakeSink(4), pace=SinkPace(every_epochs=9)), FakeNode(FakeSink(5, name="other"))
    store = a_store()
    note_schema(store, "other", SCHEMA)
    inspection = an_inspection(*open_epochs(5, 6), last_done=4)
    reports = inspect_sinks(FakePipeline([slow, other]), store, inspection)
    assert replace(inspection, sinks=reports).open_without_reason == (6,)
    assert inspection.open_without_reason == (5, 6), "nobody was asked"
    assert replace(inspection, sinks=reports[:1]).open_without_reason == (5, 6), "one did not answer"
    other.sink.holds = slow.sink.holds = 9
    reports = inspect_sinks(FakePipeline([slow, other]), store, inspection)
    assert replace(inspection, sinks=reports).open_without_reason == (), "they are forgotten little by little"


@pytest.mark.parametrize(
    ("staged", "is_orphan"),
    [
        ("trips/1/6/0/0", True),  # of a generation that is gone
        ("trips/1/7/0/0", False),  # decided: recovery publishes it
        ("trips/2/5/0/0", True),  # of an epoch that the sink holds: a second attempt
        ("trips/2/8/0/0", False),  # may be at work
    ],
)
def test_staged_rows_are_orphans_when_nobody_speaks_of_them(staged, is_orphan):
    class Sink(FakeSink):
        def inspect(self):
            return Held(self.holds, generation=2), [staged]

    alive = Owner(2, is_alive=True)
    decision = DecisionSummary(7, 1, Standing.OPEN, rows={"target": 1})
    inspection = Inspection("ckpt", "trips", 1, alive, 6, (decision,), ())
    assert asked(FakeNode(Sink(6)), inspection).orphans == ((staged,) if is_orphan else ())


def test_what_a_dead_run_was_at_work_on_is_orphaned():
    class Sink(FakeSink):
        def inspect(self):
            return Held(self.holds, generation=2), ["trips/2/8/0/0"]

    dead = Inspection("ckpt", "trips", 1, Owner(2, is_alive=False), 6, (), ())
    assert asked(FakeNode(Sink(6)), dead).orphans == ("trips/2/8/0/0",)


class OpenSink(TalkativeSink):
    """Something is open in its system."""

    def open_transactions(self):
        return [
            OpenTransaction("", "Ongoing", 2.0, 60.0),
            OpenTransaction("trips/2/6/0/0", "Ongoing", 300.0, 900.0, is_decided=True),
            OpenTransaction("trips/2/7/0/1", "Ongoing", 40.0, 900.0),
            OpenTransaction("trips/2/8/0/2", "PrepareCommit", 30.0, 900.0),
        ]

    def waiting_readers(self):
        return [WaitingReaders("rides/0", 1_000, 1_250)]


@pytest.mark.parametrize(
    ("is_alive", "of_driver", "of_epoch_8"),
    [
        (False, "of a run that is gone: the next start ends it", "an orphan: the next run aborts it"),
        (True, "at work", "at work"),
    ],
)
def test_what_is_open_in_a_sink_says_what_becomes_of_it_and_who_waits(is_alive, of_driver, of_epoch_8):
    """The ledger of the checkpoint has decided epoch 7, that of the sink epoch 6."""
    several = [DecisionSummary(7, 2, Standing.OPEN, rows={"target": 1})]
    inspection = replace(an_inspection(*several), owner=Owner(2, is_alive=is_alive))
    report = asked(FakeNode(OpenSink(6)), inspection)
    assert list(transaction_lines(report)) == [
        "transaction trips/2/6/0/0: Ongoing, open for 300 s, at most 900 s; decided: the next start commits it",
        "transaction trips/2/7/0/1: Ongoing, open for 40 s, at most 900 s; decided: the next start commits it",
        f"transaction trips/2/8/0/2: PrepareCommit, open for 30 s, at most 900 s; {of_epoch_8}",
        f"transaction of the driver: Ongoing, open for 2 s, at most 60 s; {of_driver}",
        "readers of rides/0 wait at 1,000, 250 before its end",
    ]
    shown = list(inspection_lines(replace(inspection, sinks=(report,))))
    assert "  readers of rides/0 wait at 1,000, 250 before its end" in shown
    said = as_json(report)
    assert said["transactions"][1]["transaction"]["is_decided"]
    assert said["waiting_readers"] == [{"place": "rides/0", "readable": 1_000, "end": 1_250}]


def test_of_much_that_is_open_a_few_lines_are_shown():
    report = asked(FakeNode(OpenSink(6)), an_inspection())
    many = replace(report, transactions=report.transactions * 3, waiting_readers=report.waiting_readers * 7)
    lines = list(transaction_lines(many))
    assert lines[5] == "and 7 more transactions are open"
    assert lines[-1] == "and so do those of 2 more"


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (FakeNode(FakeSink(1), guarantee=Guarantee.AT_LEAST_ONCE), "keeps no ledger"),
        (FakeNode(FakeSink(1), kind="memory"), "process of the run"),
        (FakeNode(FakeSink(1, name="new")), "never opened by this checkpoint: what it holds is not known"),
        (
            FakeNode(FakeSink(1), error=Unavailable("the database is away.\nand more")),
            "Unavailable: the database is away.",
        ),
        (FakeNode(FakeSink(1), error=OSError()), "OSError: no message"),
    ],
)
def test_a_sink_that_cannot_be_asked_says_why_in_one_line(node, problem):
    report = asked(node)
    assert problem in report.problem
    assert "\n" not in report.problem
    assert report.held is None


def test_the_questions_are_the_last_done_every_open_one_and_the_last_planned():
    several = [
        DecisionSummary(4, 1, Standing.DONE, rows={"target": 1}),
        DecisionSummary(5, 1, Standing.DONE, rows={"target": 1, "other": 1}),
        DecisionSummary(6, 1, Standing.OPEN, rows={"target": 1}),
        DecisionSummary(7, 1, Standing.OPEN, rows={"other": 1}),
        DecisionSummary(8, 1, Standing.VOID, rows={"target": 1}),
        DecisionSummary(9, 1, Standing.DAMAGED),
    ]
    inspection = an_inspection(*several, planned=8, last_done=5)
    assert questions(inspection, "target") == [(5, Decision.DONE), (6, Decision.COMMIT), (8, Decision.NONE)]
    assert questions(inspection, "other") == [(5, Decision.DONE), (7, Decision.COMMIT), (8, Decision.NONE)]


def test_the_verdict_is_that_of_the_recovery_table():
    several = [
        DecisionSummary(5, 1, Standing.DONE, rows={"target": 1}),
        DecisionSummary(6, 1, Standing.OPEN, rows={"target": 1}),
    ]
    report = asked(FakeNode(FakeSink(4)), an_inspection(*several, planned=7, last_done=5))
    assert [(a.epoch, a.verdict) for a in report.answers] == [
        (5, Verdict.REPLAY),
        (6, Verdict.PUBLISH),
        (7, Verdict.ABORT),
    ]
    assert all(answer.why for answer in report.answers)
