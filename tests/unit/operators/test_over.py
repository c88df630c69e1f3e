"""over: every row with aggregates over the last rows of its key, whatever the epochs (design/0061)."""

import itertools
import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.aggregate.last_rows import RowSpans, highest, over_spans
from holdfast.operators.aggregate.parts import part_of
from holdfast.testing import bound, close, drive
from holdfast.testing.drive import Drive
from tests.everyday import examples

SCHEMA = "k STRING, t BIGINT, v BIGINT, x DOUBLE, d DECIMAL(10, 2), w STRING, id BIGINT"
EVERY: dict[str, Any] = {
    "n": hf.count(), "values": hf.count("v"), "some": hf.count(where="v > 0"), "total": hf.sum("v"),
    "few": hf.sum("v", where="x < 1"), "sum_x": hf.sum("x"), "sum_d": hf.sum("d"), "mean": hf.mean("v"),
    "mean_d": hf.mean("d"), "spread": hf.variance("v", population=True), "least": hf.min("w"), "most": hf.max("x"),
    "first": hf.first("v"), "last": hf.last("w", ignore_nulls=True), "of_most": hf.max_by("id", "v"),
    "of_least": hf.min_by("id", "x"),
}  # fmt: skip


def source(schema=SCHEMA):
    return hf.read.rows([], schema=schema, timestamp="t", name="s")


def highest_first(value):
    return (2, 0) if isinstance(value, float) and math.isnan(value) else (1, value)


def total(values):
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return sum(values)
    exact = sum(map(Fraction, values))
    kind: Any = type(values[0]) if values else None
    return None if kind is None else kind(exact) if kind is not Decimal else sum(values)


def by_hand(last):
    """Return what the aggregates are of some rows."""
    of = {name: [row[name] for row in last if row[name] is not None] for name in ("v", "x", "d", "w")}
    by_v = [row for row in last if row["v"] is not None]
    by_x = [row for row in last if row["x"] is not None]
    mean = sum(of["v"]) / len(of["v"]) if of["v"] else None
    return {
        "n": len(last),
        "values": len(of["v"]),
        "some": len([v for v in of["v"] if v > 0]),
        "total": total(of["v"]),
        "few": total([row["v"] for row in by_v if row["x"] is not None and row["x"] < 1]),
        "sum_x": total(of["x"]),
        "sum_d": total(of["d"]),
        "mean": mean,
        "mean_d": float(sum(of["d"])) / len(of["d"]) if of["d"] else None,
        "spread": sum((v - mean) ** 2 for v in of["v"]) / len(of["v"]) if of["v"] else None,
        "least": min(of["w"], default=None),
        "most": max(of["x"], key=highest_first, default=None),
        "first": last[0]["v"],
        "last": of["w"][-1] if of["w"] else None,
        "of_most": max(by_v, key=lambda row: row["v"])["id"] if by_v else None,
        "of_least": min(by_x, key=lambda row: highest_first(row["x"]))["id"] if by_x else None,
    }


