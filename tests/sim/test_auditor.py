"""Does the auditor notice?  Deliberately broken sinks and coordinators, and what it says of them."""

import pytest

from holdfast.commit import claims
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.delivery import Delivery
from holdfast.commit.group import Underway
from holdfast.commit.publishing import Publisher
from holdfast.commit.records import Decided, Done
from holdfast.commit.recovery import VERDICTS, Decision, Verdict
from holdfast.commit.takeover import OpenDecisions
from holdfast.commit.transaction import Event
from holdfast.errors import HoldfastError, InDoubt, Unavailable
from holdfast.ports import Outcome
from holdfast.testing import SimulatedSink, audit_rows, audit_values, simulate

SEEDS = range(400)


class PublishesTwice(SimulatedSink):
    """Does not leave out what it holds."""

    def _publish(self, publications, expected):
        self._row.epoch = 0
        super()._publish(publications, self._row.held())


class ForgetsRows(SimulatedSink):
    """Loses the second of several parts."""

    def _publish(self, publications, expected):
        super()._publish([type(each)(each.record, each.parts[:1]) for each in publications], expected)


class SweepsAtOpen(SimulatedSink):
    """Drops what dead runs staged before the coordinator has looked what of it is decided."""

    def _open(self, run):
        held = super()._open(run)
        self.target.staged.clear()
        return held


class SaysAbsent(SimulatedSink):
    """Answers ABSENT to everything, so that what it holds is produced again."""

    def _outcome(self, epoch):
        return Outcome.ABSENT

    def _publish(self, publications, expected):
        self._row.epoch = publications[0].record.epoch - 1
        super()._publish(publications, self._row.held())


class RetriesBlindly(SimulatedSink):
    """Takes a lost reply for a failure."""

    def publish(self, publications, expected):
        try:
            super().publish(publications, self._row.held())
        except InDoubt as doubt:
            self._row.epoch = publications[0].record.epoch - 1
            raise Unavailable(doubt.what) from doubt


class PublishesBackwards(SimulatedSink):
    """Shows the parts of an epoch in the wrong order."""

    def _publish(self, publications, expected):
        super()._publish([type(each)(each.record, each.parts[::-1]) for each in publications], expected)


def notices(**broken):
    """Yield what the seeds say; an error that stops the run is a notice as well."""
    for seed in SEEDS:
        try:
            yield from simulate(seed, **broken).problems
        except HoldfastError as error:
            yield type(error).__name__


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (ForgetsRows, "lost"),
        (SweepsAtOpen, "Diverged"),
        (SaysAbsent, "doubled"),
        (RetriesBlindly, "doubled"),
        (PublishesBackwards, "out of order"),
    ],
)
def test_a_broken_sink_is_noticed(broken, says):
    assert any(says in notice for notice in notices(make_sink=broken))


def forgets_first(publisher, group):
    """Forget the decision before the sinks have published it."""
    for entry in group:
        if entry.key:
            publisher._ledger.forget(entry.key, Done(entry.record, {}))
    return STEPS(publisher, [Underway(entry.decided, None) for entry in group])


def sweeps_first(decisions, takeover, behind, expired, on_refused=None):
    """Sweep before what was decided is published."""
    decisions._delivery.sweep(10**6)
    return RESOLVE(decisions, takeover, behind, expired, on_refused)


STEPS, RESOLVE = Publisher._steps, OpenDecisions.resolve


@pytest.mark.parametrize(
    ("owner", "name", "broken", "says"),
    [(Publisher, "_steps", forgets_first, "lost"), (OpenDecisions, "resolve", sweeps_first, "Diverged")],
)
def test_a_broken_order_is_noticed(monkeypatch, owner, name, broken, says):
    monkeypatch.setattr(owner, name, broken)
    assert any(says in notice for notice in notices())


class NeverDecides(Coordinator):
    """Publishes several sinks without a decision."""

    def commit(self, claim, record, parts):
        decided = Decided(record, {name: tuple(several) for name, several in parts.items()})
        self._claims.check(claim, decided)
        self._stories.take(record.epoch, Event.STAGE)
        self._claims.use(decided)
        self._publisher.carry_out([Underway(decided, None)])


def test_a_broken_coordinator_is_noticed():
    assert any("two values" in notice for notice in notices(make_coordinator=NeverDecides))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "wrong"),
    [
        ((Decision.COMMIT, Outcome.ABSENT), Verdict.SKIP),
        ((Decision.LIVE, Outcome.ABSENT), Verdict.SKIP),
    ],
)
def test_a_wrong_row_in_the_table_of_verdicts_is_noticed(monkeypatch, pair, wrong):
    monkeypatch.setitem(VERDICTS, pair, wrong)
    assert next(notices(), None) is not None


@pytest.mark.slow
def test_asking_comparing_positions_what_was_said_and_idempotence_are_four_lines_of_defence(monkeypatch):
    """Any one is enough that no row is doubled; without all four, rows are."""
    assert next(notices(make_sink=PublishesTwice), "Diverged") == "Diverged"
    monkeypatch.setitem(VERDICTS, (Decision.NONE, Outcome.PUBLISHED), Verdict.ABORT)
    assert next(notices(make_sink=PublishesTwice), "Diverged") == "Diverged"
    monkeypatch.setattr(claims, "needs", lambda *_: True)
    assert next(notices(make_sink=PublishesTwice), "Diverged") == "Diverged"
    monkeypatch.setattr(Delivery, "_check_ascending", lambda *_: None)
    assert next(notices(), None) is None
    assert any("doubled" in notice for notice in notices(make_sink=PublishesTwice))


def test_the_auditor_names_what_is_wrong():
    good = [(0, "segment0", 0, 0.5), (1, "segment1", 0, 1.5), (2, "segment0", 1, 2.5)]
    assert audit_rows(0, 3, good) == []
    assert audit_rows(0, 3, good[:2]) == ["lost: 2"]
    assert audit_rows(0, 3, [*good, good[0]]) == ["doubled: 0"]
    assert audit_rows(0, 2, good) == ["foreign: 2"]
    assert audit_rows(0, 3, [good[2], *good[:2]]) == ["segment0 out of order: [1, 0]"]
    assert audit_values([good, [(1, "segment1", 0, 9.0)]]) == ["row 1 has two values: 1.5 and 9.0"]
