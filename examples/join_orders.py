"""Orders with their payments of the two hours after them, and orders that nobody paid: ``join``."""

import os
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "join_orders"


def at(hour: int, minute: int = 0) -> datetime:
    """Return a time of one day."""
    return datetime(2026, 1, 5, hour, minute, tzinfo=UTC)


orders = hf.read.rows(
    [
        [{"order_id": 1, "at": at(8), "city": "Rome"}, {"order_id": 2, "at": at(8, 20), "city": "Oslo"}],
        [{"order_id": 3, "at": at(12), "city": "Rome"}],
    ],
    schema="order_id BIGINT, at TIMESTAMP, city STRING",
    timestamp="at",
    bounded=True,
    name="orders",
)
payments = hf.read.rows(
    [
        [{"order_id": 1, "paid_at": at(8, 30), "amount": 9.5}],
        [{"order_id": 1, "paid_at": at(9), "amount": 2.5}, {"order_id": 2, "paid_at": at(11), "amount": 4.0}],
    ],
    schema="order_id BIGINT, paid_at TIMESTAMP, amount DOUBLE",
    timestamp="paid_at",
    bounded=True,
    name="payments",
)
paid = hf.join(orders, payments, on="order_id", within=("0 s", "2 h"), how="left", disorder=0, name="paid")
flat = paid | hf.select("order_id", "city", "amount", name="flat")

pipeline = hf.Pipeline("orders", flat | hf.write.sqlite(WORK / "join_orders.db", table="paid", name="paid_table"))


def main() -> None:
    """Run to the end of the input, and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    with closing(sqlite3.connect(WORK / "join_orders.db")) as connection:
        for row in connection.execute("SELECT order_id, city, amount FROM paid ORDER BY 1, 3"):
            print(row)


if __name__ == "__main__":
    main()
