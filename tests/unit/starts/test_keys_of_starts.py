"""Where the claims of a start's keys are, and who must do without them (design/0048, section 7)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.plan.shard_key import begin_keys
from holdfast.shards.keys import KEYS
from holdfast.starts.shadows.following import Following


def pipeline(directory: Path, **options: Any) -> hf.Pipeline:
    rows = hf.read.files(str(directory / "in"), schema="device STRING, t BIGINT", timestamp="t", name="rows")
    sums = rows | hf.accumulate(by="device", n=hf.count(), name="sums")
    return hf.Pipeline("p", sums | hf.write.sqlite(directory / "out.db", table="rows", name="out"), **options)


def test_all_shards_of_a_pipeline_have_one_record(tmp_path: Path) -> None:
    whole = pipeline(tmp_path, shard_by="device")
    first = begin_keys(whole, tmp_path / "ckpt")
    second = begin_keys(whole.with_sources("p-1", {}), tmp_path / "ckpt/shards/1")
    assert first == second
    assert first["rows"].directory == str(tmp_path / "ckpt" / KEYS)
    assert first["rows"].by == "device"


def test_without_a_shard_key_nothing_is_begun(tmp_path: Path) -> None:
    assert begin_keys(pipeline(tmp_path), tmp_path / "ckpt") == {}
    assert not (tmp_path / "ckpt").exists()


def test_what_spark_reads_is_held_to_nothing(tmp_path: Path) -> None:
    rows = hf.read.spark("rate", schema="device STRING", name="rows")
    found = hf.Pipeline("p", rows | hf.write.memory("out"), shard_by="device")
    assert begin_keys(found, tmp_path / "ckpt") == {}


def test_a_replica_with_state_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="recorded in the checkpoint of the main"):
        Following(pipeline(tmp_path, shard_by="device"), tmp_path / "replica", Settings())
    assert not os.path.exists(tmp_path / "replica")
    assert Following(pipeline(tmp_path), tmp_path / "replica", Settings()).error is None
