"""What a start in shards refuses, and that none of it is passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.start import start
from holdfast.errors import InvalidPipeline
from holdfast.shards.layout import record_layout
from holdfast.store.scratch import objects_of
from tests.s3_server import S3Bucket

BOTH = {"trigger": hf.available_now(), "shards": 2}


def pipeline(directory: Path) -> hf.Pipeline:
    rides = hf.read.files(str(directory / "in"), schema="id BIGINT", name="rides")
    return hf.Pipeline("rides", rides | hf.write.sqlite(directory / "rides.db", table="rows", name="table"))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"checkpoint": "s3://bucket/rides"}, "a checkpoint in an object store"),
        ({"state": {"counts": pa.table({"n": [1]})}}, "state="),
        ({"compare_on_start": True, "only_shard": 1}, "compare_on_start= of one alone"),
    ],
)
def test_what_shards_cannot_do_is_refused_by_its_name(tmp_path: Path, options: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidPipeline, match=f"is to run in shards, with {what}") as refused:
        start(pipeline(tmp_path), **{"checkpoint": tmp_path / "checkpoint", **BOTH, **options})
    assert refused.value.why
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
def test_shards_of_a_checkpoint_in_an_object_store_are_not_passed_over(tmp_path: Path, s3_bucket: S3Bucket) -> None:
    """A copy of a directory with shards: one run on it would read the segments of the others as its own."""
    address = f"{s3_bucket.address}/rides"
    layout = ShardGraphs(pipeline(tmp_path), tmp_path / "checkpoint").first(2, "")
    assert record_layout(objects_of(address), layout) is not None
    with pytest.raises(InvalidPipeline, match="in shards, with a checkpoint in an object store"):
        start(pipeline(tmp_path), checkpoint=address, trigger=hf.available_now())
