"""What expressions share is computed once, and changes nothing."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest

from holdfast.errors import BadRow
from holdfast.expressions.compile import columnar_items
from holdfast.expressions.functions import SplitText
from holdfast.expressions.shared import Common

ROWS = pa.record_batch(
    {
        "u": pa.array(["https://a/b/c/d/e", "", None, "//x//", "no separator", "a/b"]),
        "s": pa.array(["Apple", "GOOGLE", None, "", "apple", "K"]),
        "n": pa.array([1, None, -3, 0, 2**40, 7], pa.int64()),
        "f": pa.array([0.0, -0.0, None, 1.5, float("nan"), -2.0]),
        "t": pa.array([0, 1, None, 10**15, -1, 36 * 10**8], pa.timestamp("us", tz="UTC")),
    }
)


def common_of(*items: str) -> Common:
    found = columnar_items(items, ROWS.schema)
    assert found is not None, "all of them are computed in Arrow"
    return Common.of(*(item for _, item in found))


def values(arrays: Sequence[pa.Array]) -> list[list[str]]:
    return [[repr(value) for value in array.to_pylist()] for array in arrays]


SHARED = {
    "one cut for all parts": ("split_part(u, '/', 4) AS a", "split_part(u, '/', 5) AS b", "split_part(u, '/', 1) AS c"),
    "from the end": ("split_part(u, '/', -1) AS a", "split_part(u, '/', 2) AS b", "split_part(u, '/', -2) AS c"),
    "a cut of a part": ("split_part(split_part(u, '/', 4), 'a', 1) AS a", "split_part(u, '/', 5) AS b"),
    "twice in one": ("CASE WHEN lower(s) = 'apple' THEN 1 WHEN lower(s) = 'google' THEN 2 END AS a",),
    "times": ("CASE WHEN hour(t) > 8 THEN 'a' WHEN hour(t) < 3 OR hour(t) = 6 THEN 'b' END AS a", "hour(t) AS h"),
    "decimals": ("n * 0.908 > 1000 AND n * 0.908 < 5000 AS a", "n * 0.908 AS b"),
    "one in another": ("length(trim(s)) AS a", "length(trim(s)) > 3 AS b", "trim(s) AS c"),
}
NOT_SHARED = {
    "columns": ("n", "n IS NULL AS a", "u"),
    "different texts": ("split_part(u, '/', 1) AS a", "split_part(s, '/', 1) AS b"),
    "different separators": ("split_part(u, '/', 1) AS a", "split_part(u, 'a', 1) AS b"),
    "what a row can make an error": ("(n + 1) * 2 AS a", "(n + 1) * 3 AS b"),
    "zeros of both signs": ("f * 0.0D AS a", "f * -0.0D AS b"),
}


@pytest.mark.parametrize("items", [*SHARED.values(), *NOT_SHARED.values()], ids=[*SHARED, *NOT_SHARED])
def test_values_are_those_of_each_expression_alone(items: tuple[str, ...]) -> None:
    found = columnar_items(items, ROWS.schema)
    assert found is not None
    alone = [item.evaluate(ROWS.slice(0, 4)) for _, item in found]
    together = pickle.loads(pickle.dumps(common_of(*items))).evaluate(ROWS.slice(0, 4))
    assert values(together) == values(alone)
    assert [array.type for array in together] == [array.type for array in alone]


@pytest.mark.parametrize("items", SHARED.values(), ids=SHARED)
def test_what_occurs_twice_is_computed_before(items: tuple[str, ...]) -> None:
    assert common_of(*items).steps


@pytest.mark.parametrize("items", NOT_SHARED.values(), ids=NOT_SHARED)
def test_what_is_not_the_same_or_can_raise_is_left_where_it_is(items: tuple[str, ...]) -> None:
    assert not common_of(*items).steps


@pytest.mark.parametrize(("numbers", "limit"), [((4, 5, 1), 5), ((2, -1), -1), ((-3, -1), -1)])
def test_a_text_is_cut_as_often_as_the_last_part_needs(numbers: tuple[int, ...], limit: int) -> None:
    steps = common_of(*(f"split_part(u, '/', {number}) AS p{at}" for at, number in enumerate(numbers))).steps
    ((_, cut),) = steps
    assert isinstance(cut, SplitText)
    assert cut.limit == limit


def test_only_the_outermost_of_what_is_shared_has_a_name() -> None:
    """``trim`` has one place, in the length, which has two."""
    assert len(common_of("length(trim(s)) AS a", "length(trim(s)) + 0.5D AS b").steps) == 1
    assert len(common_of("length(trim(s)) AS a", "length(trim(s)) + 0.5D AS b", "trim(s) AS c").steps) == 2


def test_an_item_that_a_text_has_not_is_an_error_where_its_cut_is_shared() -> None:
    common = common_of("split(u, '/')[0] AS a", "split(u, '/')[3] AS b")
    assert len(common.steps) == 1
    assert common.evaluate(ROWS.slice(0, 1))[1].to_pylist() == ["b"]
    with pytest.raises(BadRow, match=r"split\(u, '/'\)\[3\]"):
        common.evaluate(ROWS)
