"""top: the first rows of each key and window by an order, whatever the epochs (design/0058)."""

import itertools
import math
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.testing import close, drive
from tests.everyday import examples

SCHEMA = "k STRING, t BIGINT, x DOUBLE, w STRING, id BIGINT"


def source(schema=SCHEMA):
    return hf.read.rows([], schema=schema, timestamp="t", name="s")


def place(value, is_descending):
    """Spark's order: nulls first ascending and last descending, NaN the largest."""
    if value is None:
        return (int(is_descending), 0)
    if isinstance(value, str):
        return (int(not is_descending), [(-1 if is_descending else 1) * ord(letter) for letter in value])
    is_nan = isinstance(value, float) and math.isnan(value)
    sign = -1 if is_descending else 1
    return (int(not is_descending), (sign * is_nan, 0 if is_nan else sign * value))


def by_hand(rows, n, order):
    """Return (key, rank) -> id, of rows in the order of arrival."""
    of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        of[row["k"]].append(row)
    found = {}
    for key, mine in of.items():
        first = sorted(mine, key=lambda row: [*(place(row[name], down) for name, down in order), row["t"]])
        found |= {(key, rank): row["id"] for rank, row in enumerate(first[:n], 1)}
    return found


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 5),
        st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, -math.inf, math.inf]),
        st.sampled_from([None, "x", "y", "z"]),
    ),
    max_size=25,
)
ORDERS = [
    ("x desc, w", (("x", True), ("w", False))),
    ("w DESC", (("w", True),)),
    ("`x`", (("x", False),)),
    ("w asc nulls first, x desc nulls last", (("w", False), ("x", True))),
]


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(rows=ROWS, n=st.integers(1, 4), order=st.sampled_from(ORDERS), data=st.data())
def test_upserted_changes_are_the_first_rows_after_every_epoch(rows, n, order, data):
    rows = [dict(zip(("k", "t", "x", "w", "id"), (*row, number), strict=True)) for number, row in enumerate(rows)]
    ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted)), len(rows)]
    stream = hf.top(source(), n, by="k", order=order[0])
    table: dict[Any, int] = {}
    epochs = [rows[start:end] for start, end in itertools.pairwise(ends)]
    for end, changes in zip(ends[1:], drive(stream, {"s": epochs}), strict=True):
        for row in changes:
            assert table.get((row["k"], row["rank"])) != row["id"]  # only what changed
            table[row["k"], row["rank"]] = row["id"]
        assert table == by_hand(rows[:end], n, order[1])


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(rows=ROWS, data=st.data(), cut=st.sampled_from([hf.tumbling(2), hf.sliding(4, 2), hf.session(2)]))
def test_windows_are_emitted_once_whatever_the_epochs(rows, data, cut):
    rows = [dict(zip(("k", "t", "x", "w", "id"), (*row, number), strict=True)) for number, row in enumerate(rows)]
    ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted)), len(rows)]
    epochs: list[Any] = [rows[start:end] for start, end in itertools.pairwise(ends)]
    stream = hf.top(source(), 2, by="k", order="x desc", window=cut, emit="settled", disorder=10)
    once = [row for epoch in drive(stream, {"s": [rows, [close()]]}) for row in epoch]
    often = [row for epoch in drive(stream, {"s": [*epochs, [close()]]}) for row in epoch]
    assert repr(often) == repr(once)
    ranks = defaultdict(list)
    for row in once:
        ranks[row["k"], row["window_start"]].append(row["rank"])
        assert row["window_start"] <= row["t"] < row["window_end"]
    assert all(found == [*range(1, len(found) + 1)] for found in ranks.values())
    if cut.kind == "tumbling":
        of = [{**row, "k": (row["k"], row["t"] // 2 * 2)} for row in rows]
        expected = by_hand(of, 2, (("x", True),))
        assert {((row["k"], row["window_start"]), row["rank"]): row["id"] for row in once} == expected


def test_only_ranks_that_change_are_emitted():
    stream = hf.top(source("k STRING, t BIGINT, v INT"), 3, by="k", order="v desc", rank="place")
    epochs = [[{"k": "a", "t": t, "v": v}] for t, v in enumerate((5, 3, 4, 1, 9, 9))]
    changes = [[(row["place"], row["v"]) for row in epoch] for epoch in drive(stream, {"s": epochs})]
    assert changes == [[(1, 5)], [(2, 3)], [(2, 4), (3, 3)], [], [(1, 9), (2, 5), (3, 4)], [(2, 9), (3, 5)]]
    assert stream.columns == ("k", "place", "t", "v")


def test_ties_take_all_rows_of_a_rank():
    """Nexmark's query 7: the bids with the highest price of a window."""
    stream = hf.top(source(), 2, order="x desc", window=hf.tumbling(10), emit="settled", ties="all")
    rows = [
        {"k": "a", "t": t, "x": x, "w": None, "id": t} for t, x in enumerate([3.0, 7.0, 5.0, 7.0, 5.0, math.nan, 7.0])
    ]
    (first, last) = drive(stream, {"s": [rows, [close()]]})
    assert first == []
    assert [(row["rank"], row["id"]) for row in last] == [(1, 5), (2, 1), (2, 3), (2, 6)]


def test_a_late_row_is_no_first_row():
    stream = hf.top(source(), 1, by="k", order="x desc", window=hf.tumbling(5), emit="settled")
    rows = [{"k": "a", "t": t, "x": x, "w": None, "id": t} for t, x in ((1, 1.0), (6, 1.0), (2, 9.0))]
    assert [row["id"] for epoch in drive(stream, {"s": [rows, [close()]]}) for row in epoch] == [1, 6]
    assert [row["rows"]["id"] for epoch in drive(stream.late, {"s": [rows]}) for row in epoch] == [2]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("BOOLEAN", [False, True]),
        ("DECIMAL(38, 2)", [Decimal("-1.00"), Decimal("9" * 36 + ".99")]),
        ("BINARY", [b"", b"\x00", b"\xff"]),
        ("BIGINT", [-(2**63), -1, 0, 2**63 - 1]),
        ("FLOAT", [-math.inf, -1.0, 0.5, math.nan]),
        ("STRING", ["", "A", "a", "é"]),
    ],
)
def test_every_plain_type_has_an_order(kind, values):
    rows = [{"t": t, "o": value} for t, value in enumerate([None, *values])]
    for order, expected in (("o", [0, *range(1, len(rows))]), ("o desc", [*range(len(rows) - 1, -1, -1)])):
        stream = hf.top(source(f"t BIGINT, o {kind}"), 9, order=order)
        (found,) = drive(stream, {"s": [rows]})
        assert [row["t"] for row in found] == expected


def test_what_does_not_fit_is_refused_where_it_is_built():
    bids = source()
    for call, said in (
        (lambda: hf.top(bids, 0, order="x"), "is not a number of rows"),
        (lambda: hf.top(bids, 1, order="x + 1"), "is not an order"),
        (lambda: hf.top(bids, 1, order="xx"), "xx"),
        (lambda: hf.top(bids, 1, by="k", order="k"), "k"),
        (lambda: hf.top(bids, 1, order="x", rank="W"), "two columns of the output would be called 'W'"),
        (lambda: hf.top(bids, 1, order="x", ties="all"), "cannot be emitted with emit='changes'"),
        (lambda: hf.top(bids, 1, order="x", ties="some"), "is not known"),
        (lambda: hf.top(bids, 1, order="x", emit="final"), "emit='final' is not known"),
        (lambda: hf.top("bids", 1, order="x"), "stands for the stream"),
    ):
        with pytest.raises(InvalidPipeline, match=said):
            call()
    counts = bids | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count())
    with pytest.raises(InvalidPipeline, match="there is a column 'window_start' already"):
        hf.top(counts, 1, by="window_start", order="n")
    nested = hf.top(source("k STRING, t BIGINT, a ARRAY<INT>"), 1, order="a")
    with pytest.raises(InvalidPipeline, match="values of it have no order"):
        drive(nested, {"s": [[]]})
