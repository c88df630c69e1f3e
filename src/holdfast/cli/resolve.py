"""``holdfast resolve``: recovery without a run, and without Java.  Publishes or drops whatever is in doubt.

It is a takeover like that of every start: a run that is still alive is fenced by it.  And it is the first half of the
start: it looks where a start looks, and says which row of the table of starts the next one has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.checkpoint.graph_record import state_fingerprint
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.schemas import OUT_OF_REACH, noted_schema
from holdfast.cli.reject_rows import Rejected, keeping, would_reject
from holdfast.commit.coordinator import Resumption
from holdfast.commit.delivery import remembers
from holdfast.commit.takeover import Expired
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.observe.inspection import Inspection
from holdfast.plan.cutting import stateful_names
from holdfast.ports import Guarantee, Held, Store
from holdfast.spark.state.shape import Division
from holdfast.starts.decide import refusal
from holdfast.starts.directory import directory_of
from holdfast.starts.facts import check_given_again, check_replayable, look
from holdfast.starts.in_doubt import check_within_reach, connected_sinks, coordinator_alone, open_decisions
from holdfast.starts.inputs import StartInputs
from holdfast.starts.rewind import Rewinding
from holdfast.starts.table import ResumeCase, StartWay


@dataclass(frozen=True)
class Resolved:
    """A pipeline in which nothing is in doubt, and how its next start continues.

    Parameters
    ----------
    resumption : Resumption
        What was resolved, and what each sink holds.
    case : ResumeCase, optional
        The row of the table of starts; None where a sink that only a start can ask has a say, or a rewind has to be
        finished first.
    refusal : HoldfastError, optional
        Why the next start is refused.
    """

    resumption: Resumption
    case: ResumeCase | None = None
    refusal: HoldfastError | None = None


@dataclass(frozen=True)
class Resolving:
    """The first half of a start: everything in doubt is resolved, and the row of the table is known.

    Parameters
    ----------
    pipeline : Graph
        The graph; its sinks are connected with the schemas that the last run recorded.
    store, directory : Store, Path
        The checkpoint, and its location.
    settings : Settings
        For retries, the length of the ledger, and how state is to be divided.
    """

    pipeline: Graph
    store: Store
    directory: Path
    settings: Settings

    def do(self, rejected: Rejected | None = None) -> Resolved:
        """Take the pipeline over and resolve what is in doubt.

        Parameters
        ----------
        rejected : Rejected, optional
            If given: rows of decided epochs that a sink refuses become dead letters, and are recorded here.

        Raises
        ------
        HoldfastError
            Whatever :meth:`Coordinator.open` raises; InvalidPipeline for a sink that only a run can write; Diverged for
            one that has lost what was published in it, if it could not be given to it by a replay: nothing is resolved.
        """
        with coordinator_alone(self.pipeline, self.store, self.settings) as (coordinator, sinks):
            on_refused = None
            if rejected is not None:
                decided_for, rows_max = open_decisions(self.store), self.settings.poison_rows
                on_refused = keeping(self.store, coordinator, [*sinks.values()], rejected, decided_for, rows_max)
            remembering = [name for name, sink in sinks.items() if remembers(sink)]

            def on_behind(behind: Collection[str], held: Mapping[str, Held]) -> None:
                check_replayable(self._inputs(), behind, held, remembering)

            def on_expired(expired: Sequence[Expired], held: Mapping[str, Held]) -> None:
                check_given_again(self._inputs(), expired, held, remembering)

            resumption = coordinator.open(on_refused, on_behind, on_expired=on_expired)
        try:
            return self._looked(resumption, remembering)
        except HoldfastError as error:
            return Resolved(resumption, None, error)

    def _looked(self, resumption: Resumption, remembering: Sequence[str]) -> Resolved:
        if Rewinding(self.pipeline, self.store, self.directory, self.settings).is_unfinished:
            return Resolved(resumption)
        new = {node.name: Held() for node in self.pipeline.sinks if self._is_new(node)}
        held = {**new, **resumption.held}
        facts = look(self._inputs(), held, resumption.last_epoch, [*new, *remembering])
        if not facts.is_of_all(self.pipeline):
            return Resolved(resumption)
        is_refused = facts.case.way is StartWay.REFUSE
        return Resolved(resumption, facts.case, refusal(facts) if is_refused else None)

    def _is_new(self, node: SinkNode) -> bool:
        """Tell whether a sink was never opened by this checkpoint: then it holds nothing of it."""
        can_be_asked = node.guarantee is Guarantee.EXACTLY_ONCE and node.kind not in OUT_OF_REACH
        return can_be_asked and noted_schema(self.store, node.name) is None

    def _inputs(self) -> StartInputs:
        asked = Division(self.settings.buckets, self.settings.partitions)
        chosen = directory_of(self.pipeline, self.store, self.directory, asked)
        # What they keep is for the second half: a graph is compiled for that, by Spark as the case may be.
        kept = dict.fromkeys(stateful_names(self.pipeline), StateSchema("", "", pa.schema([]), {}))
        graph = state_fingerprint(self.pipeline)
        return StartInputs(self.store, self.directory, chosen, self.pipeline, kept, graph)


def resolving_would_reject(pipeline: Graph, store: Store, settings: Settings) -> Rejected:
    """Say which rows ``--reject-rows`` would reject; changes nothing."""
    check_within_reach(pipeline, store)
    with connected_sinks(pipeline, store) as sinks:
        return would_reject(store, [*sinks.values()], settings.poison_rows)


def check_epoch_is_open(inspection: Inspection, epoch: int) -> None:
    """Refuse an epoch that is not in doubt.

    Raises
    ------
    InvalidPipeline
        If the ledger has no open decision of that number.
    """
    if epoch not in inspection.open_epochs:
        there = ", ".join(map(str, inspection.open_epochs)) or "none"
        raise InvalidPipeline(
            f"epoch {epoch} is not in doubt.",
            why=f"epochs in doubt: {there}; last done: {inspection.last_done or 'none'}.",
            do="leave --epoch out to resolve all.",
            epoch=epoch,
        )
