"""Warnings about operators by time: whose rows wait too long, or leave by the clock, or can be late."""

from __future__ import annotations

from holdfast.graph.graph import Graph
from holdfast.graph.releases import held_to_the_end, released_by_clock
from holdfast.operators.join.growth import unlimited_growth
from holdfast.operators.order import rows_in_no_order
from holdfast.plan.feeds import inputs_by_bounds


def waits_to_mind(pipeline: Graph) -> list[str]:
    """Return warnings about operators by time: whose rows wait too long, leave by the clock, are late, or stay."""
    by_clock = [said for node in pipeline.nodes if (said := released_by_clock(node)) is not None]
    growing = [said for node in pipeline.nodes if (said := unlimited_growth(node)) is not None]
    return [*by_clock, *growing, *start_warnings(pipeline)]


def start_warnings(pipeline: Graph) -> list[str]:
    """Return those of them that a start logs; the others were logged while the pipeline was built."""
    by_bounds = inputs_by_bounds(pipeline.nodes)
    found: list[str] = []
    for node in pipeline.nodes:
        held = held_to_the_end(node)
        found += [] if held is None else [held]
        found += rows_in_no_order(node, by_bounds[node.name]) if node.name in by_bounds else []
    return found
