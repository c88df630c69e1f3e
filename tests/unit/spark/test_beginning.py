"""A directory that stays in use although the sources change: only beside ``read.spark`` (design/0011, section 4)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import Fenced, InvalidPipeline, Unavailable
from holdfast.ports import Held
from holdfast.resume.decide import Spark
from holdfast.resume.directory_header import DirectoryHeader
from holdfast.spark.resume.beginning import Beginning
from holdfast.store.local import LocalStore
from tests.starts import begun


def test_a_source_that_left_beside_read_spark_does_not_come_back_in_the_middle_of_its_rows(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("spark/1/origin.json", DirectoryHeader(1).to_json())
    store.put("spark/1/metadata", b'{"id": "x"}')
    rate = hf.read.spark("rate", options={"rowsPerSecond": 1}, schema="value BIGINT", name="rate")
    more = hf.read.rows([[{"value": 1}]], schema="value BIGINT", name="more")

    def plan(batch: int, *names: str) -> None:
        offset = json.dumps({"positions": {"rows": batch + 1}, "size_bytes": 1, "row_count": 1})
        lines = [f"{name}:{7 if name == 'rate' else offset}" for name in names]
        store.put(f"spark/1/offsets/{batch}", "\n".join(["v2", '{"batchTimestampMs": 5}', *lines]).encode())

    def start(*streams: hf.Stream) -> None:
        sources = [stream.node for stream in streams]
        begun(Beginning(store, tmp_path, "spark/1", "p", sources), {}, 0)

    plan(0, "rate", "more")
    start(rate, more)
    start(rate)
    start(rate, more)  # nothing was planned without it
    start(rate)
    plan(1, "rate")
    start(rate)
    with pytest.raises(InvalidPipeline, match="'more' has left the graph, and cannot come back") as refused:
        start(rate, more)
    assert "{'rows': 1}" in refused.value.why
    start(rate, hf.read.rows([[{"value": 1}]], schema="value BIGINT", name="others"))


@pytest.mark.parametrize("is_fenced", [True, False])
def test_the_record_of_another_run_that_began_the_directory_meanwhile_is_never_replaced(
    tmp_path: Path, is_fenced: bool
) -> None:
    """Fenced while it read the state of the graph before; or a fenced run was faster than its new owner."""
    store = LocalStore(str(tmp_path))
    theirs = DirectoryHeader(8, graph="theirs").to_json()

    class Overtaken:
        def begun(self, origin: DirectoryHeader, held: Mapping[str, Held]) -> DirectoryHeader:
            store.put("spark/2/origin.json", theirs)
            return replace(origin, seek=({"rows": {"log": 1}},))

    def check_fenced() -> None:
        if is_fenced:
            raise Fenced("another generation has taken over.")

    source = hf.read.rows([[{"value": 1}]], schema="value BIGINT", name="rows").node
    ours = Beginning(
        store, tmp_path, "spark/2", "p", [source], spark=Spark.OTHER, change=Overtaken(), check_fenced=check_fenced
    )
    with pytest.raises(Fenced if is_fenced else Unavailable):
        begun(ours, {}, 0)
    assert store.get("spark/2/origin.json") == theirs
    assert (store.get("sources.json") is None) is is_fenced, "who is fenced writes nothing"
