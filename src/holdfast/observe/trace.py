"""Where a row came from, by its id alone: ``holdfast trace`` (design/0022).

The id of a position is a permutation of the row's number at its place.  So the number that has the id is computed for
each place that a source has read, and where there can be such a row, it is.  Which places there are, the ledgers of the
sinks say: no checkpoint is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.checkpoint.explained import workspace
from holdfast.connectors.reading.bounds import unmarked
from holdfast.connectors.reading.identified import IdentifiedSpec, KnownPlace, TraceableSpec, position_key
from holdfast.display.lines import utc
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode
from holdfast.observe.ledgers import first_line, ledger_of
from holdfast.observe.traced_runs import TracedRuns
from holdfast.ports import ExplainedSpec, Guarantee, LineageSpec, PublishedEpoch, SinkLedger
from holdfast.positions import Position, Positions, SourcePositions
from holdfast.spark.launch import stop_directory
from holdfast.starts.restore import all_steps
from holdfast.types.row_ids import ReadId

Ledgers = Mapping[str, SinkLedger]
"""What a sink's ledgers say, by the names of runs."""

COUNTED_MAX = 100
"""Rows with one id that are counted in a sink."""


@dataclass(frozen=True)
class TracedSink:
    """What a sink says of the row.

    Parameters
    ----------
    name, kind : str
        The sink.
    is_published : bool, optional
        Whether its position is before what the sink holds; None where the sink cannot say.
    epoch, generation : int
        Up to which epoch it holds, and of which generation the last one was.
    problem : str
        Why it cannot say.
    published : PublishedEpoch, optional
        The epoch in which it published the row's position, where its ledger still has that.
    row_count : int, optional
        How many rows with the id it has now; None where it cannot be asked.
    shard : int, optional
        The shard that published it, or whose ledger says how far the sink is; None where there are none.
    """

    name: str
    kind: str
    is_published: bool | None
    epoch: int = 0
    generation: int = 0
    problem: str = ""
    published: PublishedEpoch | None = None
    row_count: int | None = None
    shard: int | None = None


@dataclass(frozen=True)
class Traced:
    """Where a row came from.

    Parameters
    ----------
    id : str
        Its id.
    ticks : int, optional
        The time in it: milliseconds of Unix time, or ticks.
    source, kind, place : str
        The source, its kind, and where in it the row is.
    number : int
        The row's number there, from 0.
    segment, position : str, int
        The position of the source that covers the row.
    operators : tuple of str
        What stands between the source and the sinks, in the order of the graph.
    sinks : tuple of TracedSink
        Those that it can have reached.
    epoch, planned_us : int, optional
        The epoch that it was part of, and when that was planned: where the checkpoint still tells.
    """

    id: str
    ticks: int | None
    source: str
    kind: str
    place: str
    number: int
    segment: str
    position: int
    operators: tuple[str, ...]
    sinks: tuple[TracedSink, ...]
    epoch: int | None = None
    planned_us: int | None = None


