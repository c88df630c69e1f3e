"""What a sink must do that can take back what it published: one list of promises, run against each (design/0012)."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
import pytest

from holdfast.capabilities import offers
from holdfast.errors import Diverged, Fenced
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, Rewindable, RunIdentity, Sink, Task
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row


class RewindableTarget(Protocol):
    """One table or directory under test, whose sink is rewindable."""

    def connect(self, name: str = "target", pipeline: str = PIPELINE) -> Sink:
        """Return a new runtime of the sink on the same target."""

    def rows(self) -> list[Row]:
        """Return what any reader sees of ``id`` and ``word``, in any order."""


class RewindContract:
    """The promises."""

    def test_what_was_published_behind_the_target_is_withdrawn_and_the_sink_stands_there(
        self, rewindable: RewindableTarget
    ) -> None:
        sink = filled(rewindable, 5)
        assert offers(sink, Rewindable)
        asked = sink.withdrawal(positions(3))
        assert (asked.epoch, asked.epoch_count, asked.row_count, asked.obstacle) == (3, 2, 4, "")
        sink.publish([back(6, 3)], Held())
        assert sorted(rewindable.rows()) == rows_of(1, 2, 3)
        assert sink.outcome(6) is Outcome.PUBLISHED
        sink.publish([back(6, 3)], Held())  # a recovery that does not know whether it had published
        assert sorted(rewindable.rows()) == rows_of(1, 2, 3)
        sink.close()
        sink, held = opened(rewindable, 2)
        assert (held.epoch, held.positions) == (6, positions(3))
        sink.close()

    def test_epochs_go_on_behind_a_rewind_and_may_be_taken_back_again(self, rewindable: RewindableTarget) -> None:
        sink = filled(rewindable, 4)
        sink.publish([back(5, 2)], Held())
        for epoch, end in ((6, 3), (7, 4), (8, 5)):
            sink.publish([published(epoch, end)], Held())
        assert sorted(rewindable.rows()) == sorted(rows_of(1, 2) + rows_of(6, 7, 8))
        assert sink.withdrawal(positions(4)).epoch == 7  # type: ignore[attr-defined]
        sink.publish([back(9, 3)], Held())
        assert sorted(rewindable.rows()) == sorted(rows_of(1, 2) + rows_of(6))
        assert sink.withdrawal(positions(4)).obstacle  # type: ignore[attr-defined]
        sink.publish([back(10, 1)], Held())
        assert sorted(rewindable.rows()) == rows_of(1)
        sink.close()

    def test_a_sink_that_went_back_to_before_a_rewind_refuses_to_publish_over_the_gap(
        self, rewindable: RewindableTarget
    ) -> None:
        """A rewind's record is a higher epoch at older positions: a sink that lost it has more rows, and is behind."""
        sink = filled(rewindable, 3)
        with pytest.raises(Diverged):
            sink.publish([published(5, 3)], Held(4, 0, positions(2)))
        assert sorted(rewindable.rows()) == rows_of(1, 2, 3)
        sink.publish([back(4, 2)], Held(3, 0, positions(3)))
        sink.publish([published(5, 3)], Held(4, 0, positions(2)))
        assert sorted(rewindable.rows()) == sorted(rows_of(1, 2) + rows_of(5))
        sink.close()

    def test_a_rewind_is_refused_by_a_sink_that_went_back(self, rewindable: RewindableTarget) -> None:
        sink = filled(rewindable, 2)
        with pytest.raises(Diverged):
            sink.publish([back(4, 1)], Held(3, 0, positions(3)))
        assert sorted(rewindable.rows()) == rows_of(1, 2)
        sink.close()

    def test_staged_rows_are_withdrawn_too(self, rewindable: RewindableTarget) -> None:
        sink = filled(rewindable, 1)
        writer = sink.writer_factory()(Task(PIPELINE, 1, 2, 0, 0))
        writer.write(pa.RecordBatch.from_pydict({"id": [20, 21], "word": ["a", "b"]}, schema=SCHEMA))
        sink.publish([Publication(EpochRecord(PIPELINE, 2, 1, positions(2)), (writer.stage(),))], Held())
        assert len(rewindable.rows()) == 4
        sink.publish([back(3, 1)], Held())
        assert sorted(rewindable.rows()) == rows_of(1)
        sink.close()

    def test_positions_at_which_no_epoch_ended_are_refused_and_nothing_changes(
        self, rewindable: RewindableTarget
    ) -> None:
        sink = filled(rewindable, 2)
        assert "1 " in sink.withdrawal(positions(7)).obstacle  # type: ignore[attr-defined]
        with pytest.raises(Diverged):
            sink.publish([back(3, 7)], Held())
        assert sorted(rewindable.rows()) == rows_of(1, 2)
        sink.close()

    def test_a_fenced_generation_takes_nothing_back(self, rewindable: RewindableTarget) -> None:
        stale = filled(rewindable, 2)
        owner, _ = opened(rewindable, 2)
        with pytest.raises(Fenced):
            stale.publish([back(3, 1)], Held())
        assert sorted(rewindable.rows()) == rows_of(1, 2)
        stale.close()
        owner.close()


def positions(end: int) -> dict[str, dict[str, int]]:
    return {"given": {"log": end}}


def rows_of(*epochs: int) -> list[Row]:
    return [(10 * epoch + i, f"w{epoch}") for epoch in epochs for i in range(2)]


def published(epoch: int, end: int) -> Publication:
    ids, words = zip(*rows_of(epoch), strict=True)
    rows = pa.table({"id": list(ids), "word": list(words)}, schema=SCHEMA)
    return Publication(EpochRecord(PIPELINE, epoch, 1, positions(end)), (Carried(rows),))


def back(epoch: int, end: int) -> Publication:
    return Publication(EpochRecord(PIPELINE, epoch, 1, positions(end), rewound_to=end), ())


def opened(target: RewindableTarget, generation: int) -> tuple[Sink, Held]:
    sink = target.connect()
    return sink, sink.open(RunIdentity(PIPELINE, generation))


def filled(target: RewindableTarget, epochs: int) -> Sink:
    sink, _ = opened(target, 1)
    for epoch in range(1, epochs + 1):
        sink.publish([published(epoch, epoch)], Held())
    return sink
