"""``holdfast.testing.drive`` gives what a run gives: the same rows in the same order, whatever the operator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.connectors import memory
from holdfast.graph.nodes import Stream
from holdfast.operators.lowering import LOWERINGS
from holdfast.testing import StandIn, close, drive, malformed
from tests.spark.running import arrive

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]

SCHEMA = "k STRING, t BIGINT, v BIGINT"
BUCKETS = 2
"""As many as a new checkpoint has on two cores."""


@pytest.fixture
def tables() -> Iterator[list[str]]:
    """Names of memory tables, which are forgotten in the end."""
    names: list[str] = []
    yield names
    for name in names:
        memory.clear(name)


def row(k: str | None, t: int, v: int = 1) -> dict[str, Any]:
    return {"k": k, "t": t, "v": v, "is_bound": None}


def bound_of(k: str | None, t: int) -> dict[str, Any]:
    """Return a bound row: null in the columns that it does not speak of, for one of the streams goes by ``v`` too."""
    return {"k": k, "t": t, "v": None, "is_bound": True}


MARKED: list[Rows] = [
    [row("a", 1), row("b", 2, 7), row("c", 2), bound_of("a", 6), row("a", 4, 9), row("d", 3, -1)],
    [row("c", 5, 3), row("b", 9), bound_of(None, 8), row("e", 7), row("a", 12, 2)],
    [row("b", 14, 8), row("a", 19), row("c", 25, 4)],
]
"""Bounds of one key and of all, and rows that stand below them."""

PLAIN: list[Rows] = [
    [{"k": "b", "t": 2, "v": 4}, {"k": "a", "t": 1, "v": 3}, {"k": "a", "t": 1, "v": 3}],
    [{"k": "c", "t": 5, "v": 6}, {"k": "a", "t": 4, "v": 0}, {"k": "b", "t": 1, "v": 9}, {"k": "b", "t": 9, "v": 9}],
    [{"k": "a", "t": 19, "v": 5}, {"k": "d", "t": 3, "v": 2}, {"k": "c", "t": 25, "v": 1}],
]


def summed(key: Any, rows: Sequence[Mapping[str, Any]], state: Any) -> Rows:
    """Return a key's running sum, with the epoch in which it was called."""
    total = (state.get("total") or 0) + sum(each["v"] for each in rows)
    state.set(total=total)
    return [{"k": key, "t": rows[-1]["t"], "v": total, "epoch": state.at.epoch}]


def counted(tables: Any, rows: pa.Table, at: Any) -> Any:
    """Return how often each key has come, bucket by bucket."""
    known = {} if tables is None else {each["k"]: each["n"] for each in tables["seen"].to_pylist()}
    made = []
    for each in rows.to_pylist():
        known[each["k"]] = known.get(each["k"], 0) + 1
        made.append({"k": each["k"], "t": each["t"], "v": known[each["k"]], "epoch": at.epoch})
    seen = pl.DataFrame([{"k": key, "n": n} for key, n in known.items()], schema={"k": pl.String, "n": pl.Int64})
    schema = {"k": pl.String, "t": pl.Int64, "v": pl.Int64, "epoch": pl.Int64}
    return {"seen": seen}, pl.DataFrame(made, schema=schema)


