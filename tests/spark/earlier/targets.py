"""What the targets of the pipelines of earlier versions hold, by other means than ours, and what they should hold."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset
from redis import Redis

import holdfast as hf
from holdfast.connectors.byte_stream.branch import branches
from tests.kafka_servers import KafkaTopic
from tests.spark.earlier.pipeline import rows_of
from tests.spark.earlier.servers import objects

TABLES = ("sums", "newest", "pairs")


def check(kind: str, root: Path, server: Any, files: int) -> None:
    """Assert that each target has every row of so many files once, and the sums of all of them."""
    found = {name: sorted(texts) for name, texts in _READ[kind](root, server).items()}
    wanted = _expected(files)
    assert found == {name: wanted[name] for name in found}


def _expected(files: int) -> dict[str, list[str]]:
    rows = [row for file in range(files) for row in rows_of("left", file)]
    sums, newest = [], {}
    for key in "abc":
        for file in range(files):
            values = [row["v"] for row in rows if row["k"] == key and row["t"] < (file + 1) * 6]
            newest[key] = f"{key} {len(values)} {sum(values)}"
            sums.append(newest[key])
    pairs = [f"{row['k']} {row['v']} {row['v'] + 1000}" for row in rows]
    return {"sums": sorted(sums), "newest": sorted(newest.values()), "pairs": sorted(pairs)}


def _said(lines: str | bytes) -> list[str]:
    return [json.loads(line)["said"] for line in lines.splitlines()]


def _of_files(root: Path, server: None) -> dict[str, list[str]]:
    sums = pyarrow.dataset.dataset(root / "sums", format="parquet", partitioning="hive").to_table()
    pairs = [text for path in (root / "pairs").glob("*.json") for text in _said(path.read_text())]
    return {"sums": sums["said"].to_pylist(), "pairs": pairs}


def _of_s3(root: Path, endpoint: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"sums": [], "pairs": []}
    for key, content in objects(endpoint).items():
        if "_holdfast" not in key:
            found[key.partition("/")[0]] += _said(content)
    return found


def _of_segments(root: Path, server: None) -> dict[str, list[str]]:
    return {name: hf.segments.open(root / name).to_arrow()["said"].to_pylist() for name in ("sums", "pairs")}


def _of_byte_stream(root: Path, server: None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in ("sums", "pairs"):
        (branch,) = branches(os.fspath(root / name)).values()
        found[name] = [
            bytes(payload).decode()
            for stream in branch.view().streams.values()
            for chunk in stream.read(0, stream.end)
            for payload in chunk.payloads
        ]
    return found


def _of_sqlite(root: Path, server: None) -> dict[str, list[str]]:
    with closing(sqlite3.connect(root / "out.db")) as connection:
        return {name: [text for (text,) in connection.execute(f"SELECT said FROM {name}")] for name in TABLES}


def _of_postgres(root: Path, dsn: str) -> dict[str, list[str]]:
    with psycopg.connect(dsn) as connection:
        return {name: [text for (text,) in connection.execute(f"SELECT said FROM {name}".encode())] for name in TABLES}


def _of_redis(root: Path, url: str) -> dict[str, list[str]]:
    with Redis.from_url(url, decode_responses=True) as client:
        return {
            "sums": [fields["said"] for _, fields in client.xrange("sums")],
            "newest": [json.loads(row)["said"] for row in client.hvals("newest")],
            "pairs": [client.hget(key, "said") for key in client.keys("pairs:*")],
        }


def _of_kafka(root: Path, broker: Any) -> dict[str, list[str]]:
    topics = ("sums", "pairs")
    return {name: _said(b"\n".join(KafkaTopic(broker.bootstrap, name).values())) for name in topics}


_READ: Mapping[str, Callable[[Path, Any], dict[str, list[str]]]] = {
    "files": _of_files,
    "s3": _of_s3,
    "segments": _of_segments,
    "byte_stream": _of_byte_stream,
    "sqlite": _of_sqlite,
    "postgres": _of_postgres,
    "redis": _of_redis,
    "kafka": _of_kafka,
}
