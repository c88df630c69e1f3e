"""Kill every query of Nexmark, go on with another graph, kill that: it finds what DuckDB computes, in batch.

The kills are drawn by ``HOLDFAST_SEED``: a point of an epoch that every run comes to, or a moment after an epoch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.nexmark.compared import compare, read_result
from bench.nexmark.events import Events
from bench.nexmark.expected import database
from bench.nexmark.running import QUERIES
from tests.crash.lives import Lives
from tests.everyday import everyday, seed_of_kills

pytestmark = [pytest.mark.spark, pytest.mark.crash]

POINTS = ("before-stage", "after-stage", "before-publish", "after-publish")
SMALL, LARGE = 60_000, 1_000_000
"""With fewer than 60,000 nobody who sells bids."""
EPOCHS = 6
SPAN_S = 60
"""Seconds of event time: windows end in every epoch."""

SAMPLE = ("q9",)
"""A join by ranges of rows, and ranks that change; nightly has them all."""


@pytest.fixture(scope="module")
def small() -> Iterator[Any]:
    with database(events_of(SMALL, 1000), SMALL) as connection:
        yield connection


@pytest.fixture(scope="module", params=[1, 1000], ids=["in order", "out of order"])
def large(request: pytest.FixtureRequest) -> Iterator[tuple[int, Any]]:
    with database(events_of(LARGE, request.param), LARGE) as connection:
        yield request.param, connection


def events_of(count: int, group: int) -> Events:
    return Events(rate=count // SPAN_S, out_of_order=group)


def killed(query: str, count: int, group: int, expected: Any, work: Path) -> None:
    """Let a query live three times: it dies in its own graph, and in the changed one, which then ends."""
    chance = random.Random(f"{seed_of_kills(43)} {query} {count} {group}")
    variables = {"COUNT": count, "EPOCHS": EPOCHS, "RATE": count // SPAN_S, "GROUP": group, "CHANGED": 0}
    environment = {f"NEXMARK_{name}": str(value) for name, value in variables.items()}
    lives = Lives(work, "nexmark_pipeline", {**environment, "NEXMARK_QUERY": query}, chance=chance)
    second = chance.choice([*(f"{point}:5" for point in POINTS), "moment:1"])
    deaths = [f"{chance.choice(POINTS)}:{chance.randint(2, 3)}", second]
    for death in deaths:
        lives.die(death)
        lives.environment["NEXMARK_CHANGED"] = "1"
    assert lives.end() == 0, lives.said()
    found = compare(query, read_result(work / "result"), expected)
    assert found.rows > 0
    assert (found.missing, found.surplus) == (0, 0), f"after {deaths}: {found.examples}"


@pytest.mark.parametrize("query", everyday(QUERIES, SAMPLE))
def test_a_query_is_right_after_kills_and_a_change_of_its_graph(query: str, small: Any, tmp_path: Path) -> None:
    killed(query, SMALL, 1000, small, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_right_at_a_million_events(query: str, large: tuple[int, Any], tmp_path: Path) -> None:
    group, expected = large
    killed(query, LARGE, group, expected, tmp_path)
