"""What hurts a reader of the tree may only become less: each figure has the bound of the best day so far."""

from __future__ import annotations

from functools import cache

import pytest

from tools import house

pytestmark = pytest.mark.slow


@cache
def measured() -> dict[str, float]:
    return house.figures(house.House.read())


@pytest.mark.parametrize("figure", sorted(house.bounds()))
def test_a_figure_is_no_worse_than_its_bound(figure: str) -> None:
    today, bound = measured()[figure], house.bounds()[figure]
    assert not house.is_better(figure, bound, today), f"{figure} is {today:g}, and was {bound:g}"


def test_every_figure_has_a_bound() -> None:
    assert set(measured()) - set(house.SIZES) == set(house.bounds())


def test_a_circle_is_found_whatever_kind_of_import_closes_it() -> None:
    assert [*house._circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()})] == [["b", "c"]]