def windows(rows, size, order=None):
    """Return key -> for each of its rows, in their order, the last rows up to it."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["k"], []).append(row)
    for mine in found.values():
        mine.sort(key=lambda row: (row["t"], *([-row["id"] % 3] if order else [])))
    return {
        key: [mine[max(0, place + 1 - size) : place + 1] for place in range(len(mine))] for key, mine in found.items()
    }


def same(found, wanted):
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(found, wanted, rel_tol=1e-14, abs_tol=1e-12) or (math.isnan(found) and math.isnan(wanted))
    return found == wanted


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 6),
        st.sampled_from([None, 1, -7, 2**40]),
        st.sampled_from([None, 0.1, -0.0, 1e300, -1e-300, math.nan, math.inf]),
        st.sampled_from([None, Decimal("0.25"), Decimal("-99999999.99")]),
        st.sampled_from([None, "x", "yy", ""]),
    ),
    max_size=24,
)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(rows=ROWS, size=st.integers(1, 5), is_ordered=st.booleans(), data=st.data())
def test_every_row_has_the_aggregates_of_the_last_rows_whatever_the_epochs(rows, size, is_ordered, data):
    rows = [dict(zip(("k", "t", "v", "x", "d", "w"), row, strict=True)) | {"id": n} for n, row in enumerate(rows)]
    rows = [row | {"third": -row["id"] % 3} for row in rows]
    ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted)), len(rows)]
    epochs: list[Any] = [rows[start:end] for start, end in itertools.pairwise(ends)]
    order = "third" if is_ordered else None
    stream = source(f"{SCHEMA}, third BIGINT") | hf.over(rows=size, by="k", order=order, disorder=10, **EVERY)
    found: dict[str, list[Any]] = {"a": [], "b": []}
    for epoch in drive(stream, {"s": [*epochs, [close()]]}, buckets=2):
        for row in epoch:
            found[row["k"]].append(row)
    for key, wanted in windows(rows, size, order).items():
        assert [row["id"] for row in found[key]] == [last[-1]["id"] for last in wanted]
        for row, last in zip(found[key], wanted, strict=True):
            for name, value in by_hand(last).items():
                assert same(row[name], value), (name, row[name], value, last)


def of_array(wanted, values, spans):
    part = part_of("x", wanted, values.type)
    assert part is not None
    return over_spans(wanted, part, pa.table({"v": values}), spans)


def random_spans(count, size):
    places = np.arange(count)
    return RowSpans(np.maximum(0, places + 1 - size), places + 1)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100, 5000])
def test_spans_of_every_size_have_their_extremes(size):
    numbers = np.random.default_rng(size).integers(-50, 50, 300)
    spans = random_spans(300, size)
    found = highest(numbers, spans)
    assert found.tolist() == [
        start + int(np.argmax(numbers[start:end])) for start, end in zip(spans.starts, spans.ends, strict=True)
    ]


def test_sums_are_exact_whatever_stood_before_them():
    chance = random.Random(7)
    numbers = [chance.choice([1e16, 1.0, -1e16, 1e-12, 3e300, -3e300, 5e-324]) for _ in range(2000)]
    found = of_array(hf.sum("v"), pa.array(numbers), random_spans(2000, 9)).to_pylist()
    wanted = [float(sum(map(Fraction, numbers[max(0, place - 8) : place + 1]))) for place in range(2000)]
    assert all(math.isclose(one, other, rel_tol=2**-52) for one, other in zip(found, wanted, strict=True))


def test_blocks_of_spans_are_added_as_the_whole_is(monkeypatch):
    numbers = pa.array([0.1 * place for place in range(100)])
    whole = of_array(hf.sum("v"), numbers, random_spans(100, 7))
    monkeypatch.setattr("holdfast.operators.aggregate.last_rows._AT_ONCE", 8)
    assert of_array(hf.sum("v"), numbers, random_spans(100, 7)).equals(whole)


def test_a_running_sum_may_wrap_around_where_those_of_spans_fit():
    large = pa.array([2**62, 2**62 - 1, -(2**62)] * 40)
    found = of_array(hf.sum("v"), large, random_spans(120, 2)).to_pylist()
    numbers = large.to_pylist()
    assert found == [sum(numbers[max(0, place - 1) : place + 1]) for place in range(120)]


def test_decimals_of_38_digits_are_added_and_an_overflow_is_an_error():
    kind = pa.decimal128(28, 2)
    numbers = [Decimal(n) * Decimal("12345678901234567890123.45") for n in (1, -2, 700, -1, 3)]
    found = of_array(hf.sum("v"), pa.array(numbers, kind), random_spans(5, 3)).to_pylist()
    assert found == [sum(numbers[max(0, place - 2) : place + 1]) for place in range(5)]
    most = pa.array([Decimal("9" * 38)] * 3, pa.decimal128(38, 0))
    with pytest.raises(BadRow, match="does not fit in decimal128"):
        of_array(hf.sum("v"), most, random_spans(3, 2))


def test_a_sum_that_does_not_fit_is_an_error():
    stream = source() | hf.over(rows=2, by="k", total=hf.sum("v"))
    rows = [{"k": "a", "t": t, "v": 2**63 - 1} for t in (1, 2)]
    with pytest.raises(BadRow, match="does not fit in BIGINT"):
        drive(stream, {"s": [rows]})


def test_rows_that_ascend_leave_at_once_and_others_when_none_before_them_can_come():
    rows = [{"k": "a", "t": t, "v": v} for t, v in ((5, 1), (3, 2), (9, 3))]
    at_once = source() | hf.over(rows=2, by="k", n=hf.sum("v"))
    assert [[row["n"] for row in epoch] for epoch in drive(at_once, {"s": [rows[:1], rows[2:]]})] == [[1], [4]]
    waiting = source() | hf.over(rows=2, by="k", n=hf.sum("v"), disorder=3, name="op")
    found = Drive(waiting, {"s": [rows[:1], rows[1:2], rows[2:], [close()]]})
    assert [[row["n"] for row in table.to_pylist()] for table in found.tables()] == [[], [], [2, 3], [4]]


def test_rows_of_one_time_leave_as_they_came_or_by_the_order_when_all_of_them_are_there():
    rows = [{"k": "a", "t": 1, "v": v} for v in (3, 1, 2)]
    came = source() | hf.over(rows=2, by="k", n=hf.sum("v"))
    assert [[row["n"] for row in epoch] for epoch in drive(came, {"s": [rows[:2], rows[2:]]})] == [[3, 4], [3]]
    ordered = source() | hf.over(rows=2, by="k", order="v desc", n=hf.sum("v"))
    told: list[Any] = [*rows[2:], bound(2, {"k": "a"})]
    assert [[row["n"] for row in epoch] for epoch in drive(ordered, {"s": [rows[:2], told]})] == [[], [3, 5, 3]]


def test_a_bound_for_all_keys_lets_rows_of_every_key_go_and_rows_below_it_are_late():
    stream = source() | hf.over(rows=3, by="k", disorder=100, n=hf.count(), some=hf.count(where="v > 1"))
    rows = [{"k": k, "t": t, "v": t} for k, t in (("a", 4), ("b", 2), ("a", 1))]
    epochs: list[Any] = [rows, [bound(3)], [{"k": "c", "t": 2, "v": 0}, bound(5)]]
    assert [[(row["k"], row["t"], row["n"]) for row in epoch] for epoch in drive(stream, {"s": epochs})] == [
        [], [("a", 1, 1), ("b", 2, 1)], [("a", 4, 2)],
    ]  # fmt: skip
    (late,) = [row for epoch in drive(stream.late, {"s": epochs}) for row in epoch]
    assert late["rows"] == {"k": "c", "t": 2, "v": 0, "x": None, "d": None, "w": None, "id": None}


def test_columns_of_conditions_do_not_leave():
    stream = source() | hf.over(rows=3, by="k", some=hf.count(where="v > 1"))
    assert stream.columns == ("k", "t", "v", "x", "d", "w", "id", "some")
    assert stream.timestamp == "t"


def test_a_row_without_a_key_is_an_error():
    stream = source() | hf.over(rows=3, by="k", n=hf.count())
    with pytest.raises(BadRow, match="no value in 'k'"):
        drive(stream, {"s": [[{"k": None, "t": 1}]]})


def test_columns_of_any_type_can_be_first_and_last():
    stream = source("k STRING, t BIGINT, a ARRAY<INT>") | hf.over(rows=2, by="k", was=hf.first("a"))
    rows = [{"k": "a", "t": t, "a": a} for t, a in enumerate(([1], None, [2, 3]))]
    assert [row["was"] for row in drive(stream, {"s": [rows]})[0]] == [[1], [1], None]


def test_state_is_one_row_fewer_than_aggregates_are_over_for_each_key():
    stream = source() | hf.over(rows=3, by="k", total=hf.sum("v"), name="op")
    found = Drive(stream, {"s": [[{"k": k, "t": t, "v": t} for t in range(9) for k in "ab"]]})
    found.tables()
    from holdfast.state.tables import decode

    state = decode(found.states["op"][0])
    assert sorted((row["k"], row["value__v"]) for row in state["kept"].to_pylist()) == [
        ("a", 7), ("a", 8), ("b", 7), ("b", 8),
    ]  # fmt: skip
    assert state["waiting"].num_rows == 0


def test_what_does_not_fit_is_refused_where_it_is_built():
    rows = source()
    for call, said in (
        (lambda: hf.over(rows=0, by="k", n=hf.count()), "is not a number of rows"),
        (lambda: hf.over(rows=2, by="k"), "it computes nothing"),
        (lambda: hf.over(rows=2, by="k", n=3), "n= was given an int and no aggregate"),
        (lambda: hf.over(rows=2, by="k", window=hf.tumbling(5)), "hf.over has no argument window="),
        (lambda: hf.over(rows=2, by="k", n=hf.collect("v")), "was given hf.collect"),
        (lambda: hf.over(rows=2, by="k", order="v + 1", n=hf.count()), "is not an order"),
        (lambda: hf.over(rows=2, by="k", timestamps="strict", disorder=1, n=hf.count()), "contradict each other"),
        (lambda: rows | hf.over(rows=2, by="k", v=hf.count()), "two columns of the output would be called 'v'"),
        (lambda: rows | hf.over(rows=2, by="k", n=hf.sum("z")), "z"),
        (lambda: hf.read.rows([], schema=SCHEMA) | hf.over(rows=2, by="k", n=hf.count()), "no known timestamp column"),
    ):
        with pytest.raises(InvalidPipeline, match=said):
            call()
    for operator, said in (
        (hf.over(rows=2, by="k", n=hf.sum("w")), "which is no number"),
        (hf.over(rows=2, by="k", n=hf.count(where="v + 1")), "gives int64"),
    ):
        with pytest.raises(InvalidPipeline, match=said):
            drive(rows | operator, {"s": [[]]})
