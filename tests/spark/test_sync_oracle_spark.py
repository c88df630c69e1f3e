"""A sample of the recorded cases of synchronisation, of every policy, through Spark (design/0007, section 4).

All cases share one run: a case is a key.  Epoch ``n`` brings event ``n`` of each case that was recorded with the node
running after each event, and the first one brings the whole of those where all was fed first.  Promises come as bound
rows of the sources.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.operators.sync.policy import Mux
from holdfast.operators.sync.spec import sync
from holdfast.sinks import memory
from holdfast.state.step import CLOSED
from tests.spec.test_sync_oracle import ASKED, policy_of

pytestmark = pytest.mark.spark

SAMPLE = (
    "default-h1-one-empty",
    "default-h3-never-fed",
    "default-h7-late-after-bound",
    "default-r-each-012",
    "default-r-each-013",
    "default-r-end-012",
    "sync_set-h1-independent",
    "sync_set-h4-late",
    "sync_set-h5-other-set-time-free",
    "sync_set-r-end-001",
    "immediate-h1-out-of-order-streams",
    "immediate-h2-late-same-stream",
    "immediate-h5-queued-join",
    "immediate-r-each-009",
    "barrier-h1-index-join",
    "barrier-h3-close-with-queue",
    "barrier-h7-queued",
    "early_close-h2-drops-rest",
    "early_close-h4-bound",
    "early_close-r-each-003",
    "early_close-r-end-004",
    "fixed_size-h1-each",
    "fixed_size-h3-trigger3-min",
    "fixed_size-r-end-007",
    "mux-r-each-003",
    "mux-r-each-005",
    "timestamp_align-r-each-010",
    "timestamp_align-r-end-002",
)
SCHEMA = "k STRING, node INT, t BIGINT, v BIGINT, is_bound BOOLEAN"
CASES = {case["id"]: case for case in ASKED if case["id"] in SAMPLE}


def node_of(case: dict[str, Any]) -> str:
    """Return what is the same for cases that one operator can take: the policy and the inputs."""
    return json.dumps([case.get(what) for what in ("policy", "streams", "sync_sets", "fixed_size", "base")])


NODES = {text: number for number, text in enumerate(dict.fromkeys(map(node_of, CASES.values())))}


def fed(case: dict[str, Any]) -> list[list[Any]]:
    """Return the events up to the one at which the reference ends its run with an error."""
    error = case["expected"]["error"]
    return case["events"] if error is None else case["events"][: error["event"] + 1]


def row_of(case: dict[str, Any], event: list[Any]) -> dict[str, Any]:
    _, what, *rest = event
    time, value = (CLOSED, 0) if what == "close" else (*rest, 0)[:2]
    return {"k": case["id"], "node": NODES[node_of(case)], "t": time, "v": value, "is_bound": what != "packet"}


def epochs(ordinal: int) -> list[list[dict[str, Any]]]:
    """Return the rows of one source, which feeds the input of that number of each case."""
    each = []
    for case in CASES.values():
        rows = [[row_of(case, event)] if case["streams"].index(event[0]) == ordinal else [] for event in fed(case)]
        each.append(rows if case["drain"] == "each" else [[row for one in rows for row in one]])
    return [[row for part in parts for row in part] for parts in zip_longest(*each, fillvalue=[])]


def test_the_sample_has_every_policy_and_both_ways_of_feeding() -> None:
    assert set(CASES) == set(SAMPLE)
    assert {case["policy"] for case in CASES.values()} == {case["policy"] for case in ASKED}
    assert set(Counter(case["drain"] for case in CASES.values())) == {"each", "end"}
    assert len(CASES) >= 20


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Any]]]:
    """Run all cases; return for each its sets and its late rows."""
    sources = [
        hf.read.rows(epochs(ordinal), schema=SCHEMA, timestamp="t", bounds="is_bound", name=f"source_{ordinal}")
        for ordinal in range(max(len(case["streams"]) for case in CASES.values()))
    ]
    sinks = []
    inputs_of: dict[int, list[str]] = {}
    for case in CASES.values():
        number = NODES[node_of(case)]
        if number in inputs_of:
            continue
        inputs_of[number] = case["streams"]
        inputs = {
            name: source | hf.filter(f"node = {number}", name=f"for_{number}_{name}")
            for name, source in zip(case["streams"], sources, strict=False)
        }
        policy = policy_of(case)
        if isinstance(policy, Mux):
            policy = replace(policy, column="v")
        aligned = sync(inputs, by="k", policy=policy, name=f"sync_{number}")
        sinks += [aligned | hf.write.memory(f"sets_{number}"), aligned.late | hf.write.memory(f"late_{number}")]
    checkpoint = tmp_path_factory.mktemp("oracle") / "checkpoint"
    hf.Pipeline("oracle", *sinks).run(checkpoint=str(checkpoint), trigger=hf.available_now(), session=spark)
    found: dict[str, dict[str, list[Any]]] = {name: {"sets": [], "late": []} for name in CASES}
    for number, names in inputs_of.items():
        for row in memory.rows(f"sets_{number}").to_pylist():
            values = {name: row[name]["v"] for name in names if row[name] is not None}
            found[row["k"]]["sets"].append((row["timestamp"], values))
        for row in memory.rows(f"late_{number}").to_pylist():
            found[row["k"]]["late"].append((row["input"], row["timestamp"]))
    return found


@pytest.mark.parametrize("name", SAMPLE)
def test_the_sets_and_their_order_are_those_of_the_reference(
    name: str, outcome: dict[str, dict[str, list[Any]]]
) -> None:
    case = CASES[name]
    expected = [
        (found["ts"], {of: value for of, (_, value) in found["packets"].items()})
        for found in case["expected"]["sets"]
        if found["packets"]
    ]
    assert outcome[name]["sets"] == expected
    error = case["expected"]["error"]
    if error is not None and error["kind"] == "late_packet":
        of, _, time, _ = case["events"][error["event"]]
        assert outcome[name]["late"][-1:] == [(of, time)]
