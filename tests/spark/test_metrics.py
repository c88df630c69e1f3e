"""A run is scraped as Prometheus does it: what is served is what its status says, also of shards (design/0049)."""

from __future__ import annotations

import socket
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import holdfast as hf
from holdfast.config import Settings
from holdfast.pipeline import Pipeline
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark


def free_address() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{held.getsockname()[1]}"


def is_closed(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) != 0


def scraped(address: str) -> dict[tuple[str, ...], float]:
    """Return name, shard and other labels -> number."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            labels = dict(each.labels)
            assert labels.pop("pipeline") == "numbers"
            found[each.name, labels.pop("shard"), *(labels[name] for name in sorted(labels))] = each.value
    return found


def pipeline(work: Path) -> Pipeline:
    numbers = hf.read.files(str(work / "in"), schema="id BIGINT, k STRING", name="numbers", on_bad_row="reject")
    some = numbers | hf.filter("id >= 2", name="some")
    table = some | hf.write.sqlite(str(work / "table.db"), table="rows", name="table")
    bad = numbers.rejects | hf.write.files(str(work / "bad"), name="bad")
    return hf.Pipeline("numbers", table, bad)


def test_what_is_served_is_what_the_run_has_done(tmp_path: Path) -> None:
    address = free_address()
    arrive(tmp_path / "in", "a.json", [{"id": id_, "k": "x"} for id_ in range(5)] + [{"id": "no"}])
    run = pipeline(tmp_path).start(checkpoint=tmp_path / "checkpoint", trigger=hf.every("50 ms"), metrics=address)
    try:
        eventually(lambda: run.status().rows_total == 4, what="rows and the bad one")
        found = scraped(address)
    finally:
        run.stop()
        run.wait()
    assert found["holdfast_run_state", "0", "running"] == 1
    assert found["holdfast_epoch", "0"] == 1
    assert found["holdfast_rows_total", "0", "in", "some"] == 5
    assert found["holdfast_rows_total", "0", "out", "table"] == 3
    assert found["holdfast_rows_total", "0", "out", "bad"] == 1
    assert sum(value for key, value in found.items() if key[:2] == ("holdfast_rejected_total", "0")) == 1
    assert found["holdfast_lag_rows", "0", "log", "numbers"] == 0
    assert found["holdfast_epoch_seconds_count", "0", "epoch"] == 1
    assert found["holdfast_node_seconds_total", "0", "table", "publish"] > 0
    assert found["holdfast_node_seconds_total", "0", "some", "evaluate"] > 0
    assert found["holdfast_audit_difference_rows_total", "0"] == 0
    assert found["holdfast_in_doubt_epochs", "0"] == 0
    eventually(lambda: is_closed(address), what="its port is closed with the run")


def test_shards_are_served_each_under_its_number(tmp_path: Path) -> None:
    address = free_address()
    for number in range(8):
        arrive(tmp_path / "in", f"{number}.json", [{"id": 10 + number, "k": "x"}])
    run = pipeline(tmp_path).start(
        checkpoint=tmp_path / "checkpoint", trigger=hf.every("50 ms"), metrics=address, shards=2
    )
    try:
        eventually(
            lambda: (tmp_path / "table.db").exists() and len(sqlite_rows(tmp_path / "table.db")) == 8, what="all rows"
        )
        eventually(lambda: run.status().rows_total == 8, what="all rows in the status")
        found = scraped(address)
    finally:
        run.stop()
        run.wait()
    assert found["holdfast_shard_state", "0", "running"] == found["holdfast_shard_state", "1", "running"] == 1
    rows = [found["holdfast_rows_total", shard, "out", "table"] for shard in ("0", "1")]
    assert sum(rows) == 8
    assert min(rows) > 0


def test_a_run_that_hangs_in_an_epoch_is_behind_and_says_what_it_waits_for(tmp_path: Path) -> None:
    """Its sink's database is locked by somebody else: what is planned and not published counts."""
    arrive(tmp_path / "in", "a.json", [{"id": 7, "k": "x"}])
    settings = Settings(retry_attempts=100, retry_cap="1 s")
    run = pipeline(tmp_path).start(checkpoint=tmp_path / "checkpoint", trigger=hf.every("50 ms"), settings=settings)
    try:
        eventually(lambda: run.status().rows_total == 1, what="the first row")
        with closing(sqlite3.connect(tmp_path / "table.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            arrive(tmp_path / "in", "b.json", [{"id": 8, "k": "x"}])
            eventually(lambda: (run.status().sources[0].lag_s or 0) > 0.2, what="it is behind")
            assert run.status().sources[0].lag == 1
            eventually(lambda: "table" in run.status().waits_for, within_s=120, what="it says what does not answer")
            other.execute("ROLLBACK")
        eventually(lambda: run.status().rows_total == 2, within_s=120, what="the second row")
        eventually(lambda: run.status().sources[0].lag_s == 0, what="it has caught up")
        assert run.status().waits_for == ""
    finally:
        run.stop()
        run.wait()
