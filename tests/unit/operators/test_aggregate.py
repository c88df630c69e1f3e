"""aggregate as a step: what comes out does not depend on how the rows are cut into epochs."""

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.aggregate import aggregates, window
from holdfast.operators.aggregate.spec import aggregate
from holdfast.state import tables
from holdfast.state.call import call
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, Arrivals, StepTime
from tests.everyday import examples

ROWS = pa.schema([("k", pa.string()), ("t", pa.int64()), ("x", pa.float64()), ("n", pa.int64())])
ALL = {
    "rows": aggregates.count(),
    "values": aggregates.count("x"),
    "total": aggregates.sum("n"),
    "exact": aggregates.sum("x"),
    "mean": aggregates.mean("x"),
    "variance": aggregates.variance("x"),
    "first": aggregates.first("x"),
    "last": aggregates.last("n", ignore_nulls=True),
    "least": aggregates.min("x"),
    "most": aggregates.max("n"),
    "median": aggregates.quantile("x", 0.5),
    "different": aggregates.distinct_count("n"),
    "all": aggregates.collect("n"),
    "n_of_most": aggregates.max_by("n", "x"),
    "x_of_least": aggregates.min_by("x", "n"),
}
END = ("bound", None, CLOSED)


def step_of(by="k", cut=None, computed=None, **options):
    cut = cut or window.tumbling(10)
    spec = aggregate(by=by, window=cut, **options, **(computed or {"rows": aggregates.count()})).spec
    return replace(spec, timestamp="t").step({"rows": ROWS})


def epoch(step, items):
    """Rows (key, t, x, n) and bounds ("bound", key or None, t), in the order of arrival."""
    rows = [(*item, place) for place, item in enumerate(items) if item[0] != "bound"]
    told = [(key, key is None, t, place) for place, (kind, key, t, *_) in enumerate(items) if kind == "bound"]
    schema = ROWS.append(pa.field(PLACE, pa.int64()))
    of_told = pa.schema([("k", pa.string()), (ALL_KEYS, pa.bool_()), (BOUND, pa.int64()), (PLACE, pa.int64())])
    made = [
        pa.Table.from_pylist([dict(zip(kind.names, row, strict=True)) for row in found], schema=kind)
        for kind, found in ((schema, rows), (of_told, told))
    ]
    return {"rows": Arrivals(made[0], made[1].select([*step.key.names, ALL_KEYS, BOUND, PLACE]))}


def run(step, *epochs, times=None):
    state, out, late, bounds = tables.empty_state(step), [], [], []
    for number, items in enumerate(epochs):
        at = StepTime(number, times[number] if times else number)
        result = call(step, state, epoch(step, items), at, operator="hourly")
        again = call(step, state, epoch(step, items), at, operator="hourly")
        assert tables.encode(result.outputs) == tables.encode(again.outputs)
        assert tables.encode_changes(result.changes) == tables.encode_changes(again.changes)
        for name, change in result.changes.items():
            state[name] = tables.apply_change(state[name], step.tables[name], change)
        out.append(result.outputs["rows"].to_pylist())
        late += result.outputs["late"].to_pylist() if "late" in result.outputs else []
        bounds.append([] if result.bounds is None else result.bounds.to_pylist())
    return out, late, state, bounds


CUTS = [
    window.tumbling(10),
    window.tumbling(7, offset=3),
    window.sliding(10, 5),
    window.sliding(10, 3),
    window.session(4),
    window.count_window(3),
    window.total(),
]
ITEMS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(-5, 40),
            st.sampled_from([None, 1.5, -0.0, 1e300, -1e300, 3e-300, 0.1, math.nan]),
            st.sampled_from([None, 1, 2, -5, 2**58]),
        ),
        st.tuples(st.just("bound"), st.sampled_from([None, "a"]), st.integers(0, 40)),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(items=ITEMS, cut=st.sampled_from(CUTS), by=st.sampled_from(["k", None]), data=st.data())
