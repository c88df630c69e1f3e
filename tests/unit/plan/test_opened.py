"""Chunks opened into rows and closed again (design/0010, section 1): the order does not depend on how it is cut."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.errors import InternalError
from holdfast.plan import chunks
from holdfast.plan.chunks import BOUNDS, REPORT, ROWS, Chunk, Packer, decode, encode, from_batch, in_order, rank_of
from holdfast.plan.cutting import build_stages
from holdfast.plan.levels import opened
from holdfast.plan.levels.host import levels_of
from holdfast.plan.levels.opened import CHUNK, Closing, Opening, ThroughPlan, opened_schema
from holdfast.plan.routes import column_name, end_column_name
from holdfast.plan.stages import Stages
from holdfast.testing import StandIn, close, drive
from holdfast.testing.stand_in import StandInPlan
from tests.spark.counting import OUT, counting

SCHEMA = "k STRING, v BIGINT"


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array([row for row in range(batch.num_rows) for _ in (0, 1)], pa.int64()))


def dropped(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array([n % 3 > 0 for n in batch.column("n").to_pylist()]))


STAND_INS = {
    "doubled": StandIn(doubled, lambda schema: schema),
    "kept": StandIn(dropped, lambda schema: schema),
}
LEFT = {name: replace(each, leaves_columns=True) for name, each in STAND_INS.items()}
"""The same, said to leave every column: then none comes back through the plan, and rows are found by their numbers."""


def pipeline() -> hf.Pipeline:
    first = counting(hf.read.rows([], schema=SCHEMA, name="given"), name="first")
    both = hf.union(first | hf.map(lambda df: df, name="doubled"), first | hf.map(lambda df: df, name="kept"))
    return hf.Pipeline("p", counting(both, name="second") | hf.write.console(name="out"),
                       first | hf.write.console(name="plain"))  # fmt: skip


def cut(plan: StandInPlan, partitions: int) -> Stages:
    return build_stages(
        pipeline(), lambda schema: schema, "t", buckets=4, partitions=partitions, prefix=plan.schemas
    )  # fmt: skip


def of_level(stages: Stages, bucket: int) -> list[Chunk]:
    """Return what a bucket of the first level gives: two chunks of rows for the subplan, rows and bounds for others."""
    opened = next(number for number, target in enumerate(stages.routing.targets) if target.input == "opened/first")
    plain = next(number for number, target in enumerate(stages.routing.targets) if target.input == "plain")
    packer = Packer(stages.routing, rank_of(1, 0, bucket), bucket)
    found: list[Chunk] = []
    for half in (0, 1):
        rows = [{"k": f"{bucket}", "n": 10 * half + n, "inputs": "", "epoch": 1} for n in range(5)]
        for target in (opened, plain):
            found += packer.add(target, pa.RecordBatch.from_pylist(rows, schema=OUT))
        found += packer.rows()
    return [*found, Chunk(plain, bucket, BOUNDS, rank_of(1, 0, bucket), 9, "first", encode(pa.table({"b": [bucket]})))]


def rows_of(chunks: list[Chunk], target: int) -> list[Any]:
    mine = in_order([chunk for chunk in chunks if chunk.kind == ROWS and chunk.target == target])
    return [(row["k"], row["n"]) for chunk in mine for row in decode(chunk.data).to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("stand_ins", [STAND_INS, LEFT, {**STAND_INS, "kept": LEFT["kept"]}])
@pytest.mark.parametrize("seed", range(5))
def test_rows_come_back_in_their_order_however_they_are_cut_and_on_however_many_tasks(
    seed: int, stand_ins: dict[str, StandIn]
) -> None:
    chance = random.Random(seed)
    plan = StandInPlan(stand_ins, chance)
    found = {}
    for partitions in (1, 2, 4):
        stages = cut(plan, partitions)
        tasks: list[list[Chunk]] = [[] for _ in range(partitions)]
        for bucket in chance.sample(range(4), 4):
            tasks[bucket % partitions] += of_level(stages, bucket)
        made = [chunk for task in tasks for chunk in plan.led_through(stages, 2, task)]
        second = stages.stages[3].hosted["second"].targets["rows"]
        found[partitions] = rows_of(made, second)
        others = [chunk for chunk in made if chunk.target != second and chunk.kind != REPORT]
        wanted = [chunk for bucket in range(4) for chunk in of_level(stages, bucket)]
        past = [chunk for chunk in wanted if stages.routing.targets[chunk.target].input == "plain"]
        assert {(c.target, c.kind, c.rank, c.seq, bytes(c.data)) for c in others} == {
            (c.target, c.kind, c.rank, c.seq, bytes(c.data)) for c in past
        }, "what has no business there comes back as it was"
    (first, *rest) = found.values()
    assert all(each == first for each in rest)
    halves = [range(10 * half, 10 * half + 5) for half in (0, 1)]
    of_key = [n for half in halves for n in [*(n for n in half for _ in (0, 1)), *(n for n in half if n % 3)]]
    assert sorted(first) == sorted((f"{bucket}", n) for bucket in range(4) for n in of_key)
    by_key = {k: [n for key, n in first if key == k] for k in "0123"}
    assert by_key == dict.fromkeys("0123", of_key)


def test_chunks_that_are_opened_in_the_task_that_packs_them_are_not_compressed() -> None:
    """A level's, for the subplan right behind it; what crosses a shuffle, the JVM copies several times."""
    stages = cut(StandInPlan(STAND_INS), 1)
    first, second = levels_of(stages, "t")
    packers = [first._packer(0, 0), second._packer(0, 0)]
    head, plain = (
        next(number for number, target in enumerate(stages.routing.targets) if target.input == name)
        for name in ("opened/first", "plain")
    )
    rows = pa.RecordBatch.from_pylist([{"k": "a", "n": n, "inputs": "", "epoch": 1} for n in range(9000)], schema=OUT)
    sizes = []
    for packer in packers:
        made = [*packer.add(head, rows), *packer.add(plain, rows), *packer.rows()]
        assert [decode(chunk.data) for chunk in made] == [pa.Table.from_batches([rows])] * 2
        sizes.append({chunk.target: len(bytes(chunk.data)) for chunk in made})
    assert sizes[0][head] > rows.nbytes > 4 * sizes[0][plain]
    assert sizes[1][head] == sizes[1][plain] == sizes[0][plain]


