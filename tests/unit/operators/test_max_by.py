"""max_by and min_by: the value of the row with the highest or lowest order, whatever the epochs (design/0058)."""

import itertools
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.testing import close, drive
from tests.everyday import examples

SCHEMA = "k STRING, t BIGINT, v STRING, x DOUBLE, n INT"


def source(schema=SCHEMA):
    return hf.read.rows([], schema=schema, timestamp="t", name="s")


def by_hand(rows, column, order, sign):
    """Of the rows with an order, that with the highest or lowest; then the earliest, then the first to arrive."""

    def place(numbered):
        number, row = numbered
        value = row[order]
        is_nan = isinstance(value, float) and math.isnan(value)
        return (sign * is_nan, 0 if is_nan else sign * value, -row["t"], -number)

    there = [(number, row) for number, row in enumerate(rows) if row[order] is not None]
    return max(there, key=place)[1][column] if there else None


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 5),
        st.sampled_from([None, "x", "y", "z"]),
        st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, -math.inf, math.inf]),
        st.sampled_from([None, 1, 2]),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(rows=ROWS, data=st.data())
def test_the_row_is_that_of_a_search_by_hand(rows, data):
    rows = [dict(zip("ktvxn", row, strict=True)) for row in rows]
    ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=3).map(sorted)), len(rows)]
    epochs = [rows[start:end] for start, end in itertools.pairwise(ends)]
    stream = source() | hf.aggregate(
        by="k", window=hf.tumbling(10), disorder=10, most=hf.max_by("v", "x"), least=hf.min_by("v", "x"),
        time=hf.max_by("t", "n"), number=hf.min_by("n", "t"), same=hf.max_by("n", "n"),
    )  # fmt: skip
    found = {row["k"]: row for row in drive(stream, {"s": [*epochs, [close()]]})[-1]}
    for key, row in found.items():
        of = [one for one in rows if one["k"] == key]
        assert (row["most"], row["least"]) == (by_hand(of, "v", "x", 1), by_hand(of, "v", "x", -1))
        assert (row["time"], row["number"]) == (by_hand(of, "t", "n", 1), by_hand(of, "n", "t", -1))
        assert row["same"] == max((one["n"] for one in of if one["n"] is not None), default=None)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("STRING", ["", "a", "b"]),
        ("BOOLEAN", [False, True]),
        ("DATE", [date(2026, 1, 1), date(2026, 1, 2)]),
        ("TIMESTAMP", [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)]),
        ("DECIMAL(38, 2)", [Decimal("-1.00"), Decimal("9" * 36 + ".99")]),
        ("BINARY", [b"", b"\x00", b"\xff"]),
        ("BIGINT", [-(2**63), 0, 2**63 - 1]),
        ("FLOAT", [-1.0, 0.5, math.nan]),
    ],
)
def test_every_plain_type_has_an_order(kind, values):
    stream = source(f"k STRING, t BIGINT, o {kind}") | hf.reduce(
        by="k", most=hf.max_by("t", "o"), least=hf.min_by("t", "o")
    )
    rows = [{"k": "a", "t": t, "o": value} for t, value in enumerate([None, *values])]
    ((row,),) = drive(stream, {"s": [rows]})
    assert (row["most"], row["least"]) == (len(values), 1)


def test_without_a_time_the_first_to_arrive_counts():
    stream = hf.read.rows([], schema="k STRING, v BIGINT, o INT", name="s") | hf.reduce(by="k", v=hf.max_by("v", "o"))
    rows = [{"k": "a", "v": v, "o": o} for v, o in ((1, 5), (2, 7), (3, 7))]
    assert [rows[0]["v"] for rows in drive(stream, {"s": [[row] for row in rows]})] == [1, 2, 2]


def test_values_may_be_nested_and_an_order_may_not():
    schema = "k STRING, t BIGINT, v ARRAY<INT>"
    stream = source(schema) | hf.reduce(by="k", v=hf.max_by("v", "t"))
    ((row,),) = drive(stream, {"s": [[{"k": "a", "t": 1, "v": [1]}, {"k": "a", "t": 2, "v": [2, None]}]]})
    assert row["v"] == [2, None]
    with pytest.raises(InvalidPipeline, match=r"t=hf.max_by\(..., 'v'\) is by a column of type list"):
        drive(source(schema) | hf.reduce(by="k", t=hf.max_by("t", "v")), {"s": [[]]})


def test_a_condition_and_an_unknown_order():
    stream = source() | hf.reduce(by="k", v=hf.max_by("v", "n", where="n < 5"))
    ((row,),) = drive(stream, {"s": [[{"k": "a", "t": 1, "v": f"{n}", "n": n} for n in (3, 4, 5)]]})
    assert row["v"] == "4"
    with pytest.raises(InvalidPipeline, match="m"):
        source() | hf.reduce(by="k", v=hf.max_by("v", "m"))