def trace(
    pipeline: Graph,
    row_id: str,
    *,
    sink: str | None = None,
    checkpoint: Path | None = None,
    shards: TracedRuns | None = None,
) -> Traced:
    """Find where a row came from.  Changes nothing, fences no run.

    Parameters
    ----------
    pipeline : Graph
        The graph that made the id.
    row_id : str
        The id, as it stands in a sink.
    sink : str, optional
        The sink; by default all.
    checkpoint : Path, optional
        The pipeline's own directory: without it, the ledgers of the sinks are asked.
    shards : TracedRuns, optional
        Those of its shards: then the sources have a position for each segment.

    Raises
    ------
    InvalidPipeline
        If it is no row id, or none of what is known of the sources gave a row this id.
    """
    try:
        read = ReadId.of(row_id)
    except ValueError as error:
        raise InvalidPipeline(
            f"{row_id!r} is no row id.",
            why=f"{error}.",
            do="write what stands in the column that hf.row_id made: 018cc251-f47b-7c14-8ea7-9285b7565008.",
        ) from error
    sinks = _choose(pipeline, sink)
    runs = shards or TracedRuns((pipeline.name,), () if checkpoint is None else (checkpoint,))
    ledgers, problems = _ask(sinks, runs.names)
    sources = [node for node in pipeline.sources if _spec(node) is not None and _between(pipeline, node, sinks)[1]]
    if not sources:
        raise InvalidPipeline(
            f"no source of pipeline {pipeline.name!r} before these sinks gives its rows ids.",
            why="hf.row_id() stands behind none of them; an id that is made of columns names no place.",
            do="look for the values of those columns; or write hf.row_id() right behind the source.",
        )
    for node in sources:
        found = _find(node, read, [each for of in ledgers.values() for each in of.values()], checkpoint, runs)
        if found is not None:
            operators, reached = _between(pipeline, node, sinks)
            place, number, position = found
            asked = _Asked(runs, row_id, node.name, place.segment, position, _id_column(node, pipeline))
            told = tuple(asked.told(each, ledgers, problems) for each in reached)
            epoch, planned_us = _epoch(runs, node.name, place.segment, position)
            return Traced(
                row_id, read.ticks, node.name, node.kind, place.shown, number, place.segment, position,
                tuple(each.name for each in operators), told, epoch, planned_us,
            )  # fmt: skip
    raise InvalidPipeline(
        f"no row with the id {row_id} is known to have come from source {_list(sources)}.",
        why="of what the sinks have noted of their positions"
        + (" and the checkpoint has" if checkpoint else "")
        + ", no place has a row of this id: it is made of columns, of another source, or was added by hand.",
        do="name the pipeline that wrote it, with the names that its sources had; or add --checkpoint DIR, where no "
        "sink keeps what positions mean." + "".join(f"  Sink {name!r}: {why}" for name, why in problems.items()),
    )


def ids_where(pipeline: Graph, where: str, sink: str | None, *, limit: int) -> list[str]:
    """Return the ids of rows that a sink has.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    where : str
        A condition, in the language of the sink's system.
    sink : str, optional
        The sink; may be left out where only one has rows with ids.
    limit : int
        At most so many.

    Raises
    ------
    InvalidPipeline
        If no sink can be asked, several could be, or the condition is refused.
    """
    nodes = [node for node in _choose(pipeline, sink) if offers(node.spec, LineageSpec)]
    identified = [(node, ids.column) for node in nodes if node.stream and (ids := node.stream.shape.ids) is not None]
    if len(identified) != 1:
        raise InvalidPipeline(
            f"pipeline {pipeline.name!r} has {len(identified) or 'no'} sinks whose rows can be asked for by --where.",
            why="a sink is asked that says which rows it has (sqlite, postgres, files), of rows with ids.",
            do="name one: --sink NAME."
            if identified
            else "write hf.row_id() behind the source; the id must come to the sink.",
            pipeline=pipeline.name,
        )
    ((node, column),) = identified
    assert offers(node.spec, LineageSpec)
    return [str(row[column]) for row in node.spec.find(node.name, where, limit=limit)]


def lines(found: Traced) -> Iterator[str]:
    """Yield what was found, for people."""
    if found.ticks is not None:
        yield f"time       {utc(found.ticks * 1000, is_exact=True)} (or tick {found.ticks})"
    at = f"position {found.segment}={found.position}"
    yield f"source     {found.source} ({found.kind}): {found.place}, row {found.number}; {at}"
    yield f"operators  {', '.join(found.operators) or 'none'}"
    if found.epoch is not None and found.planned_us is not None:
        yield f"epoch      {found.epoch}, planned {utc(found.planned_us)}"
    for sink in found.sinks:
        shard = "" if sink.shard is None else f" of shard {sink.shard}"
        if sink.is_published is None:
            said = sink.problem
        elif sink.published is not None:
            of = sink.published
            said = f"published, in epoch {of.epoch}{shard} (generation {of.generation}), {utc(of.at_us, is_exact=True)}"
        elif sink.is_published:
            said = f"published, in epoch {sink.epoch}{shard} (generation {sink.generation}) or before"
        else:
            said = f"not published yet: it holds up to epoch {sink.epoch}{shard}"
        has = {None: "", 0: "; it has no row with this id", 1: "; it has the row"}
        counted = has.get(sink.row_count, f"; it has {sink.row_count} rows with this id")
        yield f"sink       {sink.name} ({sink.kind}): {said}{counted}"