def test_a_graph_is_driven_with_what_stands_in_for_spark() -> None:
    given = hf.read.rows([], schema=SCHEMA, name="given")
    twice = counting(given, name="first") | hf.map(lambda df: df, name="doubled")
    epochs = {"given": [[{"k": "a", "v": 1}], [{"k": "a", "v": 1}, {"k": "b", "v": 1}]]}
    found = drive(counting(twice, name="second"), epochs, stand_ins=STAND_INS)
    assert [[(row["k"], row["n"]) for row in rows] for rows in found] == [[("a", 2)], [("a", 4), ("b", 2)]]


TIMES = 5


def row_for_row(*, is_gathered: bool = False) -> tuple[Opening, Closing, Stages, int]:
    """Return both ends of a subplan whose plan computes one column of each row, and leaves another as it is."""
    first = counting(hf.read.rows([], schema=SCHEMA, name="given"), name="first")
    times = StandIn(lambda rows: rows, lambda schema: pa.schema([("k", pa.string()), ("n", pa.int64())]))
    plan = StandInPlan({"times": times})
    graph = hf.Pipeline("p", first | hf.map(lambda df: df, name="times") | hf.write.console(name="out"))
    stages = build_stages(graph, lambda schema: schema, "t", buckets=2, partitions=2, prefix=plan.schemas)
    stage = stages.stages[2]
    assert stage.subplan is not None
    ((target, schema),) = stage.subplan.heads
    k, n = (column_name(0, schema.names.index(name)) for name in ("k", "n"))
    through = ThroughPlan(frozenset({n}), ((k, None),), is_row_for_row=True, is_gathered=is_gathered)
    opening = Opening(stage.subplan, opened_schema([schema], through), through)
    return opening, Closing(2, stage, stages.routing, through), stages, target


def evaluated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Compute what the plan computes."""
    (read,) = (name for name in batch.schema.names if name != CHUNK)
    made = pc.multiply(batch.column(read), TIMES)
    return pa.RecordBatch.from_arrays([batch.column(CHUNK), made], names=[CHUNK, end_column_name(0, 1)])


def test_a_column_that_stays_goes_by_the_places_of_rows_where_the_plan_makes_one_of_each() -> None:
    opening, closing, stages, target = row_for_row()
    packer = Packer(stages.routing, rank_of(1, 0, 0), 0)
    rows = [{"k": f"{n}", "n": n, "inputs": "", "epoch": 1} for n in range(7)]
    chunks = [*packer.add(target, pa.RecordBatch.from_pylist(rows, schema=OUT)), *packer.rows()]
    opened = list(opening(iter([stages.routing.to_batch(chunks, 2)])))
    assert [batch.num_rows for batch in opened] == [1, 7], "the head of the chunk, and its rows"
    assert set(opened[1].schema.names) == {CHUNK, column_name(0, OUT.names.index("n"))}, "no other column crosses"
    pieces = [opened[0], opened[1].slice(0, 3), opened[1].slice(3)]
    made = [chunk for batch in closing(evaluated(each) for each in pieces) for chunk in from_batch(batch)]
    (out,) = [decode(chunk.data).to_pylist() for chunk in made if chunk.kind == ROWS]
    assert out == [{"k": f"{n}", "n": n * TIMES} for n in range(7)]


def evaluated_in_arrays(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Compute what a plan over arrays computes."""
    (read,) = (name for name in batch.schema.names if name != CHUNK)
    made = [None if values is None else [n and n * TIMES for n in values] for values in batch.column(read).to_pylist()]
    arrays = [batch.column(CHUNK), pa.array(made, pa.list_(pa.int64()))]
    return pa.RecordBatch.from_arrays(arrays, names=[CHUNK, end_column_name(0, 1)])


