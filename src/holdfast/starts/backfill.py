"""Backfill: a sink that is added gets every row, from the earliest position that can still be read, exactly once.

The new Spark directory begins at the beginning of its sources, without state, and takes them to the change point in
epochs as the sources themselves cut them.  What other sinks hold of that, they are not given again: their own positions
say so.  State is computed anew on the way, so it is that of the graph of now over all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.graph_record import Role
from holdfast.checkpoint.spark_log import plain
from holdfast.errors import Diverged, InvalidPipeline, invariant
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.ports import Held, Source
from holdfast.positions import Position, Positions, SourcePositions, ascending, covers, covers_all
from holdfast.shards.naming import sources_place
from holdfast.starts.graph_diff import GraphChange, NodeVerdict

STOPS_MAX = 1000
"""Most epochs in which a new sink catches up; where the sources would make more, several become one."""


@dataclass(frozen=True)
class Backfill:
    """What a directory that fills a new sink is begun with.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    checkpoint : Path
        Its checkpoint.
    has_state : bool
        Whether state is computed anew: then it needs every row that there ever was.
    """

    pipeline: Graph
    checkpoint: Path
    has_state: bool

    def obstacles(self, end: Positions | None = None) -> Iterator[tuple[str, str]]:
        """Yield each source that cannot go back, and why.

        Parameters
        ----------
        end : Positions, optional
            Up to where its rows are needed.  Without it nobody has looked whether they are still there.
        """
        for node in self.pipeline.sources:
            why = self._obstacle(node, None if end is None else plain(end[node.name])[0])
            if why:
                yield node.name, why

    def seek(self, change_point: Positions, held: Mapping[str, Held]) -> tuple[Positions, ...]:
        """Return where reading begins, and where the epochs up to the change point end.

        Parameters
        ----------
        change_point : Positions
            The end of the last epoch that the graph before published.
        held : mapping of str to Held
            What each sink holds; an epoch ends where one of them stands.

        Raises
        ------
        InvalidPipeline
            If a source cannot go back, or sources come or go at the same time.
        """
        self._check({node.name for node in self.pipeline.sources} ^ set(change_point), change_point)
        return self.cuts(change_point, held)

    def cuts(self, end: Positions, held: Mapping[str, Held]) -> tuple[Positions, ...]:
        """Return the beginning of the sources, and where epochs from there on end; as :meth:`seek`, without its checks.

        Parameters
        ----------
        end : Positions
            Where the last of them ends.
        held : mapping of str to Held
            What each sink holds; an epoch ends where one of them stands.
        """
        walks = {
            node.name: [*walk(self._opened(node), plain(end[node.name])[0]), end[node.name]]
            for node in self.pipeline.sources
            if node.name in end
        }
        steps = max(len(one) for one in walks.values())
        every = -(-steps // STOPS_MAX)
        stops: list[Positions] = [
            {name: one[min(step, len(one) - 1)] for name, one in walks.items()} for step in range(0, steps - 1, every)
        ]
        return tuple(self._through([*stops, end], held))

    def check(self, change: GraphChange) -> None:
        """Raise what :meth:`seek` would, before anything runs, as far as the change point does not decide it."""
        self._check(
            {
                node.name
                for node in change.nodes
                if node.role is Role.SOURCE and node.verdict in (NodeVerdict.NEW, NodeVerdict.GONE)
            }
        )

    # --- inside -----------------------------------------------------------------------------------------------------

    def _check(self, moved: Collection[str], end: Positions | None = None) -> None:
        for name in sorted(moved):
            raise self._refused(
                f"source {name!r} comes or goes at the same time.",
                "change the sources first and run that; then add the sink.",
            )
        for name, why in self.obstacles(end):
            raise self._refused(
                f"source {name!r} cannot go back: {why}",
                "leave backfill=True out: the sink then begins at the present; or fill it from a copy of the rows with "
                "a pipeline of its own.",
            )

    def _through(self, stops: Sequence[Positions], held: Mapping[str, Held]) -> list[Positions]:
        """Return the stops with the positions of sinks; stops that have no order among them are left out."""
        standing = [each.positions for each in held.values() if covers_all(stops[-1], each.positions)]
        certain = ascending([stops[0], *standing, stops[-1]])
        if certain is None:
            raise Diverged(
                "the sinks hold positions that cannot be put in an order.",
                why="they were written with different checkpoints.",
                do="restore the sinks to states that belong together.",
                pipeline=self.pipeline.name,
            )
        between = [stop for stop in stops[1:-1] if all(_order(stop, other) is not None for other in certain)]
        found: list[Positions] = []
        for stop in sorted([*certain, *between], key=cmp_to_key(_later)):
            if not found or _order(found[-1], stop) != 0:
                found.append(stop)
        invariant(
            all(_order(one, next_) == -1 for one, next_ in pairwise(found)),
            f"the epochs that fill a sink of pipeline {self.pipeline.name!r} are to end at positions without order.",
            pipeline=self.pipeline.name,
            story=lambda: f"In this order: {found}",
        )
        return found

    def _obstacle(self, node: Node, end: SourcePositions | None) -> str:
        spec = node.source_spec
        workspace = self._workspace(node)
        nothing: dict[str, Position] = {}
        why = spec.obstacle(node.name, workspace, nothing, end)
        if why and not self.has_state and spec.kind != "spark":  # without state what is left will do
            why = spec.obstacle(node.name, workspace, self._opened(node).initial(), end)
        return why

    def _workspace(self, node: Node) -> str:
        return workspace(sources_place(self.checkpoint, self.pipeline.name), node.name)

    def _opened(self, node: Node) -> Source:
        return node.source_spec.open(node.name, self._workspace(node))

    def _refused(self, why: str, do: str) -> InvalidPipeline:
        return InvalidPipeline(
            "a sink is to get everything from the beginning (backfill=True), and cannot.",
            why=why,
            do=do,
            pipeline=self.pipeline.name,
        )


def _order(one: Positions, other: Positions) -> int | None:
    """Return -1, 0 or 1 as positions are before, at or after others; None where each has something the other lacks."""
    is_behind, is_before = covers_all(one, other), covers_all(other, one)
    return int(is_behind) - int(is_before) if is_behind or is_before else None


def _later(one: Positions, other: Positions) -> int:
    return _order(one, other) or 0


def walk(source: Source, end: SourcePositions) -> Iterator[dict[str, Any]]:
    """Yield the positions at which a source ends its epochs, from its beginning to below ``end``."""
    at = dict(source.initial())
    while not covers(at, end):
        yield at
        after = dict(source.latest(at, bounded=False))
        if after == at or covers(after, end):
            return
        at = after
