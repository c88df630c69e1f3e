"""The sides of Holdfast and of Spark: a query over the Parquet files, an epoch for each file, timed as a whole."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from bench.lives import Watch
from bench.nexmark.counting import count_rows
from bench.nexmark.events import SCHEMAS
from bench.nexmark.expected import side_table
from bench.nexmark.files import FileTables, ddl
from bench.nexmark.running import QUERIES, module_of
from bench.nexmark.spark_sql import QUERIES as SPARK_QUERIES

DISCARD, POSTGRES, FILES = SINKS = ("discard", "postgres", "files")
"""Where the rows of Holdfast go; ``files`` takes no result that changes."""


def queries_of(sink: str) -> list[str]:
    """Return the queries whose result a sink takes."""
    return [query for query in QUERIES if sink != FILES or not module_of(query).KEY]


def side_holdfast(query: str, inputs: str, out: str, sink: str, dsn: str) -> dict[str, Any]:
    """Measure Holdfast."""
    import holdfast as hf
    from holdfast.config import Settings
    from holdfast.spark.launch.early import rows_in_jvm
    from holdfast.spark.launch.session import create_session

    def pipeline(size: str) -> hf.Pipeline:
        target = Path(out) / size
        target.mkdir(parents=True)
        rows = module_of(query).result(FileTables(Path(inputs) / size))
        return hf.Pipeline(f"{query}_{size}", to_sink(sink, query, rows, target, dsn, size))

    warm, large = pipeline("warm"), pipeline("large")
    session = create_session("local[2]", "3g", rows=rows_in_jvm(warm, Settings()))  # as a start of it chooses

    def run(graph: hf.Pipeline, size: str) -> None:
        where = str(Path(out) / size / "checkpoint")
        graph.start(checkpoint=where, trigger=hf.available_now(), session=session).wait()

    run(warm, "warm")
    with Watch() as watch:
        run(large, "large")
    return {**watch.figures(), "rows": _rows_of(sink, Path(out) / "large", dsn)}


def to_sink(sink: str, query: str, rows: Any, target: Path, dsn: str, size: str) -> Any:
    """Return the rows of a query with the sink that they go to."""
    import holdfast as hf

    key, delete = module_of(query).KEY, vars(module_of(query)).get("DELETE")
    if sink == DISCARD:
        if delete:  # a change counts, whatever it changes
            rows = rows | hf.select(f"* except ({delete})", f"{delete} AS was_{delete}", name="changes")
        counted = rows | hf.map_batches(count_rows, "counted BIGINT", name="counted_rows")
        return counted | hf.write.sqlite(target / "out.db", table="counts", name="counts")
    if sink == FILES:
        return rows | hf.write.files(str(target / "out"), format="parquet", name="result")
    mode = {"mode": "upsert", "key": key, "delete": delete} if key else {}
    return rows | hf.write.postgres(dsn, table=size, name="result", **mode)


def _rows_of(sink: str, target: Path, dsn: str) -> int:
    """Return how many rows the sink has; for one that discards, how many it got."""
    if sink == DISCARD:
        with sqlite3.connect(target / "out.db") as connection:
            return int(connection.execute("SELECT coalesce(sum(counted), 0) FROM counts").fetchone()[0])
    if sink == FILES:
        import pyarrow.dataset

        return pyarrow.dataset.dataset(target / "out", format="parquet").count_rows()
    import psycopg

    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT count(*) FROM large").fetchone()
    return 0 if found is None else int(found[0])


def side_spark(query: str, inputs: str, out: str) -> dict[str, Any]:
    """Measure Spark."""
    from bench.sync import spark

    session = spark()
    session.createDataFrame(side_table().to_pandas()).createOrReplaceTempView("side")
    sql, mode = SPARK_QUERIES[query]

    def run(size: str) -> None:
        for table in SCHEMAS:
            reader = session.readStream.schema(ddl(table)).option("maxFilesPerTrigger", 1)
            rows = reader.parquet(str(Path(inputs) / size / table)).withWatermark("dateTime", "0 seconds")
            rows.createOrReplaceTempView(table)
        writer = session.sql(sql).writeStream.outputMode(mode).format("noop")
        stream = writer.option("checkpointLocation", str(Path(out) / size)).trigger(availableNow=True).start()
        stream.awaitTermination()

    run("warm")
    with Watch() as watch:
        run("large")
    return watch.figures()
