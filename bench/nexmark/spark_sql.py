"""The queries in Spark's own streaming SQL, where it can express them; with watermarks on all tables.

Not there: 4, 6, 9, 19 (no ranks, and no aggregate of rows that change), 5 and 7 (no window's maximum joined with its
rows in one query that updates), 12 (no window of processing time), 15 and 16 (no distinct counts), 18 (no last row of a
key).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_EURO = "CAST(price * 0.908 AS DECIMAL(23, 3))"


class Query(NamedTuple):
    """A statement over the views ``person``, ``auction``, ``bid`` and ``side``."""

    sql: str
    mode: str = "append"


QUERIES: Mapping[str, Query] = {
    "q0": Query("SELECT auction, bidder, price, dateTime, extra FROM bid"),
    "q1": Query(f"SELECT auction, bidder, {_EURO} AS price, dateTime, extra FROM bid"),
    "q2": Query("SELECT auction, price FROM bid WHERE auction % 123 = 0"),
    "q3": Query(
        """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"""
    ),
    "q8": Query(
        """SELECT p.id, p.name, p.w FROM
            (SELECT id, name, window(dateTime, '10 seconds') AS w FROM person GROUP BY id, name, 3) p
        JOIN (SELECT seller, window(dateTime, '10 seconds') AS w FROM auction GROUP BY seller, 2) a
        ON p.id = a.seller AND p.w = a.w"""
    ),
    "q10": Query(
        """SELECT auction, bidder, price, dateTime, extra, date_format(dateTime, 'yyyy-MM-dd') AS day,
        date_format(dateTime, 'HH:mm') AS minute FROM bid"""
    ),
    "q11": Query(
        """SELECT bidder, count(*) AS bids, session_window(dateTime, '10 seconds') AS session
        FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds')"""
    ),
    "q13": Query(
        """SELECT auction, bidder, price, dateTime, value FROM
        (SELECT *, auction % 10000 AS key FROM bid) JOIN side USING (key)"""
    ),
    "q14": Query(
        f"""SELECT auction, bidder, {_EURO} AS price, CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
        dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE {_EURO} > 1000000 AND {_EURO} < 50000000"""
    ),
    "q17": Query(
        """SELECT auction, date_format(dateTime, 'yyyy-MM-dd') AS day, count(*) AS total_bids,
        count(*) FILTER (WHERE price < 10000) AS rank1_bids,
        count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
        count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
        min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY auction, date_format(dateTime, 'yyyy-MM-dd')""",
        "update",
    ),
    "q20": Query(
        """SELECT b.*, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime AS opened, a.expires, a.seller,
        a.category, a.extra AS auction_extra FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10"""
    ),
    "q21": Query(
        """SELECT * FROM (SELECT auction, bidder, price, channel, CASE WHEN lower(channel) = 'apple' THEN '0'
            WHEN lower(channel) = 'google' THEN '1' WHEN lower(channel) = 'facebook' THEN '2'
            WHEN lower(channel) = 'baidu' THEN '3'
            ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM bid)
        WHERE channel_id <> ''"""
    ),
    "q22": Query(
        """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bid"""
    ),
    "q23": Query(
        """SELECT b.auction, b.bidder, b.price, b.dateTime, p.name, p.city, a.id, a.itemName, a.category
        FROM bid b JOIN person p ON b.bidder = p.id JOIN auction a ON b.bidder = a.seller"""
    ),
}