def _choose(pipeline: Graph, name: str | None) -> Sequence[SinkNode]:
    found = [node for node in pipeline.sinks if name in (None, node.name)]
    if not found:
        raise InvalidPipeline(
            f"pipeline {pipeline.name!r} has no sink {name!r}.",
            why=f"its sinks are {', '.join(node.name for node in pipeline.sinks)}.",
            do="name one of these, or leave --sink out.",
        )
    return found


def _ask(sinks: Sequence[SinkNode], names: Sequence[str]) -> tuple[dict[str, Ledgers], dict[str, str]]:
    """Return what ledgers say, and of the sinks without one why they say nothing."""
    said: dict[str, Ledgers] = {}
    problems: dict[str, str] = {}
    for node in sinks:
        if node.guarantee is Guarantee.AT_LEAST_ONCE:
            problems[node.name] = "keeps no ledger, so it cannot say what it holds"
            continue
        try:
            asked = {name: ledger_of(node, name) for name in names}
        except Exception as error:  # whatever a driver raises: the other sinks are asked nevertheless
            problems[node.name] = first_line(error)
            continue
        said[node.name] = {name: ledger for name, ledger in asked.items() if ledger is not None}
        if not said[node.name]:
            problems[node.name] = "has no ledger of this pipeline"
    return {name: of for name, of in said.items() if of}, problems


def _spec(node: Node) -> IdentifiedSpec | None:
    given = unmarked(node.source_spec)
    return given if isinstance(given, IdentifiedSpec) else None


def _between(pipeline: Graph, source: Node, sinks: Sequence[SinkNode]) -> tuple[list[Node], list[SinkNode]]:
    """Return the operators between a source and sinks, and those of the sinks that are downstream of it."""
    downstream = {source}
    for node in pipeline.nodes:  # inputs come first
        if downstream.intersection(node.inputs):
            downstream.add(node)
    reached = [sink for sink in sinks if downstream.intersection(sink.inputs)]
    upstream: set[Node] = {node for sink in reached for node in sink.inputs}
    for node in reversed(pipeline.nodes):
        if node in upstream:
            upstream.update(node.inputs)
    return [node for node in pipeline.nodes if node in downstream & upstream and not node.is_source], reached


def _find(
    node: Node, read: ReadId, ledgers: Sequence[SinkLedger], checkpoint: Path | None, runs: TracedRuns
) -> tuple[KnownPlace, int, int] | None:
    spec = _spec(node)
    assert spec is not None
    with _past(node, spec, ledgers, checkpoint, runs) as (place_of_past, until):
        return read_at(spec, node.name, read, place_of_past, until)


def read_at(
    spec: IdentifiedSpec, name: str, read: ReadId, workspace: str, until: SourcePositions
) -> tuple[KnownPlace, int, int] | None:
    """Return the place of a row of a source, its number there, and the position that covers it; None if it has none.

    Parameters
    ----------
    spec, name : IdentifiedSpec, str
        The source.
    read : ReadId
        The row's id.
    workspace : str
        The source's directory.
    until : mapping of str to int or str
        Positions before which the row is.
    """
    for place in spec.given.places(name, workspace, until) if offers(spec.given, TraceableSpec) else ():
        number = read.number(position_key(name, place.place))
        if number is not None and place.begin <= number < place.end and _is_read_at(place, read, spec):
            return place, number, number + place.shift if place.position is None else place.position
    return None


