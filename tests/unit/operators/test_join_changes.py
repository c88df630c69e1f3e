"""Joins of what holds in two streams, as changes (design/0065): against a reference by brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.graph.changes import Changes
from holdfast.operators.join.change_order import ChangeOrder
from holdfast.operators.join.changes_spec import ChangesJoin
from holdfast.operators.join.changes_step import EPOCH, NUMBER, ChangesJoinStep
from holdfast.operators.join.spec import HOWS
from holdfast.plan.warnings import waits_to_mind
from holdfast.state import tables
from holdfast.state.step import PLACE, Arrivals, StepTime
from holdfast.testing import close, drive
from tests.everyday import examples

Row = dict[str, Any]
AUCTIONS = "id STRING, t BIGINT, seller STRING, price BIGINT"
PEOPLE = "id STRING, t BIGINT, name STRING"


def auctions() -> hf.Stream:
    return hf.read.rows([], schema=AUCTIONS, timestamp="t", name="auctions")


def people() -> hf.Stream:
    return hf.read.rows([], schema=PEOPLE, timestamp="t", name="people")


def best() -> hf.Stream:
    """Return the last price and seller of each auction, as changes."""
    last = {"seller": hf.last("seller"), "price": hf.last("price")}
    return auctions() | hf.reduce(by="id", **last, delete="is_deleted", name="best")


def person() -> hf.Stream:
    """Return the last name of each person, as changes."""
    by_id = people() | hf.select("id AS person", "t", "name")
    return by_id | hf.reduce(by="person", who=hf.last("name"), delete="gone", name="names")


def shown(row: Mapping[str, Any]) -> str:
    return repr(sorted((name, value) for name, value in row.items() if name != "is_deleted"))


def apply(held: Counter[str], changes: Iterable[Mapping[str, Any]]) -> None:
    """Add rows, and take away those that no longer hold: each of these must be there."""
    for row in changes:
        held[shown(row)] += -1 if row["is_deleted"] else 1
        assert held[shown(row)] >= 0, row


def expected(how: str, left: Sequence[Row], right: Sequence[Row]) -> Counter[str]:
    """Return the join in SQL's words, of rows with the key ``id``, and ``a`` in left and ``b`` in right."""

    def fits(one: Row, other: Row) -> bool:
        return one["id"] is not None and one["id"] == other["id"]

    if how in ("semi", "anti"):
        return Counter(shown(one) for one in left if any(fits(one, other) for other in right) == (how == "semi"))
    found = [{**one, "b": other["b"]} for one in left for other in right if fits(one, other)]
    if how in ("left", "full"):
        found += [{**one, "b": None} for one in left if not any(fits(one, other) for other in right)]
    if how in ("right", "full"):
        alone = [other for other in right if not any(fits(one, other) for one in left)]
        found += [{"id": other["id"], "a": None, "b": other["b"]} for other in alone]
    return Counter(map(shown, found))


KEYS, VALUES = st.sampled_from(["p", "q", None]), st.integers(0, 2)
SIDE = st.lists(st.tuples(KEYS, VALUES, st.booleans()), max_size=14)


def drawn(data: st.DataObject, column: str) -> list[list[Row]]:
    """Return epochs of rows that come, and of some that no longer hold: only rows that hold are retracted."""
    held: list[tuple[Any, int]] = []
    rows: list[Row] = []
    for key, value, goes in data.draw(SIDE):
        if goes and held:
            key, value = held.pop(value % len(held))
        else:
            goes = False
            held.append((key, value))
        rows.append({"id": key, column: value, "gone": goes})
    ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), min_size=3, max_size=3).map(sorted)), len(rows)]
    return [rows[start:end] for start, end in pairwise(ends)]


