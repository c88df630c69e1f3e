"""In every epoch of a random graph with a gate before its sinks, killed anywhere, rows add up (design/0026).

Those without a gate are held to the audit, and to plain Python, in ``test_stateful_graphs.py``.
"""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.plan.cutting import build_stages
from holdfast.plan.program_build import as_it_is
from holdfast.testing.stand_in import StandInPlan
from tests.everyday import part_of_seeds
from tests.sim.flows import Graph
from tests.sim.stateful_graphs import random_graph
from tests.sim.test_stateful_graphs import PARTS, Outcome, lived, rows_audited

pytestmark = pytest.mark.slow


def gated(graph: Graph) -> hf.Pipeline | None:
    """Return a graph with a gate before its sinks; None where it cannot have one."""
    try:
        pipeline = hf.Pipeline("simulated", *graph.sinks, commit_at="pts")
        build_stages(pipeline, as_it_is, "", buckets=1, partitions=1, prefix=StandInPlan(graph.stand_ins).schemas)
    except InvalidPipeline:
        return None
    return pipeline


def live_gated(seeds: range) -> list[Outcome]:
    outcomes = []
    for seed in seeds:
        graph = random_graph(seed)
        if (pipeline := gated(graph)) is not None:
            outcomes.append(lived(graph, seed, gated=pipeline))
            assert not outcomes[-1].problems, str(outcomes[-1])
    return outcomes


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(8), id="of a complete run"),
        *(
            pytest.param(
                part_of_seeds(part, PARTS),
                marks=[pytest.mark.nightly, pytest.mark.timeout(3600)],
                id=f"part {part} of the night",
            )
            for part in range(PARTS)
        ),
    ],
)
def test_rows_behind_a_gate_add_up_in_every_epoch(seeds: range) -> None:
    outcomes = live_gated(seeds)
    assert len(outcomes) > len(seeds) // 5, "hardly any graph can have a gate"
    counted = rows_audited(outcomes)
    assert counted["commit_at_pts"] > 4 * len(outcomes), f"hardly any row is counted: {counted}"
