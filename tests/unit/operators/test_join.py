"""``hf.join``: against a reference by brute force, whatever the order of arrival and wherever epochs are cut."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.testing import close, drive

HOWS = ["inner", "left", "right", "full", "semi", "anti"]


def streams():
    left = hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name="l")
    right = hf.read.rows([], schema="k STRING, t BIGINT, w BIGINT", timestamp="t", name="r")
    return left, right


def joined(how, within=(-2, 5), **options):
    return hf.join(*streams(), on="k", within=within, how=how, name="joined", **options)


def brute_force(lefts, rights, how, within):
    """Return the rows of a join, by the definition."""
    low, high = within
    pairs = [
        (one, other)
        for one in lefts
        for other in rights
        if one["k"] is not None and one["k"] == other["k"] and low <= other["t"] - one["t"] <= high
    ]
    with_left, with_right = [one for one, _ in pairs], [other for _, other in pairs]
    if how in ("semi", "anti"):
        return [one for one in lefts if (one in with_left) == (how == "semi")]
    rows = [
        {**one, "t_right": other["t"], "w": other["w"], "joined_time": max(one["t"], other["t"])}
        for one, other in pairs
    ]
    if how in ("left", "full"):
        rows += [{**one, "t_right": None, "w": None, "joined_time": one["t"]} for one in lefts if one not in with_left]
    if how in ("right", "full"):
        rows += [
            {"k": other["k"], "t": None, "v": None, "t_right": other["t"], "w": other["w"], "joined_time": other["t"]}
            for other in rights
            if other not in with_right
        ]
    return rows


def same(found, expected):
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def rows_of(side, keys, times):
    value = "v" if side == "l" else "w"
    return [{"k": key, "t": time, value: number} for number, (key, time) in enumerate(zip(keys, times, strict=True))]


def in_epochs(rows, cuts):
    borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [rows[start:end] for start, end in pairwise(borders)] + [[close()]]


keys = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=25)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(HOWS), st.sampled_from([(-2, 5), (0, 0), (0, 9), (-9, 0), (2, 6), (-6, -2)]))
def test_it_is_the_reference_in_any_order_of_arrival_and_epochs(data, how, within):
    given_rows, epochs = {}, {}
    for side in "lr":
        chosen = data.draw(keys)
        times = data.draw(st.lists(st.integers(0, 30), min_size=len(chosen), max_size=len(chosen)))
        given_rows[side] = rows_of(side, chosen, times)
        arriving = data.draw(st.permutations(given_rows[side]))
        epochs[side] = in_epochs(list(arriving), data.draw(st.lists(st.integers(0, 25), max_size=3)))
    stream = joined(how, within, disorder=30)
    found = [row for epoch in drive(stream, epochs) for row in epoch]
    same(found, brute_force(given_rows["l"], given_rows["r"], how, within))