def test_cutting_the_rows_into_epochs_in_any_way_gives_the_same_output_and_leaves_no_window(items, cut, by, data):
    by_time = cut.kind in ("tumbling", "sliding", "session")
    disorder = data.draw(st.sampled_from([None, 5, 20])) if by_time else None
    if by is None:
        items = [item if item[0] != "bound" else ("bound", None, item[2]) for item in items]
    step = step_of(by, cut, ALL, disorder=disorder)
    places = data.draw(st.lists(st.integers(0, len(items)), max_size=5).map(sorted))
    whole = run(step, [*items, END])
    ends = [0, *places, len(items)]
    parts = [items[start:end] for start, end in itertools.pairwise(ends)]
    cut_up = run(step, *parts, [], [END])
    for once, often in ((whole[0], cut_up[0]), ([whole[1]], [cut_up[1]])):
        assert sorted(repr(row) for rows in once for row in rows) == sorted(repr(row) for rows in often for row in rows)
    assert not any(table.num_rows for name, table in cut_up[2].items() if name != "keys")


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(items=ITEMS, size=st.integers(1, 12))
def test_tumbling_windows_agree_with_a_count_by_hand(items, size):
    items = [item for item in items if item[0] != "bound"]
    newest, wanted, late = {}, defaultdict(list), 0
    for key, t, x, n in items:
        if t < newest.get(key, t):
            late += 1
            continue
        newest[key] = t
        wanted[key, t // size * size].append((x, n))
    step = step_of("k", window.tumbling(size), ALL)
    out, refused, _, _ = run(step, items, [END])
    found = {(row["k"], row["window_start"]): row for rows in out for row in rows}
    assert len(refused) == late
    assert set(found) == set(wanted)
    for key, group in wanted.items():
        row = found[key]
        numbers = [n for _, n in group if n is not None]
        floats = [x for x, _ in group if x is not None]
        assert row["rows"] == len(group)
        assert row["values"] == len(floats)
        assert row["total"] == (sum(numbers) if numbers else None)
        assert row["most"] == max(numbers, default=None)
        assert row["all"] == numbers
        assert row["different"] == len(set(numbers))
        assert row["last"] == (numbers[-1] if numbers else None)
        if floats and not any(math.isnan(x) for x in floats):
            exact = float(sum(map(Fraction, floats)))
            assert row["exact"] == pytest.approx(exact, rel=3e-16, abs=0)
            assert row["least"] == min(floats)


@pytest.mark.slow
def test_a_sum_of_doubles_is_exact_however_large_what_cancels():
    step = step_of("k", window.tumbling(10), {"x": aggregates.sum("x"), "v": aggregates.variance("x", population=True)})
    out, *_ = run(step, [("a", 0, 1e300, 0)], [("a", 1, 1.0, 0)], [("a", 2, -1e300, 0), ("b", 0, 1e9, 0)],
                  [("b", 1, 1e9 + 1, 0)], [END])  # fmt: skip
    assert [row["x"] for row in out[-1]] == [1.0, 2e9 + 1]
    assert out[-1][1]["v"] == 0.25


@pytest.mark.slow
def test_a_row_below_the_bound_is_late_and_says_so():
    out, late, _, _ = run(step_of(), [("a", 12, None, 1)], [("a", 11, None, 2), ("b", 3, None, 3)], [END])
    assert [(row["k"], row["timestamp"], row["input"], row["rows"]["n"]) for row in late] == [("a", 11, "rows", 2)]
    assert "is below the bound 12" in late[0]["reason"]
    assert [(row["k"], row["rows"]) for row in out[-1]] == [("b", 1), ("a", 1)]


def test_strict_rows_may_not_repeat_a_time():
    _, late, _, _ = run(step_of(timestamps="strict"), [("a", 1, None, 1), ("a", 1, None, 2)])
    assert [row["rows"]["n"] for row in late] == [2]


def test_a_window_is_emitted_once_when_the_bound_reaches_its_end_and_not_before():
    out, _, _, bounds = run(step_of(), [("a", 3, None, 1)], [("a", 9, None, 1)], [("a", 10, None, 1)])
    assert [len(rows) for rows in out] == [0, 0, 1]
    assert out[2][0] == {"k": "a", "window_start": 0, "window_end": 10, "rows": 2}
    assert bounds[2] == [{"k": "a", ALL_KEYS: False, BOUND: 10}]


def test_changes_are_emitted_by_epoch_and_only_of_windows_that_changed():
    out, *_ = run(step_of(emit="changes"), [("a", 3, None, 1), ("b", 3, None, 1)], [("a", 4, None, 1)], [END])
    assert [[(row["k"], row["rows"]) for row in rows] for rows in out] == [[("a", 1), ("b", 1)], [("a", 2)], []]


def test_a_silent_key_is_settled_by_logged_time_and_its_next_row_is_late():
    step = step_of(idle_after="10 us")
    out, late, _, _ = run(step, [("a", 3, None, 1)], [], [], [("a", 4, None, 1)], times=[0, 9, 10, 11])
    assert [len(rows) for rows in out] == [0, 0, 1, 0]
    assert len(late) == 1


def test_a_forgotten_key_leaves_nothing_in_state():
    out, _, state, _ = run(step_of(forget_after="10 us"), [("a", 3, None, 1)], [], times=[0, 10])
    assert [len(rows) for rows in out] == [0, 1]
    assert not any(table.num_rows for table in state.values())


def test_a_timer_goes_by_logged_time_and_ends_early_at_its_count():
    step = step_of(cut=window.timer("10 us", count_trigger=2), computed={"all": aggregates.collect("n")})
    items = [("a", 0, None, n) for n in range(5)]
    out, *_ = run(step, items[:3], items[3:], [], times=[0, 5, 10])
    assert [[row["all"] for row in rows] for rows in out] == [[[0, 1]], [[2, 3]], [[4]]]


def test_a_sum_that_does_not_fit_is_an_error_and_one_that_fits_in_the_end_is_none():
    step = step_of(computed={"total": aggregates.sum("n")})
    most = 2**63 - 1
    out, *_ = run(step, [("a", 0, None, most)], [("a", 0, None, most)], [("a", 0, None, -most)], [END])
    assert out[-1][0]["total"] == most
    with pytest.raises(BadRow, match=r"operator 'hourly'.*'total'.*does not fit"):
        run(step, [("a", 0, None, most), ("a", 0, None, 1), END])


@pytest.mark.parametrize("row", [(None, 1, None, 1), ("a", None, None, 1)])
def test_a_row_without_key_or_timestamp_is_an_error(row):
    with pytest.raises(BadRow, match=r"operator 'hourly'.*input 'rows'"):
        run(step_of(), [row])


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: step_of(cut=window.tumbling("1 hour")), "wrong unit"),
        (lambda: step_of(computed={"x": aggregates.sum("k")}), "no number"),
        (lambda: aggregate(window=window.total()), "computes nothing"),
        (lambda: aggregate(window="1 hour", n=aggregates.count()), "window= was given a str"),
        (lambda: aggregate(by="n", window=window.total(), n=aggregates.count()), "would be called 'n'"),
        (lambda: aggregate(window=window.total(), disorder=3, n=aggregates.count()), "no meaning"),
        (lambda: aggregate(window=window.total(), emit="all", n=aggregates.count()), "emit='all' is not known"),
        (
            lambda: aggregate(window=window.session(3), emit="changes", disorder=3, n=aggregates.count()),
            "sessions of rows in disorder",
        ),
    ],
)
def test_what_cannot_be_aggregated_is_refused(build, text):
    with pytest.raises(InvalidPipeline, match=text):
        build()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        # Longer: one of the new length begins where an open one begins, and they are one; else each keeps its end.
        (10, 20, [("a", 20, 40, 2), ("b", 30, 40, 1), ("b", 20, 40, 1), ("a", 40, 60, 1), ("b", 40, 60, 1)]),
        # Shorter: what was open holds what it held, and new rows that lie before the end of the new one.
        (20, 10, [("a", 20, 40, 2), ("b", 20, 40, 1), ("b", 30, 40, 1), ("a", 50, 60, 1), ("b", 50, 60, 1)]),
    ],
)
def test_windows_of_another_length_keep_what_is_open(before, after, wanted):
    early = [("a", 21, None, 1), ("b", 35, None, 1)], [("a", 25, None, 1), ("b", 36, None, 1)]
    rows = (*early, [("a", 50, None, 1), ("b", 50, None, 1)], [END])
    state, found = tables.empty_state(step_of(cut=window.tumbling(before))), []
    for number, items in enumerate(rows):
        step = step_of(cut=window.tumbling(after if number else before))
        result = call(step, state, epoch(step, items), StepTime(number + 1, number), operator="hourly", bucket=0)
        state = tables.apply_changes(state, step.tables, result.changes)
        found += [tuple(row.values()) for row in result.outputs["rows"].to_pylist()] if "rows" in result.outputs else []
    assert sorted(found) == sorted(wanted)
    assert sum(count for *_, count in found) == 6, "each row is in one of them"
    assert all(any(start <= t < end for _, start, end, _ in found) for t in (21, 25, 35, 36, 50))