def holding(epochs: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows that hold after some epochs."""
    held: list[Row] = []
    for row in (row for rows in epochs for row in rows):
        plain = {name: value for name, value in row.items() if name != "gone"}
        held.remove(plain) if row["gone"] else held.append(plain)
    return held


def step_of(how: str) -> ChangesJoinStep:
    spec = ChangesJoin(("id",), how, "_right", "is_deleted", {"left": "gone", "right": "gone"})
    schemas = {
        side: pa.schema([("id", pa.string()), (column, pa.int64()), ("gone", pa.bool_())])
        for side, column in (("left", "a"), ("right", "b"))
    }
    return spec.step(schemas)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=examples(120), deadline=None)
@given(st.data())
def test_changes_add_up_to_the_join_of_the_rows_that_hold(how: str, data: st.DataObject) -> None:
    step = step_of(how)
    sides = {"left": drawn(data, "a"), "right": drawn(data, "b")}
    state, held = tables.empty_state(step), Counter[str]()
    no_bounds = tables.empty(tables.bounds_schema(step.key).append(pa.field(PLACE, pa.int64())))
    for epoch in range(4):
        place, arrivals = 0, {}
        for side in ("left", "right"):
            rows = pa.Table.from_pylist(sides[side][epoch], schema=step.inputs[side])
            places = pa.array(range(place, place + rows.num_rows), pa.int64())
            place += rows.num_rows
            arrivals[side] = Arrivals(rows.append_column(PLACE, places), no_bounds)
        result = step.apply(state, arrivals, StepTime(epoch, 0))
        for name, change in result.changes.items():
            state = {**state, name: tables.apply_change(state[name], step.tables[name], change)}
        changes = result.outputs["rows"].to_pylist()
        assert changes == sorted(changes, key=lambda row: not row["is_deleted"]), "what goes is first"
        before = Counter(held)
        apply(held, changes)
        assert +held == expected(how, *(holding(sides[side][: epoch + 1]) for side in ("left", "right")))
        gone = Counter(shown(row) for row in changes if row["is_deleted"])
        assert not gone - before, "nothing is retracted in the epoch in which it came"
    for side in ("left", "right"):
        kept = holding(sides[side])
        if side == "left" or how not in ("semi", "anti"):
            alone = {"left": ("left", "full", "anti"), "right": ("right", "full")}[side]
            wanted = [row for row in kept if row["id"] is not None or how in alone]
            assert Counter(map(shown, state[side].drop_columns([EPOCH, NUMBER]).to_pylist())) == Counter(
                map(shown, wanted)
            ), "the state is the rows that hold"


def sold(how: str = "inner", **options: Any) -> hf.Stream:
    return hf.join(best(), person(), on={"seller": "person"}, how=how, delete="is_deleted", name="sold", **options)


def test_a_pair_follows_the_rows_of_both_sides() -> None:
    found = drive(
        sold("left"),
        {
            "auctions": [
                [{"id": "x", "t": 1, "seller": "a", "price": 5}],
                [{"id": "x", "t": 2, "seller": "a", "price": 7}],
                [],
                [{"id": "x", "t": 3, "seller": "b", "price": 7}],
                [close()],
            ],
            "people": [[], [{"id": "a", "t": 1, "name": "Ann"}], [{"id": "a", "t": 2, "name": "Anna"}], [], [close()]],
        },
    )
    rows = [[(row["seller"], row["price"], row["who"], row["is_deleted"]) for row in epoch] for epoch in found]
    assert rows == [
        [("a", 5, None, False)],
        [("a", 5, None, True), ("a", 7, "Ann", False)],
        [("a", 7, "Ann", True), ("a", 7, "Anna", False)],
        [("a", 7, "Anna", True), ("b", 7, None, False)],
        [],
    ]


def test_streams_whose_rows_only_come_are_joined_as_they_come() -> None:
    """As SQL joins what is there, without a limit in time, and without waiting for any."""
    joined = hf.join(auctions(), people(), on={"seller": "id"}, how="full", delete="is_deleted", name="joined")
    assert joined.columns == ("id", "t", "seller", "price", "t_right", "name", "is_deleted")
    assert joined.timestamp is None
    assert joined.shape.changes == Changes("is_deleted", None)
    rows = {
        "auctions": [[{"id": "x", "t": 9, "seller": "a", "price": 5}], [], []],
        "people": [[], [{"id": "a", "t": 1, "name": "Ann"}], [{"id": "c", "t": 0, "name": "Cleo"}]],
    }
    found = [
        [(row["id"], row["seller"], row["name"], row["is_deleted"]) for row in each] for each in drive(joined, rows)
    ]
    assert found == [
        [("x", "a", None, False)],
        [("x", "a", None, True), ("x", "a", "Ann", False)],
        [(None, "c", "Cleo", False)],
    ]


@pytest.mark.parametrize(
    ("how", "key"),
    [
        ("inner", ("id",)), ("left", ("id",)), ("semi", ("id",)), ("anti", ("id",)),
        ("right", ("id", "seller")), ("full", ("id", "seller")),
    ],
)  # fmt: skip
def test_the_key_of_pairs_is_that_of_left_where_a_row_has_one_partner_at_most(how: str, key: tuple[str, ...]) -> None:
    """Rows of one auction come from several buckets: the join is by seller."""
    assert sold(how).shape.changes == Changes("is_deleted", key, is_scattered="seller" not in key)


def test_the_key_of_pairs_is_that_of_both_where_rows_have_several_partners() -> None:
    by_seller = best() | hf.select("id AS auction", "seller", "is_deleted")
    also = auctions() | hf.reduce(by=["id", "seller"], n=hf.count(), delete="gone", name="also")
    joined = hf.join(by_seller, also, on="seller", delete="is_deleted", name="joined")
    assert joined.shape.changes == Changes("is_deleted", ("auction", "id", "seller"))
    by_key = hf.join(also, also | hf.select("*", again="n"), on=["id", "seller"], delete="is_deleted", name="by_key")
    assert by_key.shape.changes == Changes("is_deleted", ("id", "seller"))
    one = person() | hf.select("*", who_else="who")
    turned = hf.join(one, by_seller, on={"person": "seller"}, delete="is_deleted", name="turned")
    assert turned.shape.changes == Changes("is_deleted", ("auction",), is_scattered=True)
    unknown = hf.join(by_seller | hf.select("seller", "is_deleted"), also, on="seller", delete="is_deleted", name="j")
    assert unknown.shape.changes == Changes("is_deleted", None)


def test_an_aggregate_and_a_table_take_what_it_gives() -> None:
    table = hf.write.sqlite("out.db", table="sold", mode="upsert", key="id", delete="is_deleted")
    hf.Pipeline("p", sold() | table)
    with pytest.raises(InvalidPipeline, match="does not identify the rows"):
        hf.Pipeline(
            "p", sold() | hf.write.sqlite("out.db", table="s", mode="upsert", key="seller", delete="is_deleted")
        )
    mean = sold() | hf.reduce(by="who", price=hf.mean("price"), delete="is_deleted", name="mean")
    rows = {
        "auctions": [
            [{"id": "x", "t": 1, "seller": "a", "price": 4}, {"id": "y", "t": 1, "seller": "a", "price": 8}],
            [{"id": "x", "t": 2, "seller": "b", "price": 4}],
        ],
        "people": [[{"id": "a", "t": 1, "name": "Ann"}, {"id": "b", "t": 1, "name": "Bob"}], []],
    }
    held = Counter[str]()
    for epoch in drive(mean, rows):
        apply(held, epoch)
    assert +held == Counter(map(shown, [{"who": "Ann", "price": 8.0}, {"who": "Bob", "price": 4.0}]))


def test_a_table_takes_what_no_longer_holds_before_what_is_in_its_place() -> None:
    """They come from two buckets: in the other order the row would be deleted."""
    told: dict[str, Any] = {"table": "t", "mode": "upsert", "key": "id", "delete": "is_deleted"}
    dear = sold() | hf.filter("price > 3")
    several = hf.Pipeline(
        "p", dear | hf.write.sqlite("out.db", name="table", **told), dear | hf.write.console(name="console")
    )
    (order,) = (node for node in several.nodes if node.kind == "change_order")
    assert (order.name, order.arguments()) == ("table_order", {"by": ["id"], "column": "is_deleted"})
    assert order.inputs == (dear.node,)
    step = ChangeOrder(("id",), "is_deleted").step(
        {"rows": pa.schema([("id", pa.string()), ("is_deleted", pa.bool_())])}
    )
    rows = pa.table([["a", "b", "a", "b"], [False, False, True, True], [0, 1, 2, 3]], ["id", "is_deleted", PLACE])
    none = tables.empty(tables.bounds_schema(step.key).append(pa.field(PLACE, pa.int64())))
    found = step.apply({}, {"rows": Arrivals(rows, none)}, StepTime(1, 0)).outputs["rows"]
    assert found.to_pydict() == {"id": ["a", "b", "a", "b"], "is_deleted": [True, True, False, False]}
    one = best()
    of_key = hf.join(one, one | hf.select("*", more="price"), on="id", delete="is_deleted", name="by_id")
    assert not [node for node in hf.Pipeline("q", of_key | hf.write.sqlite("o.db", name="table", **told)).nodes
                if node.kind == "change_order"]  # fmt: skip


def test_plan_says_what_is_kept_for_ever() -> None:
    both = hf.Pipeline("p", sold() | hf.write.console())
    assert waits_to_mind(both) == []
    one = hf.join(auctions(), person(), on={"seller": "person"}, delete="is_deleted", name="sold")
    (said,) = waits_to_mind(hf.Pipeline("p", one | hf.write.console()))
    assert said.startswith("join_changes 'sold' (")
    assert "rows of left are kept until the streams end, as no limit is set there" in said


REFUSED: dict[str, tuple[Any, str]] = {
    "changes without delete=": (
        lambda: hf.join(best(), person(), on={"seller": "person"}, forget_after=None),
        "does not say which of its rows no longer hold",
    ),
    "a range": (lambda: sold(within="2 h"), "within='2 h' does not go with delete="),
    "a limit": (lambda: sold(forget_after="2 h"), "forget_after='2 h' does not go with delete="),
    "disorder": (lambda: sold(disorder="1 s"), "disorder='1 s' does not go with delete="),
    "a time": (lambda: sold(timestamp="at"), "timestamp='at' does not go with delete="),
    "waiting rows": (lambda: sold(max_waiting_rows=7), "max_waiting_rows=7 does not go with delete="),
    "no column": (
        lambda: hf.join(best(), person(), on={"seller": "person"}, delete=""), "delete='' is not a column"
    ),
    "a column that is there": (
        lambda: hf.join(best(), person(), on={"seller": "person"}, delete="price"),
        "which is the name of the column of delete=",
    ),
    "the changes as a key": (
        lambda: hf.join(best(), person(), on={"is_deleted": "gone"}, delete="d"), "on= names 'is_deleted'"
    ),
    "no kind of join": (lambda: sold("outer"), "is no kind of join"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused(what: str) -> None:
    build, match = REFUSED[what]
    with pytest.raises(InvalidPipeline, match=match):
        build()


def test_keys_of_other_types_and_values_that_are_not_compared_are_refused() -> None:
    numbered = hf.read.rows([], schema="id BIGINT, a ARRAY<INT>, t BIGINT", timestamp="t", name="numbered")
    unlike = hf.join(best(), numbered, on="id", delete="is_deleted", name="joined")
    with pytest.raises(InvalidPipeline, match="the streams do not fit each other"):
        drive(unlike, {"auctions": [[]], "numbered": [[]]})
    nested = hf.join(numbered | hf.select("*"), numbered, on="id", delete="is_deleted", name="joined")
    with pytest.raises(InvalidPipeline, match="values of this type are not compared"):
        drive(nested, {"numbered": [[]]})
    by_key = hf.join(numbered | hf.select("id"), numbered, on="id", how="semi", delete="is_deleted", name="joined")
    rows = [[{"id": 1, "a": [1], "t": 1}, {"id": 1, "a": [2], "t": 1}]]
    assert drive(by_key, {"numbered": rows}) == [[{"id": 1, "is_deleted": False}] * 2]


def test_forget_after_none_may_stand_beside_it() -> None:
    assert sold(forget_after=None).node.arguments() == sold().node.arguments()
