"""Changes as a stream: rows that no longer hold (design/0059)."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.graph.changes import Changes
from holdfast.testing import close, drive
from holdfast.types.schema import to_arrow
from tests.everyday import examples

SCHEMA = "k STRING, c STRING, t BIGINT, v BIGINT, x DOUBLE, d DECIMAL(20, 3)"
EVERY: dict[str, Any] = {
    "n": hf.count(),
    "values": hf.count("x"),
    "total": hf.sum("v"),
    "exact": hf.sum("d"),
    "mean": hf.mean("x"),
    "least": hf.min("x"),
    "most": hf.max("v"),
    "different": hf.distinct_count("v"),
    "few": hf.distinct_count("v", where="x > 0"),
    "many": hf.distinct_count("v", where="x <= 0"),
    "all": hf.collect("v"),
    "first": hf.first("x"),
    "best": hf.max_by("v", "x"),
    "half": hf.quantile("x", 0.5),
}
OVER: dict[str, Any] = {
    "n": hf.count(),
    "values": hf.count("x"),
    "total": hf.sum("v"),
    "sum": hf.sum("x"),
    "exact": hf.sum("d"),
    "mean": hf.mean("x"),
    "least": hf.min("x"),
    "most": hf.max("v"),
    "different": hf.distinct_count("v"),
    "large": hf.count(where="v > 1"),
    "most_large": hf.max("x", where="v > 1"),
}


def source(schema: str = SCHEMA) -> hf.Stream:
    return hf.read.rows([], schema=schema, timestamp="t", name="s")


def changing() -> hf.Stream:
    """Return the last row of each key, as changes."""
    last = {name: hf.last(name) for name in ("c", "v", "x", "d")}
    return source() | hf.reduce(by="k", **last, delete="is_deleted", name="now")


def windows() -> hf.Stream:
    """Return rows of windows, which have a time, as changes."""
    told: dict[str, Any] = {"emit": "changes", "delete": "is_deleted"}
    return source() | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), **told, name="windows")


ROWS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["p", "q"]),
        st.sampled_from([None, -(2**63), 0, 1, 2, 2**63 - 1]),
        st.sampled_from([None, 0.0, -0.0, 1.5, 1e300, math.nan, -math.inf, math.inf]),
        st.sampled_from([None, Decimal("0.001"), Decimal("12345678901234567.125"), Decimal("-7")]),
    ),
    max_size=25,
)


def epochs_of(rows: Any, data: st.DataObject) -> list[list[dict[str, Any]]]:
    named = [
        dict(zip(("k", "c", "t", "v", "x", "d"), (k, c, number, *rest), strict=True))
        for number, (k, c, *rest) in enumerate(rows)
    ]
    ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=5).map(sorted)), len(rows)]
    return [named[start:end] for start, end in itertools.pairwise(ends)]


def value(row: dict[str, Any], *without: str) -> str:
    return repr(sorted((name, each) for name, each in row.items() if name not in without))


def apply(held: Counter[str], changes: list[dict[str, Any]]) -> None:
    """Add rows, and take away those that no longer hold: each of these must be there."""
    for row in changes:
        shown = value(row, "is_deleted")
        held[shown] += -1 if row["is_deleted"] else 1
        assert held[shown] in (0, 1), shown


WINDOWS = {
    "total": hf.total(), "tumbling": hf.tumbling(5), "sliding": hf.sliding(6, 4), "session": hf.session(2),
    "count_window": hf.count_window(3),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=examples(25))
@given(rows=ROWS, data=st.data())
def test_changes_add_up_to_what_is_upserted_without_them(window: str, rows: Any, data: st.DataObject) -> None:
    """Of every aggregate and window; and a row that stays as it is is not emitted."""
    given = {**EVERY, "total": hf.sum("d")}
    epochs = epochs_of(rows, data)
    said: dict[str, Any] = {"by": "k", "window": WINDOWS[window], "emit": "changes", **given}
    plain = drive(source() | hf.aggregate(**said), {"s": epochs})
    told = drive(source() | hf.aggregate(**said, delete="is_deleted"), {"s": epochs})
    table: dict[Any, str] = {}
    held: Counter[str] = Counter()
    for upserts, changes in zip(plain, told, strict=True):
        for row in upserts:
            table[row["k"], row.get("window_start")] = value(row, *(["window_end"] if window == "session" else []))
        apply(held, changes)
        if window != "session":
            assert +held == Counter(table.values())
        places = [(row.get("window_start", 0), row["k"], not row["is_deleted"]) for row in changes]
        assert places == sorted(places)
    assert len(+held) == len(table)


def held_rows(epochs: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Return the last row of each key after each epoch."""
    now: dict[str, dict[str, Any]] = {}
    found = []
    for epoch in epochs:
        now |= {row["k"]: row for row in epoch}
        found.append([*now.values()])
    return found


