"""Every query of Nexmark that can be written finds what DuckDB computes of the same events, in batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.nexmark.compared import compare, read_result
from bench.nexmark.events import Events
from bench.nexmark.expected import database
from bench.nexmark.running import QUERIES, run
from bench.nexmark.tables import Tables

EVENTS = Events(out_of_order=1000)
COUNT = 60_000
"""With fewer nobody who sells bids: their numbers begin at 1000 and at 2000, and of 50 events one is a person."""


@pytest.fixture(scope="module")
def events() -> Iterator[Any]:
    with database(EVENTS, COUNT) as connection:
        yield connection


@pytest.mark.spark
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_what_is_computed_in_batch(query: str, events: Any, spark: Any, tmp_path: Path) -> None:
    out = run(query, Tables(EVENTS, COUNT, max_events_per_epoch=25_000), tmp_path, spark)
    found = compare(query, read_result(out), events)
    assert found.rows > 0
    assert (found.missing, found.surplus) == (0, 0), found.examples
