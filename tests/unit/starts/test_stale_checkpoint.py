"""A checkpoint older than its sinks is refused, where positions may mean other rows (docs/operations.md, Backups)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader
from holdfast.errors import Diverged
from holdfast.graph.nodes import Node, Stream
from holdfast.ports import Held
from holdfast.positions import SourcePositions
from holdfast.starts.facts import check_reached
from holdfast.starts.inputs import StartInputs
from holdfast.store.local import LocalStore
from tests.starts import inputs_of

SCHEMA = "id BIGINT"


def beginning(checkpoint: Path, *nodes: Node) -> StartInputs:
    """Return a directory of Spark's that has begun."""
    store = LocalStore(str(checkpoint))
    store.put(f"spark/1/{FILE_NAME}", DirectoryHeader(1).to_json())
    return inputs_of(store, checkpoint, "spark/1", "p", nodes)


def held(node: Node, **positions: int) -> dict[str, Held]:
    segments: SourcePositions = {name.replace("at_", "@"): number for name, number in positions.items()}
    return {"behind": Held(1, 1, {node.name: {"log": 0}}), "table": Held(3, 1, {node.name: segments}), "new": Held()}


def log_spark(checkpoint: Path, node: Node, number: int) -> None:
    """Write the entry of an epoch in Spark's offset log."""
    (checkpoint / "spark/1/offsets").mkdir()
    offset = {"positions": {"log": number}, "size_bytes": 0, "row_count": 0}
    lines = ["v2", json.dumps({"batchTimestampMs": 0}), f"{node.name}:{json.dumps(offset)}"]
    (checkpoint / "spark/1/offsets/0").write_text("\n".join(lines))


def read_files(work: Path, checkpoint: Path, *names: str) -> Node:
    """Let files arrive, and log them as an epoch does; return the source."""
    (work / "in").mkdir(exist_ok=True)
    for name in names:
        (work / "in" / f"{name}.json").write_text('{"id": 1}\n')
    node = hf.read.files(work / "in", schema=SCHEMA, name="given").node
    source = node.spec.open("given", str(checkpoint / "sources" / "given"))
    source.latest({"log": 0}, bounded=False)
    return node


def test_a_sink_that_holds_more_than_the_log_of_files_knows_is_noticed(tmp_path: Path) -> None:
    node = read_files(tmp_path, tmp_path / "checkpoint", "0", "1")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    read_files(tmp_path, tmp_path / "checkpoint", "5")
    newer, older = beginning(tmp_path / "checkpoint", node), beginning(tmp_path / "copy", node)
    check_reached(newer, held(node, log=3))
    check_reached(older, held(node, log=2))
    with pytest.raises(Diverged, match="sink 'table' holds source 'given' up to position 3") as refused:
        check_reached(older, held(node, log=3))
    assert "knows of 2" in refused.value.what
    assert "older than the sink" in refused.value.why
    assert "newer checkpoint" in refused.value.do


def test_letters_and_marks_are_no_places_in_the_log(tmp_path: Path) -> None:
    node = read_files(tmp_path, tmp_path / "checkpoint", "0")
    check_reached(beginning(tmp_path / "checkpoint", node), held(node, log=1, letters=9, at_ended=1, at_ticks=7))


def test_a_copy_of_before_the_first_file_is_noticed_too(tmp_path: Path) -> None:
    node = read_files(tmp_path, tmp_path / "checkpoint", "0")
    with pytest.raises(Diverged, match="knows of 0"):
        check_reached(beginning(tmp_path / "copy", node), held(node, log=1))


def test_a_log_that_is_lost_where_sparks_is_not_is_left_to_the_planning(tmp_path: Path) -> None:
    node = read_files(tmp_path, tmp_path / "checkpoint", "0", "1")
    began = beginning(tmp_path / "checkpoint", node)
    log_spark(tmp_path / "checkpoint", node, 2)
    shutil.rmtree(tmp_path / "checkpoint" / "sources")
    check_reached(began, held(node, log=2))


def test_a_directory_of_sparks_that_is_lost_is_left_to_its_beginning(tmp_path: Path) -> None:
    node = read_files(tmp_path, tmp_path / "checkpoint", "0")
    began = beginning(tmp_path / "checkpoint", node)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    check_reached(began, held(node, log=2))
    spec = node.spec
    workspace = str(tmp_path / "checkpoint/sources/given")
    said = {at: spec.obstacle("given", workspace, {"log": at}) for at in (1, 2)}
    assert said == {1: "", 2: f"its log of what was read, '{workspace}/log', ends at 1, and 2 is wanted."}


def test_an_older_copy_of_a_feed_is_noticed_as_long_as_nothing_is_pushed(tmp_path: Path) -> None:
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema="id BIGINT, at BIGINT, b BOOLEAN", timestamp="at", bounds="b")
    node = hf.read.callback(feed, timestamp="at", name="pushed").node
    check_reached(beginning(tmp_path / "checkpoint", node), held(node, log=2))  # gone: planning says so
    feed.push([{"id": 1, "at": 1, "b": False}])
    with pytest.raises(Diverged, match="knows of 1"):
        check_reached(beginning(tmp_path / "checkpoint", node), held(node, log=2))
    feed.push([{"id": 2, "at": 2, "b": False}])
    check_reached(beginning(tmp_path / "checkpoint", node), held(node, log=2))


def test_sources_whose_positions_always_mean_the_same_rows_may_be_behind_a_sink(tmp_path: Path) -> None:
    given: list[Stream] = [
        hf.read.rows([{"id": 1}], schema=SCHEMA, name="rows"),
        hf.read.rate(5, name="rate"),
        hf.read.spark("rate", name="stream"),
    ]
    nodes = [stream.node for stream in given]
    positions: dict[str, SourcePositions] = {"rows": {"rows": 7}, "rate": {"rows": 70}, "stream": {"": '{"at": 7}'}}
    check_reached(beginning(tmp_path / "checkpoint", *nodes), {"table": Held(3, 1, positions)})
