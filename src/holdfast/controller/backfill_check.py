"""What a backfill would do to each sink: what cannot be, and what needs the user's word (design/0056, 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.backfills import BackfillNote, noted_backfills
from holdfast.checkpoint.directory_header import noted_beginning
from holdfast.display.lines import utc
from holdfast.errors import InvalidPipeline
from holdfast.graph.event_time import TimeUnit, common_unit
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode, in_order
from holdfast.plan.cutting import has_state
from holdfast.ports import Store

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
class BackfillCheck:
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
    def at(cls, store: Store, graph: Graph, note: BackfillNote, pipeline: str) -> BackfillCheck:
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
            began = time_text(self.graph, self.live_from)
            return f"it appends, and the live run began at {began}: it gives the same rows"
        return ""

    def _replaces_itself(self, node: SinkNode) -> bool:
        """Return whether a row replaces itself and no other: its key has its time or its id, and no state made it."""
        is_replaced = _is_upserted(node) and node.kind not in _KEEPS_WHAT_IS_REPLACED
        return is_replaced and _knows_row(node) and not has_state(self.graph)


def time_text(graph: Graph, time: int) -> str:
    """Return a time of event time for people: ticks as they are."""
    return str(time) if common_unit(graph.sources) is TimeUnit.TICKS else utc(time, is_exact=True)


def _live_from(store: Store) -> int | None:
    noted = noted_beginning(store)
    return None if noted is None else noted[1].from_us


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
