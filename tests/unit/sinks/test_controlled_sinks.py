"""Sinks with a control column: what each holds after each command, carried and staged, against a naive model."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import segments
from holdfast.capabilities import offers
from holdfast.connectors.control.columns import ControlColumns
from holdfast.connectors.postgres.spec import PostgresSpec
from holdfast.connectors.segments.policies import Segment
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.errors import BadRow
from holdfast.ports import Carried, Held, Publication, Rejecting, RunIdentity, Sink
from holdfast.shards.naming import shard_name
from tests.controlled import (
    GUST,
    PIPELINE,
    SCHEMA,
    WIDE_GUST,
    WIDE_ID,
    Item,
    NaiveTable,
    carried,
    epochs,
    publication,
    staged,
    stream,
    table,
)

CONTROL = ControlColumns("control", "extra")


class Target(Protocol):
    """One kind of sink."""

    def connect(self, schema: Any = SCHEMA, pipeline: str = PIPELINE) -> Sink:
        """Connect the sink, not opened."""

    def rows(self) -> list[dict[str, Any]]:
        """Return what a reader sees, in the order of the numbers."""

    def tend(self, sink: Sink) -> None:
        """Do what a thread of the sink does."""


class SqliteTarget:
    def __init__(self, path: Path) -> None:
        self.path = path / "words.db"

    def connect(self, schema: Any = SCHEMA, pipeline: str = PIPELINE) -> Sink:
        return SqliteSpec(os.fspath(self.path), "words", control=CONTROL).connect("out", pipeline, schema)

    def rows(self) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute("SELECT * FROM words ORDER BY id").fetchall()]

    def tend(self, sink: Sink) -> None:
        return None


class SegmentsTarget:
    def __init__(self, path: Path) -> None:
        self.path = path / "words"

    def connect(self, schema: Any = SCHEMA, pipeline: str = PIPELINE) -> SegmentsSink:
        spec = SegmentsSinkSpec(os.fspath(self.path), partition_by=("day",), seal=(each_other,), control=CONTROL)
        return spec.connected("out", pipeline, schema, is_tended=False)

    def rows(self) -> list[dict[str, Any]]:
        return segments.open(self.path).to_arrow().sort_by("id").to_pylist()

    def tend(self, sink: Sink) -> None:
        assert isinstance(sink, SegmentsSink)
        sink.sealing.tend()


class PostgresTarget:
    def __init__(self, dsn: str, **arguments: Any) -> None:
        self.dsn = dsn
        self.arguments = arguments

    def connect(self, schema: Any = SCHEMA, pipeline: str = PIPELINE) -> Sink:
        return PostgresSpec(self.dsn, "words", control=CONTROL, **self.arguments).connect("out", pipeline, schema)

    def rows(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=psycopg.rows.dict_row) as connection:
            return connection.execute("SELECT * FROM words ORDER BY id").fetchall()

    def tend(self, sink: Sink) -> None:
        return None


def each_other(segment: Segment) -> str | None:
    return "each other" if segment.last_epoch % 2 else None


@pytest.fixture(params=["sqlite", "segments", pytest.param("postgres", marks=pytest.mark.postgres)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if request.param == "postgres":
        return PostgresTarget(request.getfixturevalue("postgres_prepared"))
    return SqliteTarget(tmp_path) if request.param == "sqlite" else SegmentsTarget(tmp_path)


def opened(target: Target, generation: int = 1, schema: Any = SCHEMA) -> Sink:
    sink = target.connect(schema)
    sink.open(RunIdentity(PIPELINE, generation))
    return sink


def publish(sink: Sink, epoch: int, items: Sequence[Item]) -> None:
    sink.publish([publication(epoch, carried(items))], Held())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_sink_holds_what_a_list_of_rows_would(target: Target, seed: int) -> None:
    """Rows and commands in any order, in one transaction or several, carried and staged, and after restarts."""
    count = 20 if isinstance(target, PostgresTarget) else 80
    model = NaiveTable()
    sink = opened(target)
    generation = 1
    for epoch, (first, second) in enumerate(epochs(seed, stream(seed, count)), start=1):
        task = staged(sink, epoch, first if epoch % 2 else second, generation=generation)
        parts = (task, carried(second)) if epoch % 2 else (carried(first), task)
        whole = publication(epoch, *parts, generation=generation)
        sink.admit(whole)
        sink.publish([whole], Held())
        sink.publish([whole], Held())  # in doubt: tried again
        sink.sweep(below_epoch=epoch + 1)
        model.take([*first, *second])
        assert target.rows() == model.sorted()
        if epoch % 3 == 0:
            target.tend(sink)
            assert target.rows() == model.sorted()
        if epoch % 5 == 0:
            sink.close()
            generation += 1
            sink = opened(target, generation)
    sink.close()


def test_several_epochs_of_one_transaction_see_each_others_commands(target: Target) -> None:
    sink = opened(target)
    whole = [
        publication(1, carried([(1, "mo"), GUST])),
        publication(2, carried([(2, "mo", {"gust": "1.5"}), hf.control.drop_partition(day="mo"), (3, "mo")])),
        publication(3, carried([WIDE_GUST, (4, "tu", {"gust": "2.5"})])),
    ]
    for each in whole:  # they wait for their group: the next one is asked for behind them
        assert sink.admit(each)
    sink.publish(whole, Held())
    assert target.rows() == [{"id": 3, "day": "mo", "gust": None}, {"id": 4, "day": "tu", "gust": 2.5}]
    sink.close()


def test_a_command_that_was_left_out_after_the_sink_had_taken_it_counts_for_no_later_epoch(target: Target) -> None:
    """Another sink refused it: its epoch comes again without rows, and waits for its group."""
    sink = opened(target)
    assert sink.admit(publication(1, carried([GUST])))
    assert not sink.admit(publication(1, carried([])))
    with pytest.raises(BadRow, match="'gust', which the sink does not have"):
        sink.admit(publication(2, carried([(1, "mo", {"gust": "1.5"})])))
    sink.close()


def test_a_wrong_command_is_refused_before_anything_is_decided_and_changes_nothing(target: Target) -> None:
    sink = opened(target)
    publish(sink, 1, [(1, "mo")])
    for command in ["drop everything", hf.control.widen("gust", "int"), hf.control.drop_partition(week=1)]:
        wrong = publication(2, carried([GUST, (2, "mo"), hf.control.drop_partition(day="mo"), command]))
        with pytest.raises(BadRow, match="cannot be carried out"):
            sink.admit(wrong)
        with pytest.raises(BadRow, match="cannot be carried out"):
            sink.publish([wrong], Held())
        assert target.rows() == [{"id": 1, "day": "mo"}]
    publish(sink, 2, [(2, "mo")])
    assert target.rows() == [{"id": 1, "day": "mo"}, {"id": 2, "day": "mo"}]
    sink.close()


def test_a_shard_drops_rows_of_its_own_and_none_of_a_table_that_others_write(target: Target) -> None:
    """What others wrote would go, and what they are about to write would not (design/0048, 8)."""

    def of(shard: int, number: int, items: Sequence[Item]) -> Publication:
        whole = publication(number, carried(items))
        return replace(whole, record=replace(whole.record, pipeline=shard_name(PIPELINE, shard)))

    sinks = [target.connect(pipeline=shard_name(PIPELINE, shard)) for shard in (0, 1)]
    for shard, sink in enumerate(sinks):
        sink.open(RunIdentity(shard_name(PIPELINE, shard), 1))
    drop = hf.control.drop_partition(day="mo")
    sinks[0].publish([of(0, 1, [(1, "mo"), drop, (2, "mo"), GUST])], Held())
    sinks[1].publish([of(1, 1, [(3, "mo"), (4, "tu"), GUST])], Held())
    for shard, number in ((0, 10), (1, 11)):
        sink, dropping = sinks[shard], of(shard, 2, [(number, "mo", {"gust": "2"}), drop, (number + 2, "mo")])
        if isinstance(target, SegmentsTarget):
            sink.publish([dropping], Held())
            continue
        for act in (
            lambda sink=sink, it=dropping: sink.admit(it),
            lambda sink=sink, it=dropping: sink.publish([it], Held()),
        ):
            with pytest.raises(BadRow, match="cannot be carried out") as refused:
                act()
            assert f"several shards ({PIPELINE}, {PIPELINE}-1)" in refused.value.why
    kept = [12, 13] if isinstance(target, SegmentsTarget) else [2, 3]
    assert [row["id"] for row in target.rows()] == sorted([*kept, 4])
    for sink in sinks:
        sink.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_staged", [False, True], ids=["carried", "staged"])
def test_what_is_refused_is_left_out_with_its_reason_and_the_rest_is_published(target: Target, is_staged: bool) -> None:
    sink = opened(target)
    items: list[Item] = [
        (0, "mo", {"gust": "1"}),  # before its column
        GUST,
        (1, "mo", {"gust": "calm"}),
        (2, "mo", {"gust": "2.5"}),
        "nonsense",
        hf.control.widen("id", "smallint"),
        (3, "tu"),
    ]
    whole = publication(1, staged(sink, 1, items) if is_staged else carried(items))
    with pytest.raises(BadRow):
        sink.admit(whole)
    assert offers(sink, Rejecting)
    left, refused = sink.reject(whole)
    assert [each.number for each in refused] == [0, 2, 4, 5]
    assert "does not have at this place" in refused[0].error.what
    assert "'calm'" in refused[1].error.why
    assert refused[2].row.column("control").to_pylist() == ["nonsense"]
    sink.publish([left], Held())
    assert target.rows() == [{"id": 2, "day": "mo", "gust": 2.5}, {"id": 3, "day": "tu", "gust": None}]
    sink.close()


def test_a_pipeline_that_declares_the_column_meanwhile_fills_it_as_any_other(target: Target) -> None:
    sink = opened(target)
    publish(sink, 1, [(1, "mo"), GUST, WIDE_GUST, (2, "mo", {"gust": "1.5"})])
    sink.close()
    sink = opened(target, 2, SCHEMA.insert(1, pa.field("gust", pa.float64())))
    rows = table([(3, "tu"), (4, "tu", {"gust": "2.5"})]).add_column(1, "gust", pa.array([3.5, 4.5]))
    sink.publish([publication(2, Carried(rows), generation=2)], Held())
    assert [row["gust"] for row in target.rows()] == [None, 1.5, 3.5, 2.5]
    sink.close()


def test_it_says_how_many_commands_it_has_carried_out(target: Target) -> None:
    sink = opened(target)
    publish(sink, 1, [GUST, GUST, WIDE_ID, (1, "mo"), hf.control.drop_partition(day="mo")])
    assert sink.control_counts() == {"schema": 2, "partition": 1}  # type: ignore[attr-defined]
    sink.close()
