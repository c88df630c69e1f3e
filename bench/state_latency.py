"""How long a row waits for its effect on state: 1000 rows a second, count and maximum of 10 000 keys in PostgreSQL.

As ``bench.epoch_latency``, but each row changes the count and the latest creation time of its key, and the changed keys
are upserted.  A trigger in the database notes each version of a key that a transaction wrote, on both sides alike: a
row became visible with the first version that counts it, at the commit timestamp of its transaction.

- ``raw_spark``: native file source, ``groupBy`` in update mode, RocksDB with changelogs, a task per core,
  ``foreachBatch``: the changed keys are collected, copied over a kept connection and merged, in one transaction.
- ``holdfast``: ``hf.reduce`` and ``hf.write.postgres(mode="upsert")``, exactly once.

``ratio`` = p50 holdfast / p50 raw Spark, ``p99_ratio`` likewise.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.epoch_latency import Case, compare, watch_holdfast, watch_spark

KEYS = 10_000
SCHEMA = "id BIGINT, created_us BIGINT, celsius DOUBLE"
KEYED = (f"id % {KEYS} AS k", "created_us")

CASE = Case(
    module="bench.state_latency",
    tables=(
        "DROP TABLE IF EXISTS latest, versions, holdfast_ledger",
        "CREATE TABLE latest (k bigint PRIMARY KEY, n bigint, created_us bigint)",
        "CREATE TABLE versions (k bigint, n bigint, created_us bigint)",
        """CREATE OR REPLACE FUNCTION note_version() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN INSERT INTO public.versions VALUES (NEW.k, NEW.n, NEW.created_us); RETURN NULL; END'""",
        """CREATE TRIGGER noted AFTER INSERT OR UPDATE ON latest FOR EACH ROW EXECUTE FUNCTION note_version()""",
    ),
    file_every_s=0.1,
    arrived="SELECT coalesce(sum(n), 0)::bigint, coalesce(sum(n), 0)::bigint FROM latest",
    waits=f"""
        WITH shown AS (
            SELECT k, n, coalesce(lag(n) OVER (PARTITION BY k ORDER BY n), 0) AS shown_before,
                   extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1e3 AS at_ms, created_us
            FROM (SELECT DISTINCT ON (k, n) k, n, created_us, xmin FROM versions
                  ORDER BY k, n, pg_xact_commit_timestamp(xmin)) AS first
        )
        SELECT at_ms - created_us / 1e3 FROM shown
        WHERE n = shown_before + 1 AND (n - 1) * {KEYS} + k >= %s
    """,
)
"""A key gets a row every ten seconds, so a version counts one row more than that before it, and holds its creation."""


def side_raw_spark(directory: str, dsn: str, scratch: str) -> dict[str, Any]:
    """Raw Spark as a careful user sets it up for state."""
    import psycopg
    from pyspark.sql import functions as F

    from bench.sync import spark

    session = spark()
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute("CREATE TEMPORARY TABLE changed (k bigint, n bigint, created_us bigint)")

    def save(batch: Any, batch_id: int) -> None:
        rows = batch.collect()
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute("TRUNCATE changed")
            with cursor.copy("COPY changed FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(tuple(row))
            cursor.execute(
                "INSERT INTO latest SELECT * FROM changed"
                " ON CONFLICT (k) DO UPDATE SET n = excluded.n, created_us = excluded.created_us"
            )

    rows = session.readStream.schema(SCHEMA).json(directory).selectExpr(*KEYED)
    changed = rows.groupBy("k").agg(F.count(F.lit(1)).alias("n"), F.max("created_us").alias("created_us"))
    writer = changed.writeStream.foreachBatch(save).outputMode("update")
    query = writer.option("checkpointLocation", f"{scratch}/checkpoint").start()
    return watch_spark(query)


def side_holdfast(directory: str, dsn: str, scratch: str) -> dict[str, Any]:
    """Holdfast, and where each epoch's milliseconds went."""
    import holdfast as hf

    os.environ.setdefault("HOLDFAST_MASTER", "local[2]")
    readings = hf.read.files(directory, format="json", schema=SCHEMA, name="readings") | hf.select(*KEYED, name="keyed")
    latest = readings | hf.reduce(by="k", n=hf.count(), created_us=hf.max("created_us"), name="latest")
    sink = hf.write.postgres(dsn, table="latest", mode="upsert", key=["k"], name="table")
    run = hf.Pipeline("bench", latest | sink).start(checkpoint=f"{scratch}/checkpoint", trigger=hf.every("0 s"))
    return watch_holdfast(run)


if __name__ == "__main__":
    sys.exit(compare("state_latency", CASE, ("raw_spark",)))
