"""A stream goes on where it began: a number of shards that would move one is refused (design/0048, 10)."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.moving import check_moves
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.errors import InvalidPipeline
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity
from holdfast.shards.assignment import Assignment, assign, moves, regroup
from holdfast.shards.naming import shard_name

SCHEMA = pa.schema([("timestamp", pa.int64()), ("data", pa.string()), ("camera", pa.string())])
TWO = assign(Assignment(2), [f"in:{name}" for name in "abcd"])
"""Shard 0 has a and c, shard 1 b and d."""


def written(path: Path, *, but: int | None = None) -> ByteStreamSinkSpec:
    """Return a sink into which each shard, but one, has written a message of each of its cameras."""
    columns = MessageColumns("timestamp", "data", stream="camera")
    spec = ByteStreamSinkSpec(os.fspath(path), columns)
    for shard in {0, 1} - {but}:
        pipeline = shard_name("trips", shard)
        sink = spec.connect("out", pipeline, SCHEMA)
        sink.open(RunIdentity(pipeline, 1))
        cameras = [unit.removeprefix("in:") for unit, of in TWO.shards.items() if of == shard]
        rows = pa.table({"timestamp": [1, 2], "data": ["x", "y"], "camera": cameras}, schema=SCHEMA)
        sink.publish([Publication(EpochRecord(pipeline, 1, 1, {}), (Carried(rows),))], Held())
        sink.close()
    return spec


def test_a_change_that_moves_a_stream_is_refused_and_the_stream_is_named(tmp_path: Path) -> None:
    spec = written(tmp_path)
    three = moves(TWO, regroup(TWO, 3))
    ((unit, (shard, _)),) = three.items()
    known = {name: f"in:{name}" for name in "abcd"}
    with pytest.raises(InvalidPipeline) as refused:
        check_moves("out", spec, "trips", three, known)
    assert f"stream {unit.removeprefix('in:')!r} of shard {shard} would go on in another shard." in refused.value.what
    assert "name=" in refused.value.do
    with pytest.raises(InvalidPipeline, match="and 1 more") as refused:
        check_moves("out", spec, "trips", three)
    assert "is not known" in refused.value.why


def test_a_change_that_moves_none_is_taken(tmp_path: Path) -> None:
    spec = written(tmp_path)
    check_moves("out", spec, "trips", {}, None)
    check_moves("out", spec, "trips", {"other:x": (0, 1)}, {name: f"in:{name}" for name in "abcd"})
    check_moves("new_name", spec, "trips", {"in:a": (0, 1)})
    check_moves("out", written(tmp_path / "half", but=1), "trips", {"in:b": (1, 0)})
