"""What the sinks of a pipeline withdraw in a rewind, and which of them cannot.

Asked in this order: what the graph alone decides, of all sinks; what each sink knows; and last what has to be computed,
for tables of rows that replace others: minutes are not spent on a rewind that is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.capabilities import offers
from holdfast.checkpoint.manifest import EpochEnd
from holdfast.checkpoint.schemas import OUT_OF_REACH
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.plan.lookup_versions import look_ups_of
from holdfast.ports import Guarantee, Rewindable, RewindableSpec, Sink, Withdrawal
from holdfast.positions import Positions
from holdfast.starts.shadows.reconciling import Reconciling, shadow_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.rewind")


@dataclass(frozen=True)
class Withdrawing:
    """The sinks that go back.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    directory : Path
        Where the checkpoint lies.
    settings, session
        Of the run that computes what a table held.
    left_out : collection of str
        Sinks that keep what they hold.
    """

    pipeline: Graph
    directory: Path
    settings: Settings
    session: SparkSession | None
    left_out: Collection[str] = ()

    @property
    def nodes(self) -> Sequence[SinkNode]:
        """Their nodes."""
        return [node for node in self.pipeline.sinks if node.name not in self.left_out]

    @property
    def recomputed(self) -> Sequence[str]:
        """Those whose rows of then are computed: by the graph that has published them, and no other."""
        return [node.name for node in self.nodes if _declared(node).is_recomputed]

    def check_graph(self) -> None:
        """Refuse sinks that cannot go back whatever they hold, all at once.

        Raises
        ------
        InvalidPipeline
            Naming each, with the reason.
        """
        names = [node.name for node in self.pipeline.sinks]
        unknown = sorted({*self.left_out} - {*names})
        if unknown or not self.nodes:
            raise InvalidPipeline(
                f"a rewind of pipeline {self.pipeline.name!r} cannot leave out {', '.join(unknown or names)}.",
                why="no sink has that name." if unknown else "no sink would go back.",
                do=f"--except NAME, for some of these: {', '.join(names)}.",
                pipeline=self.pipeline.name,
            )
        self._refuse({node.name: why for node in self.nodes if (why := self._obstacle(node))})

    def asked(self, sinks: Mapping[str, Sink], ended: EpochEnd) -> dict[str, Withdrawal]:
        """Return what each withdraws to go back to the end of an epoch; compute that where a sink does not know it.

        Raises
        ------
        InvalidPipeline
            Naming all that cannot go back there.
        """
        found = {node.name: self._known(sinks.get(node.name), ended.positions) for node in self.nodes}
        self._refuse({name: each.obstacle for name, each in found.items() if each.obstacle}, ended.epoch)
        for node in self.nodes:
            if found[node.name].is_recomputed:
                compared = self._reconciling(node).look_at(sinks[node.name], ended.positions)
                count = compared.missing_count + compared.extra_count + compared.changed_count
                found[node.name] = replace(found[node.name], epoch=ended.epoch, row_count=count)
        return found

    def repair(self, sinks: Mapping[str, Sink], to: Positions) -> None:
        """Make tables of rows that replace others what they were; once their ledgers have moved.

        Dead before it is done, the rewind is unfinished: the next start does it again.
        """
        for node in self.nodes:
            if self._known(sinks.get(node.name), to).is_recomputed:
                self._reconciling(node).repair_at(sinks[node.name], to)
        self.forget()

    def forget(self) -> None:
        """Remove what was computed."""
        for node in self.nodes:
            self._reconciling(node).forget()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _obstacle(self, node: SinkNode) -> str:
        if node.guarantee is Guarantee.AT_LEAST_ONCE:
            return "it is at-least-once: it does not know what it holds"
        if node.kind in OUT_OF_REACH:
            return OUT_OF_REACH[node.kind]
        declared = _declared(node)
        if declared.is_recomputed:
            if look_ups := look_ups_of(self.pipeline.with_sinks([node])):
                return f"its rows of then are computed anew, in tables as they are now: by lookup {', '.join(look_ups)}"
            try:
                self._reconciling(node).check_computable()
            except InvalidPipeline as error:
                return f"{error.what} {error.why}".rstrip(".")
        return declared.obstacle

    def _known(self, sink: Sink | None, to: Positions) -> Withdrawal:
        # One that was added to the graph and never opened holds nothing of this pipeline.
        return sink.withdrawal(to) if offers(sink, Rewindable) else Withdrawal()

    def _refuse(self, obstacles: Mapping[str, str], epoch: int | None = None) -> None:
        if not obstacles:
            return
        names = ", ".join(map(repr, obstacles))
        which = f"sink{'s' if len(obstacles) > 1 else ''} {names}"
        where = "" if epoch is None else f" to the end of epoch {epoch}"
        other = "" if epoch is None else "choose another epoch; or "
        raise InvalidPipeline(
            f"pipeline {self.pipeline.name!r} cannot go back{where}: {which} cannot.",
            why=" ".join(f"{name}: {why}." for name, why in obstacles.items()),
            do=f"{other}rewind without: {' '.join(f'--except {name}' for name in obstacles)}. Such a sink keeps its "
            "rows, and is refused until it is emptied with its ledger; then backfill=True fills it from the beginning.",
            pipeline=self.pipeline.name,
            participant=next(iter(obstacles)),
        )

    def _reconciling(self, node: SinkNode) -> Reconciling:
        where = shadow_directory(self.directory, node.name)
        return Reconciling(self.pipeline, node, self.directory, where, self.settings, log.info, session=self.session)


def _declared(node: SinkNode) -> Withdrawal:
    if offers(node.spec, RewindableSpec):
        return node.spec.withdrawal()
    return Withdrawal(obstacle=f"a sink of kind {node.kind!r} cannot withdraw rows")
