"""Plain Spark Structured Streaming: files, a Python function, and a sink.

As written in https://spark.apache.org/docs/latest/streaming/apis-on-dataframes-and-datasets.html: "foreachBatch()
provides only at-least-once write guarantees.  However, you can use the batchId provided to the function as way to
deduplicate the output and get an exactly-once guarantee"; file sink: exactly-once; Kafka sink: at-least-once.

- ``foreachBatch, appended``: each batch is inserted in one transaction.
- ``foreachBatch, by batch id``: the transaction also notes the batch's id, and a batch that is noted is left out.
- ``files``: ``format("parquet")``; read by its own reader, which goes by ``_spark_metadata``.
- ``kafka``: ``format("kafka")``.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from pathlib import Path

from killed import AFTER_WRITE, BEFORE_WRITE, KILL_ROW, die_at, lead, seen

lead()
WORK, ADDRESS, SINK = Path(os.environ["MATRIX_WORK"]), os.environ["MATRIX_ADDRESS"], os.environ["MATRIX_SINK"]
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

FILES_PER_BATCH = 5
KILL_BATCH = KILL_ROW // 100 // FILES_PER_BATCH


def write_table(batch: DataFrame, batch_id: int) -> None:
    """Insert a batch into a table of SQLite, in one transaction."""
    if batch_id == KILL_BATCH:
        die_at(BEFORE_WRITE)
    rows = [tuple(row) for row in batch.select("id", "value").collect()]
    with sqlite3.connect(ADDRESS, isolation_level=None, timeout=30) as table:
        table.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER, value REAL)")
        table.execute("CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY)")
        table.execute("BEGIN IMMEDIATE")
        if SINK == "foreachBatch, by batch id":
            if table.execute("SELECT 1 FROM batches WHERE id = ?", (batch_id,)).fetchone():
                table.execute("ROLLBACK")
                return
            table.execute("INSERT INTO batches VALUES (?)", (batch_id,))
        table.executemany("INSERT INTO rows VALUES (?, ?)", rows)
        table.execute("COMMIT")
    if batch_id == KILL_BATCH:
        die_at(AFTER_WRITE)


def watch_files() -> None:
    """Die as soon as the sink's own log has the batch, before Spark's commit log has it."""
    written = Path(ADDRESS) / "_spark_metadata" / str(KILL_BATCH)
    while not written.exists():
        time.sleep(0.0005)
    die_at(AFTER_WRITE)


builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.memory", "1g").config("spark.sql.execution.pythonUDF.arrow.enabled", "false")
if jars := os.environ.get("MATRIX_JARS"):
    builder = builder.config("spark.jars", jars)
session = builder.getOrCreate()
session.sparkContext.setLogLevel("ERROR")
rows = session.readStream.schema("id BIGINT, at TIMESTAMP, value DOUBLE").option("maxFilesPerTrigger", FILES_PER_BATCH)
rows = rows.json(str(WORK / "in")).withColumn("id", F.udf(seen, "bigint")("id"))
if SINK.startswith("foreachBatch"):
    writer = rows.writeStream.foreachBatch(write_table)
elif SINK == "files":
    writer = rows.writeStream.format("parquet").option("path", ADDRESS)
    if os.environ.get("MATRIX_AT") == AFTER_WRITE:
        threading.Thread(target=watch_files, daemon=True).start()
else:
    bootstrap, _, topic = ADDRESS.partition("/")
    writer = rows.select(F.to_json(F.struct("id", "value")).alias("value")).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
query = writer.option("checkpointLocation", str(WORK / "checkpoint")).trigger(availableNow=True).start()
query.awaitTermination()
session.stop()
