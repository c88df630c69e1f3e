"""What a sink must do for shards: several writers of one target, each under the pipeline's name with its number.

Neither waits for another, fences it, or touches what is another's.  Design: 0048, sections 2 and 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast import faults
from holdfast.capabilities import offers
from holdfast.connectors.kit import rewinds
from holdfast.controller.layouts.found_shards import ask_shards
from holdfast.errors import Fenced, InvalidPipeline
from holdfast.ports import (
    Carried,
    Comparable,
    EpochRecord,
    Explaining,
    Held,
    Inspectable,
    LedgerSpec,
    Outcome,
    Part,
    Publication,
    Repair,
    Rewindable,
    RunIdentity,
    SharedTable,
    Sink,
    Withdrawal,
)
from holdfast.shards.naming import shard_name
from tests.contract.explaining_contract import kept, texts, told
from tests.contract.rewind_contract import RewindableTarget
from tests.contract.sink_contract import PIPELINE, Row, Target, _interruption, _positions, _table, stage_rows

SHARDS = (0, 1, 11)
"""Some numbers: the names of the first two begin the name of the last."""


class ShardContract:
    """The promises."""

    @pytest.mark.parametrize("staged", [True, False], ids=["staged", "carried"])
    def test_epochs_of_shards_alternate_and_each_has_a_ledger_of_its_own(self, target: Target, staged: bool) -> None:
        sinks = {shard: opened(target, shard, generation=shard + 1) for shard in SHARDS}
        for epoch, shards in ((1, (11, 0)), (2, (0, 11)), (1, (1,)), (3, (11,))):
            ready = [(shard, publication(sinks[shard], shard, epoch, shard + 1, staged=staged)) for shard in shards]
            for shard, each in ready:
                sinks[shard].publish([each], Held())
        for sink in sinks.values():
            sink.close()
        assert sorted(target.rows()) == sorted(row for shard, n in ((0, 2), (1, 1), (11, 3)) for row in rows(shard, n))
        for shard, last in ((0, 2), (1, 1), (11, 3)):
            sink = connected(target, shard)
            assert sink.open(RunIdentity(shard_name(PIPELINE, shard), 20)) == Held(last, shard + 1, _positions(last))
            sink.close()

    def test_a_takeover_leaves_alone_what_other_shards_have_staged(self, target: Target) -> None:
        """A crash of one shard, while others are between stage and publish."""
        sinks = {shard: opened(target, shard) for shard in SHARDS}
        ready = {shard: publication(sink, shard, 1, staged=True) for shard, sink in sinks.items()}
        staged_count = len(target.leftovers())
        sinks[1].close()
        sinks[1] = opened(target, 1, generation=9)
        sinks[1].sweep(below_epoch=5)
        assert len(target.leftovers()) == staged_count // 3 * 2
        for shard in (0, 11):
            sink = sinks[shard]
            if offers(sink, Inspectable):
                assert sink.inspect()[1] == [f"{shard_name(PIPELINE, shard)}/1/1/0/0"]
            sink.publish([ready[shard]], Held())
        sinks[1].publish([publication(sinks[1], 1, 1, 9)], Held())
        assert sorted(target.rows()) == sorted(row for shard in SHARDS for row in rows(shard, 1))
        for sink in sinks.values():
            sink.close()

    @pytest.mark.parametrize("point", ["publish-begun", "publish-uncommitted"])
    @pytest.mark.parametrize("staged", [True, False], ids=["staged", "carried"])
    def test_a_shard_that_dies_while_it_publishes_holds_nobody_up(
        self, target: Target, point: str, staged: bool
    ) -> None:
        alive, dying = opened(target, 0), opened(target, 1)
        ready = publication(dying, 1, 1, staged=staged)
        with _interruption(at=point):
            dying.publish([ready], Held())
        for epoch in (1, 2):
            alive.publish([publication(alive, 0, epoch, staged=staged)], Held())
            assert alive.outcome(epoch) is Outcome.PUBLISHED
        dying.close()
        again = opened(target, 1, generation=2)
        again.publish([ready], Held())
        again.sweep(below_epoch=2)
        assert sorted(target.rows()) == sorted([*rows(0, 2), *rows(1, 1)])
        assert target.leftovers() == []
        alive.close()
        again.close()

    def test_no_shard_waits_for_the_commit_of_another(self, target: Target) -> None:
        if getattr(target, "has_one_writer", False):
            pytest.skip("its system lets one transaction write at a time")
        one, other = opened(target, 0), opened(target, 1)
        mine, theirs = publication(one, 0, 1), publication(other, 1, 1)

        def publish_other(point: str, epoch: int) -> None:
            if point == "publish-uncommitted":
                faults.install(None)
                other.publish([theirs], Held())
                assert other.outcome(1) is Outcome.PUBLISHED

        faults.install(publish_other)
        try:
            one.publish([mine], Held())
        finally:
            faults.install(None)
        assert sorted(target.rows()) == sorted([*rows(0, 1), *rows(1, 1)])
        one.close()
        other.close()

    def test_what_positions_mean_is_kept_for_each_shard(self, target: Target) -> None:
        sinks = {shard: opened(target, shard) for shard in SHARDS}
        if not offers(sinks[0], Explaining):
            pytest.skip("it keeps no explanations")
        for shard, count in ((0, 3), (1, 1), (11, 2)):
            said = told("lines", *range(1, count + 1))
            record = EpochRecord(shard_name(PIPELINE, shard), 1, 1, _positions(1), explanations=said)
            sinks[shard].publish([Publication(record, ())], Held())
        for shard, count in ((0, 3), (1, 1), (11, 2)):
            assert kept(sinks[shard]) == {"lines": texts("lines", count)}
            sinks[shard].close()


class ShardRewindContract:
    """What a sink must do besides that can take back what one shard published."""

    @pytest.mark.parametrize("staged", [True, False], ids=["staged", "carried"])
    def test_a_rewind_withdraws_the_rows_of_its_shard_alone(self, rewindable: RewindableTarget, staged: bool) -> None:
        sinks = {shard: opened(rewindable, shard) for shard in SHARDS}
        for epoch in (1, 2, 3):
            for shard, sink in sinks.items():
                sink.publish([publication(sink, shard, epoch, staged=staged)], Held())
        asked = withdrawal(sinks[1], 1)
        assert (asked.epoch, asked.epoch_count, asked.row_count, asked.obstacle) == (1, 2, 4, "")
        sinks[1].publish([back(1, 4, 1)], Held())
        left = [*rows(0, 3), *rows(1, 1), *rows(11, 3)]
        assert sorted(rewindable.rows()) == sorted(left)
        sinks[11].publish([publication(sinks[11], 11, 4)], Held())
        sinks[0].publish([back(0, 4, 2)], Held())
        left = [*rows(0, 2), *rows(1, 1), *rows(11, 4)]
        assert sorted(rewindable.rows()) == sorted(left)
        for shard, epoch, end in ((0, 4, 2), (1, 4, 1), (11, 4, 4)):
            sinks[shard].close()
            again = connected(rewindable, shard)
            held = again.open(RunIdentity(shard_name(PIPELINE, shard), 2))
            assert (held.epoch, held.positions) == (epoch, _positions(end))
            assert withdrawal(again, 1).row_count == {0: 2, 1: 0, 11: 6}[shard]
            again.close()

    def test_each_shard_keeps_the_ends_that_it_can_go_back_to(
        self, rewindable: RewindableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sinks = {shard: opened(rewindable, shard) for shard in SHARDS}
        for epoch in (1, 2, 3):
            sinks[1].publish([publication(sinks[1], 1, epoch)], Held())
        monkeypatch.setattr(rewinds, "EPOCHS_KEPT", 1)
        for epoch in (1, 2, 3):
            for shard in (0, 11):
                sinks[shard].publish([publication(sinks[shard], shard, epoch)], Held())
        asked = withdrawal(sinks[1], 1)
        assert (asked.epoch, asked.epoch_count, asked.row_count) == (1, 2, 4)
        for sink in sinks.values():
            sink.close()


class ShardLedgerContract:
    """What a declaration must say that can be asked without a schema, where a checkpoint is lost."""

    def test_shards_are_found_up_to_the_first_that_nobody_knows(self, target: Asked) -> None:
        assert ask_shards({"target": target.spec}, PIPELINE) == []
        for shard, last in ((0, 2), (1, 0), (2, 1), (11, 1)):
            sink = opened(target, shard, generation=shard + 1)
            for epoch in range(1, last + 1):
                sink.publish([publication(sink, shard, epoch, shard + 1)], Held())
            sink.close()
        found = ask_shards({"target": target.spec}, PIPELINE)
        held = [(each["target"].held.epoch, each["target"].held.generation) for each in found]
        assert held == [(2, 1), (0, 2), (1, 3)]
        assert [each["target"].held.positions for each in found] == [_positions(2), {}, _positions(1)]
        assert ask_shards({"other": target.spec}, PIPELINE) == []
        assert ask_shards({"target": target.spec}, "wor") == []
        assert [*ask_shards({"other": target.spec, "target": target.spec}, PIPELINE)[2]] == ["target"]


class ShardsComparedContract:
    """What a sink must do that can be compared, and whose rows say which shard has written them."""

    def test_each_shard_sees_its_own_rows(self, target: Target) -> None:
        sinks = {shard: opened(target, shard) for shard in SHARDS}
        for epoch in (1, 2):
            for shard, sink in sinks.items():
                sink.publish([publication(sink, shard, epoch)], Held())
        for shard, sink in sinks.items():
            try:
                assert ids_in(sink) == [id for id, _ in rows(shard, 2)]
            except InvalidPipeline as error:
                pytest.skip(error.what)
        assert offers(sinks[1], Comparable)
        with sinks[1].content() as content:
            found = pa.Table.from_batches(content.rows(0, [0]))
            repair = Repair(content.held, found.slice(0, 1), _table([(1099, "w")]))
        assert sinks[1].repair(repair) == 2
        assert ids_in(sinks[1]) == sorted([*found.column("id").to_pylist()[1:], 1099])
        for shard in (0, 11):
            assert ids_in(sinks[shard]) == [id for id, _ in rows(shard, 2)]
        for sink in sinks.values():
            sink.close()


class SharedTableContract:
    """What a table must do that several shards write: it is compared and repaired with the ledgers of all."""

    def test_a_view_has_the_rows_of_all_shards_and_the_ledgers_of_the_same_moment(self, target: Target) -> None:
        alone, other = opened(target, 0, 3), target.connect("target", f"{PIPELINE}s-1")
        alone.publish([publication(alone, 0, 1, 3)], Held())
        assert ids_in(alone) == [id for id, _ in rows(0, 1)], "one that has no shards is compared as before"
        for shard in (1, 2):
            opened(target, shard, 5).close()
        assert ids_in(alone) == [id for id, _ in rows(0, 1)], "shards that hold nothing have no rows"
        sink = opened(target, 11, 4)
        sink.publish([publication(sink, 11, epoch, 4) for epoch in (1, 2)], Held())
        other.open(RunIdentity(f"{PIPELINE}s-1", 1))
        other.publish([replace_pipeline(publication(other, 1, 1), f"{PIPELINE}s-1")], Held())
        for each in (alone, sink):
            with pytest.raises(InvalidPipeline, match=f"rows of 2 shards: {PIPELINE}, {PIPELINE}-11"):
                ids_in(each)
            assert offers(each, SharedTable)
            with each.content_of_shards() as (content, held):
                sink.publish([publication(sink, 11, 3 if each is alone else 4, 4)], Held())
                assert {name: (of.epoch, of.generation) for name, of in held.items()} == {
                    PIPELINE: (1, 3), f"{PIPELINE}-11": (2 if each is alone else 3, 4)
                }  # fmt: skip
                assert content.row_count() in (0, 8 if each is alone else 10)
                assert int(content.digests(0).counts[0]) == (8 if each is alone else 10)
        for each in (alone, sink, other):
            each.close()

    def test_a_repair_is_of_the_rows_of_all_shards(self, target: Target) -> None:
        one, other = opened(target, 0), opened(target, 1)
        for shard, sink in ((0, one), (1, other)):
            sink.publish([publication(sink, shard, epoch) for epoch in (1, 2)], Held())
        repair, held = shared_repair(one, without=1010, instead=77)
        assert repair_shared(one, repair, held) == 2
        ids = sorted([*(id for id, _ in [*rows(0, 2), *rows(1, 2)] if id != 1010), 77])
        assert sorted(id for id, _ in target.rows()) == ids
        assert repair_shared(one, repair, held) is None, "what is to be removed is gone"
        for shard, sink in ((0, one), (1, other)):
            sink.publish([publication(sink, shard, 3)], Held(2, 1, _positions(2)))
        assert len(target.rows()) == len(ids) + 4
        one.close()
        other.close()

    @pytest.mark.parametrize("moves", ["it publishes", "it is taken over", "another shard begins"])
    def test_nothing_is_repaired_where_any_ledger_has_moved(self, target: Target, moves: str) -> None:
        one, other = opened(target, 0), opened(target, 1)
        for shard, sink in ((0, one), (1, other)):
            sink.publish([publication(sink, shard, 1)], Held())
        repair, held = shared_repair(one, without=1010, instead=77)
        if moves == "it publishes":
            other.publish([publication(other, 1, 2)], Held())
        elif moves == "it is taken over":
            opened(target, 1, 2).close()
        else:
            another = opened(target, 2)
            another.publish([publication(another, 2, 1)], Held())
            another.close()
        before = sorted(target.rows())
        assert repair_shared(one, repair, held) is None
        assert sorted(target.rows()) == before
        assert offers(one, Comparable)
        assert one.repair(repair) is None
        assert sorted(target.rows()) == before
        one.close()
        other.close()

    def test_a_run_that_was_replaced_repairs_nothing_of_any_shard(self, target: Target) -> None:
        one, other = opened(target, 0), opened(target, 1)
        for shard, sink in ((0, one), (1, other)):
            sink.publish([publication(sink, shard, 1)], Held())
        opened(target, 0, 2).close()
        repair, held = shared_repair(one, without=1010, instead=77)
        with pytest.raises(Fenced):
            repair_shared(one, repair, held)
        assert len(target.rows()) == 4
        one.close()
        other.close()

    def test_no_shard_goes_back_to_before_a_repair(self, rewindable: RewindableTarget) -> None:
        """Which shard a row that was written belongs to is not known, nor its epoch."""
        sinks = {shard: opened(rewindable, shard) for shard in (0, 1)}
        for epoch in (1, 2):
            for shard, sink in sinks.items():
                sink.publish([publication(sink, shard, epoch)], Held())
        repair, held = shared_repair(sinks[0], without=1010, instead=77)
        assert repair_shared(sinks[0], repair, held) == 2
        for shard, sink in sinks.items():
            assert withdrawal(sink, 1).obstacle
            assert withdrawal(sink, 2).epoch == 2
            sink.publish([publication(sink, shard, 3)], Held(2, 1, _positions(2)))
            sink.publish([back(shard, 4, 2)], Held(3, 1, _positions(3)))
            sink.close()
        ids = [*(id for id, _ in [*rows(0, 2), *rows(1, 2)] if id != 1010), 77]
        assert sorted(id for id, _ in rewindable.rows()) == sorted(ids)


class ShardsOfTablesContract:
    """What a table that keeps epochs refuses still: writers whose epochs it cannot tell apart."""

    @pytest.mark.parametrize(("name", "pipeline"), [("target", "others"), ("other", PIPELINE), ("target", "others-1")])
    def test_another_pipeline_or_sink_is_refused(self, rewindable: RewindableTarget, name: str, pipeline: str) -> None:
        for shard in (0, 1):
            sink = opened(rewindable, shard)
            sink.publish([publication(sink, shard, 1)], Held())
            sink.close()
        other = rewindable.connect(name, pipeline)
        with pytest.raises(InvalidPipeline, match=f"rewindable table of sink 'target' of pipeline '{PIPELINE}"):
            other.open(RunIdentity(pipeline, 1))
        other.close()


class Writable(Protocol):
    """A target."""

    def connect(self, name: str = "target", pipeline: str = PIPELINE) -> Sink:
        """Return a new runtime of the sink."""


class Asked(Writable, Protocol):
    """A target, and the declaration of the sink that writes it."""

    spec: LedgerSpec


def connected(target: Writable, shard: int) -> Sink:
    return target.connect("target", shard_name(PIPELINE, shard))


def opened(target: Writable, shard: int, generation: int = 1) -> Sink:
    sink = connected(target, shard)
    sink.open(RunIdentity(shard_name(PIPELINE, shard), generation))
    return sink


def rows(shard: int, epochs: int) -> list[Row]:
    """Return the rows of the first epochs of a shard."""
    return [row for epoch in range(1, epochs + 1) for row in _rows(shard, epoch)]


def _rows(shard: int, epoch: int) -> list[Row]:
    return [(1000 * shard + 10 * epoch + i, f"w{i}") for i in range(2)]


def publication(sink: Sink, shard: int, epoch: int, generation: int = 1, *, staged: bool = False) -> Publication:
    pipeline = shard_name(PIPELINE, shard)
    part: Part = (
        stage_rows(sink, epoch, _rows(shard, epoch), generation=generation, pipeline=pipeline)
        if staged
        else Carried(_table(_rows(shard, epoch)))
    )
    return Publication(EpochRecord(pipeline, epoch, generation, _positions(epoch)), (part,))


def back(shard: int, epoch: int, end: int) -> Publication:
    return Publication(EpochRecord(shard_name(PIPELINE, shard), epoch, 1, _positions(end), rewound_to=end), ())


def replace_pipeline(of: Publication, pipeline: str) -> Publication:
    return replace(of, record=replace(of.record, pipeline=pipeline))


def ids_in(sink: Sink) -> list[int]:
    """Return the ids that a view of a sink has."""
    assert offers(sink, Comparable)
    with sink.content() as content:
        return sorted(id for batch in content.rows(0, [0]) for id in batch.column("id").to_pylist())


def shared_repair(sink: Sink, *, without: int, instead: int) -> tuple[Repair, Mapping[str, Held]]:
    """Return a repair that removes the row of one id and writes another row, and the ledgers of its view."""
    assert offers(sink, SharedTable)
    with sink.content_of_shards() as (content, held):
        found = pa.Table.from_batches(content.rows(0, [0]))
        removed = found.filter(pc.equal(found.column("id"), without))
        assert removed.num_rows == 1
        return Repair(content.held, removed, _table([(instead, "w")])), held


def repair_shared(sink: Sink, repair: Repair, held: Mapping[str, Held]) -> int | None:
    assert offers(sink, SharedTable)
    return sink.repair_of_shards(repair, held)


def withdrawal(sink: Sink, end: int) -> Withdrawal:
    assert offers(sink, Rewindable)
    return sink.withdrawal(_positions(end))
