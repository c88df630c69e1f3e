"""What becomes of each node of a changed graph, by name (design/0011, section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.graph_record import GraphRecord, Role, described, state_fingerprint
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.state_upgrade import StateUpgrade
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.graph.evolution import Evolution
from holdfast.graph.naming import canonical_json
from holdfast.pipeline import Pipeline
from holdfast.starts.graph_diff import NodeVerdict, compare
from holdfast.starts.refusals import check_change
from holdfast.state.step import StateTable

KEY = pa.schema([("k", pa.string())])
COUNTS = pa.schema([("k", pa.string()), ("n", pa.int64())])


def rows(name: str = "rows", epochs: int = 1) -> hf.Stream:
    return hf.read.rows([[{"k": "a", "v": 1}]] * epochs, schema="k STRING, v BIGINT", name=name)


def pipeline(
    *, above: int = 0, sink: str = "table", kept: str = "sums", source: str = "rows", shown: int = 0, epochs: int = 1
) -> Pipeline:
    chosen = rows(source, epochs) | hf.filter(f"v > {above}", name="chosen")
    sums = chosen | hf.accumulate(by="k", n=hf.count(), name=kept)
    return hf.Pipeline("sums", sums | hf.filter(f"n > {shown}", name="shown") | hf.write.memory(name=sink))


def graph(of: Pipeline, tables: Mapping[str, pa.Schema] | None = None, key: pa.Schema = KEY) -> GraphRecord:
    tables = {"counts": COUNTS} if tables is None else tables
    state_schemas = {
        node.name: StateSchema(
            node.kind,
            canonical_json(dict(node.arguments())),
            key,
            {name: StateTable(schema, ("k",)) for name, schema in tables.items()},
        )
        for node in of.nodes
        if node.kind == "accumulate"
    }
    return described(of, state_schemas, 4)


def verdicts(before: GraphRecord, after: GraphRecord) -> dict[str, NodeVerdict]:
    return {node.name: node.verdict for node in compare(before, after).nodes if node.verdict is not NodeVerdict.KEPT}


def test_an_equal_graph_keeps_everything() -> None:
    change = compare(graph(pipeline()), graph(pipeline()))
    assert change.is_empty
    assert change.restored == ("sums",)
    assert list(change.problems()) == []


def test_a_graph_is_remembered_as_it_was() -> None:
    made = graph(pipeline())
    assert GraphRecord.from_json(made.to_json(), "graph.json") == made
    for damaged in (b"", b"{}", made.to_json()[:-9], made.to_json().replace(b"STATEFUL", b"STATELESS")):
        with pytest.raises(Corrupt, match=r"graph\.json"):
            GraphRecord.from_json(damaged, "graph.json")


def test_nodes_are_compared_by_name() -> None:
    before = graph(pipeline())
    assert verdicts(before, graph(pipeline(above=1))) == {"chosen": NodeVerdict.CHANGED}
    assert verdicts(before, graph(pipeline(sink="other"))) == {"other": NodeVerdict.NEW, "table": NodeVerdict.GONE}
    renamed = graph(pipeline(kept="totals"))
    assert verdicts(before, renamed) == {
        "totals": NodeVerdict.NEW,
        "sums": NodeVerdict.GONE,
        "shown": NodeVerdict.CHANGED,
    }
    means = {"totals": StateUpgrade(Evolution("sums"))}
    change = compare(before, renamed, upgrades=means)
    assert {node.name: (node.verdict, node.was) for node in change.nodes if node.was} == {
        "totals": (NodeVerdict.RENAMED, "sums")
    }
    assert change.sources == {"totals": "sums"}
    assert NodeVerdict.GONE not in {node.verdict for node in change.nodes}
    assert compare(renamed, renamed, upgrades=means).is_empty, "the rename has happened"
    assert compare(before, renamed).restored == ()
    effects = {node.name: node.effect for node in compare(before, renamed).nodes}
    assert effects["totals"] == "begins without state"
    assert "stays in older snapshots" in effects["sums"]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (
            graph(pipeline(), {"counts": COUNTS, "more": COUNTS}),
            "state table 'more' was not there, and is (k string, n",
        ),
        (graph(pipeline(), {}), "state table 'counts' was (k string, n int64; key k), and is not there"),
        (
            graph(pipeline(), {"counts": COUNTS.set(1, pa.field("n", pa.float64()))}),
            "state table 'counts' was (k string, n int64; key k), and is (k string, n double; key k)",
        ),
        (graph(pipeline(), key=COUNTS), "its key was (k string), and is (k string, n int64)"),
    ],
)
def test_state_that_does_not_fit_is_refused_with_both_schemas(after: GraphRecord, said: str) -> None:
    change = compare(graph(pipeline()), after)
    assert change.restored == ()
    with pytest.raises(InvalidPipeline) as refused:
        check_change(change, "sums", is_forced=False)
    assert said in refused.value.why
    assert "another name" in refused.value.do
    assert "HOLDFAST_FORCE_GRAPH_CHANGE=true" in refused.value.do
    assert said in "\n".join(change.problems())
    check_change(change, "sums", is_forced=True)


def test_a_finished_source_is_not_taken_up_by_a_changed_graph() -> None:
    before = graph(pipeline())
    check_change(compare(before, graph(pipeline())).over(["rows"]), "sums", is_forced=False)
    check_change(compare(before, graph(pipeline(source="others"))).over(["rows"]), "sums", is_forced=False)
    change = compare(before, graph(pipeline(above=1))).over(["rows"])
    assert change.finished == ("rows",)
    with pytest.raises(InvalidPipeline, match="source 'rows' is finished") as refused:
        check_change(change, "sums", is_forced=False)
    assert "undefined results" in refused.value.why
    check_change(change, "sums", is_forced=True)


def test_a_stateful_operator_that_becomes_another_kind_of_node_is_new() -> None:
    plain = rows() | hf.filter("v > 0", name="sums")
    before = described(hf.Pipeline("sums", plain | hf.write.memory(name="table")), {})
    (sums,) = [node for node in compare(before, graph(pipeline())).nodes if node.name == "sums"]
    assert (sums.verdict, sums.role) == (NodeVerdict.NEW, Role.STATEFUL)


def test_the_fingerprint_of_state_knows_what_state_depends_on() -> None:
    same = state_fingerprint(pipeline())
    assert same
    assert state_fingerprint(pipeline(sink="other", shown=3, epochs=5)) == same
    for other in (pipeline(above=1), pipeline(kept="totals"), pipeline(source="others")):
        assert state_fingerprint(other) != same


def test_of_arguments_only_those_that_differ_are_told_however_long_the_others_are() -> None:
    def told(before: hf.Stream, after: hf.Stream) -> dict[str, tuple[str, ...]]:
        old, new = (described(hf.Pipeline("p", of | hf.write.memory(name="table")), {}) for of in (before, after))
        return {node.name: node.details for node in compare(old, new).nodes if node.details}

    columns = ", ".join(f"column_{number} BIGINT" for number in range(100))

    def reading(directory: str, last: str) -> hf.Stream:
        return hf.read.files(directory, schema=f"{columns}, {last}", name="rides")

    assert told(reading("in", "x INT"), reading("in", "x INT")) == {}
    (lines,) = told(reading("in", "x INT"), reading("out", "x STRING")).values()
    assert lines == (
        'columns: - "x: int32", + "x: string"',
        'path: "in" -> "out"',
    )
    (lines,) = told(reading("in", "x INT"), reading("in", "x INT, y INT")).values()
    assert lines == ('columns: + "y: int32"',)
    narrower = told(rows() | hf.filter("v > 1", name="few"), rows() | hf.filter("v > 2", name="few"))
    assert [line.partition(":")[2] for line in narrower["few"]] == [' "v > 1" -> "v > 2"']


def test_a_sink_with_another_target_is_not_said_to_keep_its_rows_there() -> None:
    def writing(path: str, table: str = "t", **options: Any) -> GraphRecord:
        sink = hf.write.sqlite(path, table=table, name="table", **options)
        return described(hf.Pipeline("sums", rows() | sink), {})

    def told(after: GraphRecord) -> tuple[str, tuple[str, ...]]:
        (sink,) = [node for node in compare(writing("a.db"), after).nodes if node.name == "table"]
        return sink.effect, sink.details

    moved = "continues with another target: the rows so far stay where they are, and do not come to the new one"
    assert told(writing("a.db", "u")) == (moved, ('table: "t" -> "u"',))
    assert told(writing("b.db"))[0] == moved
    assert told(writing("./a.db"))[0] == "keeps its rows and continues"
    more = told(writing("a.db", rewindable=True))
    assert more == ("keeps its rows and continues", ("rewindable: not given -> true",))


def test_a_sink_that_was_renamed_is_told_and_is_not_filled_again() -> None:
    def writing(name: str, path: str) -> GraphRecord:
        return described(hf.Pipeline("sums", rows() | hf.write.sqlite(path, table="t", name=name)), {})

    before = writing("old", "a.db")
    change = compare(before, writing("new", "./a.db"))
    (new,) = [node for node in change.nodes if node.name == "new"]
    assert (new.verdict, new.was) == (NodeVerdict.NEW, "old")
    assert "it writes where sink 'old' wrote: a sink cannot be renamed" in new.details[0]
    assert {node.name: node.verdict for node in change.nodes}["old"] is NodeVerdict.GONE
    check_change(change, "sums", is_forced=False)
    filled = compare(before, writing("new", "a.db"), backfilled=["new"])
    with pytest.raises(InvalidPipeline, match="is to get everything") as refused:
        check_change(filled, "sums", is_forced=True)
    assert "would be there twice" in refused.value.why
    check_change(compare(before, writing("new", "b.db"), backfilled=["new"]), "sums", is_forced=False)


def test_a_new_sink_where_one_wrote_that_a_rewind_left_out_is_told_that_rows_come_twice() -> None:
    """Messages stay in a topic: who reads it sees those of both graphs."""

    def alerts(name: str, topic: str | None = "alerts") -> GraphRecord:
        to = {"topic": topic} if topic else {"topic_by": "k", "topics": ["alerts"]}
        return described(hf.Pipeline("sums", rows() | hf.write.kafka("localhost:1", **to, name=name)), {})

    for topic in ("alerts", None):
        before = GraphRecord.from_json(alerts("alerts", topic).rewound([]).to_json(), "graph.json")
        (effect,) = (node.effect for node in compare(before, alerts("again", topic)).nodes if node.name == "again")
        assert "what is made again is there twice" in effect
    (effect,) = (node.effect for node in compare(before, alerts("again", "others")).nodes if node.name == "again")
    assert effect == "begins here: it gets no older rows"
    assert not [node for node in compare(before, alerts("again")).nodes if node.name == "alerts"], "it is no sink of it"


def changing(
    *,
    best: str = "best",
    mean: str = "mean",
    least: int = 0,
    way: bool = True,
    over: bool = True,
    where: str | None = None,
    read: str = "v",
    more: bool = False,
    disorder: int | None = None,
) -> Pipeline:
    added: dict[str, Any] = {"further": hf.count()} if more else {}
    highest = rows() | hf.reduce(by="k", v=hf.max("v", where=where), **added, delete="gone", name=best)
    if disorder is not None:
        by_window = hf.aggregate(
            by="k",
            window=hf.tumbling(10),
            timestamp="v",
            emit="changes",
            v=hf.max("v"),
            delete="gone",
            disorder=disorder,
            name=best,
        )
        highest = rows() | by_window
    chosen = highest | hf.filter(f"v > {least}", name="chosen") if way else highest
    write = hf.write.sqlite("x.db", table="t", mode="upsert", key=["k"], delete="gone", name="table")
    means = chosen | hf.reduce(by="k", v=hf.mean(read), delete="gone", name=mean) if over else chosen
    return hf.Pipeline("changing", means | write)


def joining(
    *, best: str = "best", names: str = "names", joined: str | None = "joined", how: str = "inner", tells: bool = True
) -> Pipeline:
    """Return a join of rows that change with the newest of another source, which change, too, or only come."""
    highest = rows() | hf.reduce(by="k", v=hf.max("v"), delete="gone", name=best)
    people = hf.read.rows([], schema="k STRING, v BIGINT", name="people")
    delete: dict[str, Any] = {"delete": "gone"} if tells else {}
    named = people | hf.reduce(by="k", w=hf.max("v"), **delete, name=names)
    write = hf.write.sqlite("x.db", table="t", mode="upsert", key=["k"], delete="gone", name="table")
    if joined is None:
        return hf.Pipeline("changing", highest | write, named | hf.write.console(name="named"))
    pairs = hf.join(highest, named, on="k", how=how, delete="gone", name=joined)
    return hf.Pipeline("changing", pairs | (write if tells else hf.write.console(name="named")))


def of_changes(pipeline: Pipeline) -> GraphRecord:
    state_schemas = {
        node.name: StateSchema(
            node.kind, canonical_json(dict(node.arguments())), KEY, {"windows": StateTable(COUNTS, ("k",))}
        )
        for node in pipeline.nodes
        if node.kind in ("aggregate", "join_changes")
    }
    return described(pipeline, state_schemas, 4)


@pytest.mark.parametrize(
    ("before", "after", "renamed", "said"),
    [
        ({"over": False}, {}, {}, "'best', whose changes it reads, goes on, and it is new"),
        ({"mean": "other"}, {}, {}, "'best', whose changes it reads, goes on, and it is new"),
        ({"best": "other"}, {}, {}, "'best', whose changes it reads, is new, and it has state"),
        ({"least": 1}, {}, {}, "'chosen' is changed: rows that it let pass could not be retracted"),
        ({"way": False}, {}, {}, "'chosen' is new: rows that it let pass could not be retracted"),
        ({}, {"way": False}, {}, "it read chosen, and reads best"),
        ({"best": "other", "way": False}, {"way": False}, {"best": "other"}, ""),
        ({"mean": "other"}, {}, {"mean": "other"}, ""),
        ({"best": "one", "mean": "other"}, {}, {}, ""),
        ({}, {"where": "v > 1"}, {}, "'best', whose changes it reads, has another v=: it would retract rows"),
        (
            {"more": True},
            {"read": "further", "more": True},
            {},
            "another v=: it would subtract what it has never",
        ),
        ({"more": True}, {}, {}, ""),
        ({"disorder": 1}, {"disorder": 2}, {}, ""),
        ({}, {"over": False}, {}, ""),
        ({}, {}, {}, ""),
    ],
)
def test_an_operator_over_changes_goes_on_and_begins_with_what_makes_them(
    before: dict[str, Any], after: dict[str, Any], renamed: dict[str, str], said: str
) -> None:
    """design/0059: it subtracts only what it has added."""
    upgrades = {name: StateUpgrade(Evolution(was)) for name, was in renamed.items()}
    change = compare(of_changes(changing(**before)), of_changes(changing(**after)), upgrades)
    found = {node.name: node for node in change.nodes if node.verdict is NodeVerdict.REFUSED}
    assert [*found] == (["mean"] if said else [])
    if said:
        assert said in "; ".join(found["mean"].details)
        with pytest.raises(InvalidPipeline, match="does not fit the changed graph"):
            check_change(change, "changing", is_forced=False)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"joined": None}, {}, "'best', whose changes it reads, goes on, and it is new"),
        ({"best": "other"}, {}, "'best', whose changes it reads, is new, and it has state"),
        ({"names": "other"}, {}, "'names', whose changes it reads, is new, and it has state"),
        ({}, {"how": "left"}, "another how=: it would subtract"),
        ({"tells": False}, {}, "rows of 'names' could not be retracted before"),
        ({}, {"tells": False}, "rows of 'names' could be retracted, and cannot now"),
        ({"names": "other", "tells": False}, {"tells": False}, "it read best, other, and reads best, names"),
        ({"best": "one", "names": "two", "joined": "three"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_a_join_of_changes_goes_on_and_begins_with_what_makes_them(
    before: dict[str, Any], after: dict[str, Any], said: str
) -> None:
    """design/0065: pairs are retracted that it has emitted, and no others."""
    change = compare(of_changes(joining(**before)), of_changes(joining(**after)))
    found = {node.name: node for node in change.nodes if node.verdict is NodeVerdict.REFUSED}
    assert [*found] == (["joined"] if said else [])
    if said:
        assert said in "; ".join(found["joined"].details)


def test_a_sink_that_gets_everything_lets_an_operator_over_changes_begin() -> None:
    change = compare(of_changes(changing(over=False)), of_changes(changing()), backfilled=["table"])
    assert NodeVerdict.REFUSED not in {node.verdict for node in change.nodes}
