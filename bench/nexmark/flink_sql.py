"""The queries in Flink's SQL, over the tables ``person``, ``auction``, ``bid`` and ``side``.

They follow the benchmark's own statements where these say how (window functions; ``ROW_NUMBER`` for the first of a key;
query 4 by two aggregates), and find what ``expected.py`` says, in its columns: means are of DOUBLE, where Flink's of
BIGINT are whole.  Three are written as Flink can: query 6 by a second rank, because ``OVER`` takes no rows that change;
query 12 by groups, because a window of processing time that is open when the input ends is dropped; query 13 as a
temporal join with a versioned table, because no connector of the distribution looks up in a static one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.nexmark.events import SCHEMAS

DISORDER_S = 4
"""How far its watermarks are behind, as in the benchmark's own tables."""

CHECKPOINT_S = 10
SETTINGS: Mapping[str, str] = {
    "execution.runtime-mode": "STREAMING",
    "state.backend.type": "hashmap",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.interval": f"{CHECKPOINT_S} s",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
    # As the benchmark's own configuration has them.
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "taskmanager.memory.managed.size": "512m",
    "taskmanager.memory.network.min": "256m",
    "taskmanager.memory.network.max": "256m",
}
"""How it runs.  Objects are used again between operators of one task, which spares it copies."""

_EURO = "CAST(price * 0.908 AS DECIMAL(23, 3))"
_DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"
_RANGES = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
_WINNING = """SELECT * FROM (
        SELECT a.*, b.bidder, b.price AS best, b.`dateTime` AS sold,
            ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.`dateTime`) AS place
        FROM auction a JOIN bid b ON a.id = b.auction AND b.`dateTime` BETWEEN a.`dateTime` AND a.expires)
    WHERE place = 1"""


def _counted(count: str, name: str) -> str:
    of_ranges = (f"{count} FILTER (WHERE {condition}) AS {rank}_{name}" for rank, condition in _RANGES.items())
    return ", ".join([f"{count} AS total_{name}", *of_ranges])


