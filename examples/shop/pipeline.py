"""A shop: orders, payments and customers in; sales, open orders, hourly revenue, an archive and bad rows out."""

import os
from pathlib import Path
from typing import Any

import holdfast as hf

WORK = Path(os.environ.get("SHOP_WORK", Path(__file__).parent / "out"))


def arriving(name: str, columns: str, time: str) -> hf.Stream:
    """Read the files of JSON lines that arrive in a directory; lines with `is_bound` say how far the stream is."""
    return hf.read.files(
        WORK / "in" / name,
        schema=f"{columns}, {time} TIMESTAMP NOT NULL, is_bound BOOLEAN",
        timestamp=time,
        bounds="is_bound",
        on_bad_row="reject",
        max_files_per_epoch=3,
        name=name,
    )


def table(name: str, **options: Any) -> hf.SinkNode:
    """Write a table: of PostgreSQL where SHOP_DSN says which, else of a SQLite file."""
    if os.environ.get("SHOP_DSN"):
        return hf.write.postgres("${SHOP_DSN}", table=name, name=f"{name}_table", **options)
    return hf.write.sqlite(WORK / "shop.db", table=name, name=f"{name}_table", **options)


orders = arriving("orders", "order_id BIGINT NOT NULL, customer BIGINT NOT NULL, cents BIGINT", "ordered_at")
payments = arriving("payments", "payment_id BIGINT NOT NULL, order_id BIGINT, paid_cents BIGINT", "paid_at")
customers = arriving("customers", "customer BIGINT NOT NULL, country STRING", "since")

# What has no key is a bad row.  What is delivered twice counts once.
new_orders = orders | hf.distinct(by="order_id", horizon="1 h", name="new_orders")
new_payments = payments | hf.distinct(by="payment_id", horizon="1 h", name="new_payments")

# The country is that of the customer when the order was made.  Rows come up to ten minutes out of order.
addresses = hf.table(customers, key="customer", disorder="10 min")
placed = hf.lookup(new_orders, addresses, on="customer", disorder="10 min", name="placed")
located = placed | hf.select(
    "order_id", "coalesce(country, 'unknown') AS country", "cents", "ordered_at", name="located"
)

# An order is paid within two hours, or it stays open.
paid = hf.join(located, new_payments, on="order_id", within=("0 s", "2 h"), how="left", disorder="10 min", name="paid")
after = paid | hf.split(open="payment_id IS NULL", otherwise="sold", name="after")
open_orders = after.open | hf.select("order_id", "country", "cents", "ordered_at", name="open_orders")
sales = after.sold | hf.select(
    "payment_id", "order_id", "country", "paid_cents", "ordered_at", "joined_time AS paid_at", name="sales"
)
revenue = sales | hf.aggregate(
    by="country",
    window=hf.tumbling("1 hour"),
    emit="changes",
    disorder="10 min",
    payments=hf.count(),
    cents=hf.sum("paid_cents"),
    name="revenue",
)
bad_rows = hf.union(orders.rejects, payments.rejects, customers.rejects, name="bad_rows")

pipeline = hf.Pipeline(
    "shop",
    sales | table("sales"),
    open_orders | table("open_orders"),
    revenue | table("revenue", mode="upsert", key=["country", "window_start"]),
    bad_rows | table("bad_rows"),
    orders | hf.write.files(WORK / "archive/orders", name="orders_archive"),
    payments | hf.write.files(WORK / "archive/payments", name="payments_archive"),
)
