"""What a graph says of nulls never decides whether batches fit: every operator with NOT NULL in every position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing.simulation.levels import StatefulWorkload
from tests.sim.named_operators import COLUMNS, MEMBERS, OPERATORS, Order, events_of, pipeline_of, run

Required = frozenset[tuple[str, str]]
POSITIONS = [column.partition(" ")[0].rstrip(":") for column in (*COLUMNS, "part STRUCT", *MEMBERS)]


def shown_by(pipeline: hf.Pipeline) -> dict[str, list[Any]]:
    events, shown = events_of(pipeline), dict[str, list[Any]]()
    run(StatefulWorkload(pipeline, events, lambda shown: [], 2, 1), shown, 0, len(events), 10)
    return shown


def problems_of(kind: str, every: Iterable[Required]) -> list[str]:
    expected = shown_by(pipeline_of(OPERATORS[kind], Order()))
    wrong = []
    for required in every:
        try:
            found = shown_by(pipeline_of(OPERATORS[kind], Order(required=required)))
        except Exception as error:
            wrong.append(f"{sorted(required)}: {error!r}")
            continue
        if any(sorted(found[sink]) != sorted(rows) for sink, rows in expected.items()):
            wrong.append(f"{sorted(required)}: other rows")
    return wrong


def sources_of(kind: str) -> list[str]:
    return [node.name for node in pipeline_of(OPERATORS[kind], Order()).sources]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERATORS)
def test_columns_may_be_not_null_in_any_input(kind: str) -> None:
    each = [frozenset((name, position) for position in POSITIONS) for name in sources_of(kind)]
    assert problems_of(kind, {*each, frozenset().union(*each)}) == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", OPERATORS)
def test_each_column_may_be_not_null_alone(kind: str) -> None:
    each = [frozenset([(name, position)]) for name in sources_of(kind) for position in POSITIONS]
    assert problems_of(kind, each) == []