def turned(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(2, "v", pc.negate(batch.column("v")))


async def asked(row: Any) -> Any:
    return {"said": f"{row['v']}!"}


async def asked_in_vain(row: Any) -> Any:
    """Answer some."""
    if row["v"] == 1:
        raise ConnectionError("busy")
    return {"told": row["v"]}


def echoed(rows: DataFrame) -> DataFrame:
    """Return each row as often as its key says, none of some keys, with what a Python function makes of it."""
    twice = F.udf(lambda v: None if v is None else 2 * v, "bigint")
    number = F.explode(F.expr("CASE k WHEN 'a' THEN array(1, 2) WHEN 'b' THEN array(1) END"))
    return rows.select("k", "t", number.alias("number")).withColumn("v", twice(F.col("t")))


def echoed_here(row: pa.RecordBatch) -> pa.RecordBatch:
    """Return what :func:`echoed` makes of a row."""
    (given,) = row.to_pylist()
    numbers = {"a": [1, 2], "b": [1]}.get(given["k"], [])
    made = [{"k": given["k"], "t": given["t"], "number": each, "v": 2 * given["t"]} for each in numbers]
    return pa.RecordBatch.from_pylist(made, schema=ECHOED)


def paired(left: Any = None, right: Any = None) -> dict[str, Any]:
    """Return what both inputs have at a time."""
    return {"both": sum(each["v"] for each in (left, right) if each is not None), "is_pair": None not in (left, right)}


def large(paired: dict[str, Any]) -> int | None:
    return paired["both"] if paired["both"] > 3 else None


def two_outputs() -> hf.flow.Graph:
    """Return a flowgraph of two calculators and two outputs."""
    graph = hf.flow.Graph("pairs")
    pairs = {name: graph.input(name) for name in ("left", "right")} | hf.flow.node(paired)
    graph.output("pairs", pairs)
    graph.output("large", pairs | hf.flow.node(large))
    return graph


ECHOED = pa.schema([("k", pa.string()), ("t", pa.int64()), ("number", pa.int32()), ("v", pa.int64())])
HASHED = pa.schema([("k", pa.string()), ("n", pa.int64()), ("sign", pa.string())])


def hashed_here(row: pa.RecordBatch) -> pa.RecordBatch:
    """Return what the statement ``hashed`` makes of a row."""
    (given,) = row.to_pylist()
    made = {"k": given["k"], "n": given["n"], "sign": hashlib.md5(given["k"].encode()).hexdigest()}
    return pa.RecordBatch.from_pylist([made] if given["n"] > 1 else [], schema=HASHED)


STAND_INS = {
    "echoed": StandIn(echoed_here, lambda schema: ECHOED),
    "hashed": StandIn(hashed_here, lambda schema: HASHED),
}
"""What Spark's plan evaluates behind state, without Spark."""


def stateful_streams() -> dict[str, Stream]:
    """Return a stream behind each kind of operator that keeps state, alone, behind another one, and beside it."""
    marked = hf.read.rows(
        MARKED, schema=f"{SCHEMA}, is_bound BOOLEAN", timestamp="t", bounds="is_bound", bounded=True, name="marked"
    )
    plain = hf.read.rows(PLAIN, schema=SCHEMA, timestamp="t", bounded=True, name="plain")
    chosen = marked | hf.filter("v >= 0", name="kept") | hf.select("k", "t", "v", kk="concat(k, k)", name="chosen")
    within = plain | hf.clip(0, 20, name="within")
    both = hf.sync({"m": chosen, "p": within}, by="k", timestamps="ascending", name="both")
    latest = hf.merge(chosen, {"p": plain}, by="k", tolerance=5, name="latest")
    windows = chosen | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), most=hf.max("v"), name="windows")
    running = chosen | hf.accumulate(by="k", n=hf.count(), name="running")
    peaks = chosen | hf.reduce(by=["k", "v"], most=hf.max("t"), name="peaks")
    last = chosen | hf.over(rows=2, by="k", order="v", n=hf.count(where="v > 3"), total=hf.sum("v"), name="last")
    once = plain | hf.distinct(by="k", horizon=3, disorder=1, name="once")
    entry = plain | hf.limit_in_flight(1, by="k", timeout=4, name="entry")
    shape: dict[str, Any] = {"schema": f"{SCHEMA}, epoch BIGINT", "timestamp": "t"}
    sums = chosen | hf.apply(summed, "k", state="total BIGINT", name="sums", **shape)
    counts = plain | hf.stateful(counted, "k", state={"seen": "k STRING, n BIGINT"}, name="counts", **shape)
    # Behind state: other operators with state, the two kinds of bounds, and rows that come past a level.
    shaped = latest | hf.select("k", "t", "v", name="shaped") | hf.map_batches(turned, SCHEMA, name="turned")
    parts = sums | hf.select("k", "t", "v", name="sums_alone") | hf.split(low="v < 9", otherwise="high", name="parts")
    mixed = hf.union(parts.low, chosen | hf.select("k", "t", "v", name="past"), name="mixed")
    second = hf.sync({"x": shaped, "y": within}, by="k", timestamps="ascending", name="second")
    third = mixed | hf.aggregate(by="k", window=hf.tumbling(10), disorder=5, n=hf.count(), name="third")
    fourth = both | hf.accumulate(by="k", sets=hf.count(), name="fourth")
    # Through Spark's plan, and then to state again.
    echoes = both | hf.select("k", t="timestamp", name="bare") | hf.map(echoed, timestamp="t", name="echoed")
    fifth = echoes | hf.aggregate(by="k", window=hf.tumbling(10), disorder=5, n=hf.sum("number"), name="fifth")
    hashed = running | hf.sql("SELECT k, n, md5(k) AS sign FROM input WHERE n > 1", name="hashed")
    sixth = hashed | hf.accumulate(by="sign", most=hf.max("n"), name="sixth")
    # What leaves beside the rows, with them again; and what is alone, by its time.
    again = hf.sync({"sets": both, "late": both.late}, by="k", timestamps="ascending", disorder=99, name="again")
    alone = latest.unmatched | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="alone")
    joined = hf.join(chosen, plain, on="k", within=(-3, 6), how="full", disorder=1, name="joined")
    opened = hf.join(chosen, plain, on="k", within=("t", "v"), how="left", disorder=1, name="opened")
    most = plain | hf.reduce(by="k", most=hf.max("v"), delete="gone", name="most")
    held = hf.join(chosen, most, on="k", how="full", delete="gone", name="held")
    table = hf.table(marked | hf.select("k", "t", w="v", name="changes"), key="k")
    looked = hf.lookup(once, table, on="k", name="looked")
    outputs = {"pairs": "both BIGINT, is_pair BOOLEAN", "large": "sum BIGINT"}
    flows = hf.flow({"left": chosen, "right": plain}, two_outputs(), by="k", outputs=outputs, disorder=1, name="flows")
    behind = flows["large"] | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="behind")
    return {
        "pairs": flows["pairs"], "large": flows["large"], "pairs_late": flows["pairs"].late, "behind": behind,
        "joined": joined, "joined_late": joined.late, "joined_unmatched": joined.unmatched, "opened": opened,
        "looked": looked, "looked_late": looked.late, "held": held,
        "chosen": chosen, "within": within, "both": both, "both_late": both.late, "latest": latest,
        "latest_late": latest.late, "windows": windows, "windows_late": windows.late, "running": running,
        "peaks": peaks, "last": last, "last_late": last.late,
        "running_late": running.late, "once": once, "once_late": once.late, "entry": entry, "entry_shed": entry.shed,
        "entry_late": entry.late, "sums": sums, "counts": counts, "shaped": shaped, "high": parts.high,
        "echoes": echoes, "fifth": fifth, "hashed": hashed, "sixth": sixth,
        "second": second, "second_late": second.late, "third": third, "fourth": fourth,
        "both_unmatched": both.unmatched, "latest_unmatched": latest.unmatched, "again": again, "alone": alone,
    }  # fmt: skip


