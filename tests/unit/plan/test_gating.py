"""``commit_at="pts"`` in the graph: what stands before the sinks, and what is refused with its cure (design/0015)."""

from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Stream
from holdfast.operators.stateful.gate import NAME, Gate

COLUMNS = "k STRING, t BIGINT, v BIGINT"


def source(name: str, schema: str = COLUMNS, timestamp: str | None = "t", **more: Any) -> Stream:
    return hf.read.rows([], schema=schema, timestamp=timestamp, name=name, **more)


def pipeline(*streams: Stream, commit_at: Any = "pts") -> hf.Pipeline:
    sinks = [stream | hf.write.memory(name=f"sink{number}") for number, stream in enumerate(streams)]
    return hf.Pipeline("trips", *sinks, commit_at=commit_at)


def gate(made: hf.Pipeline) -> Gate:
    (spec,) = [node.spec for node in made.nodes if node.name == NAME]
    assert isinstance(spec, Gate)
    return spec


def test_without_it_the_graph_is_what_it_was() -> None:
    assert [node.kind for node in pipeline(source("a"), commit_at=None).nodes] == ["rows"]


def test_one_gate_stands_before_all_sinks_and_takes_a_clock_of_every_source() -> None:
    a, b = source("a"), source("b")
    made = pipeline(a | hf.filter("v > 1"), hf.union(a, b, name="both"))
    assert gate(made).input_names == ("sink0", "sink1", "a", "b")
    assert [sink.name for sink in made.sinks] == ["sink0", "sink1"], "the ledgers keep their names"
    assert {sink.inputs[0].inputs[0].name for sink in made.sinks} == {NAME}


def test_operators_by_event_time_have_a_clock_and_those_of_users_have_none() -> None:
    a = source("a")
    counted = a | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counted")
    own = a | hf.stateful(
        lambda state, rows, at: (state, rows.select(["k", "t"])),
        by="k",
        state={"s": hf.StateTable(pa.schema([("k", pa.string())]), ("k",))},
        schema="k STRING, t BIGINT",
        timestamp="t",
        name="own",
    )
    clocks = gate(pipeline(counted, own)).clocks
    assert list(clocks) == ["a", "counted"]
    assert [clock.by_rows for clock in clocks.values()] == [True, False]


def test_a_source_with_bound_rows_says_it_by_these_alone() -> None:
    marked = source("m", "k STRING, t BIGINT, is_bound BOOLEAN", bounds="is_bound")
    clocks = gate(pipeline(source("a"), marked, commit_at=hf.pts(disorder=5))).clocks
    assert (clocks["a"].by_rows, clocks["a"].disorder) == (True, 5)
    assert (clocks["m"].by_rows, clocks["m"].disorder) == (False, 0)


def test_rows_without_a_place_in_time_are_taken_as_such() -> None:
    a, b = source("a"), source("b")
    late = hf.sync({"a": a, "b": b}, by="k", name="sets").late
    assert dict(gate(pipeline(late, a)).times) == {"sink0": None, "sink1": "t"}


def test_the_same_pipeline_has_the_same_fingerprint_and_another_promise_another_one() -> None:
    assert pipeline(source("a")).fingerprint() == pipeline(source("a")).fingerprint()
    of = {pipeline(source("a"), commit_at=at).fingerprint() for at in (None, "pts", hf.pts(disorder=1))}
    assert len(of) == 3


def test_explain_says_what_is_promised() -> None:
    assert "commits at pts" in pipeline(source("a")).explain()
    assert "commits at pts" not in pipeline(source("a"), commit_at=None).explain()


def clear(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: pipeline(source("a"), source("b", timestamp=None)), "source 'b'.*declares none.*declare timestamp="),
        (lambda: pipeline(source("a"), source("b", "k STRING, t TIMESTAMP")), "others TIMESTAMPs"),
        (lambda: pipeline(source("a") | hf.map(lambda df: df, name="hidden")), "hidden.*keep the source's timestamp"),
        (
            lambda: pipeline(
                source("a")
                | hf.map_batches(clear, schema=COLUMNS, name="between")
                | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counted")
            ),
            "'counted'.*cannot know the progress of 'a'.*move it downstream of 'counted'",
        ),
        (lambda: pipeline(source("a"), commit_at="frames"), "commit_at='frames'.*write hf.Pipeline"),
        (lambda: pipeline(source("a"), commit_at=hf.pts(disorder={"x": 1})), "disorder= names 'x'.*sources are a"),
        (lambda: hf.pts(disorder=-1), "is no duration"),
        (lambda: hf.pts(max_waiting_rows=0), "no number of rows"),
    ],
)
def test_what_could_not_keep_the_promise_is_refused_with_the_cure(build: Any, says: str) -> None:
    with pytest.raises(InvalidPipeline, match=f"(?s){says}"):
        build()
