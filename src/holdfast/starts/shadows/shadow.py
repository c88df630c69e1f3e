"""A shadow: the same graph over the same sources, with stand-ins for its sinks, up to given positions and no further.

It has a checkpoint of its own, takes nothing over and lets nothing of the sources go: the pipeline may run meanwhile.
What positions mean it takes from the sinks (design/0018).  It goes on where it was, so that the next comparison
computes what is new.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.checkpoint.directory_header import newest_directory
from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.schemas import noted_schema
from holdfast.checkpoint.spark_log import newest_positions, plain
from holdfast.checkpoint.targets import FILE_NAME, add_targets, read_targets
from holdfast.commit.owner import noted_owner
from holdfast.config import Settings
from holdfast.errors import Corrupt, InvalidPipeline, invariant, present
from holdfast.graph.graph import Graph
from holdfast.graph.hooks import NONE, Lifecycle
from holdfast.graph.nodes import SinkNode
from holdfast.graph.trigger import Trigger, available_now
from holdfast.plan.cutting import has_state
from holdfast.ports import Comparable, Content, ExplainedSpec, Explanation, LedgerSpec, Store
from holdfast.positions import Positions, SourcePositions, is_not_before
from holdfast.quarantine.dead_letters import PREFIX, copy_letters
from holdfast.reconcile.stand_ins import stand_in
from holdfast.shards.keys import copy_claims
from holdfast.spark.run import Run
from holdfast.starts.backfill import Backfill
from holdfast.starts.context import StartOptions
from holdfast.starts.start_at import StartAt
from holdfast.starts.starting import Starting
from holdfast.store.paths import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LETTERS = PREFIX.rstrip("/")
"""What was copied just before, and is no content: it stays where the content is computed anew."""


class Shadow:
    """What some sinks of a pipeline should hold.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    sinks : sequence of SinkNode
        Of the graph.
    directory : Path
        Of the shadow alone; created when absent.
    settings : Settings
        Of its run.
    at_us : int, optional
        Where the pipeline began that was not to begin at the beginning of its sources.
    session : SparkSession, optional
        Use this session's context.
    stand_in : callable
        Returns the sink in the place of one, in a directory of its own.
    """

    def __init__(
        self,
        pipeline: Graph,
        sinks: Sequence[SinkNode],
        directory: Path,
        settings: Settings,
        *,
        at_us: int | None = None,
        session: SparkSession | None = None,
        stand_in: Callable[[SinkNode, str], SinkNode] = stand_in,
    ) -> None:
        self.directory = directory
        self.pipeline = pipeline.with_sinks([stand_in(node, str(directory / "content" / node.name)) for node in sinks])
        self._sinks = {node.name: node for node in self.pipeline.sinks}
        self.checkpoint = directory / "checkpoint"
        self._settings = settings
        self._at_us = at_us
        self._session = session

    @property
    def is_what_was_kept(self) -> bool:
        """Whether its directory has the content of just these sinks of just this graph."""
        noted = self.directory / "graph"
        return noted.exists() and noted.read_text() == self.pipeline.fingerprint()

    def is_beyond(self, positions: Positions) -> bool:
        """Tell whether what was computed of this graph, or begun, is beyond some positions: rows are not taken back."""
        goes_to, wanted = read_targets(self.checkpoint / FILE_NAME), self._read(positions)
        return self.is_what_was_kept and not all(is_not_before(wanted, each.positions) for each in goes_to)

    def check_nobody_runs(self) -> None:
        """Refuse a directory in which another process computes: a replica's, that runs.

        Raises
        ------
        InvalidPipeline
            Naming the process.
        """
        if not self.checkpoint.is_dir():
            return
        owner = noted_owner(open_store(str(self.checkpoint)))
        if owner.is_alive and owner.pid != os.getpid():
            raise InvalidPipeline(
                f"the shadow in {self.directory} is in use.",
                why=f"process {owner.pid} on this host is alive: a replica, or another comparison, which may be stuck.",
                do=f"end process {owner.pid}, and do it again; holdfast reconcile can be given another directory: "
                "--shadow DIR.",
                pipeline=self.pipeline.name,
            )

    def learn(self, explanations: Mapping[str, Sequence[Explanation]]) -> None:
        """Take what positions mean from a sink, as far as it is not known yet."""
        for node in self.pipeline.sources:
            several = explanations.get(node.name)
            if several and offers(node.spec, ExplainedSpec):
                node.spec.restore(node.name, self._workspace(node.name), several)

    def leave_out(self, letters: Store) -> None:
        """Leave out the rows that became dead letters of the pipeline, by its checkpoint."""
        store = open_store(str(self.checkpoint))
        store.prepare()
        copy_letters(letters, store)

    def hold_as(self, claims: Store) -> None:
        """Reject the rows that the pipeline has rejected as of another segment, by the checkpoint of all its shards."""
        store = open_store(str(self.checkpoint))
        store.prepare()
        copy_claims(claims, store)

    def go_to(self, positions: Positions) -> None:
        """Compute what there is up to some positions, and wait for it.

        Parameters
        ----------
        positions : Positions
            As a sink holds them; not before those of the last call.

        Raises
        ------
        InvalidPipeline
            If a source cannot be read from its beginning any more.
        HoldfastError
            Whatever the run raises.
        """
        if self.is_what_was_kept and self.is_at(positions):
            return
        self.add(positions)
        try:
            self.begin(available_now()).wait()
        except Corrupt as error:  # what was read once is not there any more, or another
            raise self._not_computable(error.what, error.participant) from error
        invariant(
            self.is_at(positions),
            f"the shadow of pipeline {self.pipeline.name!r} has not come to the positions of the sink.",
            pipeline=self.pipeline.name,
            story=lambda: f"wanted: {self._read(positions)}; reached: {self._reached()}",
        )

    def add(self, positions: Positions) -> None:
        """Let it go on to some positions, when it runs; parameters and errors as of :meth:`go_to`."""
        wanted, targets = self._read(positions), self.checkpoint / FILE_NAME
        self._begin_anew_unless_usable(wanted)
        known = read_targets(targets)
        if not known:
            self._check_sources()
        if not known or known[-1].positions != wanted:
            steps = self._steps(wanted if not known else None, wanted)
            add_targets(open_store(str(self.checkpoint)), targets, *steps)

    def begin(self, trigger: Trigger) -> Run:
        """Start its run; with ``hf.available_now()`` it ends at the last of the positions, otherwise it waits there."""
        asked = StartOptions(
            pipeline=self.pipeline,
            checkpoint=str(self.checkpoint),
            trigger=trigger,
            commit_every_ticks=None,
            commit_thread=False,
            session=self._session,
            settings=self._settings,
            begins=StartAt(at_us=self._at_us),
            follows=True,
        )
        return Starting(asked, Lifecycle(NONE, self.pipeline.name)).run()

    def is_at(self, positions: Positions) -> bool:
        """Tell whether what it holds is what there is up to some positions."""
        reached, wanted = self._reached(), self._read(positions)
        return reached is not None and all(
            _rows_to(of) == _rows_to(reached.get(name, {})) for name, of in wanted.items()
        )

    @contextmanager
    def content(self, sink: str) -> Iterator[Content]:
        """Open what a sink should hold."""
        node = self._sinks[sink]
        connected = node.spec.connect(sink, self.pipeline.name, self.schema(sink))
        try:
            assert offers(connected, Comparable)
            with connected.content() as content:
                yield content
        finally:
            connected.close()

    def schema(self, sink: str) -> pa.Schema:
        """Return the schema of the rows that a sink is given; known once the shadow has run."""
        noted = noted_schema(open_store(str(self.checkpoint)), sink)
        return present(noted, f"the shadow has not noted the schema of {sink!r}.", pipeline=self.pipeline.name)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _begin_anew_unless_usable(self, wanted: Positions) -> None:
        """Remove what was computed by another graph, or beyond the positions: rows are not taken back."""
        if read_targets(self.checkpoint / FILE_NAME) and (not self.is_what_was_kept or self.is_beyond(wanted)):
            shutil.rmtree(self.directory / "content", ignore_errors=True)
            for each in sorted(self.checkpoint.iterdir(), key=lambda each: each.name == FILE_NAME):  # the last to go
                if each.name not in ("sources", LETTERS):
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "graph").write_text(self.pipeline.fingerprint())

    def _steps(self, first: Positions | None, wanted: Positions) -> list[Positions]:
        """Return where epochs end: state of a whole stream need not fit into one, and rows without state may."""
        if first is None or not has_state(self.pipeline):
            return [wanted]
        beginnings = {
            node.name: node.source_spec.open(node.name, self._workspace(node.name)).initial()
            for node in self.pipeline.sources
        }
        whole = {name: wanted.get(name, at) for name, at in beginnings.items()}
        return [*Backfill(self.pipeline, self.checkpoint, has_state=True).cuts(whole, {})[1:]] or [wanted]

    def _check_sources(self) -> None:
        # Also without state: rows of the sink whose source is gone would be taken for rows that are too many.
        for name, why in Backfill(self.pipeline, self.checkpoint, has_state=True).obstacles():
            raise self._not_computable(f"source {name!r} cannot be read from the beginning: {why}", name)

    def _not_computable(self, why: str, source: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"what the sinks of pipeline {self.pipeline.name!r} should hold cannot be computed from its sources.",
            why=why,
            do="bring back what is gone; or name the checkpoint of a stopped replica, whose shadow computed it while "
            "the rows were there.",
            pipeline=self.pipeline.name,
            participant=source,
        )

    def _read(self, positions: Positions) -> Positions:
        names = [node.name for node in self.pipeline.sources]
        return {name: of for name, of in positions.items() if name in names}

    def _reached(self) -> Positions | None:
        """Return the end of the last epoch that its stand-ins hold; None where it has not run."""
        if not self.checkpoint.is_dir():
            return None
        number = newest_directory(open_store(str(self.checkpoint)))
        held = [cast("LedgerSpec", node.spec).ledger(node.name, self.pipeline.name) for node in self.pipeline.sinks]
        if not number or any(each is None for each in held):
            return None
        planned = newest_positions(self.checkpoint / "spark" / str(number))
        is_published = all(each is not None and self._read(each.held.positions) == planned for each in held)
        return planned if is_published else None

    def _workspace(self, source: str) -> str:
        return workspace(self.checkpoint, source)


def _rows_to(of: SourcePositions) -> tuple[SourcePositions, bool]:
    """Return up to where a source's rows are, and whether its end was reported: operators give rows at an end."""
    positions, marks = plain(of)
    return positions, "has_ended" in marks
