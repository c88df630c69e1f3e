"""What sources give to an epoch with state: a source that has nothing for it is not asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.plan.chunks import WAKE
from holdfast.plan.cutting import build_stages
from holdfast.plan.levels.host import LevelsHere, levels_of
from holdfast.plan.levels.packing import packings
from holdfast.plan.program_build import as_it_is
from holdfast.spark.state.given import given
from holdfast.spark.state.here import EvaluationHere
from tests.unit.spark.test_isolate_behind import StatefulWorld

AT: Any = {"in": {"rows": 3}}


class Unasked:
    """Sources that must not be opened; one of them began at 0."""

    def source(self, name: str, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{name} is asked")

    def span(self, name: str, start: Any, end: Any) -> Any:
        return start.get(name, {"rows": 0}), end[name]


@pytest.mark.parametrize("end", [AT, {"in": {**AT["in"], "@ticks": 1}}], ids=["a step without any", "the clock alone"])
def test_an_epoch_without_rows_asks_no_source_and_calls_who_watches_the_clock(tmp_path: Any, end: Any) -> None:
    stages = build_stages(
        StatefulWorld(tmp_path).pipeline, as_it_is, "t", buckets=2, partitions=2, prefix=lambda part: ()
    )
    stages = replace(stages, waking=(0,))  # as of an operator that watches the clock
    levels, sources = LevelsHere(levels_of(stages, "t"), stages.routing), Unasked()
    packed = packings(stages, {"in": "t"})
    here = EvaluationHere(sources, packed, levels, 2, lambda piece: b"")
    (of_source,) = given(sources, packed, AT, end)
    assert of_source.spans(sources, 2) == []
    assert [chunk.kind for chunk in here.chunks(AT, end)] == [WAKE, WAKE]  # of each bucket
