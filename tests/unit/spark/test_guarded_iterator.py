"""A UDF over iterators beside the rows of other branches, however batches are cut; no JVM."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import InvalidPipeline
from holdfast.spark.plans.guarded import GuardedIteratorUdf

Batches = Iterator[pa.Array]


def guarded(function: Callable[[Batches], Batches]) -> GuardedIteratorUdf:
    return GuardedIteratorUdf(function, "map 'm', built at a.py:1", "m", is_arrow=True)


def batches(chance: random.Random) -> list[tuple[pa.Array, pa.Array]]:
    """Return batches of numbers, each with whether it is the branch's; some batches have none that is."""
    made = []
    for _ in range(chance.randint(0, 6)):
        share, count = chance.choice((0.0, 0.5, 1.0)), chance.randint(1, 5)
        mine = [chance.random() < share for _ in range(count)]
        made.append((pa.array(mine), pa.array([chance.randint(0, 99) if is_mine else None for is_mine in mine])))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_values_stand_beside_their_rows_whatever_the_function_makes_of_batches(seed: int) -> None:
    chance = random.Random(seed)

    def negative(given: Batches) -> Batches:
        held: list[int] = []
        for batch in given:
            assert batch.null_count == 0, "a row of another branch"
            held += [-number for number in batch.to_pylist()]
            size = chance.randint(0, len(held))
            if size:
                yield pa.array(held[:size])
            held = held[size:]
        if held:
            yield pa.array(held)

    taken = batches(chance)
    given = list(guarded(negative)(iter(taken)))
    assert [len(one) for one in given] == [len(mine) for mine, _ in taken]
    wanted = [None if number is None else -number for _, numbers in taken for number in numbers.to_pylist()]
    assert [value for one in given for value in one.to_pylist()] == wanted


def lazy(given: Batches) -> Batches:
    yield next(given)


def stingy(given: Batches) -> Batches:
    for batch in given:
        yield batch[:-1]


@pytest.mark.parametrize(("function", "words"), [(lazy, "has not taken all"), (stingy, "one value for each row")])
def test_a_function_that_loses_rows_is_named(function: Any, words: str) -> None:
    taken = [(pa.array([True, False]), pa.array([1, None])), (pa.array([False, True]), pa.array([None, 2]))]
    with pytest.raises(InvalidPipeline, match=words) as caught:
        list(guarded(function)(iter(taken)))
    assert "map 'm', built at a.py:1" in str(caught.value)