def stateless_streams(directory: Path) -> dict[str, Stream]:
    """Return a stream behind each kind of operator without state."""
    files = hf.read.files(directory, format="json", schema=SCHEMA, timestamp="t", on_bad_row="reject", name="files")
    kept = files | hf.filter("v > 1", name="kept")
    parts = kept | hf.split(low="v < 5", otherwise="high", name="parts")
    valid = files | hf.expect("v < 5", on_fail="reject", name="valid")
    both = hf.union(parts.low, files | hf.clip(0, 4, name="early"), name="both")
    asking: Any = {"key": "v", "answers": directory.parent / "answers"}
    told = both | hf.call(asked_in_vain, "told BIGINT", retry=0, on_fail="reject", name="told", **asking)
    return {
        "computed": kept | hf.select("k", "v", kk="concat(k, k)", name="chosen"),
        "high": parts.high,
        "valid": valid,
        "invalid": valid.rejects,
        "identified": kept | hf.row_id("k", "v", name="identified"),
        "both": both,
        "turned": both | hf.map_batches(turned, SCHEMA, name="turned"),
        "asked": both | hf.call(asked, "said STRING", name="asked", **asking),
        "told": told,
        "untold": told.rejects,
        "rejected": files.rejects | hf.select("raw", name="texts"),
    }


