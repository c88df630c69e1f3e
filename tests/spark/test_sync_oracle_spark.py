"""A sample of the recorded cases of synchronisation, of every policy, through Spark (design/0007, section 4).

All cases share one run (:class:`tests.spec.oracle_cases.SharedRun`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors import memory
from tests.spec.oracle_cases import ASKED, SharedRun, expected_sets, late_at_last

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
RUN = SharedRun(SAMPLE)
CASES = RUN.cases


def test_the_sample_has_every_policy_and_both_ways_of_feeding() -> None:
    assert set(CASES) == set(SAMPLE)
    assert {case["policy"] for case in CASES.values()} == {case["policy"] for case in ASKED}
    assert set(Counter(case["drain"] for case in CASES.values())) == {"each", "end"}
    assert len(CASES) >= 20


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Any]]]:
    """Run all cases; return for each its sets and its late rows."""
    sinks = []
    inputs_of: dict[int, list[str]] = {}
    for number, names, aligned in RUN.nodes(RUN.sources()):
        inputs_of[number] = names
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
    assert outcome[name]["sets"] == expected_sets(case)
    late = late_at_last(case)
    if late is not None:
        assert outcome[name]["late"][-1:] == [late]
