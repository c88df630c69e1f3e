"""Does the auditor notice?  Deliberately broken sinks and coordinators, and what it says of them."""

import pytest

from holdfast.commit import coordinator as module
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.group import Underway
from holdfast.commit.recovery import VERDICTS, Decision, Verdict
from holdfast.errors import HoldfastError, InDoubt, Unavailable
from holdfast.ports import Outcome
from holdfast.testing import SimulatedSink, audit_rows, audit_values, simulate

SEEDS = range(400)


class PublishesTwice(SimulatedSink):
    """Does not leave out what it holds."""

    def _publish(self, publications, believed):
        self._row.epoch = 0
        super()._publish(publications, self._row.held())


class ForgetsRows(SimulatedSink):
    """Loses the second of several parts."""

    def _publish(self, publications, believed):
        super()._publish([type(each)(each.record, each.parts[:1]) for each in publications], believed)


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

    def _publish(self, publications, believed):
        self._row.epoch = publications[0].record.epoch - 1
        super()._publish(publications, self._row.held())


class RetriesBlindly(SimulatedSink):
    """Takes a lost reply for a failure."""

    def publish(self, publications, believed):
        try:
            super().publish(publications, self._row.held())
        except InDoubt as doubt:
            self._row.epoch = publications[0].record.epoch - 1
            raise Unavailable(doubt.what) from doubt


class PublishesBackwards(SimulatedSink):
    """Shows the parts of an epoch in the wrong order."""

    def _publish(self, publications, believed):
        super()._publish([type(each)(each.record, each.parts[::-1]) for each in publications], believed)


def notices(**broken):
    """Yield what the seeds say; an error that stops the run is a notice as well."""
    for seed in SEEDS:
        try:
            yield from simulate(seed, **broken).problems
        except HoldfastError as error:
            yield type(error).__name__


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


class ForgetsFirst(Coordinator):
    """Forgets the decision before the sinks have published it."""

    def _carry_out(self, group, wanted=None):
        for entry in group:
            if entry.key:
                self._ledger.forget(entry.key, module.Done(entry.record, {}))
        yield from super()._carry_out([Underway(entry.decided, None) for entry in group], wanted)


class SweepsFirst(Coordinator):
    """Sweeps before it has published what was decided."""

    def _resolve(self, takeover, on_refused):
        self._delivery.sweep(10**6)
        yield from super()._resolve(takeover, on_refused)


class NeverDecides(Coordinator):
    """Publishes several sinks without a decision."""

    def commit(self, record, parts):
        decided = module.Decided(record, {name: tuple(several) for name, several in parts.items()})
        self._check_commit(decided)
        self._stories.take(record.epoch, module.Event.STAGE)
        self._last_epoch = record.epoch
        for _ in self._carry_out([Underway(decided, None)]):
            pass


@pytest.mark.parametrize(
    ("broken", "says"),
    [(ForgetsFirst, "lost"), (SweepsFirst, "Diverged"), (NeverDecides, "two values")],
)
def test_a_broken_coordinator_is_noticed(broken, says):
    assert any(says in notice for notice in notices(make_coordinator=broken))


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
def test_asking_comparing_positions_and_idempotence_are_three_lines_of_defence(monkeypatch):
    """Any one is enough for the seeds; without all three, rows are doubled."""
    assert next(notices(make_sink=PublishesTwice), "Diverged") == "Diverged"
    monkeypatch.setitem(VERDICTS, (Decision.NONE, Outcome.PUBLISHED), Verdict.ABORT)
    assert next(notices(make_sink=PublishesTwice), "Diverged") == "Diverged"
    monkeypatch.setattr(module, "needs", lambda *_: True)
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
