"""Backfills: a range of the past through the present graph, beside the run of the pipeline (design/0056).

A backfill is a pipeline of its own by its name, ``trips-backfill_3f2a91c0``, with a checkpoint below the pipeline's and
a ledger row of its own in every sink.  The name follows from what is asked for: the same again goes on, or is done.

Durable writes of a start: 1. the note in the pipeline's checkpoint; 2. the note again, once no other one is in its way;
3. the rate, in the backfill's; then those of any start.  At its end: 4. the note once more.  Dead after 1: the next
start has its word that the rows may be written, and looks again.  Dead before 4: the next start finds that its sinks
hold the ends of its sources, and notes it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.capabilities import offers
from holdfast.checkpoint.backfills import BackfillNote, note_backfill, note_end, noted_backfills
from holdfast.checkpoint.directory_header import newest_directory, noted_beginning
from holdfast.checkpoint.schemas import OUT_OF_REACH
from holdfast.checkpoint.spark_log import CONTROLS, ended
from holdfast.clock import SystemClock
from holdfast.commit.ledger import Standing, survey
from holdfast.config import Settings
from holdfast.connectors.reading.from_time import from_beginning
from holdfast.connectors.reading.until import ends_at
from holdfast.controller.steering import call_at_end, listen
from holdfast.controller.telling import begin_followed
from holdfast.display.lines import utc
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.graph.event_time import TimeUnit, common_unit
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode, in_order
from holdfast.graph.trigger import available_now
from holdfast.plan.cutting import has_state
from holdfast.ports import Guarantee, LedgerSpec, Store
from holdfast.positions import Positions
from holdfast.shards.naming import backfill_checkpoint, backfill_name
from holdfast.starts.behind import published
from holdfast.starts.context import StartOptions
from holdfast.starts.start import begin_run
from holdfast.starts.start import start as start_as_asked
from holdfast.starts.start_at import StartAt
from holdfast.steer.controls import Controls, checked_rate
from holdfast.steer.entries import ControlEntry, ControlLog, in_force
from holdfast.store import sealed
from holdfast.store.paths import checkpoint_directory, open_store

if TYPE_CHECKING:
    from holdfast.spark.run import Run

log = logging.getLogger("holdfast.run")

_NOT_THERE = {
    "callback": "its rows are pushed by a program, and go once its sinks hold them.",
    "camera": "what it records goes once its sinks hold it, and a camera does not send it again.",
    "rate": "its rows begin when it is read first.",
}
"""Kinds of sources whose past nobody else can read, and why."""

_ONE_WRITER = {
    "byte_stream": "a stream has one writer, and its messages are in the order of the live run.",
    "foreach_batch": "its function knows rows by the number of their epoch, and a backfill counts epochs of its own.",
}
"""Kinds of sinks that only the live run can write, and why."""

_REPLACED_IN_REDIS = ("hash", "fields")
"""How Redis has rows that the next one of the same id replaces; a stream has all of them."""

_KEEPS_WHAT_IS_REPLACED = ("kafka",)
"""Kinds of sinks that append even where they are upserted: who reads a topic meets both rows, until it is compacted."""

_FILES_OF_ITS_OWN = ("files", "segments")
"""Kinds of sinks whose files say whose they are: what the live run should have written is compared without them."""


@dataclass(frozen=True)
class Backfilling:
    """A backfill that may be made: everything that is refused has been looked for, and nothing was written.

    Parameters
    ----------
    graph : Graph
        The part of the pipeline that it runs, under its own name.
    pipeline : str
        The user's name.
    place, checkpoint : str
        The checkpoint of the pipeline, and its own below it.
    note : BackfillNote
        What it is asked for.
    spark_checkpoint : str, optional
        Of a checkpoint in an object store: where Spark's part lies.
    """

    graph: Graph
    pipeline: str
    place: str
    checkpoint: str
    note: BackfillNote
    spark_checkpoint: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether every sink holds its range."""
        return self.note.ended_us is not None

    @property
    def directory(self) -> Path:
        """Where its own checkpoint lies, there or not."""
        return checkpoint_directory(self.checkpoint, scratch_base=self.spark_checkpoint)

    def lines(self) -> Iterator[str]:
        """Say what it does, for people, before it starts."""
        note = self.note
        yield f"backfill {note.name} of pipeline {self.pipeline!r}: {note.shown} of {', '.join(note.sources)}"
        yield f"sinks    {', '.join(note.sinks)}"
        if has_state(self.graph):
            yield "state    begins empty, and is the backfill's own: that of the live run is not touched"
        yield f"checkpoint  {self.checkpoint}"
        if note.ended_us is not None:
            yield f"done since {utc(note.ended_us)}: every sink holds the range"

    def start(
        self,
        *,
        rate: float | None = None,
        settings: Settings | None = None,
        session: Any = None,
        master: str | None = None,
    ) -> Run:
        """Start it, or let it go on; where it is done the run ends at once.

        Parameters
        ----------
        rate : float, optional
            Rows a second that each source delivers at most, from now on; None: as before, and without a limit at first.
        settings, session, master
            As of :func:`holdfast.starts.start.start`.
        """
        chosen = settings or Settings()
        # One run, whatever the pipeline is; its metrics have the live run's port.
        chosen = Settings(
            **{**chosen.model_dump(), "shards": 0, "metrics": "", **({"master": master} if master else {})}
        )
        note_backfill(self._store, self.note)  # 1.
        if not self.is_done:  # another one may have been asked for since: of two, one at least sees the other
            _Looked.at(self._store, self.graph, self.note, self.pipeline).check()
            note_backfill(self._store, replace(self.note, accepted=True))  # 2.
        self._limit(rate)  # 3.

        def begin(asked: StartOptions) -> Run:
            return begin_followed(self.graph, chosen, lambda: begin_run(replace(asked, is_backfill=True)))

        run = start_as_asked(
            self.graph,
            checkpoint=self.checkpoint,
            trigger=available_now(),
            session=session,
            settings=chosen,
            at=self.note.at,
            until=self.note.until,
            spark_checkpoint=self.spark_checkpoint,
            begin=begin,
        )
        listen(run, self.directory)
        call_at_end(run, self._note_end)
        if not run.is_active:  # it has ended before it was asked to tell
            with suppress(HoldfastError):  # who waits for it is told
                run.wait()
                self.finish()
        return run

    def finish(self) -> bool:
        """Note that it is done, if every sink holds the ends of its sources; return whether it is."""
        store = self._store
        noted = next((each for each in noted_backfills(store) if each.name == self.note.name), self.note)
        if noted.ended_us is None:
            if not self._is_held():
                return False
            note_end(store, noted, SystemClock().now_us())  # 4.
        return True

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        return open_store(str(checkpoint_directory(self.place, scratch_base=self.spark_checkpoint)))

    def _is_held(self) -> bool:
        """Return whether the epochs that report the ends are published in every sink: what is planned proves nothing.

        A sink is asked itself, where it has a ledger that can be asked; of another one the engine knows it, once
        nothing that was decided is open.
        """
        store = open_store(str(self.directory))
        number = newest_directory(store)
        _, finished = published(self.directory / "spark" / str(number)) if number else (0, {})
        has_controls = CONTROLS in finished
        if not self._has_ends(finished, has_controls=has_controls):
            return False
        is_known = True
        for node in self.graph.sinks:
            if (spec := _ledger_spec(node)) is None:
                is_known = False
                continue
            try:
                ledger = spec.ledger(node.name, self.graph.name)
            except Exception as error:  # whatever a driver raises: the same command asks again
                log.warning("whether sink %r holds the range is not known: %s", node.name, error)
                return False
            if ledger is None or not self._has_ends(ledger.held.positions, has_controls=has_controls):
                return False
        return is_known or all(each.standing in (Standing.DONE, Standing.VOID) for each in survey(store))

    def _has_ends(self, positions: Positions, *, has_controls: bool) -> bool:
        """Return whether all sources have ended there; where Spark computes stage 0, whether steps have been told."""
        sources = {*self.note.sources}
        is_told = not has_controls or {*positions.get(CONTROLS, {})} >= sources
        return {*ended(positions)} >= sources and is_told

    def _note_end(self, error: HoldfastError | None) -> None:
        if error is None:
            self.finish()

    def _limit(self, rate: float | None) -> None:
        if rate is None:
            return
        store = open_store(str(self.directory))
        store.prepare()
        wanted = {source: checked_rate(source, rate) for source in self.note.sources}
        if dict(in_force(store).limits) != wanted:
            told = ControlEntry(uuid.uuid4().hex, "limit", {"rows_per_s": rate}, 0, SystemClock().now_us(), Controls())
            ControlLog(store).put(told, lambda before: replace(before, limits=wanted))


