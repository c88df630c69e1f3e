"""Which columns go through a plan as they are, and which ones it computes with: by Spark's analysed plan.

A column is known by its identity, not its name: where it is only renamed, or passes a filter, ``explode`` or a join
with a static table, it is the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from holdfast.spark import private
from holdfast.spark.plans import catalyst


@dataclass(frozen=True)
class Trace:
    """A plan from its rows down to those that it is made of: projections, filters, generators, joins with tables.

    Parameters
    ----------
    plan : plan node
        The rows.
    layers : sequence of plan nodes
        From it down, the uppermost first.
    base : plan node
        What they are made of.
    """

    plan: Any
    layers: Sequence[Any]
    base: Any

    @staticmethod
    def of(plan: Any, base: Any) -> Trace:
        """Return the nodes between two."""
        layers, below = [], plan
        while not below.equals(base):
            layers.append(below)
            below = next(child for child in private.children_of(below) if catalyst.contains(child, base))
        return Trace(plan, layers, base)

    @cached_property
    def is_row_for_row(self) -> bool:
        """Whether exactly one row is made of each, in their order."""
        return all(private.kind_of(layer) in ("Project", *private.TRANSPARENT) for layer in self.layers)

    @cached_property
    def origins(self) -> dict[int, int]:
        """Every column that is one of the base's as it was -> that one, by their identities."""
        found = {identity: identity for identity in map(private.identity_of, private.listed(self.base.output()))}
        for layer in reversed(self.layers):
            if private.kind_of(layer) != "Project":
                continue
            for column in private.listed(layer.projectList()):
                if private.kind_of(column) == "Alias" and private.kind_of(column.child()) == "AttributeReference":
                    origin = found.get(private.identity_of(column.child()))
                    found |= {} if origin is None else {private.identity_of(column): origin}
        return found

    def read_for(self, wanted: Iterable[int]) -> set[int]:
        """Return the base's columns that some of the plan's are computed with, and rows are chosen by."""
        needed = set(wanted)
        for layer in self.layers:
            kind = private.kind_of(layer)
            if kind == "Project":
                columns = [each for each in private.listed(layer.projectList()) if private.identity_of(each) in needed]
                needed = {identity for column in columns for identity in catalyst.references_of(column)}
            elif kind == "Filter":
                needed |= catalyst.references_of(layer.condition())
            elif kind == "Join":
                needed |= catalyst.references_of(layer.condition().get())  # it has one: which rows are the branch's
            elif kind == "Generate":
                needed |= catalyst.references_of(layer.generator())
        return needed & {private.identity_of(column) for column in private.listed(self.base.output())}
