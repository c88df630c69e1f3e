"""Sinks that a start of shards compares with what all of them should hold, and mends, before any shard runs.

Each sink is compared and repaired as ``holdfast reconcile --repair`` does it (:mod:`holdfast.controller.reconciling`):
all shards are taken over first, and a table is repaired in one transaction under all their ledgers.  Dead anywhere: the
sinks are as they were, or repaired, and the next start compares again.  As with one run, a start is refused for the
sake of a comparison only where a sink was named.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.reconciling import ShardsReconciling
from holdfast.display import lines
from holdfast.graph.nodes import SinkNode
from holdfast.reconcile.stand_ins import check_some_comparable
from holdfast.shards.layout import ShardLayout
from holdfast.shards.naming import shard_checkpoint, shard_name
from holdfast.starts.context import StartOptions
from holdfast.starts.shadows.comparing import EMPTY, LASTING, compared_as, left_alone
from holdfast.starts.shadows.reconciling import Reconciling, ledger_of, start_shadow
from holdfast.status import ComparedSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.run")


@dataclass(frozen=True)
class ShardsComparison:
    """The sinks of a pipeline in shards that its start compares.

    Parameters
    ----------
    graphs : ShardGraphs
        Of the pipeline.
    directory : Path
        Its checkpoint.
    asked : StartOptions
        What the start of the whole is asked for.
    """

    graphs: ShardGraphs
    directory: Path
    asked: StartOptions

    def check(self) -> None:
        """Refuse, before anything is done, what the graph says cannot be compared.

        Raises
        ------
        InvalidPipeline
            If a sink that was asked for cannot be compared, or none can.
        """
        check_some_comparable(self.graphs.pipeline, self.asked.compared_sinks)

    def mend(self, layout: ShardLayout, session: SparkSession) -> tuple[ComparedSink, ...]:
        """Compare and repair; no shard runs.

        Parameters
        ----------
        layout : ShardLayout
            With which the shards start.
        session : SparkSession
            In which what the sinks should hold is computed.

        Raises
        ------
        InvalidPipeline
            If a sink that was asked for cannot be compared after all.
        HoldfastError
            If a system is away, or another run takes a shard over: nothing of the start is done.
        """
        found = tuple(self._compared(layout, session))
        for each in found:
            log.log(logging.INFO if each.is_equal else logging.WARNING, "%s", each.text)
        return found

    # --- inside -----------------------------------------------------------------------------------------------------

    def _compared(self, layout: ShardLayout, session: SparkSession) -> Iterator[ComparedSink]:
        pipeline, wanted = self.graphs.pipeline, self.asked.compared_sinks
        obstacles = check_some_comparable(pipeline, wanted)
        names = [shard_name(pipeline.name, shard) for shard in range(layout.shard_count)]
        for node in pipeline.sinks:
            if node.name in obstacles:
                yield ComparedSink(node.name, why_not=obstacles[node.name])
            elif all(ledger_of(node, name) is None for name in names):
                yield ComparedSink(node.name, why_not=EMPTY)
            else:
                lines.say(f"comparing {node.name} with what it should hold")
                reconciling = self._reconciling(node, layout, session)
                try:
                    yield compared_as(reconciling.repair())
                except LASTING as error:
                    yield left_alone(pipeline.name, node.name, error, is_wanted=node.name in wanted)
                finally:
                    reconciling.forget()

    def _reconciling(self, node: SinkNode, layout: ShardLayout, session: SparkSession) -> ShardsReconciling:
        places = [Path(shard_checkpoint(str(self.directory), shard)) for shard in range(layout.shard_count)]
        asked = Reconciling(
            self.graphs.pipeline,
            node,
            self.directory,
            start_shadow(self.directory) / node.name,
            self.asked.settings,
            log.info,
            examples=0,
            session=session,
            digests_only=self.asked.digests_only,
        )
        return ShardsReconciling(self.graphs, layout, asked, places)