def _is_read_at(place: KnownPlace, read: ReadId, spec: IdentifiedSpec) -> bool:
    """Return whether rows of the id's time are read at a position, where several have rows of one place."""
    if spec.id_time is None or spec.id_time != spec.timestamp or read.ticks is None:
        return True
    unit = 1000 if pa.types.is_timestamp(spec.schema.field(spec.id_time).type) else 1
    is_behind = place.since is not None and read.ticks < place.since // unit
    return not is_behind and (place.before is None or read.ticks <= (place.before - 1) // unit)


@contextmanager
def _past(
    node: Node, spec: IdentifiedSpec, ledgers: Sequence[SinkLedger], checkpoint: Path | None, runs: TracedRuns
) -> Iterator[tuple[str, dict[str, Position]]]:
    """Give the workspace of a source, and the positions up to which something is known of it."""
    until: dict[str, Position] = {}
    for ledger in ledgers:
        for segment, position in ledger.held.positions.get(node.name, {}).items():
            until[segment] = max(int(position), int(until.get(segment, 0)))
    if checkpoint is not None:
        place = workspace(checkpoint, node.name)
        steps = [step for each in runs.checkpoints for step in all_steps(each)[-1:]]
        planned = [step.ended.positions.get(node.name, {}) for step in steps]
        for segment, position in (pair for each in (*planned, spec.reached(node.name, place)) for pair in each.items()):
            until[segment] = max(int(position), int(until.get(segment, 0)))
        yield place, until
        return
    with stop_directory.temporary() as directory:
        scratch = str(directory)
        told = [
            [each for each in ledger.explanations if each.source == node.name] for ledger in ledgers
        ]  # each sink has a beginning of the same list
        longest = max(told, key=len, default=[])
        if longest and offers(spec.given, ExplainedSpec):
            spec.restore(node.name, scratch, longest)
        yield scratch, until


@dataclass(frozen=True)
class _Asked:
    """What sinks are asked about a row."""

    runs: TracedRuns
    row_id: str
    source: str
    segment: str
    position: int
    id_column: str

    def told(self, sink: SinkNode, ledgers: Mapping[str, Ledgers], problems: Mapping[str, str]) -> TracedSink:
        """Return what a sink says."""
        count = self._count(sink)
        if sink.name not in ledgers:
            return TracedSink(sink.name, sink.kind, None, problem=problems.get(sink.name, ""), row_count=count)
        name, ledger = max(ledgers[sink.name].items(), key=lambda each: self._end(each[1].held.positions))
        held, is_published = ledger.held, self._is_before(ledger.held.positions)
        published = self._published(sink) if is_published else None
        if published is not None:
            name = published[0]
        found = None if published is None else published[1]
        shard = self.runs.shard(name)
        return TracedSink(sink.name, sink.kind, is_published, held.epoch, held.generation, "", found, count, shard)

    def _published(self, sink: SinkNode) -> tuple[str, PublishedEpoch] | None:
        """Return the first epoch whose end is behind the position, and of which run; None where that may be another.

        What is known may begin after it.  And where a segment was handed over, the epoch without rows that did so is
        behind all that it had: an epoch is sure before which its run had the segment.
        """
        spec, found = sink.spec, list[tuple[str, PublishedEpoch, bool]]()
        for name in self.runs.names:
            known = spec.history(sink.name, name) if offers(spec, LineageSpec) else ()
            at = next((at for at, each in enumerate(known) if self._is_before(each.positions)), None)
            if at is None:
                continue
            had_segment = at > 0 and self.segment in known[at - 1].positions.get(self.source, {})
            is_first = at > 0 or known[0].epoch == 1
            found.append((name, known[at], had_segment if self.runs.is_moved else is_first))
        name, published, is_sure = min(found, key=lambda each: each[1].at_us, default=("", None, False))
        return (name, published) if is_sure and published is not None else None

    def _is_before(self, positions: Positions) -> bool:
        return self.position < self._end(positions)

    def _end(self, positions: Positions) -> int:
        return int(positions.get(self.source, {}).get(self.segment, 0))

    def _count(self, sink: SinkNode) -> int | None:
        if not offers(sink.spec, LineageSpec):
            return None
        try:
            return len(sink.spec.find(sink.name, (self.id_column, self.row_id), limit=COUNTED_MAX))
        except Exception:  # whatever a driver raises: there may be no such column, or no such table
            return None


def _id_column(source: Node, pipeline: Graph) -> str:
    spec = _spec(source)
    assert spec is not None
    return spec.column


def _epoch(runs: TracedRuns, source: str, segment: str, position: int) -> tuple[int | None, int | None]:
    """Return the epoch that read a position, and its batch time, where the logs of the engine still have it."""
    for step in (step for each in runs.checkpoints for step in all_steps(each)):
        begin = int(step.start.get(source, {}).get(segment, 0))
        if begin <= position < int(step.ended.positions.get(source, {}).get(segment, 0)):
            return step.ended.epoch, step.ended.batch_us
    return None, None


def _list(nodes: Sequence[Node]) -> str:
    return " or ".join(repr(node.name) for node in nodes)
