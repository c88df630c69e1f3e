"""What every exactly-once sink must do, real or simulated: one list of promises, run against each of them.

A sink's own test file supplies one fixture and names the class::

    from tests.contract.sink_contract import SCHEMA, SinkContract

    TestSinkContract = SinkContract

    @pytest.fixture
    def target(tmp_path) -> Target: ...

The promises are those of ``holdfast.ports.Sink`` (design/0001, sections 3 and 5).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
import pytest

from holdfast import faults
from holdfast.capabilities import offers
from holdfast.errors import BadRow, Diverged, Fenced, HoldfastError
from holdfast.ports import (
    Carried,
    EpochRecord,
    Expiring,
    Guarantee,
    Held,
    Inspectable,
    Outcome,
    Part,
    Publication,
    RunIdentity,
    Sink,
    Staged,
    Task,
    Writer,
)

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
"""Columns of every contract target."""

PIPELINE = "words"
Row = tuple[int, str]


class Target(Protocol):
    """One table, directory or list under test.  Each call of ``connect`` stands for a new process."""

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        """Return a new runtime of the sink on the same target, with the columns of ``SCHEMA``, in some order."""

    def rows(self) -> list[Row]:
        """Return what any reader sees, in any order."""

    def leftovers(self) -> list[str]:
        """Return a name for everything staged that still exists (files, tables, prepared transactions)."""

    def refuse(self, word: str) -> bool:
        """Make the target refuse rows of this word from now on; False where such a target refuses none."""


class SinkContract:
    """The promises.  Collected under the name that the importing module gives it."""

    # --- open ---------------------------------------------------------------------------------------------------

    def test_a_fresh_sink_holds_nothing(self, target: Target) -> None:
        sink = target.connect()
        assert sink.open(RunIdentity(PIPELINE, 1)) == Held()
        assert sink.guarantee is Guarantee.EXACTLY_ONCE
        assert sink.name == "target"
        assert sink.staging
        assert target.rows() == []
        sink.close()

    def test_a_sink_remembers_the_generation_that_opened_it_before(self, target: Target) -> None:
        _opened(target, 1).close()
        sink = target.connect()
        assert sink.open(RunIdentity(PIPELINE, 4)) == Held(generation=1)
        sink.close()

    @pytest.mark.parametrize("generation", [1, 2])
    def test_open_refuses_a_generation_that_is_not_higher_and_changes_nothing(
        self, target: Target, generation: int
    ) -> None:
        owner = _opened(target, 2)
        stale = target.connect()
        with pytest.raises(Fenced):
            stale.open(RunIdentity(PIPELINE, generation))
        owner.publish([carried(1, [(1, "one")], generation=2)], Held())
        assert target.rows() == [(1, "one")]
        stale.close()
        owner.close()

    def test_open_returns_what_was_published_last(self, target: Target) -> None:
        first = _opened(target, 1)
        first.publish([carried(1, [(1, "one")], pts=5)], Held())
        first.publish([carried(2, [(2, "two")], pts=17)], Held())
        first.close()
        second = target.connect()
        assert second.open(RunIdentity(PIPELINE, 2)) == Held(epoch=2, generation=1, positions=_positions(2), pts=17)
        second.close()

    def test_a_sink_that_is_opened_again_holds_what_others_have_published_since(self, target: Target) -> None:
        """A takeover opens the same sink once more, with a higher generation, where another one was refused."""
        sink, other = _opened(target, 1), target.connect()
        sink.publish([carried(1, [(1, "one")])], Held())
        other.open(RunIdentity(PIPELINE, 2))
        other.publish([carried(2, [(2, "two")], generation=2)], Held())
        other.close()
        held = sink.open(RunIdentity(PIPELINE, 3))
        assert (held.epoch, held.generation) == (2, 2)
        sink.publish([carried(3, [(3, "three")], generation=3)], held)
        assert sorted(target.rows()) == [(1, "one"), (2, "two"), (3, "three")]
        sink.close()

    def test_opening_keeps_what_a_lower_generation_staged_because_a_decision_may_name_it(self, target: Target) -> None:
        """A crash between decide and publish: the decision holds handles of the dead generation (design/0001, 3)."""
        dead = _opened(target, 1)
        handle = stage_rows(dead, 1, [(1, "one"), (2, "two")])
        dead.close()
        alive = _opened(target, 2)
        alive.publish([_publication(1, [handle], generation=1)], Held())
        assert sorted(target.rows()) == [(1, "one"), (2, "two")]
        alive.sweep(below_epoch=2)
        assert target.leftovers() == []
        alive.close()

    # --- admit --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("staged", [True, False], ids=["staged", "carried"])
    def test_admitting_an_epoch_changes_nothing_and_may_be_done_again(self, target: Target, staged: bool) -> None:
        sink = _opened(target)
        publication = _publication(1, [stage_rows(sink, 1, [(1, "one")]) if staged else _rows([(1, "one")])])
        left = target.leftovers()
        for _ in range(2):
            sink.admit(publication)
            assert (target.rows(), target.leftovers(), sink.outcome(1)) == ([], left, Outcome.ABSENT)
        sink.publish([publication], Held())
        assert target.rows() == [(1, "one")]
        assert target.leftovers() == []
        sink.close()

    @pytest.mark.parametrize("staged", [True, False], ids=["staged", "carried"])
    def test_a_row_that_publishing_would_refuse_is_refused_before_the_decision(
        self, target: Target, staged: bool
    ) -> None:
        """The decision cannot be taken back (design/0002): in the stage, or when the epoch is admitted, never later."""
        sink = _opened(target)
        sink.publish([carried(1, [(1, "one")])], Held())
        if target.refuse("bad"):
            with pytest.raises(BadRow):
                sink.admit(_publication(2, [stage_rows(sink, 2, [(2, "bad")]) if staged else _rows([(2, "bad")])]))
            assert target.rows() == [(1, "one")]
            assert sink.outcome(2) is Outcome.ABSENT
        good = _publication(2, [stage_rows(sink, 2, [(2, "two")], attempt=1) if staged else _rows([(2, "two")])])
        sink.admit(good)
        sink.publish([good], Held())
        assert sorted(target.rows()) == [(1, "one"), (2, "two")]
        sink.close()

    # --- publish ------------------------------------------------------------------------------------------------

    def test_carried_rows_become_visible(self, target: Target) -> None:
        sink = _opened(target)
        sink.publish([carried(1, [(1, "one"), (2, "two")])], Held())
        sink.publish([carried(2, [(3, "three")])], Held())
        assert sorted(target.rows()) == [(1, "one"), (2, "two"), (3, "three")]
        sink.close()

    def test_staged_rows_are_invisible_until_they_are_published(self, target: Target) -> None:
        sink = _opened(target)
        handles = [stage_rows(sink, 1, [(1, "one")], task=0), stage_rows(sink, 1, [(2, "two")], task=1)]
        assert target.rows() == []
        sink.publish([_publication(1, handles)], Held())
        assert sorted(target.rows()) == [(1, "one"), (2, "two")]
        assert target.leftovers() == []
        sink.close()

    def test_a_handle_says_whose_rows_it_holds_and_how_many(self, target: Target) -> None:
        sink = _opened(target)
        handle = stage_rows(sink, 1, [(1, "one"), (2, "two")], task=3, attempt=1)
        assert handle.name == f"{PIPELINE}/1/1/3/1"
        assert handle.row_count == 2
        sink.sweep(below_epoch=2)
        sink.close()

    def test_staged_and_carried_parts_are_published_together(self, target: Target) -> None:
        sink = _opened(target)
        handle = stage_rows(sink, 1, [(1, "one")])
        sink.publish([_publication(1, [handle, _rows([(2, "two")])])], Held())
        assert sorted(target.rows()) == [(1, "one"), (2, "two")]
        assert sink.outcome(1) is Outcome.PUBLISHED
        sink.close()

    @pytest.mark.parametrize("staged", [True, False], ids=["staged", "carried"])
    def test_columns_of_decided_rows_are_found_by_their_names(self, target: Target, staged: bool) -> None:
        """A graph may name its columns in another order at any start, also over an epoch that is decided."""
        turned = pa.schema(list(reversed(SCHEMA)))
        dead = target.connect(schema=turned)
        dead.open(RunIdentity(PIPELINE, 1))
        dead.publish([_publication(1, [Carried(_table([(1, "one")]).select(turned.names))])], Held())
        part: Part = Carried(_table([(2, "two"), (3, "three")]).select(turned.names))
        if staged:
            writer = dead.writer_factory()(Task(PIPELINE, 1, 2, 0, 0))
            writer.write(part.rows.combine_chunks().to_batches()[0])
            part = writer.stage()
        dead.close()
        alive = target.connect()
        held = alive.open(RunIdentity(PIPELINE, 2))
        publication = _publication(2, [part], generation=1)
        alive.admit(publication)
        alive.publish([publication], held)
        alive.publish([carried(3, [(4, "four")], generation=2)], held)
        assert sorted(target.rows()) == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]
        alive.close()

    def test_several_batches_of_one_task_are_one_part(self, target: Target) -> None:
        sink = _opened(target)
        writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
        for number in range(5):
            writer.write(_batch([(number, str(number))]))
        handle = writer.stage()
        assert handle.row_count == 5
        sink.publish([_publication(1, [handle])], Held())
        assert sorted(target.rows()) == [(number, str(number)) for number in range(5)]
        sink.close()

    def test_a_handle_survives_json_and_the_factory_survives_pickling(self, target: Target) -> None:
        sink = _opened(target)
        factory = pickle.loads(pickle.dumps(sink.writer_factory()))
        writer = factory(Task(PIPELINE, 1, 1, 0, 0))
        writer.write(_batch([(1, "one")]))
        handle = writer.stage()
        copy = Staged(handle.name, handle.row_count, json.loads(json.dumps(dict(handle.reference))))
        sink.publish([_publication(1, [copy])], Held())
        assert target.rows() == [(1, "one")]
        sink.close()

    def test_only_the_handle_that_the_driver_received_is_published(self, target: Target) -> None:
        """A speculative or repeated attempt stages the same rows under another name."""
        sink = _opened(target)
        received = stage_rows(sink, 1, [(1, "one")], attempt=1)
        stage_rows(sink, 1, [(1, "one")], attempt=0)
        sink.publish([_publication(1, [received])], Held())
        assert target.rows() == [(1, "one")]
        assert sink.sweep(below_epoch=2) == 1
        assert target.leftovers() == []
        assert target.rows() == [(1, "one")]
        sink.close()

    @pytest.mark.parametrize("parts", ["none", "carried", "staged"])
    def test_an_epoch_without_rows_moves_the_ledger_all_the_same(self, target: Target, parts: str) -> None:
        sink = _opened(target)
        empty: dict[str, Callable[[], list[Part]]] = {
            "none": list,
            "carried": lambda: [_rows([])],
            "staged": lambda: [sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0)).stage()],
        }
        sink.publish([_publication(1, empty[parts]())], Held())
        assert sink.outcome(1) is Outcome.PUBLISHED
        assert target.rows() == []
        assert target.leftovers() == []
        sink.close()
        again = target.connect()
        assert again.open(RunIdentity(PIPELINE, 2)).positions == _positions(1)
        again.close()

    # --- idempotence --------------------------------------------------------------------------------------------

    def test_publishing_again_changes_nothing(self, target: Target) -> None:
        sink = _opened(target)
        handle = stage_rows(sink, 1, [(1, "one")])
        publication = _publication(1, [handle, _rows([(2, "two")])])
        sink.publish([publication], Held())
        sink.publish([publication], Held())
        assert sorted(target.rows()) == [(1, "one"), (2, "two")]
        sink.close()

    def test_a_later_generation_does_not_publish_again_what_is_held(self, target: Target) -> None:
        first = _opened(target, 1)
        handle = stage_rows(first, 1, [(1, "one")])
        first.publish([_publication(1, [handle])], Held())
        first.close()
        second = _opened(target, 2)
        assert second.outcome(1) is Outcome.PUBLISHED
        second.publish([_publication(1, [handle], generation=1)], Held())
        second.publish([carried(1, [(1, "one")], generation=2)], Held())
        assert target.rows() == [(1, "one")]
        second.close()

    def test_a_held_epoch_does_not_move_the_ledger_back(self, target: Target) -> None:
        sink = _opened(target)
        sink.publish([carried(1, [(1, "one")])], Held())
        sink.publish([carried(2, [(2, "two")])], Held())
        sink.publish([carried(1, [(1, "one")])], Held())
        assert sink.outcome(2) is Outcome.PUBLISHED
        sink.close()
        again = target.connect()
        assert again.open(RunIdentity(PIPELINE, 2)).epoch == 2
        again.close()

    # --- several epochs in one transaction ------------------------------------------------------------------------

    def test_several_epochs_become_visible_together(self, target: Target) -> None:
        sink = _opened(target)
        handle = stage_rows(sink, 2, [(2, "two")])
        sink.publish([carried(1, [(1, "one")]), _publication(2, [handle]), carried(3, [(3, "three")], pts=30)], Held())
        assert sorted(target.rows()) == [(1, "one"), (2, "two"), (3, "three")]
        assert target.leftovers() == []
        sink.close()
        again = target.connect()
        assert again.open(RunIdentity(PIPELINE, 2)) == Held(epoch=3, generation=1, positions=_positions(3), pts=30)
        again.close()

    def test_a_held_epoch_is_left_out_of_a_group(self, target: Target) -> None:
        sink = _opened(target)
        sink.publish([carried(1, [(1, "one")])], Held())
        sink.publish([carried(1, [(1, "one")]), carried(2, [(2, "two")])], Held())
        assert sorted(target.rows()) == [(1, "one"), (2, "two")]
        sink.close()

    # --- outcome --------------------------------------------------------------------------------------------------

    def test_an_epoch_that_nobody_published_is_absent(self, target: Target) -> None:
        sink = _opened(target)
        assert sink.outcome(1) is Outcome.ABSENT
        handle = stage_rows(sink, 1, [(1, "one")])
        assert sink.outcome(1) is Outcome.ABSENT
        sink.publish([_publication(1, [handle])], Held())
        assert sink.outcome(1) is Outcome.PUBLISHED
        assert sink.outcome(2) is Outcome.ABSENT
        sink.close()

    def test_earlier_epochs_are_published_too(self, target: Target) -> None:
        sink = _opened(target)
        sink.publish([carried(1, []), carried(2, []), carried(3, [])], Held())
        assert [sink.outcome(epoch) for epoch in (1, 2, 3)] == [Outcome.PUBLISHED] * 3
        sink.close()

    @pytest.mark.parametrize("point", ["publish-uncommitted", "publish-begun"])
    @pytest.mark.parametrize("staged", [True, False], ids=["staged", "carried"])
    def test_an_epoch_interrupted_at_any_point_is_published_once_by_the_next_generation(
        self, target: Target, point: str, staged: bool
    ) -> None:
        first = _opened(target, 1)
        first.publish([carried(1, [(1, "one")])], Held())
        rows = [(2, "two"), (3, "three")]
        parts: list[Part] = (
            [stage_rows(first, 2, rows[:1], task=0), stage_rows(first, 2, rows[1:], task=1)]
            if staged
            else [_rows(rows)]
        )
        with _interruption(at=point):
            first.publish([_publication(2, parts)], Held())
        first.close()

        second = _opened(target, 2)
        if second.outcome(2) is not Outcome.PUBLISHED:
            second.publish([_publication(2, parts, generation=1)], Held())
        assert second.outcome(2) is Outcome.PUBLISHED
        assert sorted(target.rows()) == [(1, "one"), *rows]
        second.sweep(below_epoch=3)
        assert target.leftovers() == []
        second.close()

    @pytest.mark.parametrize("point", ["publish-uncommitted", "publish-begun"])
    def test_an_interrupted_epoch_is_completed_by_publishing_it_again(self, target: Target, point: str) -> None:
        sink = _opened(target, 1)
        parts = [stage_rows(sink, 1, [(1, "one")], task=0), stage_rows(sink, 1, [(2, "two")], task=1)]
        with _interruption(at=point):
            sink.publish([_publication(1, parts)], Held())
        sink.publish([_publication(1, parts)], Held())
        assert sink.outcome(1) is Outcome.PUBLISHED
        assert sorted(target.rows()) == [(1, "one"), (2, "two")]
        assert target.leftovers() == []
        sink.close()

    # --- inspect: what a sink may offer ---------------------------------------------------------------------------

    def test_a_sink_that_was_never_opened_holds_nothing(self, target: Target) -> None:
        sink = target.connect()
        assert sink.outcome(1) is Outcome.ABSENT
        if offers(sink, Inspectable):
            assert sink.inspect() == (Held(), [])
        sink.close()

    def test_inspecting_tells_what_is_held_and_staged_and_changes_nothing(self, target: Target) -> None:
        owner = _opened(target, 2)
        owner.publish([carried(1, [(1, "one")], generation=2, pts=5)], Held())
        decided = stage_rows(owner, 2, [(2, "two")], generation=2)
        stage_rows(owner, 2, [(2, "two")], generation=2, attempt=1)
        sink = target.connect()
        if offers(sink, Inspectable):
            held = Held(epoch=1, generation=2, positions=_positions(1), pts=5)
            names = [f"{PIPELINE}/2/2/0/0", f"{PIPELINE}/2/2/0/1"]
            assert sink.inspect() == (held, names)
            assert sink.inspect() == (held, names)
        sink.close()
        owner.publish([_publication(2, [decided], generation=2)], Held())
        assert sorted(target.rows()) == [(1, "one"), (2, "two")]
        owner.sweep(below_epoch=3)
        if offers(owner, Inspectable):
            assert owner.inspect()[1] == []
        owner.close()

    # --- a sink that went back ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("way", ["carried", "staged"])
    def test_a_sink_that_went_back_refuses_to_publish_over_the_gap(self, target: Target, way: str) -> None:
        """A failover to a standby that lags, a restored backup: the run had published epoch 2, the sink holds 1."""
        sink = _opened(target)
        sink.publish([carried(1, [(1, "one")])], Held())
        parts: list[Part] = [_rows([(3, "three")])] if way == "carried" else [stage_rows(sink, 3, [(3, "three")])]
        with pytest.raises(Diverged) as caught:
            sink.publish([_publication(3, parts)], Held(2, 0, _positions(2)))
        assert "holds epoch 1" in caught.value.what
        assert "published epoch 2" in caught.value.what
        assert caught.value.why
        assert caught.value.do
        assert target.rows() == [(1, "one")]
        assert sink.outcome(2) is Outcome.ABSENT
        assert sink.outcome(3) is Outcome.ABSENT
        sink.publish([carried(2, [(2, "two")]), _publication(3, parts)], Held(1, 0, _positions(1)))
        assert sorted(target.rows()) == [(1, "one"), (2, "two"), (3, "three")]
        sink.close()

    def test_a_sink_that_holds_other_rows_under_the_same_number_refuses_to_publish_behind_them(
        self, target: Target
    ) -> None:
        sink = _opened(target)
        sink.publish([carried(1, [(1, "one")])], Held())
        with pytest.raises(Diverged):
            sink.publish([carried(2, [(2, "two")])], Held(1, 0, _positions(7)))
        assert target.rows() == [(1, "one")]
        sink.close()

    def test_a_sink_that_kept_an_epoch_whose_answer_was_lost_skips_it(self, target: Target) -> None:
        """Ahead of what is expected is no gap: the COMMIT arrived, and its reply did not."""
        sink = _opened(target)
        sink.publish([carried(1, [(1, "one")])], Held())
        expected = Held(1, 0, _positions(1))
        sink.publish([carried(2, [(2, "two")])], expected)
        sink.publish([carried(2, [(2, "two")]), carried(3, [(3, "three")])], expected)
        assert sorted(target.rows()) == [(1, "one"), (2, "two"), (3, "three")]
        sink.close()

    # --- fencing --------------------------------------------------------------------------------------------------

    def test_a_fenced_publish_changes_nothing(self, target: Target) -> None:
        stale = _opened(target, 1)
        handle = stage_rows(stale, 1, [(1, "stale")])
        owner = _opened(target, 2)
        with pytest.raises(Fenced):
            stale.publish([_publication(1, [handle])], Held())
        with pytest.raises(Fenced):
            stale.publish([carried(1, [(2, "stale")])], Held())
        assert target.rows() == []
        assert owner.outcome(1) is Outcome.ABSENT
        owner.publish([carried(1, [(3, "owner")], generation=2)], Held())
        with pytest.raises(Fenced):
            stale.publish([carried(2, [(4, "stale")])], Held())
        assert target.rows() == [(3, "owner")]
        stale.close()
        owner.close()

    def test_a_writer_of_a_fenced_generation_that_stages_late_is_swept_and_never_seen(self, target: Target) -> None:
        """Python workers outlive their driver and take the cut stream for the end of their input (DESIGN, 6)."""
        stale = _opened(target, 1)
        late = stale.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
        late.write(_batch([(1, "late")]))
        owner = _opened(target, 2)
        owner.sweep(below_epoch=1)
        owner.publish([carried(1, [(2, "owner")], generation=2)], Held())
        _stage_or_fail(late)
        owner.sweep(below_epoch=2)
        assert target.leftovers() == []
        assert target.rows() == [(2, "owner")]
        owner.publish([carried(2, [(3, "owner")], generation=2)], Held())
        assert sorted(target.rows()) == [(2, "owner"), (3, "owner")]
        owner.close()
        stale.close()

    def test_publishing_rows_that_were_swept_fails_and_changes_nothing(self, target: Target) -> None:
        """Gone is not done: silence here would be loss."""
        dead = _opened(target, 1)
        dropped = stage_rows(dead, 1, [(2, "dropped")], task=1)
        dead.close()
        sink = _opened(target, 2)
        kept = stage_rows(sink, 1, [(1, "kept")], generation=2, task=0)
        sink.sweep(below_epoch=1)
        with pytest.raises(HoldfastError):
            sink.publish([_publication(1, [kept, dropped], generation=2)], Held())
        assert target.rows() == []
        assert sink.outcome(1) is Outcome.ABSENT
        sink.publish([carried(1, [(3, "three")], generation=2)], Held())
        assert target.rows() == [(3, "three")]
        sink.close()

    def test_a_sink_says_which_staged_rows_are_gone_and_a_start_is_told_to_mend_it(self, target: Target) -> None:
        """Somebody removes what he does not know: the decision that names it is revoked (design/0002, "Expiry")."""
        dead = _opened(target, 1)
        if not offers(dead, Expiring):
            dead.close()
            pytest.skip("its handles hold the rows")
        dropped = stage_rows(dead, 2, [(2, "dropped"), (3, "dropped")], task=1)
        dead.close()
        sink = _opened(target, 2)
        assert offers(sink, Expiring)
        kept = stage_rows(sink, 2, [(1, "kept")], generation=2, task=0)
        empty = sink.writer_factory()(Task(PIPELINE, 2, 2, 2, 0)).stage()
        assert sink.expired([kept, dropped, empty]) == []
        sink.sweep(below_epoch=1)
        left = target.leftovers()
        unopened = target.connect()
        assert offers(unopened, Expiring)
        for asked in (sink, unopened, sink):
            assert asked.expired([kept, dropped, empty]) == [dropped.name]
            assert asked.expired([kept, empty]) == asked.expired([]) == []
        unopened.close()
        assert (target.rows(), target.leftovers(), sink.outcome(2)) == ([], left, Outcome.ABSENT)
        with pytest.raises(Diverged) as caught:
            sink.publish([carried(1, [(0, "first")], generation=2), _publication(2, [kept, dropped])], Held())
        assert caught.value.is_mended_by_start
        assert (target.rows(), target.leftovers(), sink.outcome(1)) == ([], left, Outcome.ABSENT)
        sink.publish([_publication(2, [kept, empty], generation=2)], Held())
        assert target.rows() == [(1, "kept")]
        sink.close()

    # --- abort and sweep --------------------------------------------------------------------------------------------

    def test_an_aborted_writer_leaves_nothing(self, target: Target) -> None:
        sink = _opened(target)
        writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
        writer.write(_batch([(1, "one")]))
        writer.abort()
        sink.writer_factory()(Task(PIPELINE, 1, 1, 1, 0)).abort()
        assert target.leftovers() == []
        sink.close()

    def test_sweeping_what_was_published_removes_no_row(self, target: Target) -> None:
        sink = _opened(target)
        handle = stage_rows(sink, 1, [(1, "one")])
        sink.publish([_publication(1, [handle])], Held())
        sink.sweep(below_epoch=9)
        assert target.rows() == [(1, "one")]
        sink.close()

    def test_sweep_drops_lower_generations_and_earlier_epochs_and_keeps_the_rest(self, target: Target) -> None:
        dead = _opened(target, 1)
        stage_rows(dead, 1, [(1, "dead")])
        stage_rows(dead, 9, [(9, "dead")])
        dead.close()
        sink = _opened(target, 2)
        stage_rows(sink, 1, [(1, "earlier")], generation=2, task=1)
        kept = stage_rows(sink, 2, [(2, "kept")], generation=2)
        assert sink.sweep(below_epoch=2) == 3
        assert sink.sweep(below_epoch=2) == 0
        assert len(target.leftovers()) == 1
        sink.publish([carried(1, [], generation=2), _publication(2, [kept], generation=2)], Held())
        assert target.rows() == [(2, "kept")]
        sink.close()

    def test_sweep_leaves_other_pipelines_and_other_sinks_alone(self, target: Target) -> None:
        """Names that begin alike, or that match as a pattern, are other names."""
        others = []
        for name, pipeline in [("target", "words2"), ("target", "w_rds"), ("target2", "words"), ("t_rget", "words")]:
            other = target.connect(name, pipeline)
            other.open(RunIdentity(pipeline, 1))
            others.append((other, stage_rows(other, 1, [(1, "theirs")], pipeline=pipeline), pipeline))
        sink = _opened(target, 5)
        assert sink.sweep(below_epoch=9) == 0
        for other, handle, pipeline in others:
            other.publish([_publication(1, [handle], pipeline=pipeline)], Held())
            other.close()
        assert target.rows() == [(1, "theirs")] * 4
        sink.close()

    def test_two_pipelines_into_one_target_keep_their_own_ledgers(self, target: Target) -> None:
        ours, theirs = _opened(target, 1), target.connect("target", "numbers")
        assert theirs.open(RunIdentity("numbers", 1)) == Held()
        ours.publish([carried(1, [(1, "ours")])], Held())
        assert theirs.outcome(1) is Outcome.ABSENT
        theirs.publish([carried(1, [(2, "theirs")], pipeline="numbers")], Held())
        assert sorted(target.rows()) == [(1, "ours"), (2, "theirs")]
        ours.close()
        theirs.close()

    def test_close_may_be_called_twice_and_before_open(self, target: Target) -> None:
        sink = target.connect()
        sink.close()
        sink.close()


class HandleSinkContract(SinkContract):
    """The promises of a sink whose rows travel in the handles: where the contract counts orphans, it has none."""

    def test_only_the_handle_that_the_driver_received_is_published(self, target: Target) -> None:
        sink = _opened(target)
        _, received = (stage_rows(sink, 1, [(1, "one")], attempt=attempt) for attempt in (0, 1))
        sink.publish([_publication(1, [received])], Held())
        assert sink.sweep(below_epoch=2) == 0
        assert target.rows() == [(1, "one")]

    def test_publishing_rows_that_were_swept_fails_and_changes_nothing(self, target: Target) -> None:
        """Rows cannot be swept apart from their handle; a handle without its rows is refused."""
        sink = _opened(target)
        with pytest.raises(HoldfastError):
            sink.publish([_publication(1, [Staged(f"{PIPELINE}/1/1/0/0", 1)])], Held())
        assert target.rows() == []
        sink.publish([carried(1, [(3, "three")])], Held())
        assert target.rows() == [(3, "three")]

    def test_sweep_drops_lower_generations_and_earlier_epochs_and_keeps_the_rest(self, target: Target) -> None:
        sink = _opened(target)
        sink.publish([carried(1, [(1, "one")])], Held())
        assert sink.sweep(below_epoch=9) == 0
        assert target.rows() == [(1, "one")]


class _Interrupted(BaseException):
    """Stands for the death of the process; no ``except Exception`` may swallow it."""


@contextmanager
def _interruption(*, at: str) -> Iterator[None]:
    """Interrupt the block the first time it reaches the crash point; a sink without that point runs through."""

    def hook(point: str, epoch: int) -> None:
        if point == at:
            faults.install(None)
            raise _Interrupted

    faults.install(hook)
    try:
        yield
    except _Interrupted:
        pass
    finally:
        faults.install(None)


def _opened(target: Target, generation: int = 1) -> Sink:
    sink = target.connect()
    sink.open(RunIdentity(PIPELINE, generation))
    return sink


def _table(rows: Sequence[Row]) -> pa.Table:
    return pa.table({"id": [row[0] for row in rows], "word": [row[1] for row in rows]}, schema=SCHEMA)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(_table(rows).to_pydict(), schema=SCHEMA)


def _rows(rows: Sequence[Row]) -> Carried:
    return Carried(_table(rows))


def _positions(epoch: int) -> dict[str, dict[str, int]]:
    return {"lines": {"log": 10 * epoch}}


def _publication(
    epoch: int, parts: Sequence[Part], *, generation: int = 1, pts: int | None = None, pipeline: str = PIPELINE
) -> Publication:
    return Publication(EpochRecord(pipeline, epoch, generation, _positions(epoch), pts), tuple(parts))


def carried(
    epoch: int, rows: Sequence[Row], *, generation: int = 1, pts: int | None = None, pipeline: str = PIPELINE
) -> Publication:
    return _publication(epoch, [_rows(rows)], generation=generation, pts=pts, pipeline=pipeline)


def stage_rows(
    sink: Sink,
    epoch: int,
    rows: Sequence[Row],
    *,
    generation: int = 1,
    task: int = 0,
    attempt: int = 0,
    pipeline: str = PIPELINE,
) -> Staged:
    writer = sink.writer_factory()(Task(pipeline, generation, epoch, task, attempt))
    try:
        writer.write(_batch(rows))
        return writer.stage()
    except BaseException:
        writer.abort()
        raise


def _stage_or_fail(writer: Writer) -> None:
    """A stale writer may stage (it is swept later) or fail (its place is gone); both are right."""
    try:
        writer.stage()
    except HoldfastError:
        writer.abort()
