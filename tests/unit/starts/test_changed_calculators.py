"""What ``plan`` says of a flowgraph whose calculators have changed: kept, new, gone, renamed, or refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.checkpoint.graph_record import GraphRecord, described
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.state_upgrade import StateUpgrade
from holdfast.flow import Graph, node
from holdfast.graph.naming import canonical_json
from holdfast.starts.graph_diff import GraphChange, NodeVerdict, compare
from holdfast.starts.state_change import lines_of
from holdfast.testing.step_contract import step_of
from tests.calculators import Odd, Total, Tracker


def record(*nodes: Any, **options: Any) -> tuple[GraphRecord, StateUpgrade]:
    graph = Graph("line")
    stream = graph.input("rows")
    for each in nodes:
        stream = stream | each
    graph.output("out", stream)
    rows = hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name="rows")
    flowed = rows | hf.flow(graph, by="k", inputs={"rows": "v"}, schema="out BIGINT", name="flow", **options)
    step = step_of(flowed)
    pipeline = hf.Pipeline("flows", flowed | hf.write.memory(name="shown"))
    arguments = canonical_json(dict(flowed.node.arguments()))
    key = pa.schema([("k", pa.string())])
    schemas = {"flow": StateSchema("flow", arguments, key, dict(step.tables))}
    return described(pipeline, schemas, 4), StateUpgrade(flowed.node.past, step)


def change(before: tuple[GraphRecord, StateUpgrade], after: tuple[GraphRecord, StateUpgrade]) -> GraphChange:
    return compare(before[0], after[0], {"flow": after[1]})


TOTAL, AGAIN, ODD = node(Total, name="total"), node(Total, name="again"), node(Odd, name="odd")


def test_the_same_graph_is_no_change() -> None:
    assert change(record(ODD, TOTAL), record(ODD, TOTAL)).is_empty
    assert change(record(ODD, TOTAL), record(ODD, TOTAL, renamed_nodes={"total": "sum"})).is_empty


def test_calculators_are_kept_new_gone_and_renamed_by_name() -> None:
    found = change(record(ODD, TOTAL, AGAIN), record(node(Total, name="sum"), ODD, AGAIN.with_name("more"), AGAIN,
                                                     renamed_nodes={"sum": "total"}))  # fmt: skip
    (line,) = lines_of(found)
    assert line.startswith("stateful operator 'flow' is changed: keeps its state")
    for said in (
        "calculators: 'sum' is renamed, and keeps the state of 'total'",
        "calculators: 'more' is new, and begins without state",
        'calculators: odd.inputs.value: "rows" -> "sum.total"',
    ):
        assert said in line
    assert "kept as they are: none" in line
    (line,) = lines_of(change(record(ODD, TOTAL, AGAIN), record(ODD, TOTAL)))
    assert "calculators: 'again' is gone, and its state is left out; calculators: kept as they are: odd, total" in line


def test_another_policy_is_said() -> None:
    other = node(Total, name="total", policy=hf.policy.barrier())
    (line,) = lines_of(change(record(ODD, TOTAL), record(ODD, other)))
    assert 'calculators: total.policy: "settled" -> "barrier"' in line


def test_another_calculator_under_an_old_name_is_refused() -> None:
    found = change(record(ODD, TOTAL), record(ODD, node(Tracker, name="total")))
    assert {each.name: each.verdict for each in found.nodes}["flow"] is NodeVerdict.REFUSED
    (problem,) = found.problems()
    assert "calculators: 'total' was tests.calculators.Total, and is tests.calculators.Tracker" in problem
    renamed = record(ODD, node(Tracker, name="tracker"), renamed_nodes={"tracker": "total"})
    assert any("was tests.calculators.Total" in each for each in change(record(ODD, TOTAL), renamed).problems())


def test_rows_that_wait_get_the_columns_of_a_wider_input_and_a_new_input_begins_empty() -> None:
    step: Any = record(ODD, disorder=3)[1].step
    known = step.tables["waiting_rows"].schema.empty_table().drop_columns(["v"])
    grown = step.grown("waiting_rows", known, None)
    assert grown.schema == step.tables["waiting_rows"].schema
    assert step.grown("waiting_rows", None, None).num_rows == 0
    assert step.grown("nodes", None, None) is None
