"""What a sink must do whose table lacks columns of its rows: one list of promises, run against each (design/0035)."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Protocol, cast

import pyarrow as pa
import pytest

from holdfast.capabilities import offers
from holdfast.errors import Fenced, InvalidPipeline
from holdfast.ports import Carried, EpochRecord, Evolving, ExaminedSpec, Held, Publication, RunIdentity, Sink, Task
from tests.contract.sink_contract import PIPELINE, SCHEMA

WIDER = SCHEMA.append(pa.field("cents", pa.decimal128(9, 2))).append(pa.field("at", pa.timestamp("us", "UTC")))
VALUES: dict[str, list[Any]] = {"id": [7], "word": ["seven"], "cents": [None], "at": [0]}


class ColumnTarget(Protocol):
    """One system under test, with tables by name."""

    def spec(self, table: str = "words", **arguments: Any) -> Any:
        """Return the declaration of a sink."""

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""

    def columns(self, table: str = "words") -> list[str]:
        """Return the columns of a table, in its order."""


class ColumnContract:
    """The promises."""

    @pytest.mark.parametrize("staged", [True, False], ids=["staged", "carried"])
    def test_a_start_adds_the_columns_and_older_rows_have_null(self, growing: ColumnTarget, staged: bool) -> None:
        before(growing)
        sink = connected(growing)
        assert growing.columns() == ["id", "word"], "nothing is changed before the sink is fenced"
        sink.open(RunIdentity(PIPELINE, 2))
        assert growing.columns() == ["id", "word"], "what was decided with the former columns comes first"
        assert [*evolving(sink).add_columns()] == ["cents", "at"]
        assert [*evolving(sink).add_columns()] == []
        rows = pa.table({**VALUES, "cents": [Decimal("1.25")]}).cast(WIDER)
        publish(sink, rows, staged=staged)
        assert growing.execute("SELECT id, word, cents IS NULL, at IS NULL FROM words ORDER BY id") == [
            (1, "one", True, True),
            (7, "seven", False, False),
        ]
        sink.close()
        again = connected(growing)
        again.open(RunIdentity(PIPELINE, 3))
        assert [*evolving(again).add_columns()] == []
        again.close()

    def test_a_run_of_the_former_graph_writes_the_wider_table(self, growing: ColumnTarget) -> None:
        before(growing)
        sink = connected(growing)
        sink.open(RunIdentity(PIPELINE, 2))
        evolving(sink).add_columns()
        sink.close()
        former = growing.spec().connect("target", PIPELINE, SCHEMA)
        former.open(RunIdentity(PIPELINE, 3))
        publish(former, pa.table({"id": [2], "word": ["two"]}), generation=3)
        former.close()
        assert growing.execute("SELECT id, cents IS NULL FROM words ORDER BY id") == [(1, True), (2, True)]

    def test_a_fenced_generation_adds_nothing(self, growing: ColumnTarget) -> None:
        before(growing)
        stale = connected(growing)
        stale.open(RunIdentity(PIPELINE, 2))
        newer = growing.spec().connect("target", PIPELINE, SCHEMA)
        newer.open(RunIdentity(PIPELINE, 3))
        with pytest.raises(Fenced):
            evolving(stale).add_columns()
        assert growing.columns() == ["id", "word"]
        stale.close()
        newer.close()

    def test_two_sinks_of_one_table_add_a_column_once(self, growing: ColumnTarget) -> None:
        before(growing)
        sinks = [connected(growing, name) for name in ("target", "other")]
        for sink in sinks:
            sink.open(RunIdentity(PIPELINE, 2))
        for sink in sinks:
            evolving(sink).add_columns()
        for sink in sinks:
            publish(sink, pa.table(VALUES).cast(WIDER), name=sink.name)
            sink.close()
        assert growing.columns() == ["id", "word", "cents", "at"]
        assert growing.execute("SELECT count(*) FROM words") == [(3,)]

    def test_a_column_that_somebody_adds_meanwhile_with_another_type_is_refused(self, growing: ColumnTarget) -> None:
        before(growing)
        sink = connected(growing)
        sink.open(RunIdentity(PIPELINE, 2))
        growing.execute("ALTER TABLE words ADD COLUMN cents INTEGER")
        with pytest.raises(InvalidPipeline, match="'cents' is decimal"):
            evolving(sink).add_columns()
        assert growing.columns() == ["id", "word", "cents"], "all or nothing"
        sink.close()

    def test_a_user_may_ask_that_it_is_refused_and_a_key_is_never_added(self, growing: ColumnTarget) -> None:
        before(growing)
        with pytest.raises(InvalidPipeline, match="column 'cents' does not exist"):
            growing.spec(on_new_column="fail").connect("target", PIPELINE, WIDER)
        with pytest.raises(InvalidPipeline, match="column 'cents' does not exist"):
            growing.spec(mode="upsert", key=("cents",)).connect("target", PIPELINE, WIDER)
        assert growing.columns() == ["id", "word"]

    def test_what_a_start_adds_is_known_before_and_looking_changes_nothing(self, growing: ColumnTarget) -> None:
        spec: ExaminedSpec = growing.spec()
        assert [*spec.examine("target", PIPELINE, WIDER)] == []
        before(growing)
        assert [*spec.examine("target", PIPELINE, WIDER)] == ["cents", "at"]
        assert [*spec.examine("target", PIPELINE, SCHEMA)] == []
        sink: Any = connected(growing)
        with pytest.raises(InvalidPipeline, match=r"no column 'cents', 'at' yet.*\n.*\n.*start the pipeline once"):
            sink.content().__enter__()
        sink.close()
        assert growing.columns() == ["id", "word"]

    def test_rows_that_were_decided_with_other_columns_are_refused_and_not_cut(self, growing: ColumnTarget) -> None:
        """What recovery could not publish first, because a second accident came between."""
        before(growing)
        sink = connected(growing)
        sink.open(RunIdentity(PIPELINE, 2))
        evolving(sink).add_columns()
        for rows in (pa.table({"id": [2], "word": ["two"]}), pa.table({**VALUES, "gone": [1]})):
            with pytest.raises(InvalidPipeline, match="start the pipeline once as it was before"):
                publish(sink, rows)
        assert growing.execute("SELECT id FROM words") == [(1,)]
        sink.close()


def before(target: ColumnTarget) -> None:
    """Publish one epoch with the former columns, and end."""
    sink = target.spec().connect("target", PIPELINE, SCHEMA)
    sink.open(RunIdentity(PIPELINE, 1))
    publish(sink, pa.table({"id": [1], "word": ["one"]}), epoch=1, generation=1)
    sink.close()


def connected(target: ColumnTarget, name: str = "target") -> Sink:
    """Connect with the new columns."""
    return cast(Sink, target.spec().connect(name, PIPELINE, WIDER))


def evolving(sink: Sink) -> Evolving:
    """Return the sink as what it must be."""
    assert offers(sink, Evolving)
    return sink


def publish(
    sink: Sink, rows: pa.Table, *, epoch: int = 2, generation: int = 2, staged: bool = False, name: str = "target"
) -> None:
    """Publish rows as an epoch."""
    parts: Sequence[Any] = [Carried(rows)]
    if staged:
        writer = sink.writer_factory()(Task(PIPELINE, generation, epoch, 0, 0))
        for batch in rows.to_batches():
            writer.write(batch)
        parts = [writer.stage()]
    record = EpochRecord(PIPELINE, epoch, generation, {"source": {"a": epoch}})
    publication = Publication(record, tuple(parts))
    sink.admit(publication)
    sink.publish([publication], Held())
