"""Those outside who are told how far the sinks of a run are: of each source the one that it has, if it has one."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from holdfast.connectors.reading.partitioned import beneath
from holdfast.graph.graph import Graph
from holdfast.ports import FollowedSpec, Follower, Held
from holdfast.positions import held_by_every

log = logging.getLogger("holdfast.run")


class Followers:
    """The followers of one run.

    Parameters
    ----------
    pipeline : Graph
        Its sources are asked.
    """

    def __init__(self, pipeline: Graph) -> None:
        self._by_source: dict[str, Follower] = {}
        for node in pipeline.sources:
            spec = beneath(node.source_spec)
            follower = spec.follower(node.name) if isinstance(spec, FollowedSpec) else None
            if follower is not None:
                self._by_source[node.name] = follower

    def tell(self, held: Mapping[str, Held]) -> None:
        """Tell them what every sink holds.  Any thread may; returns at once."""
        if not self._by_source:
            return
        positions = held_by_every(each.positions for each in held.values())
        for source, follower in self._by_source.items():
            if source in positions:
                follower.tell(positions[source])

    def close(self) -> None:
        """Let each tell its last."""
        for follower in self._by_source.values():
            follower.close()
