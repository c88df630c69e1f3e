"""What a sink must do that can publish an epoch without the rows that it refuses: one list of promises, run against
each whose rules can change behind a decision (design/0002, "Admitting")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pytest

from holdfast.capabilities import offers
from holdfast.errors import BadRow
from holdfast.ports import (
    Carried,
    EpochRecord,
    Held,
    Outcome,
    Part,
    Publication,
    Refused,
    Rejecting,
    RunIdentity,
    Sink,
    Task,
)
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row


class RefusingTarget(Protocol):
    """One table under test, which refuses no row yet."""

    def connect(self, name: str = "target", pipeline: str = PIPELINE) -> Sink:
        """Return a new runtime of the sink on the same target."""

    def rows(self) -> list[Row]:
        """Return what any reader sees, in any order."""

    def refuse(self, word: str) -> bool:
        """Make the target refuse rows of this word too from now on."""


@pytest.mark.parametrize("staged", [True, False], ids=["staged", "carried"])
class RejectContract:
    """The promises."""

    def test_a_row_that_is_refused_only_when_it_is_published_changes_nothing(
        self, refusing: RefusingTarget, staged: bool
    ) -> None:
        """A rule that somebody makes after the sink was asked: what is decided stays decided, and whole."""
        sink = opened(refusing)
        publication = decided(sink, staged, [(1, "one"), (2, "bad")])
        sink.admit(publication)
        refusing.refuse("bad")
        with pytest.raises(BadRow):
            sink.publish([publication], Held())
        assert refusing.rows() == []
        assert sink.outcome(1) is Outcome.ABSENT
        sink.close()

    def test_the_rows_that_are_refused_are_found_in_all_parts_and_the_others_are_published(
        self, refusing: RefusingTarget, staged: bool
    ) -> None:
        sink = opened(refusing)
        publication = decided(sink, staged, [(1, "one"), (2, "bad"), (3, "three")], [(4, "bad"), (5, "five")])
        refusing.refuse("bad")
        left, refused = rejected(sink, publication)
        assert [(each.number, row(each)) for each in refused] == [(1, ("2", "bad")), (3, ("4", "bad"))]
        assert all(isinstance(each.error, BadRow) for each in refused)
        assert left.row_count == 3
        sink.publish([left], Held())
        assert sorted(refusing.rows()) == [(1, "one"), (3, "three"), (5, "five")]
        sink.close()

    def test_what_is_left_is_numbered_anew_and_can_be_rejected_too(
        self, refusing: RefusingTarget, staged: bool
    ) -> None:
        """Another rule came before what was left could be published."""
        sink = opened(refusing)
        publication = decided(sink, staged, [(1, "bad"), (2, "worse"), (3, "three")], [(4, "bad"), (5, "worse")])
        refusing.refuse("bad")
        left, _ = rejected(sink, publication)
        refusing.refuse("worse")
        left, refused = rejected(sink, left)
        assert [(each.number, row(each)) for each in refused] == [(0, ("2", "worse")), (2, ("5", "worse"))]
        assert left.row_count == 1
        sink.publish([left], Held())
        assert refusing.rows() == [(3, "three")]
        sink.close()

    def test_rejecting_is_a_question_that_changes_nothing_and_fences_nobody(
        self, refusing: RefusingTarget, staged: bool
    ) -> None:
        owner = opened(refusing)
        publication = decided(owner, staged, [(1, "one"), (2, "bad")])
        refusing.refuse("bad")
        other = refusing.connect()
        first, again = rejected(other, publication), rejected(other, publication)
        assert [row(each) for each in first[1]] == [row(each) for each in again[1]] == [("2", "bad")]
        assert refusing.rows() == []
        assert owner.outcome(1) is Outcome.ABSENT
        owner.publish([first[0]], Held())
        assert refusing.rows() == [(1, "one")]
        other.close()
        owner.close()

    def test_where_no_row_is_refused_all_are_left(self, refusing: RefusingTarget, staged: bool) -> None:
        sink = opened(refusing)
        publication = decided(sink, staged, [(1, "one"), (2, "two")])
        refusing.refuse("bad")
        left, refused = rejected(sink, publication)
        assert list(refused) == []
        sink.publish([left], Held())
        assert sorted(refusing.rows()) == [(1, "one"), (2, "two")]
        sink.close()


def opened(target: RefusingTarget) -> Sink:
    sink = target.connect()
    sink.open(RunIdentity(PIPELINE, 1))
    return sink


def decided(sink: Sink, staged: bool, *parts: Sequence[Row]) -> Publication:
    """Return epoch 1 with these parts."""
    record = EpochRecord(PIPELINE, 1, 1, {"lines": {"log": 10}})
    made = [part(sink, staged, number, rows) for number, rows in enumerate(parts)]
    return Publication(record, tuple(made))


def part(sink: Sink, staged: bool, task: int, rows: Sequence[Row]) -> Part:
    table = pa.table({"id": [row[0] for row in rows], "word": [row[1] for row in rows]}, schema=SCHEMA)
    if not staged:
        return Carried(table)
    writer = sink.writer_factory()(Task(PIPELINE, 1, 1, task, 0))
    for batch in table.to_batches():
        writer.write(batch)
    return writer.stage()


def rejected(sink: Sink, publication: Publication) -> tuple[Publication, Sequence[Refused]]:
    assert offers(sink, Rejecting)
    return sink.reject(publication)


def row(refused: Refused) -> tuple[str, str]:
    """Return its values as text: that is all that some sinks can give of a staged row."""
    (values,) = refused.row.to_pylist()
    return str(values["id"]), values["word"]
