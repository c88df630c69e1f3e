"""What a sink must do whose ledger was removed, by hand or by a reset: it begins as if it had never been there."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.ports import Explanation, Held, LedgerSpec, RunIdentity, Sink
from tests.contract.explaining_contract import epoch, kept, opened, texts, told
from tests.contract.sink_contract import PIPELINE, Row, carried, stage_rows


class LosableTarget(Protocol):
    """A target whose ledger can be removed as somebody would who starts over."""

    spec: LedgerSpec

    def connect(self, name: str = "target", pipeline: str = PIPELINE) -> Sink:
        """Return a new runtime of the sink."""

    def lose_ledger(self) -> None:
        """Remove the row of the sink's ledger, and nothing else."""


class LostLedgerContract:
    """The promises."""

    def test_what_nobody_holds_explains_nothing(self, target: LosableTarget) -> None:
        """Positions of a ledger that is gone mean nothing: they are forgotten, and replaced (design/0018)."""
        sink = opened(target)
        sink.publish([epoch(1, told("lines", 1, 2), recent_ends="said")], Held())
        sink.close()
        target.lose_ledger()
        assert target.spec.ledger("target", PIPELINE) is None
        again = target.connect()
        assert kept(again) == {}, "asked before it is opened"
        held = again.open(RunIdentity(PIPELINE, 1))
        assert (held.epoch, held.explained, held.recent_ends) == (0, {}, "")
        other = (Explanation("lines", 1, '{"of": "another log"}'),)
        again.publish([epoch(1, other)], held)
        assert kept(again) == {"lines": ['{"of": "another log"}']}
        again.close()
        found = target.spec.ledger("target", PIPELINE)
        assert found is not None
        assert found.explanations == other


class ResettableTarget(LosableTarget, Protocol):
    """A target that a reset can empty."""

    spec: Any

    def rows(self) -> list[Row]:
        """Return what any reader sees, in any order."""

    def leftovers(self) -> list[str]:
        """Return a name for everything staged that still exists."""


class ResetContract:
    """The promises of :class:`~holdfast.ports.ResettableSpec` (design/0042)."""

    def test_a_reset_leaves_nothing_and_a_new_run_begins_as_the_first_one(self, target: ResettableTarget) -> None:
        _publish(target, generation=7)
        found = target.spec.reset("target", PIPELINE, rows=True, is_dry_run=False)
        assert found.removed, "it says what goes"
        assert found.stays == ()
        assert (target.rows(), target.leftovers()) == ([], [])
        assert target.spec.ledger("target", PIPELINE) is None
        again = target.connect()
        held = again.open(RunIdentity(PIPELINE, 1))
        assert (held.epoch, held.generation, held.explained) == (0, 0, {})
        again.publish([carried(1, [(9, "nine")])], held)
        assert target.rows() == [(9, "nine")]
        again.close()

    def test_a_dry_run_says_the_same_and_changes_nothing(self, target: ResettableTarget) -> None:
        _publish(target, generation=7)
        before = target.spec.ledger("target", PIPELINE), sorted(target.rows()), target.leftovers()
        said = target.spec.reset("target", PIPELINE, rows=True, is_dry_run=True)
        assert (target.spec.ledger("target", PIPELINE), sorted(target.rows()), target.leftovers()) == before
        assert said == target.spec.reset("target", PIPELINE, rows=True, is_dry_run=False)

    def test_what_is_gone_is_not_removed_again(self, target: ResettableTarget) -> None:
        _publish(target, generation=7)
        target.spec.reset("target", PIPELINE, rows=True, is_dry_run=False)
        again = target.spec.reset("target", PIPELINE, rows=True, is_dry_run=False)
        assert (again.removed, again.stays) == ((), ())

    def test_another_sink_of_the_same_system_keeps_its_ledger(self, target: ResettableTarget) -> None:
        other = opened(target, name="other")
        other.publish([epoch(1, told("lines", 1))], Held())
        _publish(target, generation=7)
        target.spec.reset("target", PIPELINE, rows=True, is_dry_run=False)
        assert kept(other) == {"lines": texts("lines", 1)}
        other.publish([epoch(2)], Held(1, positions={"lines": {"log": 10}}))
        other.close()

    def test_a_run_that_has_it_open_publishes_nothing_more(self, target: ResettableTarget) -> None:
        """A reset refuses while a process is alive here; one on another machine is fenced by it."""
        sink = target.connect()
        held = sink.open(RunIdentity(PIPELINE, 7))
        sink.publish([carried(1, [(1, "one")], generation=7)], held)
        target.spec.reset("target", PIPELINE, rows=True, is_dry_run=False)
        with pytest.raises(HoldfastError):
            sink.publish([carried(2, [(2, "two")], generation=7)], Held(1, 7, {"lines": {"log": 10}}))
        assert target.rows() == []
        again = target.connect()
        fresh = again.open(RunIdentity(PIPELINE, 1))
        with pytest.raises(HoldfastError):
            sink.publish([carried(2, [(2, "two")], generation=7)], Held(1, 7, {"lines": {"log": 10}}))
        again.publish([carried(1, [(9, "nine")])], fresh)
        assert target.rows() == [(9, "nine")]
        again.close()
        sink.close()


