"""Sinks that a start compares with what they should hold, and mends, before the pipeline goes on (design/0028).

Order: 1. what the graph alone refuses; 2. what the sinks should hold is computed, while whoever runs the pipeline still
runs it; 3. the pipeline is taken over, what was in doubt is resolved; 4. each sink is compared and repaired, in one
transaction of its own; 5. the run goes on.  Dead anywhere: the sinks are as they were, or repaired, and the next start
begins with 1; what was computed is there.

Sinks may be at different positions: the one that is furthest behind comes first, as what is computed only grows.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast import faults
from holdfast.config import Settings
from holdfast.display import phase
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.ports import Held, Sink
from holdfast.reconcile.report import Reconciled
from holdfast.reconcile.stand_ins import check_some_comparable, followed, in_place
from holdfast.spark.shadow.reconciling import Reconciling, ledger_of, replica_shadow, start_shadow
from holdfast.spark.shadow.shadow import Shadow
from holdfast.status import ComparedSink

log = logging.getLogger("holdfast.run")

EMPTY = "it holds nothing of this pipeline yet."


@dataclass(frozen=True)
class StartComparison:
    """The sinks of a pipeline that a start compares.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    wanted : tuple of str
        Names of sinks: the start is refused where one of them cannot be compared.  None of them: all that can be.
    settings, session
        Of the start.
    digests_only : bool
        Whether what the sinks should hold is kept as digests.
    """

    pipeline: Graph
    wanted: tuple[str, ...]
    settings: Settings
    session: SparkSession | None
    digests_only: bool = False

    @cached_property
    def obstacles(self) -> Mapping[str, str]:
        """Sink -> why it is not compared, as far as the graph says.

        Raises
        ------
        InvalidPipeline
            If one that was asked for cannot be compared, or none can.
        """
        return check_some_comparable(self.pipeline, self.wanted)

    def prepare(self, checkpoint: Path) -> None:
        """Compute what the sinks should hold, before the pipeline is taken over.

        Raises
        ------
        InvalidPipeline
            If nobody can compute it.  The pipeline was not taken over.
        """
        ledgers = {node.name: ledger_of(node, self.pipeline.name) for node in self._compared}
        held = {name: ledger.held for name, ledger in ledgers.items() if ledger is not None}
        for node in self._in_order(held)[:1]:
            phase.say("computing what the sinks should hold")
            self._reconciling(node, checkpoint).prepare()

    def mend(
        self, checkpoint: Path, sinks: Mapping[str, Sink], held: Mapping[str, Held], check_fenced: Callable[[], object]
    ) -> tuple[ComparedSink, ...]:
        """Compare and repair, in a pipeline that is taken over.

        Parameters
        ----------
        checkpoint : Path
            The pipeline's own.
        sinks, held : mapping of str to Sink, and to Held
            Opened, with nothing in doubt.
        check_fenced : callable
            Raises where another run has taken over.

        Raises
        ------
        InvalidPipeline
            If a sink that was asked for cannot be compared after all.
        Fenced
            If another run has taken over.
        """
        found = {
            node.name: ComparedSink(node.name, why_not=self.obstacles.get(node.name, EMPTY))
            for node in self.pipeline.sinks
        }
        for node in self._in_order(held):
            phase.say(f"comparing {node.name} with what it should hold")
            found[node.name] = self._mended(node, checkpoint, sinks[node.name], check_fenced)
            faults.reach("repaired", held[node.name].epoch)
        for compared in found.values():
            log.log(logging.INFO if compared.is_equal else logging.WARNING, "%s", compared.text)
        shutil.rmtree(self._place(checkpoint), ignore_errors=True)
        return tuple(found.values())

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _compared(self) -> list[SinkNode]:
        return [node for node in self.pipeline.sinks if node.name not in self.obstacles]

    def _in_order(self, held: Mapping[str, Held]) -> list[SinkNode]:
        """Return the sinks that hold something, the one that is furthest behind first."""
        full = [node for node in self._compared if node.name in held and held[node.name].epoch]
        return sorted(full, key=lambda node: held[node.name].epoch)

    def _mended(self, node: SinkNode, checkpoint: Path, sink: Sink, check_fenced: Callable[[], object]) -> ComparedSink:
        try:
            return _told(self._reconciling(node, checkpoint).mend(sink))
        except InvalidPipeline as error:
            if node.name in self.wanted:
                raise
            return ComparedSink(node.name, why_not=f"{error.what} {error.why}".strip())
        except Unavailable:
            check_fenced()
            raise

    def _reconciling(self, node: SinkNode, checkpoint: Path) -> Reconciling:
        return Reconciling(
            self.pipeline,
            node,
            checkpoint,
            self._place(checkpoint),
            self.settings,
            log.info,
            examples=0,
            session=self.session,
            together=self._compared,
            digests_only=self.digests_only,
        )

    def _place(self, checkpoint: Path) -> Path:
        """Return where the expected content is: a replica has kept it while it waited."""
        kept = replica_shadow(checkpoint)
        stand_in = in_place(digests_only=self.digests_only)
        shadow = Shadow(self.pipeline, followed(self.pipeline), kept, self.settings, stand_in=stand_in)
        return kept if shadow.is_what_was_kept else start_shadow(checkpoint)


def _told(found: Reconciled) -> ComparedSink:
    return ComparedSink(
        found.sink,
        found.epoch,
        expected=found.expected_count,
        actual=found.actual_count,
        missing=found.missing_count,
        extra=found.extra_count,
        changed=found.changed_count,
        repaired=found.repaired_count or 0,
    )
