"""What a start in shards refuses, and that none of it is passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.controller.start import start
from holdfast.errors import InvalidPipeline

BOTH = {"trigger": hf.available_now(), "shards": 2}


def pipeline(directory: Path) -> hf.Pipeline:
    rides = hf.read.files(str(directory / "in"), schema="id BIGINT", name="rides")
    return hf.Pipeline("rides", rides | hf.write.sqlite(directory / "rides.db", table="rows", name="table"))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"state": {"counts": pa.table({"n": [1]})}}, "state="),
        ({"compare_on_start": True, "only_shard": 1}, "compare_on_start= of one alone"),
    ],
)
def test_what_shards_cannot_do_is_refused_by_its_name(tmp_path: Path, options: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidPipeline, match=f"is to run in shards, with {what}") as refused:
        start(pipeline(tmp_path), **{"checkpoint": tmp_path / "checkpoint", **BOTH, **options})
    assert refused.value.why
    assert not (tmp_path / "checkpoint").exists()
