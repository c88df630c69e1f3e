"""What Spark counted in attempts that failed is not counted of the one that did not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from holdfast.plan.counts import Observed
from holdfast.plan.routes import Routes
from holdfast.spark.evaluation import Evaluated, SparkEvaluation
from holdfast.spark.staging import TaskStaging

SCHEMA = pa.schema([("id", pa.int64())])


def attempt(counted: list[int], rows: int) -> SimpleNamespace:
    """Return a batch that Spark evaluates by counting rows, of which half fail."""

    def evaluated(result: Any) -> Any:
        counted[0] += rows
        return result

    job = SimpleNamespace(toArrow=lambda: evaluated(pa.table({})))
    return SimpleNamespace(toArrow=lambda: evaluated(SCHEMA.empty_table()), mapInArrow=lambda task, schema: job)


WAYS: Mapping[str, Callable[[SparkEvaluation, Any], Evaluated | None]] = {
    "carried": lambda evaluation, batch: evaluation.carry(batch, {}, {}, frozenset({"table"})),
    "staged": lambda evaluation, batch: evaluation.stage(batch, {}, {}, TaskStaging("rides", 1, 1, {})),
}


@pytest.mark.parametrize("way", WAYS)
def test_counts_of_an_attempt_that_failed_are_left_out(way: str) -> None:
    counted = [0]
    evaluation = SparkEvaluation(
        Routes(("table",), (SCHEMA,)), lambda: {"valid": Observed(counted[0], counted[0] // 2)}
    )
    attempt(counted, 4).toArrow()  # it counted, and then something was away
    found = WAYS[way](evaluation, cast("Any", attempt(counted, 6)))
    assert found is not None
    assert found.report.observed["valid"] == Observed(6, 3)