def by_hand(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the aggregates of OVER are, of rows in whatever order."""

    def valid(name: str, of: list[dict[str, Any]] = rows) -> list[Any]:
        return [row[name] for row in of if row[name] is not None]

    def place(x: float) -> tuple[bool, float]:
        return (math.isnan(x), 0.0 if math.isnan(x) else x)

    def summed(values: list[float]) -> float | None:
        if any(map(math.isnan, values)) or {math.inf, -math.inf} <= {*values}:
            return math.nan
        odd = [each for each in values if math.isinf(each)]
        return (odd[0] if odd else math.fsum(values)) if values else None

    large = [row for row in rows if row["v"] is not None and row["v"] > 1]
    total, sums = valid("v"), summed(valid("x"))
    return {
        "n": len(rows),
        "values": len(valid("x")),
        "total": sum(total) if total else None,
        "sum": sums,
        "exact": sum(valid("d"), Decimal(0)) if valid("d") else None,
        "mean": None if sums is None else sums / len(valid("x")),
        "least": min(valid("x"), key=place, default=None),
        "most": max(total, default=None),
        "different": len({*total}),
        "large": len(large),
        "most_large": max(valid("x", large), key=place, default=None),
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-15)
    return bool(left == right)


@pytest.mark.slow
@settings(max_examples=examples(80))
@given(rows=ROWS, data=st.data())
def test_aggregates_over_changes_are_those_of_the_rows_that_hold(rows: Any, data: st.DataObject) -> None:
    """Keys move from group to group; a group without rows has none; NaN and infinities leave."""
    rows = [row for row in rows if row[2] != -(2**63)]
    epochs = epochs_of([(k, c, None if v is None else v >> 8, x, d) for k, c, v, x, d in rows], data)
    over = changing() | hf.reduce(by="c", **OVER, delete="is_deleted", name="over")
    held: Counter[str] = Counter()
    table: dict[str, dict[str, Any]] = {}
    for changes, there in zip(drive(over, {"s": epochs}), held_rows(epochs), strict=True):
        apply(held, changes)
        for row in changes:
            if row["is_deleted"]:
                del table[row["c"]]
            else:
                table[row["c"]] = row
        groups = defaultdict(list)
        for row in there:
            groups[row["c"]].append(row)
        assert table.keys() == groups.keys()
        for key, of in groups.items():
            for name, wanted in by_hand(of).items():
                assert same(table[key][name], wanted), (name, table[key][name], wanted)


def test_the_smallest_and_largest_numbers_leave_a_sum() -> None:
    over = changing() | hf.reduce(by="c", total=hf.sum("v"), delete="is_deleted", name="over")
    line = {"c": "p", "x": None, "d": None}
    least = [{"k": "a", "t": 1, "v": -(2**63), **line}, {"k": "b", "t": 1, "v": 5, **line}]
    epochs = [least, [{"k": "a", "t": 2, "v": 2**63 - 6, **line}], [{"k": "a", "t": 3, "v": 0, **line}]]
    found = [[row["total"] for row in epoch if not row["is_deleted"]] for epoch in drive(over, {"s": epochs})]
    assert found == [[5 - 2**63], [2**63 - 1], [5]]


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(rows=ROWS, data=st.data())
def test_a_row_that_fails_a_condition_leaves_and_a_select_keeps_the_rest(rows: Any, data: st.DataObject) -> None:
    epochs = epochs_of(rows, data)
    small = changing() | hf.filter("v < 2", name="small") | hf.select("k AS key", "is_deleted", twice="v % 7")
    assert small.shape.changes == Changes("is_deleted", ("key",))
    held: Counter[str] = Counter()
    for changes, there in zip(drive(small, {"s": epochs}), held_rows(epochs), strict=True):
        apply(held, changes)
        wanted = [row for row in there if row["v"] is not None and row["v"] < 2]
        shown = [{"key": row["k"], "twice": int(math.fmod(row["v"], 7))} for row in wanted]
        assert +held == Counter(map(value, shown))


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(rows=ROWS, data=st.data(), window=st.sampled_from([hf.total(), hf.sliding(6, 4)]))
def test_the_first_rows_of_a_key_are_changes_too(rows: Any, data: st.DataObject, window: Any) -> None:
    epochs = epochs_of(rows, data)
    said: dict[str, Any] = {"by": "k", "order": "x desc", "window": window}
    best = hf.top(source(), 2, **said, delete="is_deleted")
    assert best.shape.changes is not None
    table: dict[Any, str] = {}
    held: Counter[str] = Counter()
    plain = drive(hf.top(source(), 2, **said), {"s": epochs})
    for upserts, changes in zip(plain, drive(best, {"s": epochs}), strict=True):
        table |= {tuple(row.get(name) for name in ("k", "window_start", "rank")): value(row) for row in upserts}
        apply(held, changes)
        assert +held == Counter(table.values())


def by_x_descending(row: Any) -> Any:
    """Return what orders rows by x, the largest first, of which NaN is the largest, and then by key."""
    x = row["x"] or 0.0
    return row["x"] is None, not math.isnan(x), 0.0 if math.isnan(x) else -x, row["k"]


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(rows=ROWS, data=st.data())
def test_the_first_rows_of_those_that_hold(rows: Any, data: st.DataObject) -> None:
    """A row behind the last rank comes up when one before it is retracted."""
    epochs = epochs_of(rows, data)
    best = hf.top(changing(), 2, by="c", order="x desc, k", delete="is_deleted", name="best")
    assert best.columns == ("c", "rank", "k", "v", "x", "d", "is_deleted")
    held: Counter[str] = Counter()
    for changes, there in zip(drive(best, {"s": epochs}), held_rows(epochs), strict=True):
        apply(held, changes)
        wanted: Counter[str] = Counter()
        for group in {row["c"] for row in there}:
            of = [row for row in there if row["c"] == group]
            first = sorted(of, key=by_x_descending)
            wanted.update(
                value({**row, "d": row["d"] and row["d"].quantize(Decimal("0.001")), "rank": rank}, "t")
                for rank, row in enumerate(first[:2], 1)
            )
        assert +held == wanted


def test_of_equal_rows_that_hold_one_is_retracted() -> None:
    """Two keys give equal rows once the key is left out: each retraction takes one of them."""
    same = changing() | hf.select("c", "v", "is_deleted", name="same")
    best = hf.top(same, 3, by="c", order="v desc", delete="gone", name="best")
    line = {"c": "p", "x": None, "d": None}
    epochs = [
        [{"k": key, "t": number, "v": 5, **line} for number, key in enumerate("abc")],
        [{"k": "a", "t": 4, "v": 1, **line}],
        [{"k": "b", "t": 5, "v": 1, **line}, {"k": "c", "t": 5, "v": 9, **line}],
    ]
    found = [[(row["rank"], row["v"], row["gone"]) for row in epoch] for epoch in drive(best, {"s": epochs})]
    assert found[0] == [(1, 5, False), (2, 5, False), (3, 5, False)]
    held = Counter((rank, v) for rank, v, gone in found[0] if not gone)
    for epoch, wanted in zip(found[1:], ([5, 5, 1], [9, 1, 1]), strict=True):
        for rank, v, gone in epoch:
            held[rank, v] += -1 if gone else 1
        assert +held == Counter(enumerate(wanted, 1))


def test_the_final_row_of_a_group_comes_at_the_end() -> None:
    """emit="settled" over changes: a group without rows has none."""
    over = changing() | hf.aggregate(by="c", window=hf.total(), n=hf.count(), most=hf.max("v"), name="over")
    line = {"t": 1, "x": None, "d": None}
    moved: list[list[Any]] = [
        [{"k": "a", "c": "p", "v": 9, **line}],
        [{"k": "a", "c": "q", "v": 3, **line, "t": 2}],
        [close()],
    ]
    assert drive(over, {"s": moved}) == [[], [], [{"c": "q", "n": 1, "most": 3}]]


def test_state_over_changes_is_a_count_for_each_key_and_for_each_value() -> None:
    aggregates: dict[str, Any] = {
        "most": hf.max("v"),
        "least": hf.min("v"),
        "few": hf.distinct_count("x", where="v > 1"),
    }
    over = changing() | hf.reduce(by="c", **aggregates, total=hf.sum("x"), delete="is_deleted", name="over")
    condition = aggregates["few"].condition
    ddl = f"k STRING, c STRING, v BIGINT, x DOUBLE, is_deleted BOOLEAN, {condition} BOOLEAN"
    tables = over.node.stateful_spec.step({"rows": to_arrow(ddl)}).tables
    assert set(tables) == {"windows", "v__counted", f"x__{condition}__counted"}
    assert tables["v__counted"].schema.names == ["c", "window_start", "value", "rows"]
    of_sum = [f"total__{name}" for name in ("count", "sum", "nan", "infinite", "negative")]
    assert tables["windows"].schema.names == ["c", "window_start", "window_end", "__count", *of_sum]


UPSERT: dict[str, Any] = {"table": "t", "mode": "upsert", "name": "table"}


@pytest.mark.parametrize(
    ("build", "said", "cure"),
    [
        (
            lambda s: s | hf.write.sqlite("x.db", key="k", **UPSERT),
            "not told which rows no longer hold",
            'delete="is_d',
        ),
        (lambda s: s | hf.write.sqlite("x.db", table="t"), "not told which rows", 'mode="upsert", key=["k"]'),
        (lambda s: s | hf.write.files("out"), "adds rows only", "hf.write.sqlite"),
        (
            lambda s: s | hf.write.sqlite("x.db", key="c", delete="is_deleted", **UPSERT),
            "does not identify the rows",
            'key=["k"]',
        ),
        (
            lambda s: s | hf.select("c", "is_deleted") | hf.write.sqlite("x", key="c", delete="is_deleted", **UPSERT),
            "does not identify the rows",
            "pass the key",
        ),
        (lambda s: s | hf.map(lambda df: df), "takes no changes", 'emit="settled"'),
        (lambda s: s | hf.sql("select * from input"), "takes no changes", "rename their column"),
        (lambda s: hf.union(s, s | hf.filter("v > 1")), "union takes no changes", "rename"),
        (lambda s: hf.top(s, 1, order="v"), "does not say which of its rows", 'delete="is_deleted"'),
        (lambda s: hf.top(s, 1, order="is_deleted", delete="gone"), "names the column 'is_deleted'", "Correct"),
        (
            lambda s: hf.join(windows(), windows() | hf.select("*"), on="k", within=3),
            "does not say which of its rows",
            'delete="is_deleted"',
        ),
        (lambda s: s | hf.accumulate(by="k", n=hf.count()), "accumulate takes no changes", "rename"),
        (lambda s: s | hf.select("k", "v"), "leave 'is_deleted' out", 'hf.select("k", "v", "is_deleted")'),
        (lambda s: s | hf.select("*", x2="rand()"), "uses rand()", "before the rows change"),
        (lambda s: s | hf.select("*", x2="if(is_deleted, 1, 0)"), "reads 'is_deleted'", "other columns"),
        (lambda s: s | hf.filter("not IS_DELETED"), "reads 'is_deleted'", "other columns"),
        (lambda s: s | hf.filter("now() > date'2026-01-01'"), "uses now()", "before the rows change"),
        (lambda s: s | hf.filter(lambda df: df.v > 1), "is a function", "as text"),
        (lambda s: s | hf.reduce(by="c", n=hf.first("v"), delete="x"), "n=hf.first cannot", "use one of these"),
        (lambda s: s | hf.reduce(by="c", n=hf.count()), "does not say which of its rows", 'delete="is_deleted"'),
        (lambda s: s | hf.reduce(by="is_deleted", n=hf.count(), delete="x"), "by= names", "leave it out"),
        (lambda s: s | hf.reduce(by="c", n=hf.count("is_deleted"), delete="x"), "reads 'is_deleted'", "leave it out"),
        (
            lambda s: s | hf.reduce(by="c", n=hf.count(), forget_after="1 h", delete="x"),
            "forget_after= contradict",
            "leave forget_after= out",
        ),
        (
            lambda s: s | hf.aggregate(by="c", window=hf.count_window(3), n=hf.count()),
            "hf.count_window does not go with",
            "hf.reduce",
        ),
    ],
)
def test_what_takes_no_changes_is_refused_with_the_cure(build: Any, said: str, cure: str) -> None:
    with pytest.raises(InvalidPipeline) as error:
        build(changing())
    assert said in error.value.what
    assert cure in error.value.do


TABLES: dict[str, Any] = {
    "sqlite": lambda **said: hf.write.sqlite("x.db", table="t", **said),
    "postgres": lambda **said: hf.write.postgres("postgresql://u@h/d", table="t", **said),
    "mysql": lambda **said: hf.write.mysql("mysql://u@h/d", table="t", **said),
    "kafka": lambda **said: hf.write.kafka("h:9092", topic="t", **said),
}
ADDING: dict[str, Any] = {
    "files": lambda: hf.write.files("out"),
    "segments": lambda: hf.write.segments("out"),
    "redis": lambda: hf.write.redis("redis://h", key="x", kind="hash", id="k"),
    "http": lambda: hf.write.http("http://h/x"),
    "foreach_batch": lambda: hf.write.foreach_batch(lambda df, epoch: None),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_sink_that_upserts_takes_changes_by_its_delete_column(kind: str) -> None:
    changing() | TABLES[kind](mode="upsert", key="k", delete="is_deleted")
    renamed = changing() | hf.select("k AS id", "v", "is_deleted")
    renamed | TABLES[kind](mode="upsert", key=["id", "v"], delete="is_deleted")
    for said in ({}, {"mode": "upsert", "key": "k"}):
        with pytest.raises(InvalidPipeline, match="is not told which rows no longer hold") as error:
            changing() | TABLES[kind](**said)
        assert 'mode="upsert", key=["k"], delete="is_deleted"' in error.value.do


@pytest.mark.parametrize("kind", ADDING)
def test_a_sink_that_adds_rows_is_refused_changes(kind: str) -> None:
    with pytest.raises(InvalidPipeline, match="adds rows only") as error:
        changing() | ADDING[kind]()
    assert "hf.write.sqlite" in error.value.do
    assert '"is_deleted AS was_deleted"' in error.value.do
    changing() | hf.write.console(name="shown")
    changing() | hf.write.memory(name="kept")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"emit": "settled", "delete": "gone"}, "delete='gone' has no meaning with emit='settled'"),
        ({"emit": "changes", "delete": ""}, "delete='' is not a column"),
        ({"emit": "changes", "delete": 7}, "delete=7 is not a column"),
        ({"emit": "changes", "delete": "K"}, "two columns of the output would be called 'K'"),
        ({"emit": "changes", "delete": "window_end"}, "two columns of the output would be called 'window_end'"),
        ({"emit": "changes", "delete": "n"}, "two columns of the output would be called 'n'"),
        ({"emit": "changes", "delete": "gone", "forget_after": "1 h"}, "forget_after= contradict each other"),
    ],
)
def test_changes_that_cannot_be_made_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidPipeline) as error:
        source() | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), **arguments)
    assert said in error.value.what


def test_under_another_name_the_changes_are_rows_like_others() -> None:
    log = changing() | hf.select("* except (is_deleted)", "is_deleted AS was_deleted")
    assert log.shape.changes is None
    log | hf.write.files("out", name="log")
    counted = log | hf.reduce(by="c", n=hf.count(), name="counted")
    line = {"c": "p", "x": None, "d": None}
    epochs = [[{"k": "a", "t": 1, "v": 1, **line}], [{"k": "a", "t": 2, "v": 2, **line}]]
    assert drive(counted, {"s": epochs}) == [[{"c": "p", "n": 1}], [{"c": "p", "n": 3}]]


def test_late_rows_are_no_changes() -> None:
    windows = source() | hf.aggregate(by="k", window=hf.tumbling(5), emit="changes", n=hf.count(), delete="gone")
    assert windows.shape.changes == Changes("gone", ("k", "window_start"))
    assert windows.late.shape.changes is None
    windows.late | hf.write.files("out", name="late")


def test_a_copy_of_the_column_says_nothing_of_a_row() -> None:
    for items in (("*", "is_deleted AS again"), ("k", "is_deleted", "is_deleted AS again")):
        with pytest.raises(InvalidPipeline, match="item 'is_deleted AS again' reads 'is_deleted'"):
            changing() | hf.select(*items)


def test_the_column_may_be_named_in_another_case() -> None:
    shape = (changing() | hf.select("K", "v", "IS_DELETED")).shape
    assert shape.changes == Changes("IS_DELETED", ("K",))
