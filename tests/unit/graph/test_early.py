"""Rows before their epoch is decided: only where the same rows come again (design/0025)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline

Operator = Callable[[Any], Any]


def save(df: Any, epoch: int) -> None:
    """Write by id."""


def pipeline(operators: Operator, **arguments: Any) -> hf.Pipeline:
    schema = "id BIGINT, v BIGINT, at TIMESTAMP"
    rows = hf.read.files("in", format="json", schema=schema, timestamp="at", name="given") | hf.row_id()
    options = {"idempotent": True, "send": "early", **arguments}
    return hf.Pipeline("early", operators(rows) | hf.write.foreach_batch(save, name="index", **options))


def counted(rows: Any, **arguments: Any) -> Any:
    counts = hf.aggregate(by="id", window=hf.tumbling("1 hour"), n=hf.count(), name="hourly", **arguments)
    return rows | counts | hf.row_id("id", "window_start")


@pytest.mark.parametrize(
    "operators",
    [lambda rows: rows, lambda rows: rows | hf.filter("v > 1") | hf.select("row_id", "v + 1 as v"), counted],
    ids=["nothing", "columns", "windows"],
)
def test_behind_operators_that_give_the_same_rows_again_it_is_taken_and_shown(operators: Operator) -> None:
    assert 'send="early"' in pipeline(operators).explain()


@pytest.mark.parametrize(
    ("operators", "why"),
    [
        (lambda rows: rows | hf.filter("rand() > 0.5"), r"rand\(\) varies"),
        (lambda rows: rows | hf.map(lambda df: df) | hf.row_id("id", into="key"), "map computes what Holdfast"),
        (lambda rows: rows | hf.filter("at < current_timestamp()"), r"current_timestamp\(\) is the time of the batch"),
        (lambda rows: counted(rows, idle_after="5 s"), "the time of the batch"),
    ],
    ids=["varying", "function", "now", "clock"],
)
def test_rows_that_might_not_come_again_are_refused_with_the_reason(operators: Operator, why: str) -> None:
    with pytest.raises(InvalidPipeline, match=why):
        pipeline(operators)


@pytest.mark.parametrize("arguments", [{"idempotent": False}, {"id": "id"}, {"send": "soon"}])
def test_without_ids_that_the_graph_knows_it_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidPipeline):
        pipeline(lambda rows: rows, **arguments)


def test_by_default_rows_are_sent_when_they_are_decided() -> None:
    assert "send=" not in pipeline(lambda rows: rows, send="decided").explain()
