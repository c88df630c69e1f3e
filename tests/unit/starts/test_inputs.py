"""A directory that stays in use although the sources change: only beside ``read.spark`` (design/0011, section 4)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.spark_log import check_logs, logged, read_offsets
from holdfast.errors import Diverged, Fenced, InvalidPipeline, Unavailable
from holdfast.graph.nodes import Node
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.starts.behind import Behind, behind, unreadable
from holdfast.starts.decide import check_can_seek
from holdfast.starts.facts import look
from holdfast.starts.table import Spark, StartWay, StateSource
from holdfast.store.local import LocalStore
from tests.starts import begun, inputs_of


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
        begun(inputs_of(store, tmp_path, "spark/1", "p", sources), {}, 0)

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
        def begin(self, origin: DirectoryHeader, held: Mapping[str, Held]) -> DirectoryHeader:
            store.put("spark/2/origin.json", theirs)
            return replace(origin, seek=({"rows": {"log": 1}},))

    def check_fenced() -> None:
        if is_fenced:
            raise Fenced("another generation has taken over.")

    source = hf.read.rows([[{"value": 1}]], schema="value BIGINT", name="rows").node
    ours = inputs_of(store, tmp_path, "spark/2", "p", [source], spark=Spark.OTHER)
    with pytest.raises(Fenced if is_fenced else Unavailable):
        begun(ours, {}, 0, Overtaken(), check_fenced)
    assert store.get("spark/2/origin.json") == theirs
    assert (store.get("sources.json") is None) is is_fenced, "who is fenced writes nothing"


def of_spark(work: Path, format_name: str = "rate-micro-batch") -> tuple[list[Node], LocalStore]:
    ticks = hf.read.spark(format_name, options={}, schema="value BIGINT", name="ticks")
    given = hf.read.rows([[{"value": 1}]] * 9, schema="value BIGINT", name="given")
    return [ticks.node, given.node], LocalStore(str(work))


def stood(number: int, **more: int) -> Positions:
    return {"ticks": {"": f'{{"offset":{number * 5}}}'}, "given": {"rows": number, **more}}


def test_spark_own_source_is_taken_to_the_sinks_by_a_log_that_ends_there(tmp_path: Path) -> None:
    nodes, store = of_spark(tmp_path)
    held = {"one": Held(7, 1, stood(3)), "two": Held(7, 1, stood(3)), "new": Held()}
    beginning = inputs_of(store, tmp_path, "spark/1", "p", nodes)
    header = begun(beginning, held, 7)
    assert (header.base, header.seek) == (7, (stood(3), stood(3)))
    spark = tmp_path / "spark/1"
    assert logged(spark, "offsets") == logged(spark, "commits") == [0]
    assert read_offsets(spark, 0).positions == stood(3)
    check_logs(spark)
    assert look(beginning, held).case.way is StartWay.ON
    assert begun(beginning, held, 7) == header
    assert behind(spark, held) == ()


def test_of_two_places_the_second_one_is_planned_and_epochs_tell_which_it_is(tmp_path: Path) -> None:
    nodes, store = of_spark(tmp_path)
    held = {"ahead": Held(8, 1, stood(4, **{"@ticks": 2})), "late": Held(7, 1, stood(3))}
    header = begun(inputs_of(store, tmp_path, "spark/1", "p", nodes), held, 8)
    assert (header.base, [at["given"]["rows"] for at in header.seek]) == (8, [3, 3, 4])
    spark = tmp_path / "spark/1"
    assert (logged(spark, "offsets"), logged(spark, "commits")) == ([0, 1], [0])
    assert [read_offsets(spark, number).positions for number in (0, 1)] == [stood(3), held["ahead"].positions]
    assert behind(spark, held) == (), "it will be given that: nothing is missing"


@pytest.mark.parametrize("left", [[], ["metadata"], ["metadata", "commits/0"], ["metadata", "commits/0", "offsets/0"]])
def test_a_log_that_was_not_begun_to_its_end_is_begun_by_the_next_start(tmp_path: Path, left: list[str]) -> None:
    """The header counts, and the log follows from it."""
    nodes, store = of_spark(tmp_path)
    held = {"ahead": Held(8, 1, stood(4)), "late": Held(7, 1, stood(3))}
    beginning = inputs_of(store, tmp_path, "spark/1", "p", nodes)
    header = begun(beginning, held, 8)
    for name in ("metadata", "commits/0", "offsets/0", "offsets/1"):
        if name not in left:
            store.delete(f"spark/1/{name}")
    assert begun(beginning, held, 8) == header
    spark = tmp_path / "spark/1"
    check_logs(spark)
    assert [read_offsets(spark, number).positions for number in (0, 1)] == [stood(3), stood(4)]


@pytest.mark.parametrize(
    ("format_name", "places", "why"),
    [
        ("json", [3], "of format 'json' mean something to Spark's own checkpoint only; those of 'kafka' and"),
        ("kafka", [3, 4, 5], "stand at 3 different positions, and beside read.spark they may stand at two"),
    ],
)
def test_where_spark_cannot_be_taken_the_start_is_refused(
    tmp_path: Path, format_name: str, places: list[int], why: str
) -> None:
    nodes, store = of_spark(tmp_path, format_name)
    held = {f"sink{number}": Held(number, 1, stood(number)) for number in places}
    with pytest.raises(Diverged) as refused:
        begun(inputs_of(store, tmp_path, "spark/1", "p", nodes), held, max(places))
    assert why in refused.value.why
    assert not (tmp_path / "spark").exists()


def test_with_state_it_is_refused_although_a_snapshot_is_there_and_so_is_a_sink_that_lost_something(
    tmp_path: Path,
) -> None:
    """What follows a snapshot, or lies between two places of a log that goes on, only Spark's own log has."""
    nodes, store = of_spark(tmp_path)
    held = {"table": Held(7, 1, stood(3))}
    counted = inputs_of(store, tmp_path, "spark/1", "p", nodes, {"counts": StateSchema("", "", pa.schema([]), {})})
    found = look(inputs_of(store, tmp_path, "spark/1", "p", nodes), held)
    situation = replace(found.situation, state=StateSource.SNAPSHOT)
    restored = replace(found, inputs=counted, situation=situation)
    with pytest.raises(Diverged, match="'table' holds epoch 7") as refused:
        check_can_seek(restored, DirectoryHeader(8, (stood(3),)))
    assert "beside read.spark nothing is evaluated again" in refused.value.why
    (why,) = unreadable(
        [Behind("table", held["table"], 8, {"ticks": {"": ("x", "y")}})], stood(3), nodes[:1], str, store
    )
    assert "mean something to Spark's own checkpoint only" in why


def test_positions_that_epochs_put_in_another_order_than_what_can_be_compared_have_none(tmp_path: Path) -> None:
    nodes, store = of_spark(tmp_path)
    held = {"one": Held(8, 1, stood(3)), "two": Held(7, 1, {**stood(4), "ticks": {"": "0"}})}
    with pytest.raises(Diverged, match="cannot be put in an order"):
        begun(inputs_of(store, tmp_path, "spark/1", "p", nodes), held, 8)
