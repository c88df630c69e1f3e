"""A fleet whose checkpoints are in an object store: all are found, read and shown (design/0049, section 6)."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import holdfast as hf
from holdfast import faults
from holdfast.cli.page import WORDS
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator
from holdfast.config import Settings
from holdfast.page.fleet import find_checkpoints, fleet_lines, key_of
from holdfast.page.guard import Guard
from holdfast.page.reading import CheckpointReader
from holdfast.page.server import Dashboard
from holdfast.ports import Carried, EpochRecord
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout, record_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.store.objects.store import open_objects
from holdfast.store.paths import open_store
from tests.s3_proxy import S3Proxy
from tests.s3_server import S3Bucket
from tests.spark.running import die_at

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SPARK_CHECKPOINT", str(tmp_path / "scratch"))


def run(address: str, work: Path, name: str, *, dies: bool = False) -> None:
    """Do what the engine does of two epochs, without an engine; or die before the second is published."""
    tables = [hf.write.sqlite(str(work / f"{name}-{each}.db"), table="rows", name=each) for each in ("left", "right")]
    rows = hf.read.rows([], schema="id BIGINT", name="rides")
    sinks = [node.spec.connect(node.name, name, SCHEMA) for node in (rows | table for table in tables)]
    coordinator = Coordinator(
        pipeline=name, store=open_store(address), sinks=sinks, clock=SystemClock(), commit_thread=False
    )
    coordinator.open()
    try:
        for epoch in (1, 2):
            if dies:
                die_at("after-decide", 2)
            claim = coordinator.missing(epoch)
            record = EpochRecord(name, epoch, coordinator.generation, {"rides": {"log": epoch}})
            parts = {sink: (Carried(pa.table({"id": [epoch]}, SCHEMA)),) for sink in claim.sinks}
            coordinator.commit(claim, record, parts)
    except RuntimeError:
        assert dies
    finally:
        faults.install(None)
        coordinator.close()
        store = open_objects(address) if "://" in address else open_store(address)
        for key in store.keys("generations/"):
            who = json.loads(store.get(key) or b"")
            store.put(key, json.dumps(who | {"host": "elsewhere"}).encode())


def test_checkpoints_in_a_bucket_are_found_two_levels_deep_without_a_look_at_what_is_below_them(
    s3_bucket: S3Bucket, proxy: S3Proxy, tmp_path: Path
) -> None:
    root = f"s3://{s3_bucket.name}"
    run(f"{root}/trips", tmp_path, "trips")
    run(f"{root}/team/orders", tmp_path, "orders", dies=True)
    run(f"{root}/too/deep/below", tmp_path, "below")
    objects = open_objects(f"{root}/trips")
    for number in range(30):
        objects.put(f"spark/1/{number}/part", b"x")
    open_objects(root).put("data/part.parquet", b"x")
    assert find_checkpoints([f"{root}/", f"{root}/team"]) == [f"{root}/team/orders", f"{root}/trips"]
    listed = {
        unquote(each.path.partition("prefix=")[2].partition("&")[0]) for each in proxy.requests[-12:] if each.is_listing
    }
    assert not any("trips" in each or "orders" in each for each in listed), listed


@pytest.mark.parametrize("is_in_bucket", [False, True], ids=["directory", "bucket"])
def test_what_is_in_doubt_in_any_shard_is_said_of_the_pipeline(
    s3_bucket: S3Bucket, tmp_path: Path, is_in_bucket: bool
) -> None:
    root = f"s3://{s3_bucket.name}" if is_in_bucket else str(tmp_path / "root")
    checkpoint = f"{root}/trips"
    record_layout(open_store(checkpoint), ShardLayout(Assignment(3, {"a": 0, "b": 1, "c": 2})))
    run(checkpoint, tmp_path, "trips")
    run(shard_checkpoint(checkpoint, 1), tmp_path, "trips-1", dies=True)
    (line,) = fleet_lines(find_checkpoints([root]))
    assert (line.level, line.told, line.epoch) == ("bad", "not running; 1 epochs are in doubt, 3 shards", None)


def test_a_fleet_in_a_bucket_is_shown_with_what_is_in_doubt_first_and_leads_to_each(
    s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    root = f"s3://{s3_bucket.name}/checkpoints"
    run(f"{root}/trips", tmp_path, "trips")
    run(f"{root}/orders", tmp_path, "orders", dies=True)
    run(f"{root}/team/broken", tmp_path, "broken")
    open_objects(f"{root}/team/broken").put("identity.json", b"{")
    lines = {line.location.removeprefix(f"{root}/"): line for line in fleet_lines(find_checkpoints([root]))}
    assert {name: (line.pipeline, line.level) for name, line in lines.items()} == {
        "trips": ("trips", "minor"),
        "orders": ("orders", "bad"),
        "team/broken": ("", "bad"),
    }
    assert lines["trips"].epoch == 2
    assert lines["orders"].told == "not running; 1 epochs are in doubt"
    assert lines["team/broken"].told.startswith("cannot be read: ")

    fleet = Dashboard(Guard("127.0.0.1"), None, [root], lambda at: CheckpointReader(at, WORDS, Settings()))
    page = TestClient(fleet.app(), base_url="http://localhost")
    shown = page.get("/").text
    assert shown.index("orders") < shown.index(">trips<")
    for view in ("", "sinks", "epochs", "starts", "letters"):
        found = page.get(f"/at/{key_of(f'{root}/orders')}/{view}")
        assert found.status_code == 200, view
    assert (
        "decided, and not known to be published everywhere" in page.get(f"/at/{key_of(f'{root}/orders')}/").text.lower()
    )
