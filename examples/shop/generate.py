"""What arrives at the shop: files of orders, payments and customers, ten minutes of a day at a time.

The same seed gives the same files.  Rows come up to ten minutes out of order, some of them twice; some lines are no
rows at all, and some rows have no key.  Each file ends with a line that says how far its stream is: nothing older
follows.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

OPENS = datetime(2026, 3, 2, 8, tzinfo=UTC)
TICK = timedelta(minutes=10)
"""What one file of a stream holds, and how late a row may be."""
COUNTRIES = ("DE", "FR", "IT", "NL", "PL")
Row = dict[str, Any]
Deliveries = dict[str, list[list[str]]]
"""Stream -> for each tick the lines of its file."""


def deliveries(seed: int, order_count: int, hours: int = 12) -> Deliveries:
    """Return the lines of all files of a day: until the last payments are made, some too late, and customers moved."""
    luck = random.Random(seed)
    customer_count = max(order_count // 20, 1)
    events = {
        "customers": ("since", list(_customers(luck, customer_count, hours))),
        "orders": ("ordered_at", list(_orders(luck, order_count, customer_count, hours))),
    }
    events["payments"] = ("paid_at", list(_payments(luck, events["orders"][1])))
    tick_count = timedelta(hours=hours + 4) // TICK
    return {stream: _delivered(luck, time_column, rows, tick_count) for stream, (time_column, rows) in events.items()}


def write(deliveries: Deliveries, directory: Path, tick: int) -> None:
    """Deliver the files of one tick, each complete when it appears."""
    for stream, ticks in deliveries.items():
        target = directory / stream
        target.mkdir(parents=True, exist_ok=True)
        new = target / f"_{tick:03d}.json"
        new.write_text("\n".join(ticks[tick]) + "\n", encoding="utf-8")
        new.rename(target / f"{tick:03d}.json")


def is_row(line: str) -> bool:
    """Return whether a line is a row, and neither broken nor a line that only says how far its stream is."""
    try:
        return "is_bound" not in json.loads(line)
    except ValueError:
        return False


def _orders(luck: random.Random, count: int, customer_count: int, hours: int) -> Iterator[Row]:
    for order_id in range(1, count + 1):
        customer = luck.randint(1, customer_count + 2)  # two of them are unknown
        at = _some_time(luck, hours)
        yield {"order_id": order_id, "customer": customer, "cents": luck.randint(500, 20_000), "ordered_at": at}


def _payments(luck: random.Random, orders: Sequence[Row]) -> Iterator[Row]:
    """Most orders are paid in one piece, some in two, some too late, some never."""
    payment_id = 0
    for order in orders:
        pieces = luck.choices((0, 1, 2), (10, 80, 10))[0]
        for piece in range(pieces):
            payment_id += 1
            cents = order["cents"] // pieces + (order["cents"] % pieces if piece == 0 else 0)
            waits = timedelta(seconds=luck.triangular(0, 8100, 600))  # of two hours 7200
            yield {
                "payment_id": payment_id,
                "order_id": order["order_id"],
                "paid_cents": cents,
                "paid_at": order["ordered_at"] + waits,
            }


def _customers(luck: random.Random, count: int, hours: int) -> Iterator[Row]:
    """Most are known when the shop opens; some register after their first order, and some move."""
    for customer in range(1, count + 1):
        since = OPENS if luck.random() < 0.9 else _some_time(luck, hours)
        yield {"customer": customer, "country": luck.choice(COUNTRIES), "since": since}
        if luck.random() < 0.3:
            moves = since + timedelta(seconds=luck.randint(1, 3 * 3600))
            yield {"customer": customer, "country": luck.choice(COUNTRIES), "since": moves}


def _some_time(luck: random.Random, hours: int) -> datetime:
    return OPENS + timedelta(milliseconds=luck.randrange(hours * 3_600_000))


def _delivered(luck: random.Random, time_column: str, rows: Sequence[Row], tick_count: int) -> list[list[str]]:
    """Bring rows into the order in which they arrive, and cut that into ticks."""
    arriving: list[tuple[datetime, str]] = []
    for row in rows:
        text = json.dumps(row, default=datetime.isoformat)
        texts = [text, text] if luck.random() < 0.02 else [text]
        if luck.random() < 0.01:
            keyless = json.dumps({**row, next(iter(row)): None}, default=datetime.isoformat)
            texts.append(luck.choice((text[: len(text) // 2].rstrip(), text + "}", keyless)))
        arriving += [(row[time_column] + luck.random() * TICK, each) for each in texts]
    arriving.sort()
    ticks: list[list[str]] = [[] for _ in range(tick_count)]
    for at, text in arriving:
        ticks[(at - OPENS) // TICK].append(text)
    for number, lines in enumerate(ticks):
        complete = OPENS + (number if number < tick_count - 1 else 2 * tick_count) * TICK
        lines.append(json.dumps({time_column: complete.isoformat(), "is_bound": True}))
    return ticks


def main(arguments: Sequence[str] | None = None) -> None:
    """Deliver a day, one tick after the other."""
    parser = argparse.ArgumentParser(description="Deliver the files of a day to a shop.")
    parser.add_argument("directory", type=Path, help="where the streams have a directory each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--pause", type=float, default=0.5, metavar="S", help="seconds between two ticks")
    options = parser.parse_args(arguments)
    day = deliveries(options.seed, options.orders)
    for tick in range(len(day["orders"])):
        write(day, options.directory, tick)
        time.sleep(options.pause)


if __name__ == "__main__":
    main()
