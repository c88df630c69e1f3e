"""The events of Nexmark follow its rules, and any slice is the same by itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.nexmark.events import BASE_US, SCHEMAS, Events

TABLES = sorted(SCHEMAS)


@given(st.sampled_from(TABLES), st.integers(0, 5000), st.integers(0, 300), st.sampled_from([1, 7, 1000]))
def test_a_slice_is_the_same_by_itself(table: str, start: int, size: int, group: int) -> None:
    events = Events(out_of_order=group)
    before = events.make(table, 0, start).num_rows
    apart = events.make(table, start, start + size)
    assert apart.equals(events.make(table, 0, 5600).slice(before, apart.num_rows))


def test_of_fifty_events_one_is_a_person_and_three_are_auctions() -> None:
    counts = {table: Events().make(table, 0, 50_000).num_rows for table in TABLES}
    assert counts == {"person": 1000, "auction": 3000, "bid": 46_000}


def test_numbers_are_consecutive_from_a_thousand() -> None:
    assert Events().make("person", 0, 5000)["id"].to_pylist() == list(range(1000, 1100))
    assert Events().make("auction", 0, 5000)["id"].to_pylist() == list(range(1000, 1300))


def test_out_of_order_is_another_order_of_the_same_events() -> None:
    for table in TABLES:
        ordered = pa.Table.from_batches([Events().make(table, 0, 3000)])
        mixed = pa.Table.from_batches([Events(out_of_order=1000).make(table, 0, 3000)])
        assert not mixed.equals(ordered)
        keys = [(name, "ascending") for name in ordered.schema.names]
        assert mixed.sort_by(keys).equals(ordered.sort_by(keys))


def test_times_are_whole_milliseconds_at_the_rate() -> None:
    times = Events(rate=3).make("bid", 0, 54)["dateTime"].cast(pa.int64()).to_numpy()
    assert times[0] - BASE_US == 1_333_000  # number 4
    assert (np.diff(times) >= 0).all()
    assert (times % 1000 == 0).all()


def test_who_is_hot() -> None:
    bids = Events().make("bid", 500_000, 1_000_000)
    auctions = bids["auction"].to_numpy()
    assert ((auctions - 1000) % 100 == 0).mean() == pytest.approx(0.5, abs=0.02)
    assert ((bids["bidder"].to_numpy() - 2000) % 100 == 1).mean() == pytest.approx(0.75, abs=0.02)
    sellers = Events().make("auction", 500_000, 1_000_000)["seller"].to_numpy()
    assert ((sellers - 1000) % 100 == 0).mean() == pytest.approx(0.75, abs=0.02)


def test_bids_are_on_auctions_that_were_opened_or_come_soon() -> None:
    events = Events()
    numbers = events.numbers("bid", 0, 100_000)
    last = numbers // 50 * 3 + 2
    ahead = events.make("bid", 0, 100_000)["auction"].to_numpy() - 1000 - last
    assert ahead.max() == 10
    assert ahead.min() >= -200


def test_prices_are_log_uniform() -> None:
    prices = Events().make("bid", 0, 200_000)["price"].to_numpy()
    assert prices.min() >= 100
    assert prices.max() <= 10**8
    shares, _ = np.histogram(np.log10(prices), bins=6, range=(2, 8))
    assert shares / len(prices) == pytest.approx(np.full(6, 1 / 6), abs=0.01)


def test_another_seed_makes_other_values_at_the_same_times() -> None:
    one, other = Events(seed=1).make("bid", 0, 1000), Events(seed=2).make("bid", 0, 1000)
    assert one["dateTime"].equals(other["dateTime"])
    assert not any(one[name].equals(other[name]) for name in one.schema.names if name != "dateTime")


def test_rows_are_as_large_as_the_benchmark_says() -> None:
    def size(table: str, *names: str) -> float:
        rows = Events().make(table, 0, 100_000)
        return sum(pc.mean(pc.binary_length(rows[name])).as_py() for name in names)

    assert size("bid", "extra") + 32 == pytest.approx(100, abs=2)
    assert size("auction", "itemName", "description", "extra") + 48 == pytest.approx(500, abs=15)
    assert size("person", "name", "emailAddress", "creditCard", "city", "state", "extra") + 16 == pytest.approx(
        200, abs=15
    )


def test_columns_can_be_made_by_themselves() -> None:
    whole = Events().make("auction", 100, 200)
    assert Events().make("auction", 100, 200, ["seller", "expires"]).equals(whole.select(["expires", "seller"]))