@pytest.mark.parametrize("counts", [(0,), (3,), (4, 0, 9), (1, 8)])
@pytest.mark.parametrize("is_apart", [False, True])
def test_rows_that_go_through_in_arrays_are_the_same_ones_behind_it(
    counts: tuple[int, ...], is_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of no row, of rows for less than an array, and for several of them; between them bounds, as they were."""
    monkeypatch.setattr(opened, "GATHERED", 4)
    monkeypatch.setattr(opened, "ROWS_AT_ONCE", 6)
    opening, closing, stages, target = row_for_row(is_gathered=True)
    bound = Chunk(target, 0, BOUNDS, rank_of(1, 0, 0), 99, "first", encode(pa.table({"b": [1]})))
    given: list[Chunk] = []
    wanted = []
    for number, count in enumerate(counts):
        rows = [{"k": f"{number}.{n}", "n": n if n % 3 else None, "inputs": "", "epoch": 1} for n in range(count)]
        data = encode(pa.Table.from_pylist(rows, schema=OUT))
        given += [Chunk(target, 0, ROWS, rank_of(1, 0, number), 1, "", data), bound]
        wanted += [{"k": row["k"], "n": None if row["n"] is None else row["n"] * TIMES} for row in rows]
    batches = list(opening(iter([stages.routing.to_batch(given, 2)])))
    assert {batch.num_rows for batch in batches if batch.column(CHUNK).null_count} <= {1, 2}, "six rows are two arrays"
    pieces = [batch.slice(n, 1) for batch in batches for n in range(batch.num_rows)] if is_apart else batches
    made = [chunk for batch in closing(evaluated_in_arrays(each) for each in pieces) for chunk in from_batch(batch)]
    assert [row for chunk in made if chunk.kind == ROWS for row in decode(chunk.data).to_pylist()] == wanted
    assert [bytes(chunk.data) for chunk in made if chunk.kind == BOUNDS] == [bound.data] * len(counts)


def test_an_array_that_is_lost_on_the_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "GATHERED", 4)
    opening, closing, stages, target = row_for_row(is_gathered=True)
    data = encode(pa.Table.from_pylist([{"k": "a", "n": n, "inputs": "", "epoch": 1} for n in range(9)], schema=OUT))
    head, arrays = opening(iter([stages.routing.to_batch([Chunk(target, 0, ROWS, 1, 1, "", data)], 2)]))
    with pytest.raises(InternalError, match="made 5 rows of 9"):
        list(closing(evaluated_in_arrays(each) for each in (head, arrays.slice(1))))


def test_a_row_that_is_lost_on_the_way_is_noticed() -> None:
    opening, closing, stages, target = row_for_row()
    packer = Packer(stages.routing, rank_of(1, 0, 0), 0)
    rows = [{"k": f"{n}", "n": n, "inputs": "", "epoch": 1} for n in range(7)]
    chunks = [*packer.add(target, pa.RecordBatch.from_pylist(rows, schema=OUT)), *packer.rows()]
    head, opened = opening(iter([stages.routing.to_batch(chunks, 2)]))
    with pytest.raises(InternalError, match="made 6 rows of 7"):
        list(closing(evaluated(each) for each in (head, opened.slice(1))))


def repeated(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch] * 9)


@pytest.mark.slow
@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_rows_that_are_packed_anew_into_more_chunks_do_not_meet_the_bounds_beside_them(
    buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they bypass a level, and where Spark's plan has led them: they keep their rank, and are numbered anew."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1)
    schema = "k STRING, t BIGINT"
    rows = hf.read.rows([], schema=schema, timestamp="t", name="rows", bounded=True)
    seen = rows | hf.accumulate(by="k", n=hf.count(), name="seen") | hf.select("k", "t", name="plain")
    ways = {
        "bypassing": hf.union(rows, seen, name="both"),
        "led": seen | hf.map(lambda df: df, timestamp="t", name="mapped"),
    }
    given: dict[str, Any] = {"rows": [[{"k": "a", "t": 1}, {"k": "b", "t": 1}, close()]]}
    for name, way in ways.items():
        many = way | hf.map_batches(repeated, schema, timestamp="t", name="many")
        counted = many | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="counted")
        stand_ins = {"mapped": StandIn(lambda batch: batch, lambda of: of)}
        found = drive(counted, given, buckets=buckets, stand_ins=stand_ins if name == "led" else {})
        wanted = 18 if name == "bypassing" else 9
        assert sorted((row["k"], row["n"]) for epoch in found for row in epoch) == [("a", wanted), ("b", wanted)]