def ran(streams: Mapping[str, Stream], tmp_path: Path, spark: SparkSession, tables: list[str]) -> tuple[Any, Any]:
    """Run all streams as one pipeline; return it, and the rows of each."""
    names = {name: f"{tmp_path.name}_{name}" for name in streams}
    tables += names.values()
    pipeline = hf.Pipeline("all", *[stream | hf.write.memory(names[name]) for name, stream in streams.items()])
    pipeline.run(checkpoint=str(tmp_path), trigger=hf.available_now(), session=spark)
    return pipeline, {name: memory.rows(table).to_pylist() for name, table in names.items()}


def driven(stream: Stream, sources: Mapping[str, Sequence[Sequence[Any]]]) -> Rows:
    """Drive one stream with those of the sources that it reads."""
    pipeline = hf.Pipeline("one", stream | hf.write.memory("unused"))
    read = {node.name: sources[node.name] for node in pipeline.sources}
    stand_ins = {node.name: STAND_INS[node.name] for node in pipeline.nodes if node.name in STAND_INS}
    return [each for epoch in drive(stream, read, buckets=BUCKETS, stand_ins=stand_ins) for each in epoch]


def test_a_driven_graph_gives_what_a_run_gives(spark: SparkSession, tmp_path: Path, tables: list[str]) -> None:
    given: dict[str, Any] = {
        "marked": [*MARKED[:-1], [*MARKED[-1], close()]],
        "plain": [*PLAIN[:-1], [*PLAIN[-1], close()]],
    }
    streams = stateful_streams()
    pipeline, found = ran(streams, tmp_path / "stateful", spark, tables)
    for name, stream in streams.items():
        assert driven(stream, given) == found[name], name
    assert [name for name, rows in found.items() if not rows] == [], "nothing was compared"
    kinds = {node.kind for node in pipeline.nodes}

    lines = [{"k": "a", "t": 1, "v": 2}, "no row", {"k": "b", "t": 5, "v": 7}, {"k": "c", "t": 3, "v": 1}]
    arrive(tmp_path / "in", "one.json", lines)
    streams = stateless_streams(tmp_path / "in")
    pipeline, found = ran(streams, tmp_path / "stateless", spark, tables)
    items = [malformed(line) if isinstance(line, str) else line for line in lines]
    for name, stream in streams.items():
        # Where workers run a user's function, each writes for itself.
        assert sorted(map(repr, driven(stream, {"files": [items]}))) == sorted(map(repr, found[name])), name
    assert [name for name, rows in found.items() if not rows] == [], "nothing was compared"

    kinds |= {node.kind for node in pipeline.nodes}
    # A pipeline puts these before its sinks, and no stream has them: tests/sim/test_commit_at_pts.py,
    # tests/crash/test_join_changes_kill.py.
    of_pipelines = {"clock", "gate", "released", "change_order"}
    elsewhere = {"lookup"}  # tables of versions: tests/spark/test_lookup_like_spark.py
    assert kinds >= LOWERINGS.keys() - of_pipelines - elsewhere, "an operator kind is not compared"