def backfilling(
    pipeline: Graph,
    *,
    checkpoint: str,
    at: str | datetime | int,
    until: str | datetime | int,
    sources: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    again: bool = False,
    empty_state: bool = False,
    spark_checkpoint: str | None = None,
) -> Backfilling:
    """Return a backfill that may be made.

    Parameters
    ----------
    pipeline : Graph
        The pipeline.
    checkpoint : str
        Its checkpoint: it has run there, and may run now.
    at, until : str, datetime or int
        The range, as of a start; the second one is exclusive.
    sources : sequence of str
        The sources that are read; none: all that the sinks need.
    leave_out : sequence of str
        Sinks that get nothing.
    again : bool
        Whether sinks may get rows that they hold already: twice where they append, and over newer ones of the same key.
    empty_state : bool
        Whether operators that keep state may begin without any.
    spark_checkpoint : str, optional
        As of a start.

    Raises
    ------
    InvalidPipeline
        If it cannot be made, or needs the user's word; says which.
    """
    graph = _part(pipeline, sources, leave_out)
    range_ = _range(graph, at, until)
    store = open_store(str(checkpoint_directory(checkpoint, scratch_base=spark_checkpoint)))
    _check_has_run(store, pipeline.name)
    note = replace(_note(graph, *range_), again=again, empty_state=empty_state)
    specs = {node.name: from_beginning(node.source_spec) for node in graph.sources}  # its range says where it begins
    own = replace(graph.with_sources(backfill_name(pipeline.name, note.name), specs), shard_by=None, shards=None)
    place = backfill_checkpoint(checkpoint, note.name)
    known = next((each for each in noted_backfills(store) if each.name == note.name), None)
    if known is not None:
        note = note.with_those_of(known)
    if note.ended_us is None:  # the graph may have changed since it was asked for first
        looked = _Looked.at(store, own, note, pipeline.name)
        looked.check()
        note = replace(note, adds=tuple(sorted({*note.adds, *looked.adds})))
    return Backfilling(own, pipeline.name, checkpoint, place, note, spark_checkpoint)


