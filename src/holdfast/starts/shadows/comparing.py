"""Sinks that a start compares with what they should hold, and mends, before the pipeline goes on (design/0028).

Order: 1. what the graph alone refuses; 2. what the sinks should hold is computed, while whoever runs the pipeline still
runs it; 3. the pipeline is taken over, what was in doubt is resolved; 4. each sink is compared and repaired, in one
transaction of its own; 5. the run goes on.  Dead anywhere: the sinks are as they were, or repaired, and the next start
begins with 1; what was computed is there.

Sinks may be at different positions: the one that is furthest behind comes first, as what is computed only grows.

A start is refused for the sake of a comparison only where a sink was named.  Otherwise the pipeline goes on, and what
is not compared is said with its reason: who takes over unattended finds no other way out.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import faults
from holdfast.checkpoint.directory_header import newest_directory
from holdfast.config import Settings
from holdfast.display import lines
from holdfast.errors import BadRow, Corrupt, HoldfastError, InvalidPipeline, Unavailable
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.ports import Held, Sink
from holdfast.reconcile.report import Reconciled
from holdfast.reconcile.stand_ins import check_some_comparable, followed, in_place
from holdfast.starts.shadows.reconciling import Reconciling, ledger_of, replica_shadow, start_shadow
from holdfast.starts.shadows.shadow import Shadow
from holdfast.status import ComparedSink
from holdfast.store.paths import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.run")

EMPTY = "it holds nothing of this pipeline yet."
PASSED = "what was computed before goes beyond it: the start before has ended between two sinks."
LASTING = (InvalidPipeline, BadRow, Corrupt)
"""Why a sink is not compared, however often that is tried.  Anything else ends the start, which may be done again."""
LETTERS_ELSEWHERE = (
    "the sinks hold rows that another checkpoint has led: what became dead letters there is not known here, and is "
    "written where a sink takes it"
)


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
    _left: dict[str, ComparedSink] = field(default_factory=dict, init=False, repr=False, compare=False)

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
            If nobody can compute it, and a sink was named.  The pipeline was not taken over.
        """
        ledgers = {node.name: ledger_of(node, self.pipeline.name) for node in self._compared}
        held = {name: ledger.held for name, ledger in ledgers.items() if ledger is not None}
        self._left.clear()  # a start that leaves its directory comes by twice
        nodes = self._in_order(held, checkpoint)
        if nodes and not newest_directory(open_store(str(checkpoint))):
            log.warning("%s", LETTERS_ELSEWHERE)
        if not nodes:
            return
        lines.say("computing what the sinks should hold")
        try:
            self._reconciling(self._first(nodes, checkpoint), checkpoint).prepare()
        except LASTING as error:  # it is that of all
            self._left.update((each.name, self._left_alone(each, error)) for each in nodes)

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
        nodes = self._in_order(held, checkpoint)
        empty = {
            node.name: ComparedSink(node.name, why_not=self.obstacles.get(node.name, EMPTY))
            for node in self.pipeline.sinks
        }
        found = {**empty, **self._left}
        for node in nodes:
            lines.say(f"comparing {node.name} with what it should hold")
            found[node.name] = self._mended(node, checkpoint, sinks[node.name], check_fenced)
            faults.reach("repaired", held[node.name].epoch, self.pipeline.name)
        for compared in found.values():
            log.log(logging.INFO if compared.is_equal else logging.WARNING, "%s", compared.text)
        self._forget(checkpoint)
        return tuple(found.values())

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _compared(self) -> list[SinkNode]:
        return [node for node in self.pipeline.sinks if node.name not in self.obstacles]

    def _in_order(self, held: Mapping[str, Held], checkpoint: Path) -> list[SinkNode]:
        """Return the sinks to compare, the one that is furthest behind first.

        They hold something, and all that their positions say: those whose rows come again are left alone, as are those
        to which a backfill has added.
        """
        found = []
        for node in self._compared:
            if node.name not in held or held[node.name].is_empty or node.name in self._left:
                continue
            try:
                if held[node.name].stops:
                    raise _refilling(node)
                self._reconciling(node, checkpoint).check_backfills()
                found.append(node)
            except InvalidPipeline as error:
                self._left[node.name] = self._left_alone(node, error)
        return sorted(found, key=lambda node: held[node.name].epoch)

    def _first(self, nodes: Sequence[SinkNode], checkpoint: Path) -> SinkNode:
        """Return the sink that what is computed goes to first: unless all were named, none that it has passed.

        A start was killed between two sinks.  Where all are passed it is computed anew.
        """
        passed = [node for node in nodes if not self.wanted and self._reconciling(node, checkpoint).is_passed]
        if len(passed) == len(nodes):
            return nodes[0]
        self._left.update((node.name, ComparedSink(node.name, why_not=PASSED)) for node in passed)
        return next(node for node in nodes if node.name not in self._left)

    def _mended(self, node: SinkNode, checkpoint: Path, sink: Sink, check_fenced: Callable[[], object]) -> ComparedSink:
        try:
            return compared_as(self._reconciling(node, checkpoint).mend(sink))
        except LASTING as error:
            return self._left_alone(node, error)
        except Unavailable:
            check_fenced()
            raise

    def _left_alone(self, node: SinkNode, error: HoldfastError) -> ComparedSink:
        return left_alone(self.pipeline.name, node.name, error, is_wanted=node.name in self.wanted)

    def _forget(self, checkpoint: Path) -> None:
        """Remove what was computed, unless another process is at it."""
        with suppress(InvalidPipeline):
            shadow = self._shadow(self._place(checkpoint))
            shadow.check_nobody_runs()
            shutil.rmtree(shadow.directory, ignore_errors=True)

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
        return kept if self._shadow(kept).is_what_was_kept else start_shadow(checkpoint)

    def _shadow(self, directory: Path) -> Shadow:
        stand_in = in_place(digests_only=self.digests_only)
        return Shadow(self.pipeline, followed(self.pipeline), directory, self.settings, stand_in=stand_in)


def _refilling(node: SinkNode) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink {node.name!r} has lost rows, which come again in the next run.",
        why="until they have come, its positions do not say which rows it holds.",
        do="start the pipeline without naming this sink, and compare when it has caught up.",
        participant=node.name,
    )


def left_alone(pipeline: str, sink: str, error: HoldfastError, *, is_wanted: bool) -> ComparedSink:
    """Return that a sink is left as it is, for the reason of an error; refuse the start if it was named.

    Raises
    ------
    InvalidPipeline
        If it was.
    """
    if not is_wanted:
        return ComparedSink(sink, why_not=f"{error.what} {error.why}".strip())
    if isinstance(error, InvalidPipeline):
        raise error
    raise InvalidPipeline(
        f"sink {sink!r} of pipeline {pipeline!r} is left as it is: it cannot be compared with what it should hold.",
        why=f"{error.what} {error.why}".strip(),
        do="start without naming it. Rows that became dead letters are known to the checkpoint that led then.",
        pipeline=pipeline,
        participant=sink,
    ) from error


def compared_as(found: Reconciled) -> ComparedSink:
    """Return what a comparison has found, as the status of a run has it."""
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
