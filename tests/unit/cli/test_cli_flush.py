"""``holdfast flush``."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.commit.paced import RequestReader
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity
from holdfast.shards.assignment import Assignment, assign
from holdfast.shards.layout import ShardLayout, record_layout
from holdfast.store.paths import open_store

SCRIPT = """
    import holdfast as hf
    rides = hf.read.files("in/*.json", schema="city STRING, km BIGINT", name="rides")
    pipeline = hf.Pipeline(
        "trips",
        rides | hf.write.segments("out", partition_by=["city"], name="days"),
        rides | hf.write.sqlite("trips.db", table="trips", name="trips"),
    )
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(textwrap.dedent(SCRIPT))


def holdfast(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.slow
def test_the_run_that_is_alive_seals_what_it_is_asked_to(tmp_path: Path) -> None:
    schema = pa.schema([("city", pa.string()), ("km", pa.int64())])
    spec = SegmentsSinkSpec(os.fspath(tmp_path / "out"), partition_by=("city",), seal=())
    sink = spec.connected("days", "trips", schema, is_tended=False)
    sink.open(RunIdentity("trips", 1))
    rows = pa.table({"city": ["Rome", "Bonn"], "km": [1, 2]}, schema=schema)
    sink.publish([Publication(EpochRecord("trips", 1, 1, {}), (Carried(rows),))], Held())
    answer = holdfast("flush", "flow.py", "--partition", "city=Rome")
    assert (answer.exit_code, answer.stdout) == (0, "sink days was asked to flush\n")
    assert sink.sealing.tend() == 1
    assert json.loads(holdfast("flush", "flow.py", "days", "--json").stdout) == {"flushed": ["days"]}
    assert sink.sealing.tend() == 1
    assert len(list(tmp_path.glob("out/city=*/*.parquet"))) == 2
    sink.close()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("trips",), ("no",), ()], ids=["of another kind", "unknown", "not written yet"])
def test_what_cannot_be_flushed_is_an_error_that_says_what_can(arguments: tuple[str, ...]) -> None:
    answer = holdfast("flush", "flow.py", *arguments)
    assert answer.exit_code == 2
    assert "days" in answer.output


@pytest.mark.slow
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_every_shard_is_asked(tmp_path: Path, has_checkpoint: bool) -> None:
    flow = (tmp_path / "flow.py").read_text().replace('table="trips"', 'table="trips", commit_every="1 h"')
    (tmp_path / "flow.py").write_text(flow)
    schema = pa.schema([("city", pa.string()), ("km", pa.int64())])
    spec = SegmentsSinkSpec(os.fspath(tmp_path / "out"), partition_by=("city",), seal=())
    sinks = [spec.connected("days", name, schema, is_tended=False) for name in ("trips", "trips-1")]
    for sink, name in zip(sinks, ("trips", "trips-1"), strict=True):
        sink.open(RunIdentity(name, 1))
        rows = pa.table({"city": ["Rome"], "km": [1]}, schema=schema)
        sink.publish([Publication(EpochRecord(name, 1, 1, {}), (Carried(rows),))], Held())
    store = open_store(os.fspath(tmp_path / "ckpt"))
    store.prepare()
    assert record_layout(store, ShardLayout(assign(Assignment(2), "ab"))) is not None
    options = ("--checkpoint", "ckpt") if has_checkpoint else ("days",)
    answer = json.loads(holdfast("flush", "flow.py", *options, "--json").stdout)
    assert answer == {"flushed": ["days", "trips"] if has_checkpoint else ["days"]}
    assert [sink.sealing.tend() for sink in sinks] == [1, 1]
    for place in ("ckpt", "ckpt/shards/1") if has_checkpoint else ():
        assert RequestReader(open_store(os.fspath(tmp_path / place)), ["trips"]).pending().sinks == {"trips"}
    for sink in sinks:
        sink.close()


@pytest.mark.slow
def test_a_sink_with_a_pace_is_asked_in_the_checkpoint_of_its_run(tmp_path: Path) -> None:
    flow = (tmp_path / "flow.py").read_text().replace('table="trips"', 'table="trips", commit_every="1 h"')
    (tmp_path / "flow.py").write_text(flow)
    (tmp_path / "ckpt").mkdir()
    answer = holdfast("flush", "flow.py", "trips")
    assert answer.exit_code == 2
    assert "holdfast flush TARGET --checkpoint DIR" in answer.output
    answer = holdfast("flush", "flow.py", "trips", "--checkpoint", "ckpt")
    assert (answer.exit_code, answer.stdout) == (0, "sink trips was asked to flush\n")
    store = open_store(os.fspath(tmp_path / "ckpt"))
    assert RequestReader(store, ["trips"]).pending().sinks == {"trips"}
    assert not (tmp_path / "out").exists()