@dataclass(frozen=True)
class _Looked:
    """What a backfill would do to each sink.

    Parameters
    ----------
    graph : Graph
        What it runs.
    note : BackfillNote
        What it is asked for, and what the user has said may be.
    pipeline : str
        The user's name.
    live_from : int, optional
        The time at which the live run began; None: the beginning of its sources, as far as is known.
    earlier : sequence of BackfillNote
        Other backfills that have not been asked about this one.
    """

    graph: Graph
    note: BackfillNote
    pipeline: str
    live_from: int | None
    earlier: Sequence[BackfillNote]

    @classmethod
    def at(cls, store: Store, graph: Graph, note: BackfillNote, pipeline: str) -> _Looked:
        """Look at what the checkpoint of the pipeline says now."""
        others = [each for each in noted_backfills(store) if each.name != note.name]
        if note.accepted:  # who is not yet has written nothing, and meets this one when it looks
            others = [each for each in others if each.accepted]
        asked = (note.begun_us, note.name)
        earlier = [each for each in others if not (each.again and (each.begun_us, each.name) > asked)]
        return cls(graph, note, pipeline, _live_from(store), earlier)

    @property
    def adds(self) -> tuple[str, ...]:
        """Sinks that would hold rows of which nothing says that the live run does not give them."""
        is_of_live = self.live_from is None or self.note.at >= self.live_from
        shared = [node for node in self.graph.sinks if node.kind not in _FILES_OF_ITS_OWN]
        return tuple(node.name for node in shared if not (is_of_live and self._replaces_itself(node)))

    def check(self) -> None:
        """Refuse what cannot be, then what needs the user's word and has not got it."""
        name = self.pipeline
        for node in self.graph.sinks:
            why = _ONE_WRITER.get(node.kind, "")
            if node.spec.arguments().get("rewindable"):
                why = "a rewind finds the rows of its table by their epoch, and a backfill counts epochs of its own."
            if why:
                raise InvalidPipeline(
                    f"sink {node.name!r} ({node.kind}) of pipeline {name!r} cannot be backfilled.",
                    why=why,
                    do=f"leave it out: --except {node.name} (leave_out=).",
                    pipeline=name,
                    participant=node.name,
                )
        if has_state(self.graph) and not self.note.empty_state:
            raise InvalidPipeline(
                f"a backfill of pipeline {name!r} begins without state.",
                why="the state of the live run is of now, and not of that time: what was before the range is in no "
                "window, join or count of the backfill.",
                do="say so: --empty-state (empty_state=True), with a range that begins and ends where windows do.",
                pipeline=name,
            )
        doubts = {node.name: why for node in self.graph.sinks if (why := self._doubt(node))}
        if doubts and not self.note.again:
            raise InvalidPipeline(
                f"a backfill of pipeline {name!r} would give {', '.join(map(repr, doubts))} rows that may be there.",
                why=" ".join(f"{sink}: {why}." for sink, why in doubts.items()),
                do=f"leave them out: {' '.join(f'--except {sink}' for sink in doubts)} (leave_out=); or choose another "
                "range; or say that it is wanted: --again (again=True).",
                pipeline=name,
                participant=next(iter(doubts)),
            )

    def _doubt(self, node: SinkNode) -> str:
        """Return why a sink may hold rows that it would get; empty where none, or where they replace themselves."""
        if self._replaces_itself(node):
            return ""
        if _is_upserted(node) and has_state(self.graph):
            return "a result of the range alone replaces the one of its key"
        if _is_upserted(node) and not _knows_row(node):
            return (
                f"a row replaces the one of its key ({', '.join(_key(node))}), also one that is newer, since the key "
                "has no timestamp"
            )
        if _has_rejects(node):
            return "malformed rows have no time: those of all files that are opened come"
        for other in self.earlier:
            if other.overlaps(self.note, node.name):
                return f"it appends, and backfill {other.name} wrote {other.shown}"
        if self.live_from is None:
            return "it appends, and the live run began at the beginning of its sources: it gives the same rows"
        if self.note.until > self.live_from:
            began = _time_text(self.graph, self.live_from)
            return f"it appends, and the live run began at {began}: it gives the same rows"
        return ""

    def _replaces_itself(self, node: SinkNode) -> bool:
        """Return whether a row replaces itself and no other: its key has its time or its id, and no state made it."""
        is_replaced = _is_upserted(node) and node.kind not in _KEEPS_WHAT_IS_REPLACED
        return is_replaced and _knows_row(node) and not has_state(self.graph)