_BIDS = _counted("COUNT(*)", "bids")
_COUNTS = ", ".join(
    [_BIDS, _counted("COUNT(DISTINCT bidder)", "bidders"), _counted("COUNT(DISTINCT auction)", "auctions")]
)
_OF_AUCTIONS = """SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""

QUERIES: Mapping[str, str] = {
    "q0": "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
    "q1": f"SELECT auction, bidder, {_EURO} AS price, `dateTime`, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """SELECT category, AVG(CAST(best AS DOUBLE)) AS price FROM (
            SELECT a.id, a.category, MAX(b.price) AS best
            FROM auction a JOIN bid b ON a.id = b.auction AND b.`dateTime` BETWEEN a.`dateTime` AND a.expires
            GROUP BY a.id, a.category)
        GROUP BY category""",
    "q5": f"""SELECT c.auction, c.window_start, c.num FROM ({_OF_AUCTIONS}) c
        JOIN (SELECT MAX(num) AS most, window_start, window_end FROM ({_OF_AUCTIONS})
            GROUP BY window_start, window_end) m
        ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num = m.most""",
    "q6": f"""SELECT seller, AVG(CAST(best AS DOUBLE)) AS price FROM (
            SELECT seller, best, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY sold DESC, id DESC) AS age
            FROM ({_WINNING}))
        WHERE age <= 11 GROUP BY seller""",
    # The time of a window is a millisecond before its end, so this is the window without the first instant of the next.
    "q7": """SELECT b.auction, b.bidder, b.price, b.`dateTime`, b.extra FROM bid b JOIN (
            SELECT MAX(price) AS highest, window_time AS latest
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
            GROUP BY window_start, window_end, window_time) m
        ON b.price = m.highest AND b.`dateTime` BETWEEN m.latest - INTERVAL '9.999' SECOND AND m.latest""",
    "q8": """SELECT p.id, p.name, p.window_start FROM (
            SELECT id, name, window_start, window_end
            FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
            GROUP BY id, name, window_start, window_end) p
        JOIN (
            SELECT seller, window_start, window_end
            FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
            GROUP BY seller, window_start, window_end) a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    "q9": f"""SELECT id, itemName, description, initialBid, reserve, `dateTime`, expires, seller, category, extra,
        bidder, best AS price, sold AS bid_time FROM ({_WINNING})""",
    "q10": f"""SELECT auction, bidder, price, `dateTime`, extra, {_DAY} AS `day`,
        DATE_FORMAT(`dateTime`, 'HH:mm') AS `minute` FROM bid""",
    "q11": """SELECT bidder, COUNT(*) AS bids, window_start AS starts, window_end AS ends
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q12": """SELECT bidder, slot, COUNT(*) AS bids FROM (
            SELECT bidder, TIMESTAMPDIFF(SECOND, TIMESTAMP '2015-01-01 00:00:00', CAST(at_work AS TIMESTAMP(3))) / 10
                AS slot FROM bid)
        GROUP BY bidder, slot""",
    "q13": """SELECT b.auction, b.bidder, b.price, b.`dateTime`, s.`value`
        FROM (SELECT *, MOD(auction, 10000) AS `key` FROM bid) b
        JOIN side FOR SYSTEM_TIME AS OF b.`dateTime` AS s ON b.`key` = s.`key`""",
    "q14": f"""SELECT auction, bidder, {_EURO} AS price,
        CASE WHEN HOUR(`dateTime`) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN HOUR(`dateTime`) <= 6 OR HOUR(`dateTime`) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
        `dateTime`, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts
        FROM bid WHERE {_EURO} > 1000000 AND {_EURO} < 50000000""",
    "q15": f"SELECT {_DAY} AS `day`, {_COUNTS} FROM bid GROUP BY {_DAY}",
    "q16": f"""SELECT channel, {_DAY} AS `day`, MAX(DATE_FORMAT(`dateTime`, 'HH:mm')) AS `minute`, {_COUNTS}
        FROM bid GROUP BY channel, {_DAY}""",
    "q17": f"""SELECT auction, {_DAY} AS `day`, {_BIDS}, MIN(price) AS min_price, MAX(price) AS max_price,
        AVG(CAST(price AS DOUBLE)) AS avg_price, SUM(price) AS sum_price FROM bid GROUP BY auction, {_DAY}""",
    "q18": """SELECT auction, bidder, price, channel, url, `dateTime`, extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS place FROM bid)
        WHERE place = 1""",
    "q19": """SELECT auction, bidder, price, `dateTime`, extra, place AS `rank` FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS place FROM bid)
        WHERE place <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.`dateTime`, b.extra, a.itemName, a.description,
        a.initialBid, a.reserve, a.`dateTime` AS opened, a.expires, a.seller, a.category, a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """SELECT * FROM (
            SELECT auction, bidder, price, channel, CASE WHEN LOWER(channel) = 'apple' THEN '0'
                WHEN LOWER(channel) = 'google' THEN '1' WHEN LOWER(channel) = 'facebook' THEN '2'
                WHEN LOWER(channel) = 'baidu' THEN '3'
                ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM bid)
        WHERE channel_id <> ''""",
    "q22": """SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1,
        SPLIT_INDEX(url, '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3 FROM bid""",
    "q23": """SELECT b.auction, b.bidder, b.price, b.`dateTime`, p.name, p.city, a.id, a.itemName, a.category
        FROM bid b JOIN person p ON b.bidder = p.id JOIN auction a ON b.bidder = a.seller""",
}
"""Query -> its statement."""

_TYPES = {"int64": "BIGINT", "string": "STRING"}
_READ = "'connector' = 'filesystem', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"


def tables(directory: Path) -> Sequence[str]:
    """Return the statements that declare the tables in a directory of :func:`~bench.nexmark.flink.write_inputs`."""
    statements = []
    for table, schema in SCHEMAS.items():
        columns = [f"`{field.name}` {_TYPES.get(str(field.type), 'TIMESTAMP(3)')}" for field in schema]
        columns += ["at_work AS PROCTIME()"] if table == "bid" else []
        columns += [f"WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '{DISORDER_S}' SECOND"]
        statements.append(_table(table, columns, directory))
    side = ["`key` BIGINT", "`value` STRING", "since AS CAST(TIMESTAMP '1970-01-01 00:00:00' AS TIMESTAMP(3))"]
    side += ["WATERMARK FOR since AS since", "PRIMARY KEY (`key`) NOT ENFORCED"]
    return [*statements, _table("side", side, directory)]


def _table(name: str, columns: Sequence[str], directory: Path) -> str:
    return f"CREATE TABLE {name} ({', '.join(columns)}) WITH ({_READ}, 'path' = '{(directory / name).as_uri()}')"


def discarding(query: str) -> str:
    """Return the statement of a query whose rows are discarded."""
    return f"CREATE TABLE found WITH ('connector' = 'blackhole') AS {QUERIES[query]}"


def writing(query: str, out: Path) -> str:
    """Return the statement of a query whose changes are written, each as a line with its operation.

    A row that is replaced is removed first, so what is left of all lines, whatever their order, is the result.
    """
    sink = f"'connector' = 'filesystem', 'format' = 'debezium-json', 'path' = '{out.as_uri()}'"
    return f"CREATE TABLE found WITH ({sink}) AS {QUERIES[query]}"