class ResetWithoutRowsContract:
    """The same where the rows may stay: only the ledger goes, and it is said that a run writes them again."""

    def test_rows_may_stay_and_it_is_said_what_that_means(self, target: ResettableTarget) -> None:
        _publish(target, generation=7)
        before = sorted(target.rows())
        found = target.spec.reset("target", PIPELINE, rows=False, is_dry_run=False)
        assert sorted(target.rows()) == before
        assert "writes them again" in found.stays[0]
        assert target.spec.ledger("target", PIPELINE) is None
        assert target.leftovers() == []


class RowsThatStayContract:
    """The same where no sink can remove rows: the ledger goes, and it is said that a run writes them again."""

    def test_the_ledger_goes_and_a_new_run_begins_as_the_first_one(self, target: ResettableTarget) -> None:
        _publish(target, generation=7)
        before = target.rows()
        said = target.spec.reset("target", PIPELINE, rows=True, is_dry_run=True)
        assert target.spec.ledger("target", PIPELINE) is not None
        assert said == target.spec.reset("target", PIPELINE, rows=True, is_dry_run=False)
        assert "writes them again" in said.stays[0]
        assert target.spec.ledger("target", PIPELINE) is None
        assert (target.rows(), target.leftovers()) == (before, [])
        assert target.spec.reset("target", PIPELINE, rows=True, is_dry_run=False).removed == ()
        again = target.connect()
        held = again.open(RunIdentity(PIPELINE, 1))
        assert (held.epoch, held.generation, held.explained) == (0, 0, {})
        again.publish([epoch(1, told("lines", 1))], held)
        assert kept(again) == {"lines": texts("lines", 1)}, "what the ledger before explained is forgotten"
        again.close()

    def test_a_run_that_has_it_open_publishes_nothing_more(self, target: ResettableTarget) -> None:
        sink = target.connect()
        held = sink.open(RunIdentity(PIPELINE, 7))
        sink.publish([carried(1, [(1, "one")], generation=7)], held)
        target.spec.reset("target", PIPELINE, rows=True, is_dry_run=False)
        with pytest.raises(HoldfastError):
            sink.publish([carried(2, [(2, "two")], generation=7)], Held(1, 7, {"lines": {"log": 10}}))
        assert target.rows() == [(1, "one")]
        sink.close()


class RowsInLedgerContract:
    """The same where the ledger cannot go without the rows."""

    def test_to_keep_rows_is_refused_and_nothing_is_removed(self, target: ResettableTarget) -> None:
        _publish(target, generation=7)
        before = target.spec.ledger("target", PIPELINE), sorted(target.rows())
        for is_dry_run in (True, False):
            with pytest.raises(InvalidPipeline, match="cannot be removed without its rows"):
                target.spec.reset("target", PIPELINE, rows=False, is_dry_run=is_dry_run)
        assert (target.spec.ledger("target", PIPELINE), sorted(target.rows())) == before


def _publish(target: ResettableTarget, generation: int) -> None:
    sink = target.connect()
    held = sink.open(RunIdentity(PIPELINE, generation))
    sink.publish([carried(1, [(1, "one"), (2, "two")], generation=generation)], held)
    sink.publish([epoch(2, told("lines", 1, 2), generation=generation)], Held(1, generation, {"lines": {"log": 10}}))
    stage_rows(sink, 3, [(3, "three")], generation=generation)  # a task of an epoch that nobody decided
    sink.close()