# --- what is asked for ----------------------------------------------------------------------------------------------


def _part(pipeline: Graph, sources: Sequence[str], leave_out: Sequence[str]) -> Graph:
    """Return the part of a pipeline that gives the sinks their rows, with its hooks."""
    _check_names(pipeline, "source", sources, [node.name for node in pipeline.sources])
    _check_names(pipeline, "sink", leave_out, [node.name for node in pipeline.sinks])
    sinks = [node for node in pipeline.sinks if node.name not in leave_out]
    if not sinks:
        raise InvalidPipeline(
            f"a backfill of pipeline {pipeline.name!r} would write to no sink.",
            why="all of them are left out.",
            do=f"leave out fewer of {', '.join(leave_out)}: --except (leave_out=).",
            pipeline=pipeline.name,
        )
    for sink in sinks if sources else ():
        others = [each.name for each in _sources_of(sink) if each.name not in sources]
        if others:
            raise InvalidPipeline(
                f"sink {sink.name!r} needs source {others[0]!r} too, and the backfill would not read it.",
                why="its rows are of both.",
                do=f"name it too: --source {others[0]} (sources=); or leave the sink out: --except {sink.name} "
                "(leave_out=).",
                pipeline=pipeline.name,
                participant=sink.name,
            )
    graph = replace(pipeline.with_sinks(sinks), hooks=pipeline.hooks)
    for name in sources:
        if name not in [node.name for node in graph.sources]:
            raise InvalidPipeline(
                f"no sink of the backfill needs source {name!r}.",
                why="the sinks that do are left out.",
                do="leave the source out of --source (sources=), or keep a sink that needs it: --except (leave_out=).",
                pipeline=pipeline.name,
                participant=name,
            )
    return graph


