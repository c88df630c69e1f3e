"""Kill a join of changes at several points: its table holds what holds in both streams (design/0065)."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.crash.lives import MODES, Lives
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

EPOCHS = 8
CHAIN = (("carried", "after-decide:2"), ("staged", "publish-uncommitted:4"), ("carried", "after-publish:6"))
"""How a life stages its rows, and where it dies."""


def bids(epoch: int) -> list[dict[str, Any]]:
    """Return the rows of a file: auctions go from seller to seller, some of whom nobody knows."""
    chance = random.Random(f"bids {epoch}")
    return [
        {"auction": chance.randrange(9), "t": epoch * 100 + n, "seller": chance.randrange(7), "price": n * epoch}
        for n in range(10)
    ]


def people(epoch: int) -> list[dict[str, Any]]:
    """Return the rows of a file: people move."""
    chance = random.Random(f"people {epoch}")
    return [{"person": chance.randrange(5), "t": epoch * 100 + n, "city": chance.choice("pqrs")} for n in range(3)]


def put(path: Path, rows: Iterable[Mapping[str, Any]], at: int) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (at, at))


def test_a_join_of_changes_is_exact_after_a_chain_of_kills(tmp_path: Path) -> None:
    for name, rows_of in (("bids", bids), ("people", people)):
        (tmp_path / name).mkdir()
        for epoch in range(EPOCHS):
            put(tmp_path / name / f"{epoch:03}.json", rows_of(epoch), epoch)
    lives = Lives(tmp_path, "joined_changes_pipeline", {})
    for mode, where in CHAIN:
        lives.environment |= MODES[mode]
        lives.die(where)
    assert lives.end() == 0, lives.said()
    sellers: dict[int, int] = {}
    prices: Counter[int] = Counter()
    homes: dict[int, str] = {}
    for epoch in range(EPOCHS):
        for row in bids(epoch):
            sellers[row["auction"]] = row["seller"]
            prices[row["auction"]] = max(prices[row["auction"]], row["price"])
        homes |= {row["person"]: row["city"] for row in people(epoch)}
    wanted = {(auction, seller, prices[auction], homes.get(seller)) for auction, seller in sellers.items()}
    assert None in {city for *_, city in wanted} != {None}, "every row has a partner, or none has"
    found = sqlite_rows(tmp_path / "sold.db", "SELECT auction, seller, price, city FROM sold")
    assert sorted(found) == sorted(wanted, key=lambda row: row[0])
    totals: Counter[str] = Counter()
    for _, _, price, city in wanted:
        if city is not None:
            totals[city] += price
    cities = sqlite_rows(tmp_path / "cities.db", "SELECT city, total, auctions FROM cities")
    assert {city: total for city, total, _ in cities} == dict(totals)
    assert {city: count for city, _, count in cities} == Counter(city for *_, city in wanted if city is not None)
