"""Which state tables stay, grow, are migrated, or stand in the way (design/0011, section 5)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.state_upgrade import StateUpgrade, TableMove, Way, state_move
from holdfast.errors import InvalidPipeline
from holdfast.graph.evolution import Evolution
from holdfast.graph.naming import canonical_json
from holdfast.graph.nodes import Stream
from holdfast.state.step import StepTime
from holdfast.types.schema import to_arrow

SCHEMA = "k STRING, t BIGINT, v BIGINT, x DOUBLE"


def rows() -> Stream:
    return hf.read.rows([], schema=SCHEMA, timestamp="t", name="rows")


def of(operator: Any, migrate: Any = None) -> tuple[StateSchema, StateUpgrade]:
    node = (rows() | operator).node
    step = node.spec.step({"rows": to_arrow(SCHEMA)})
    return StateSchema(node.kind, canonical_json(dict(node.arguments())), step.key, step.tables), StateUpgrade(
        Evolution("", migrate), step
    )


def total(**aggregates: Any) -> Any:
    return hf.reduce(by="k", **aggregates)


COUNT: dict[str, Any] = {"n": hf.count()}
EVERY = {
    "sums": hf.sum("v"),
    "means": hf.mean("x"),
    "least": hf.min("v"),
    "last": hf.last("x"),
    "spread": hf.variance("x"),
    "half": hf.quantile("x", 0.5),
}


def test_more_aggregates_begin_as_over_no_rows() -> None:
    (old, _), (new, means) = of(total(**COUNT)), of(total(**COUNT, **EVERY))
    move = state_move(old, new, means)
    assert move.reasons == ()
    assert move.tables == {"windows": TableMove(Way.GROWN, "windows")}
    known = pa.Table.from_pylist(
        [{"k": key, "window_start": 0, "window_end": 9, "n__count": 7} for key in "ab"],
        schema=old.tables["windows"].schema,
    )
    grown = means.grown("windows", known, StepTime(1, 1))
    assert grown is not None
    assert grown.schema == new.tables["windows"].schema
    assert grown.column("n__count").to_pylist() == [7, 7]
    step = means.step
    assert step is not None
    parts = step._windows_table.parts  # type: ignore[attr-defined]
    read = {
        name: part.read([grown.column(f"{name}__{suffix}").combine_chunks() for suffix, _ in part.fields]).to_pylist()
        for name, part in parts.items()
    }
    assert read == {"n": [7, 7], **{name: [None, None] for name in EVERY}}


def test_an_aggregate_with_another_condition_begins_as_over_no_rows() -> None:
    few, many = hf.count(where="v < 10"), hf.count(where="v >= 10")
    for before, after in ((few, many), (hf.count(), few), (few, hf.count())):
        (old, _), (new, means) = of(total(n=before, m=hf.count())), of(total(n=after, m=hf.count()))
        assert state_move(old, new, means).tables == {"windows": TableMove(Way.GROWN, "windows")}
        known = pa.Table.from_pylist(
            [{name: 7 for name in old.tables["windows"].schema.names if name != "k"} | {"k": "a"}],
            schema=old.tables["windows"].schema,
        )
        grown = means.grown("windows", known, StepTime(1, 1))
        assert grown is not None
        assert grown.schema == new.tables["windows"].schema
        assert grown.drop_columns(["k", "window_start", "window_end"]).to_pylist() == [
            {name: 7 if name.startswith("m__") else 0 for name in grown.schema.names[3:]}
        ]


def test_a_set_of_values_gets_flags_for_further_counts_and_drops_those_of_earlier_conditions() -> None:
    few, many = hf.distinct_count("v", where="x < 1"), hf.distinct_count("v", where="x >= 1")
    (old, _), (new, means) = of(total(a=few, b=few)), of(total(a=many, b=few, c=many))
    move = state_move(old, new, means)
    assert move.reasons == ()
    assert move.tables["v__distinct"] == TableMove(Way.GROWN, "v__distinct")
    known = pa.Table.from_pylist(
        [{"k": "a", "window_start": 0, "value": 7, f"a__{few.condition}": True, f"b__{few.condition}": True}],
        schema=old.tables["v__distinct"].schema,
    )
    grown = means.grown("v__distinct", known, StepTime(1, 1))
    assert grown is not None
    now = zip("abc", (many, few, many), strict=True)
    flags = {name: grown.column(f"{name}__{one.condition}").to_pylist() for name, one in now}
    assert flags == {"a": [False], "b": [True], "c": [False]}
    (old, _), (new, means) = of(total(a=few, b=few)), of(total(a=few))
    assert "state table 'v__distinct' was" in "; ".join(state_move(old, new, means).reasons)


def test_first_rows_stay_with_another_number_and_order_and_get_columns() -> None:
    def best(n: int, order: str, schema: str) -> tuple[StateSchema, StateUpgrade]:
        stream = hf.top(
            hf.read.rows([], schema=schema, timestamp="t", name="rows"), n, by="k", order=order, name="best"
        )
        step = stream.node.spec.step({"rows": to_arrow(schema)})
        arguments = canonical_json(dict(stream.node.arguments()))
        return StateSchema(stream.node.kind, arguments, step.key, step.tables), StateUpgrade(Evolution(), step)

    (old, _), (new, means) = (
        best(3, "v desc", "k STRING, t BIGINT, v BIGINT"),
        best(2, "v", "t BIGINT, v BIGINT, k STRING"),
    )
    assert state_move(old, new, means).is_plain
    (new, means) = best(3, "v desc", "k STRING, t BIGINT, v BIGINT, x DOUBLE")
    assert state_move(old, new, means).tables["ranked"] == TableMove(Way.GROWN, "ranked")
    (new, means) = best(3, "t", "k STRING, t BIGINT")
    assert "state table 'ranked' was" in "; ".join(state_move(old, new, means).reasons)


def test_a_join_keeps_its_state_with_other_limits_none_and_those_of_its_rows() -> None:
    def joined(**limits: Any) -> tuple[StateSchema, StateUpgrade]:
        left, right = (hf.read.rows([], schema=SCHEMA, timestamp="t", name=name) for name in ("a", "b"))
        node = hf.join(left, right, on="k", name="joined", **limits).node
        step = node.spec.step(dict.fromkeys(("left", "right"), to_arrow(SCHEMA)))
        arguments = canonical_json(dict(node.arguments()))
        return StateSchema(node.kind, arguments, step.key, step.tables), StateUpgrade(Evolution(), step)

    ways: list[dict[str, Any]] = [{"within": 5}, {"forget_after": None}, {"within": (0, None)}, {"within": ("t", "v")}]
    for before in ways:
        for after in ways:
            (old, _), (new, means) = joined(**before), joined(**after)
            assert state_move(old, new, means).is_plain


def over_changes(**aggregates: Any) -> tuple[StateSchema, StateUpgrade]:
    changing = rows() | hf.reduce(by="k", v=hf.max("v"), x=hf.last("x"), delete="gone", name="changing")
    node = (changing | hf.reduce(by="k", **aggregates, delete="gone", name="over")).node
    step = node.spec.step({"rows": to_arrow("k STRING, v BIGINT, x DOUBLE, gone BOOLEAN")})
    return StateSchema(node.kind, canonical_json(dict(node.arguments())), step.key, step.tables), StateUpgrade(
        Evolution(), step
    )


def test_over_changes_no_aggregate_begins_as_over_no_rows() -> None:
    """It would subtract what it has never added (design/0059)."""
    (old, _) = over_changes(n=hf.count(), most=hf.max("v"))
    (new, means) = over_changes(n=hf.count(), most=hf.max("v"), least=hf.min("v"), different=hf.distinct_count("v"))
    assert state_move(old, new, means).is_plain  # they share what is counted
    for further in ({"total": hf.sum("v")}, {"highest": hf.max("x")}):
        (new, means) = over_changes(n=hf.count(), most=hf.max("v"), **further)
        table = "windows" if "total" in further else "x__counted"
        assert f"state table {table!r} was" in "; ".join(state_move(old, new, means).reasons)
    (new, means) = over_changes(n=hf.count())
    assert "state table 'v__counted' was" in "; ".join(state_move(old, new, means).reasons)


def test_rows_that_come_and_rows_that_may_be_retracted_are_other_state() -> None:
    (old, _), (new, means) = of(total(**COUNT)), over_changes(**COUNT)
    assert "state table 'windows' was" in "; ".join(state_move(old, new, means).reasons)
    (old, _), (new, means) = over_changes(**COUNT), of(total(**COUNT))
    assert "state table 'windows' was" in "; ".join(state_move(old, new, means).reasons)


def test_whether_changes_are_told_is_no_matter_of_state() -> None:
    (old, _), (new, means) = of(total(**COUNT)), of(total(**COUNT, delete="gone"))
    assert state_move(old, new, means).is_plain


def test_the_same_condition_keeps_its_state() -> None:
    (old, _), (new, means) = of(total(n=hf.count(where="v < 10"))), of(total(n=hf.count(where=" v < 10")))
    assert state_move(old, new, means).is_plain


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (total(**COUNT, m=hf.count(where="v < 10")), total(**COUNT), "state table 'windows' was (k string"),
        (
            total(**COUNT, m=hf.collect("v", where="v < 10")),
            total(**COUNT, m=hf.collect("v", where="v < 9")),
            "and is not there",
        ),
        (total(**COUNT, m=hf.sum("v")), total(**COUNT), "state table 'windows' was (k string, window_start int64"),
        (total(m=hf.min("v")), total(m=hf.max("v")), "m__min int64; key k, window_start), and is"),
        (total(**COUNT), hf.reduce(by=["k", "v"], **COUNT), "its key was"),
        (total(**COUNT), hf.accumulate(by="k", **COUNT), "it was aggregate, and is accumulate"),
        (hf.distinct(by="k", horizon=5), hf.distinct(by=["k", "v"], horizon=5), "its key was"),
        (
            hf.aggregate(by="k", window=hf.tumbling(5), **COUNT),
            hf.aggregate(by="k", window=hf.tumbling(5), idle_after="1 s", **COUNT),
            "state table 'keys' was",
        ),
    ],
)
def test_what_cannot_be_told_is_refused(before: Any, after: Any, said: str) -> None:
    (old, _), (new, means) = of(before), of(after)
    assert said in "; ".join(state_move(old, new, means).reasons)


def test_values_that_are_kept_one_by_one_begin_empty() -> None:
    (old, _), (new, means) = of(total(**COUNT)), of(total(**COUNT, all_v=hf.collect("v")))
    assert state_move(old, new, means).tables["all_v__values"] == TableMove(Way.GROWN, "")
    (old, _), (new, means) = of(hf.accumulate(by="k", **COUNT)), of(hf.accumulate(by="k", **COUNT, m=hf.max("v")))
    assert state_move(old, new, means).tables["running"].way is Way.GROWN
    assert state_move(old, new, means).tables["bounds"].way is Way.AS_IS


def test_tables_of_a_users_own_step_grow_by_columns_that_may_be_null() -> None:
    def step(tables: Any, rows: Any, at: Any) -> Any:
        return None, None

    def kept(schema: str, **options: Any) -> Any:
        return hf.stateful(step, by="k", schema="k STRING", state={"seen": schema}, **options)

    (old, _), (new, means) = (
        of(kept("k STRING, n BIGINT")),
        of(kept("k STRING, n BIGINT, m DOUBLE", forget_after="1 s")),
    )
    assert state_move(old, new, means).tables["seen"].way is Way.GROWN
    found = means.grown("seen", pa.table({"k": ["a"], "n": [1]}), StepTime(3, 99))
    assert found is not None
    assert found.to_pylist() == [{"k": "a", "n": 1, "m": None, "__touched_us__": 99}]
    (new, means) = of(kept("k STRING, n DOUBLE"))
    assert "n int64" in state_move(old, new, means).reasons[0]


def test_a_migration_takes_the_table_that_differs() -> None:
    def migrate(table: pa.Table) -> pa.Table:
        return table

    (old, _), (new, means) = of(total(m=hf.min("v"))), of(total(m=hf.max("v")), migrate)
    assert state_move(old, new, means).tables == {"windows": TableMove(Way.MIGRATED, "windows", migrate)}
    assert state_move(new, new, means).is_plain, "once it has happened, it says nothing new"
    (old, _), (new, means) = (
        of(hf.apply(print_, by="k", schema="k STRING", state="n BIGINT")),
        of(total(**COUNT), migrate),
    )
    move = state_move(old, new, means)
    assert move.tables["windows"] == TableMove(Way.MIGRATED, "keys", migrate), "there was one table, and there is one"
    assert list(move.lines()) == ["state table 'windows' is what migrate= makes of what was 'keys'"]


def test_a_migration_of_several_tables_is_a_mapping() -> None:
    def migrate(table: pa.Table) -> pa.Table:
        return table

    window = hf.tumbling(5)
    before = hf.aggregate(by="k", window=window, a=hf.min("v"))
    after = hf.aggregate(by=["k", "v"], window=window, a=hf.max("v"))
    (old, _), (new, means) = of(before), of(after, migrate)
    assert "several state tables differ (windows, keys)" in state_move(old, new, means).reasons[0]
    (new, means) = of(after, {"windows": migrate})
    assert "state table 'keys' was" in state_move(old, new, means).reasons[0]
    (new, means) = of(after, {"windows": migrate, "keys": migrate})
    assert state_move(old, new, means).reasons == ()
    (new, means) = of(after, {"windows": migrate, "keys": migrate, "values": migrate})
    assert (
        "migrate= names the state table 'values', and the operator has windows, keys"
        in (state_move(old, new, means).reasons[0])
    )


def print_(key: Any, rows: Any, state: Any) -> Any:
    return None


@pytest.mark.parametrize("migrate", [5, {}, {"windows": 5}])
def test_what_is_no_migration_is_refused_where_it_is_written(migrate: Any) -> None:
    with pytest.raises(InvalidPipeline, match="is not a migration"):
        hf.reduce(by="k", **COUNT, migrate=migrate)


def test_a_former_name_is_claimed_once_and_is_not_in_the_graph() -> None:
    def sink(stream: Stream, name: str) -> Any:
        return stream | hf.write.memory(name=name)

    given = rows()
    one = given | hf.reduce(by="k", **COUNT, name="one", renamed_from="old")
    two = given | hf.reduce(by="k", **COUNT, name="two", renamed_from="old")
    with pytest.raises(InvalidPipeline, match="both say renamed_from='old'"):
        hf.Pipeline("p", sink(one, "a"), sink(two, "b"))
    old = given | hf.reduce(by="k", **COUNT, name="old")
    with pytest.raises(InvalidPipeline, match="the graph has a node of that name"):
        hf.Pipeline("p", sink(one, "a"), sink(old, "b"))
    with pytest.raises(InvalidPipeline, match="is not allowed"):
        hf.reduce(by="k", **COUNT, name="one", renamed_from="not so")


def test_rows_over_which_aggregates_are_stay_with_another_number_of_them_and_other_aggregates() -> None:
    def over(size: int, **aggregates: Any) -> tuple[StateSchema, StateUpgrade]:
        stream = rows() | hf.over(rows=size, by="k", disorder=9, name="last", **aggregates)
        conditions = {one.condition for one in aggregates.values()} - {None}
        flags = [pa.field(name, pa.bool_()) for name in sorted(conditions)]
        step = stream.node.spec.step({"rows": pa.schema([*to_arrow(SCHEMA), *flags])})
        arguments = canonical_json(dict(stream.node.arguments()))
        return StateSchema(stream.node.kind, arguments, step.key, step.tables), StateUpgrade(Evolution(), step)

    (old, _), (new, means) = over(3, total=hf.sum("v")), over(9, most=hf.max("v"), n=hf.count())
    assert state_move(old, new, means).is_plain
    new, means = over(3, mean=hf.mean("x", where="v > 3"))
    move = state_move(old, new, means)
    assert move.reasons == ()
    assert {name: one.way for name, one in move.tables.items()} == {
        "waiting": Way.GROWN, "kept": Way.GROWN, "bounds": Way.AS_IS,
    }  # fmt: skip
    known = pa.Table.from_pylist([{"k": "a", "__number__": 7, "value__v": 4}], schema=old.tables["kept"].schema)
    grown = means.grown("kept", known, StepTime(1, 1))
    assert grown is not None
    assert grown.schema == new.tables["kept"].schema
    assert [*grown.to_pylist()[0].values()] == ["a", 7, None, None]


def test_another_relative_error_of_an_approximate_count_is_another_aggregate() -> None:
    def about(error: float) -> Any:
        return total(n=hf.count(), about=hf.approx_count_distinct("v", relative_error=error))

    (old, _), (new, means) = of(about(0.02)), of(about(0.05))
    assert "state table 'windows' was" in "; ".join(state_move(old, new, means).reasons)
    (old, _), (new, means) = of(total(n=hf.count())), of(about(0.05))
    assert state_move(old, new, means).tables == {"windows": TableMove(Way.GROWN, "windows")}