def _check_names(pipeline: Graph, what: str, names: Sequence[str], there: Sequence[str]) -> None:
    for name in names:
        if name not in there:
            raise InvalidPipeline(
                f"pipeline {pipeline.name!r} has no {what} {name!r}.",
                why=f"its {what}s are {', '.join(there)}.",
                do=f"write one of {', '.join(there)}.",
                pipeline=pipeline.name,
            )


def _range(graph: Graph, at: str | datetime | int, until: str | datetime | int) -> tuple[int, int]:
    """Return the range, which each source can be limited to."""
    for node in graph.sources:
        if node.kind in _NOT_THERE:
            raise InvalidPipeline(
                f"source {node.name!r} ({node.kind}) has no past that a backfill could read.",
                why=_NOT_THERE[node.kind],
                do="leave out the sinks that need it: --except SINK (leave_out=).",
                pipeline=graph.name,
                participant=node.name,
            )
    begins = StartAt.of(graph, at=at)
    begins.check_sources(graph)
    end = ends_at(graph, until, at=begins.at_us)
    assert begins.at_us is not None
    assert end is not None
    return begins.at_us, end


def _note(graph: Graph, at: int, until: int) -> BackfillNote:
    sources, sinks = (tuple(sorted(node.name for node in nodes)) for nodes in (graph.sources, graph.sinks))
    asked = json.dumps([at, until, sources, sinks])
    name = hashlib.sha256(asked.encode()).hexdigest()[:8]
    shown = f"{_time_text(graph, at)} to {_time_text(graph, until)}"
    return BackfillNote(name, at, until, sources, sinks, (), shown, SystemClock().now_us())


def _time_text(graph: Graph, time: int) -> str:
    return str(time) if common_unit(graph.sources) is TimeUnit.TICKS else utc(time, is_exact=True)


# --- what is there --------------------------------------------------------------------------------------------------


def _check_has_run(store: Store, pipeline: str) -> None:
    identity = store.get("identity.json")
    owner = None if identity is None else sealed.load(identity).get("pipeline")
    if owner is None:
        raise InvalidPipeline(
            f"pipeline {pipeline!r} has not run on this checkpoint.",
            why="a backfill gives the sinks what the live run does not; without one, a first start gives everything.",
            do="start it first, with at= (--at) where the live run is to begin.",
            pipeline=pipeline,
        )
    if owner != pipeline:
        raise InvalidPipeline(
            f"the checkpoint belongs to pipeline {owner!r}, not to {pipeline!r}.",
            why="positions and decisions of one pipeline mean nothing to another.",
            do="name the checkpoint of this pipeline.",
            pipeline=pipeline,
        )


def _live_from(store: Store) -> int | None:
    noted = noted_beginning(store)
    return None if noted is None else noted[1].from_us


def _ledger_spec(node: SinkNode) -> LedgerSpec | None:
    """Return the declaration of a sink by which its ledger is asked; None where only its run can."""
    spec = node.spec
    is_there = node.guarantee is Guarantee.EXACTLY_ONCE and node.kind not in OUT_OF_REACH
    return spec if is_there and offers(spec, LedgerSpec) else None


def _sources_of(sink: SinkNode) -> list[Node]:
    return [node for node in in_order([*sink.inputs]) if node.is_source]


def _is_upserted(node: SinkNode) -> bool:
    """Return whether a row takes the place of the one of its key; of a topic, for who reads the last of a key."""
    said = node.spec.arguments()
    return said.get("mode") == "upsert" or (node.kind == "redis" and said["as"] in _REPLACED_IN_REDIS)


def _key(node: SinkNode) -> Sequence[str]:
    said = node.spec.arguments()
    return (said["id"],) if node.kind == "redis" else tuple(said.get("key") or ())


def _knows_row(node: SinkNode) -> bool:
    """Return whether the key has the time of a row or its id, so that no other row has it."""
    timestamp = node.inputs[0].shape.timestamp
    identity = {*(() if timestamp is None else (timestamp,)), *_ids_of(node)}
    return not identity.isdisjoint(_key(node))


def _ids_of(node: SinkNode) -> Sequence[str]:
    ids = node.inputs[0].shape.ids
    return () if ids is None else (ids.column,)


def _has_rejects(node: SinkNode) -> bool:
    """Return whether rows come from the rejects of a source."""
    return any(each.kind == "rejects" and each.inputs[0].is_source for each in in_order([*node.inputs]) if each.inputs)
