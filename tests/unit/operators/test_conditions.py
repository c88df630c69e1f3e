"""Aggregates with a condition: over the rows for which it is true, however rows are cut into epochs (design/0058)."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.testing import close, drive
from holdfast.testing.drive import Drive
from holdfast.types.schema import to_arrow
from tests.everyday import examples

CHEAP, DEAR = "v < 10", "v >= 10"
EVERY: dict[str, Any] = {
    "n": hf.count(),
    "cheap": hf.count(where=CHEAP),
    "dear": hf.count(where=DEAR),
    "named": hf.count("w", where=CHEAP),
    "total": hf.sum("v", where=DEAR),
    "mean": hf.mean("v", where=CHEAP),
    "spread": hf.variance("v", population=True, where=CHEAP),
    "least": hf.min("v", where=DEAR),
    "most": hf.max("v", where=CHEAP),
    "first": hf.first("w", where=CHEAP),
    "last": hf.last("w", where=DEAR),
    "all": hf.collect("v", where=CHEAP),
    "kinds": hf.distinct_count("w", where=CHEAP),
    "others": hf.distinct_count("w", where=DEAR),
    "median": hf.quantile("v", 0.5, where=DEAR),
}


def source(schema="k STRING, t BIGINT, v BIGINT, w STRING"):
    return hf.read.rows([], schema=schema, timestamp="t", name="s")


def behind_filter(where, **computed):
    """The same aggregates behind a filter: what they are over."""
    return source() | hf.filter(where) | hf.aggregate(by="k", window=hf.total(), **computed)


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 9),
        st.sampled_from([None, 1, 9, 10, 11]),
        st.sampled_from([None, "x", "y"]),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(rows=ROWS, data=st.data())
def test_an_aggregate_with_a_condition_is_one_behind_a_filter(rows, data):
    rows = [dict(zip("ktvw", row, strict=True)) for row in sorted(rows, key=lambda row: row[1])]
    ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=3).map(sorted)), len(rows)]
    epochs = [rows[start:end] for start, end in itertools.pairwise(ends)]
    stream = source() | hf.aggregate(by="k", window=hf.total(), **EVERY)
    found = {row["k"]: row for row in drive(stream, {"s": [*epochs, [close()]]})[-1]}
    assert set(found) == {row["k"] for row in rows}
    for where in (CHEAP, DEAR):
        bare = {name: one for name, one in EVERY.items() if one.where == where}
        same = {name: hf.aggregate(window=hf.total(), x=one).spec.aggregates[0][1] for name, one in bare.items()}
        plain = {name: type(one)(**{**vars(one), "where": None}) for name, one in same.items()}
        expected = {row["k"]: row for row in drive(behind_filter(where, **plain), {"s": [rows, [close()]]})[-1]}
        for key, row in found.items():
            nothing = {name: 0 if one.kind in ("count", "distinct_count") else None for name, one in bare.items()}
            wanted = expected.get(key, nothing | ({"all": []} if "all" in bare else {}))
            assert {name: row[name] for name in bare} == {name: wanted[name] for name in bare}


def test_a_row_that_does_not_count_still_opens_its_window():
    stream = source() | hf.aggregate(
        by="k", window=hf.tumbling(10), cheap=hf.count(where=CHEAP), s=hf.sum("v", where=CHEAP)
    )
    rows = [{"k": "a", "t": 1, "v": 50}, {"k": "a", "t": 11, "v": 5}]
    assert drive(stream, {"s": [rows, [close()]]}) == [
        [{"k": "a", "window_start": 0, "window_end": 10, "cheap": 0, "s": None}],
        [{"k": "a", "window_start": 10, "window_end": 20, "cheap": 1, "s": 5}],
    ]


@pytest.mark.parametrize("window", [hf.sliding(4, 2), hf.session(2), hf.count_window(2)])
def test_windows_of_every_kind_count_by_condition(window):
    stream = source() | hf.aggregate(by="k", window=window, n=hf.count(), cheap=hf.count(where=CHEAP))
    rows = [{"k": "a", "t": t, "v": 8 + t} for t in range(5)]
    once = drive(stream, {"s": [[*rows, close()]]})
    often = drive(stream, {"s": [*([row] for row in rows), [close()]]})
    assert [row for epoch in often for row in epoch] == [row for epoch in once for row in epoch]
    assert sum(row["cheap"] for row in once[0]) == {"sliding": 4, "session": 2, "count_window": 2}[window.kind]


def test_equal_conditions_are_evaluated_once_and_the_graph_has_one_column_for_each():
    stream = source() | hf.reduce(
        by="k", a=hf.count(where=CHEAP), b=hf.sum("v", where=f" {CHEAP} "), c=hf.max("v", where=DEAR)
    )
    (select,) = stream.node.inputs
    assert select.kind == "select"
    assert len(select.spec.items) == 3
    assert set(stream.columns) == {"k", "a", "b", "c"}


def test_a_comment_in_a_condition_swallows_nothing():
    stream = source() | hf.reduce(by="k", a=hf.count(where="v > 3 -- large"))
    assert stream.node.inputs[0].spec.items[1].startswith("(v > 3 -- large\n) AS where_")


def test_a_condition_that_is_null_counts_as_false():
    stream = source() | hf.reduce(by="k", a=hf.count(where="v > 3"), b=hf.count(where="not (v > 3)"))
    ((row,),) = drive(stream, {"s": [[{"k": "a", "t": 1, "v": v} for v in (None, 1, 5)]]})
    assert (row["a"], row["b"]) == (1, 1)


def test_a_late_row_has_no_column_of_a_condition():
    stream = source() | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(where=CHEAP))
    rows = [{"k": "a", "t": 5, "v": 1}, {"k": "a", "t": 4, "v": 1}]
    (late,) = Drive(stream.late, {"s": [rows]}).tables()[0].to_pylist()
    assert set(late) == {"k", "timestamp", "input", "reason", "rows"}
    assert late["rows"] == {"k": "a", "t": 4, "v": 1, "w": None}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("vv < 10", r"n=hf.count\(where\)='vv < 10'"),
        ("sum(v) > 3", "looks at several rows together"),
        ("rand() < 0.5", "uses rand"),
    ],
)
def test_a_condition_that_cannot_be_one_is_refused_where_it_is_built(where, said):
    with pytest.raises(InvalidPipeline, match=said):
        source() | hf.reduce(by="k", n=hf.count(where=where))


def test_a_condition_of_another_type_is_refused():
    stream = source() | hf.reduce(by="k", n=hf.count(where="v + 1"))
    with pytest.raises(InvalidPipeline, match=r"n=hf.count\(where\)='v \+ 1' gives int64"):
        drive(stream, {"s": [[{"k": "a", "t": 1, "v": 1}]]})


@pytest.mark.parametrize("where", ["", 5])
def test_what_is_no_text_is_no_condition(where):
    with pytest.raises(InvalidPipeline, match="is no condition"):
        hf.sum("v", where=where)


def test_running_values_have_no_condition():
    with pytest.raises(InvalidPipeline, match="running values are of all rows"):
        source() | hf.accumulate(by="k", n=hf.count(where=CHEAP))


def test_distinct_counts_of_one_column_share_a_set_that_has_each_value_once():
    computed = {"kinds": hf.distinct_count("w", where=CHEAP), "others": hf.distinct_count("w", where=DEAR)}
    stream = source() | hf.reduce(by="k", **computed)
    step = stream.node.spec.step({"rows": to_arrow("k STRING, t BIGINT, v BIGINT, w STRING")})
    assert set(step.tables) == {"windows", "w__distinct"}
    assert step.tables["w__distinct"].key == ("k", "window_start", "value")
    rows = [
        {"k": "a", "t": t, "v": v, "w": w} for t, (v, w) in enumerate([(1, "x"), (50, "x"), (50, "y"), (None, "z")])
    ]
    found = drive(stream, {"s": [[row] for row in rows]})
    assert [(row["kinds"], row["others"]) for (row,) in found] == [(1, 0), (1, 1), (1, 2), (1, 2)]


@pytest.mark.parametrize("window", [hf.sliding(4, 2), hf.session(3), hf.tumbling(4)])
def test_a_shared_set_follows_windows_that_slide_merge_and_close(window):
    computed = {"kinds": hf.distinct_count("w", where=CHEAP), "others": hf.distinct_count("w", where=DEAR)}
    stream = source() | hf.aggregate(by="k", window=window, disorder=9, **computed)
    plain = [
        source() | hf.filter(c) | hf.aggregate(by="k", window=window, disorder=9, d=hf.distinct_count("w"))
        for c in (CHEAP, DEAR)
    ]
    rows = [{"k": "a", "t": 7 * n % 13, "v": 5 * (n % 4), "w": "xyz"[n % 3]} for n in range(13)]
    epochs: list[Any] = [*([row] for row in rows), [close()]]
    found = {row["window_start"]: row for epoch in drive(stream, {"s": epochs}) for row in epoch}
    for name, one in zip(computed, plain, strict=True):
        alone = {row["window_start"]: row["d"] for epoch in drive(one, {"s": epochs}) for row in epoch}
        if window.kind != "session":  # behind a filter sessions are others
            assert {start: row[name] for start, row in found.items() if row[name]} == alone
    assert [row for epoch in drive(stream, {"s": [[*rows, close()]]}) for row in epoch] == list(found.values())
