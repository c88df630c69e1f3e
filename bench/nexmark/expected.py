"""What each query of Nexmark should find: computed by DuckDB, in batch, and independently of Holdfast.

Every result is the final content of the result table, however the rows were read.  Where a query's own text leaves ties
open, a total order decides here: the earlier event, by the number in the sequence (``n``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from bench.nexmark.events import SCHEMAS, Events

SIDE_ROWS = 10_000
"""Rows of the side table of query 13."""

_WINNING = """
    SELECT a.*, b.price AS best, b.bidder, b.dateTime AS sold FROM auction a JOIN bid b
    ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime, b.n) = 1
"""
"""Auctions with their winning bids."""

_EURO = "CAST(price * 0.908 AS DECIMAL(23, 3))"
_RANGES = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
_DAY = "strftime(dateTime, '%Y-%m-%d')"


def _counted(count: str, name: str) -> str:
    of_ranges = (f"{count} FILTER (WHERE {condition}) AS {rank}_{name}" for rank, condition in _RANGES.items())
    return ", ".join([f"{count} AS total_{name}", *of_ranges])


_COUNTS = ", ".join(
    [
        _counted("count(*)", "bids"),
        _counted("count(DISTINCT bidder)", "bidders"),
        _counted("count(DISTINCT auction)", "auctions"),
    ]
)

QUERIES: Mapping[str, str] = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": f"SELECT auction, bidder, {_EURO} AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT category, avg(best) AS price FROM ({_WINNING}) GROUP BY category",
    "q5": """WITH counted AS (
            SELECT auction, window_start, count(*) AS num FROM (
                SELECT auction, unnest(range(1, 6)) AS k, time_bucket(INTERVAL 2 SECOND, dateTime) AS bucket,
                    bucket - INTERVAL 10 SECOND + INTERVAL 2 SECOND * k AS window_start FROM bid)
            GROUP BY ALL)
        SELECT auction, window_start, num FROM counted
        QUALIFY num = max(num) OVER (PARTITION BY window_start)""",
    "q6": f"""SELECT seller, avg(best) AS price FROM (
            SELECT seller, best, row_number() OVER (PARTITION BY seller ORDER BY sold DESC, id DESC) AS age
            FROM ({_WINNING})) WHERE age <= 11 GROUP BY seller""",
    "q7": """SELECT auction, bidder, price, dateTime, extra FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL 10 SECOND, dateTime))""",
    "q8": """SELECT DISTINCT p.id, p.name, time_bucket(INTERVAL 10 SECOND, p.dateTime) AS window_start
        FROM person p JOIN auction a ON p.id = a.seller
        AND time_bucket(INTERVAL 10 SECOND, p.dateTime) = time_bucket(INTERVAL 10 SECOND, a.dateTime)""",
    "q9": f"""SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
        bidder, best AS price, sold AS bid_time FROM ({_WINNING})""",
    "q10": f"""SELECT auction, bidder, price, dateTime, extra, {_DAY} AS day, strftime(dateTime, '%H:%M') AS minute
        FROM bid""",
    "q11": """SELECT bidder, count(*) AS bids, min(dateTime) AS starts, max(dateTime) + INTERVAL 10 SECOND AS ends
        FROM (SELECT *, sum(is_new) OVER (PARTITION BY bidder ORDER BY dateTime, n) AS session FROM (
            SELECT *, CASE WHEN dateTime - lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime, n)
                < INTERVAL 10 SECOND THEN 0 ELSE 1 END AS is_new FROM bid))
        GROUP BY bidder, session""",
    # Its windows are of processing time, and so of each run; the sums over them are not.
    "q12": "SELECT bidder, count(*) AS bids FROM bid GROUP BY bidder",
    "q13": "SELECT auction, bidder, price, dateTime, value FROM bid JOIN side ON auction % 10000 = side.key",
    "q14": f"""SELECT auction, bidder, {_EURO} AS price,
        CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
        dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE {_EURO} > 1000000 AND {_EURO} < 50000000""",
    "q15": f"SELECT {_DAY} AS day, {_COUNTS} FROM bid GROUP BY day",
    "q16": f"""SELECT channel, {_DAY} AS day, max(strftime(dateTime, '%H:%M')) AS minute, {_COUNTS}
        FROM bid GROUP BY channel, day""",
    "q17": f"""SELECT auction, {_DAY} AS day, {_counted("count(*)", "bids")}, min(price) AS min_price,
        max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price FROM bid GROUP BY auction, day""",
    "q18": """SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC, n DESC) = 1""",
    "q19": """SELECT auction, bidder, price, dateTime, extra,
        row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime, n) AS rank
        FROM bid QUALIFY rank <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime, b.extra, a.itemName, a.description,
        a.initialBid, a.reserve, a.dateTime AS opened, a.expires, a.seller, a.category, a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
        FROM bid WHERE channel_id <> ''""",
    "q22": """SELECT auction, bidder, price, channel, string_split(url, '/')[4] AS dir1,
        string_split(url, '/')[5] AS dir2, string_split(url, '/')[6] AS dir3 FROM bid""",
    "q23": """SELECT b.auction, b.bidder, b.price, b.dateTime, p.name, p.city, a.id, a.itemName, a.category
        FROM bid b JOIN person p ON b.bidder = p.id JOIN auction a ON b.bidder = a.seller""",
}
"""Query -> what it finds."""


def side_table() -> pa.Table:
    """Return the table that query 13 looks up in."""
    keys = np.arange(SIDE_ROWS)
    return pa.table({"key": keys, "value": [f"value {key}" for key in keys]})


def database(events: Events, count: int) -> Any:
    """Return a connection with the first ``count`` events as tables, each row with its place ``n`` in its table."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for table, schema in SCHEMAS.items():
        rows = pa.Table.from_batches([events.make(table, 0, count)], schema)
        connection.register("rows", rows.append_column("n", pa.array(np.arange(rows.num_rows))))
        times = {name: f"{name}::TIMESTAMP AS {name}" for name in ("dateTime", "expires")}
        columns = ", ".join(times.get(name, name) for name in [*schema.names, "n"])
        connection.execute(f"CREATE TABLE {table} AS SELECT {columns} FROM rows")
        connection.unregister("rows")
    connection.register("side_rows", side_table())
    connection.execute("CREATE TABLE side AS SELECT * FROM side_rows")
    return connection


def expected(query: str, connection: Any) -> pa.Table:
    """Return what a query should find in such a database."""
    return connection.sql(QUERIES[query]).to_arrow_table()
