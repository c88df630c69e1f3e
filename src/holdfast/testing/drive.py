"""``drive``: a graph run in this process and without Spark, epoch by epoch.

What runs is the physical plan of a run: the Arrow program of a graph without state, or its stages and levels, with the
same chunks, buckets, bounds and order of arrival.  In the place of Spark there is only what hands chunks from one level
to the next and keeps cells.  Nothing is cached from one epoch to the next, so a test that passes here has shown that
its state survives the way through bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa

from holdfast.connectors.memory import MemorySpec
from holdfast.connectors.reading.bounds import MarkedSource
from holdfast.errors import InvalidPipeline, invariant
from holdfast.graph.nodes import Node, Stream, sink
from holdfast.pipeline import Pipeline
from holdfast.plan import batches
from holdfast.plan.audit import Audit, audit_of_program, audit_of_stages
from holdfast.plan.chunks import Chunk, reported
from holdfast.plan.counts import Counts, EpochReport, united
from holdfast.plan.cutting import build_stages, has_state
from holdfast.plan.levels.host import levels_of
from holdfast.plan.levels.level import EpochContext, WorkerMemory
from holdfast.plan.levels.line import Outlets
from holdfast.plan.levels.packing import packings
from holdfast.plan.levels.parts import DueTimes
from holdfast.plan.levels.store import Cache, Record, load
from holdfast.plan.program_build import Builder, as_it_is, build_program
from holdfast.plan.report import Pace
from holdfast.ports import Source, Span
from holdfast.state import tables
from holdfast.state.bucket_report import BucketReport
from holdfast.state.keyed import parted
from holdfast.state.labels import label
from holdfast.testing.given import DictionaryCells, Item, Stored, Time, ends_in, given_spec, ticks_of
from holdfast.testing.stand_in import FirstStage, StandIn, StandInPlan, without_spark

_RIGHT = 'drive(stream, {"flights": [[{"origin": "JFK", "t": 10}], [bound(20)]]})'

_SINK = "driven"

Reports = Mapping[str, BucketReport]
"""Bucket (``operator/number``) -> what it reported."""


def drive(
    stream: Stream,
    sources: Mapping[str, Sequence[Sequence[Item]]],
    *,
    buckets: int = 1,
    batch_times: Sequence[Time] | None = None,
    behind: Sequence[Collection[str]] = (),
    stand_ins: Mapping[str, StandIn] | None = None,
) -> list[list[dict[str, Any]]]:
    """Run a graph without Spark: everything that Arrow evaluates, and all stateful operators.

    Parameters
    ----------
    stream : Stream
        Whose rows are wanted; also a side output such as ``aligned.late``.
    sources : mapping of str to sequence
        Source name -> for each epoch its rows, as dicts, with control rows (:func:`~holdfast.testing.given.bound`,
        :func:`~holdfast.testing.given.close`, :func:`~holdfast.testing.given.malformed`) among them.  Within an epoch
        the rows of the first source arrive before those of the second, and so on (a run takes the sources in the order
        in which the graph reads them); a source with fewer epochs than others has no rows in the later ones.
    buckets : int
        Number of buckets that keys are divided into.  The rows do not depend on it; their order across keys may.
    batch_times : sequence, optional
        Batch time of each epoch: microseconds of Unix time, ISO 8601 text or datetimes.  By default one second apart.
        More times than epochs give epochs without rows.
    behind : sequence of collection of str, optional
        For each epoch the sources that have more rows than it takes: they count as active (``idle_after``).
    stand_ins : mapping of str to StandIn, optional
        Operators that only Spark evaluates, in a graph with state -> what they make of rows, in Arrow.

    Returns
    -------
    list of list of dict
        For each epoch the rows of the stream.

    Raises
    ------
    InvalidPipeline
        If a source is not given or not part of the graph, a row does not fit its schema, or an operator needs Spark.

    Notes
    -----
    Timestamps in rows are what the schema says: datetimes for TIMESTAMP, integers for BIGINT.  Epochs count from 1, as
    in a run.  As there, bounds follow the rows that precede them or are not below them, and a bucket's step is called
    where something arrives in it, or where the operator depends on batch time.
    Other operators of a pipeline that read the same source are not there: a bound row that has a value in a key column
    of theirs may hold here for keys for which it does not hold in a run.

    Examples
    --------
    >>> import holdfast as hf
    >>> flights = hf.read.rows([], schema="origin STRING, delay INT", name="flights")
    >>> drive(flights | hf.filter("delay > 15"), {"flights": [[{"origin": "JFK", "delay": 20}], []]})
    [[{'origin': 'JFK', 'delay': 20}], []]
    """
    driven = Drive(stream, sources, buckets=buckets, batch_times=batch_times, behind=behind, stand_ins=stand_ins)
    return [table.to_pylist() for table in driven.tables()]


class Drive:
    """A graph under test, with what :func:`drive` does not return: counts and state.

    Parameters
    ----------
    stream, sources, buckets, batch_times, behind, stand_ins
        See :func:`drive`.

    Attributes
    ----------
    counts : dict of (str, str) to int
        (operator, what) -> sum over buckets of the last epoch.
    reasons : dict of (str, str) to dict of str to int
        (operator, what) -> of these rows, how many for which reason.
    dues : list of int or None
        For each epoch, when something leaves next although nothing arrives.
    """

    def __init__(
        self,
        stream: Stream,
        sources: Mapping[str, Sequence[Sequence[Item]]],
        *,
        buckets: int = 1,
        batch_times: Sequence[Time] | None = None,
        behind: Sequence[Collection[str]] = (),
        stand_ins: Mapping[str, StandIn] | None = None,
    ) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self.reasons: dict[tuple[str, str], dict[str, int]] = {}
        self.dues: list[int | None] = []
        self._times = _times(sources, batch_times)
        self._behind = behind
        self._active_until_us: dict[str, int] = {}
        self._due_times = DueTimes()
        nodes = _in_order(stream.node)
        _check_sources(nodes, sources)
        token = uuid4().hex
        self._engine = _engine(_with_sources(nodes, sources), sources, buckets, token, stand_ins or {})
        weakref.finalize(self, batches.forget, token)  # what a set-up returns may be large, and tests are many

    def tables(self) -> list[pa.Table]:
        """Run all epochs; return the stream's rows of each."""
        return [self._epoch(index, time) for index, time in enumerate(self._times)]

    @property
    def states(self) -> dict[str, list[bytes]]:
        """Operator -> the state of each bucket, as :func:`holdfast.state.tables.encode` writes it."""
        return self._engine.states()

    def _epoch(self, index: int, time: int) -> pa.Table:
        self._hear(index, time)
        rows, reports = self._engine.epoch(index, EpochContext(index + 1, time, self._active_until_us))
        self._note(reports)
        return rows

    def _hear(self, index: int, time: int) -> None:
        """Note up to when the silence of sources says nothing: also in the epoch in which one has given all at last."""
        before = self._behind[index - 1] if 0 < index <= len(self._behind) else ()
        now = self._behind[index] if index < len(self._behind) else ()
        self._active_until_us |= dict.fromkeys((*before, *now), time)

    def _note(self, reports: Reports) -> None:
        """Take in what the buckets reported of an epoch, as the driver of a run does."""
        self.counts, self.reasons = {}, {}
        for bucket, report in reports.items():
            operator = bucket.rpartition("/")[0]
            waiting = {} if report.waiting_rows is None else {"waiting_rows": report.waiting_rows}
            whole, by_reason = parted(report.counts)
            for what, count in {**whole, **waiting}.items():
                self.counts[operator, what] = self.counts.get((operator, what), 0) + count
            for what, found in by_reason.items():
                known = self.reasons.setdefault((operator, what), {})
                known |= {reason: known.get(reason, 0) + count for reason, count in found.items()}
        self._due_times.take(reports)
        self.dues.append(self._due_times.next_us)


# --- the graph --------------------------------------------------------------------------------------------------------


def _times(sources: Mapping[str, Sequence[Sequence[Item]]], batch_times: Sequence[Time] | None) -> list[int]:
    count = max((len(epochs) for epochs in sources.values()), default=0)
    if batch_times is None:
        return [index * 1_000_000 for index in range(count)]
    if len(batch_times) < count:
        raise InvalidPipeline(
            f"{count} epochs have {len(batch_times)} batch times.", do="give one for each epoch, or none at all."
        )
    return [ticks_of(time) for time in batch_times]


def _in_order(end: Node) -> list[Node]:
    """Return the nodes that lead to one, inputs first."""
    seen: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for before in node.inputs:
            visit(before)
        seen.setdefault(node)

    visit(end)
    return list(seen)


def _check_sources(nodes: Sequence[Node], sources: Mapping[str, Sequence[Sequence[Item]]]) -> None:
    known = {node.name for node in nodes if node.is_source}
    if set(sources) != known:
        odd = sorted(set(sources) ^ known)[0]
        raise InvalidPipeline(
            f"source {odd!r} is {'not given any rows' if odd in known else 'not part of the graph'}.",
            why=f"the graph reads {', '.join(sorted(known))}.",
            do=f"give the rows of each: {_RIGHT}",
        )


def _with_sources(nodes: Sequence[Node], sources: Mapping[str, Sequence[Sequence[Item]]]) -> Pipeline:
    """Return the graph of the last node as a pipeline whose sources give what the test gives."""
    made: dict[Node, Node] = {}
    for node in nodes:
        if node.is_source:
            made[node] = replace(node, spec=given_spec(node, sources[node.name]))
        else:
            made[node] = replace(node, inputs=tuple(made[before] for before in node.inputs))
    taken = {node.name.lower() for node in nodes}
    name = next(name for name in (_SINK + "_" * count for count in range(len(taken) + 1)) if name not in taken)
    return Pipeline(_SINK, Stream(made[nodes[-1]]) | sink(MemorySpec(_SINK), name=name))


def _check(audit: Audit, report: EpochReport, rows: pa.Table, at: EpochContext) -> None:
    """Stop where the rows of an epoch do not add up."""
    sinks = dict.fromkeys(audit.sinks, rows.num_rows)
    for imbalance in audit.imbalances(report.tally, sinks):
        raise imbalance.as_error(_SINK, at.epoch)
    odd = {name: balance for name, balance in audit.balances(report, sinks).items() if not balance.is_even}
    invariant(not odd, f"the totals of epoch {at.epoch} do not add up: {odd}.", epoch=at.epoch)


# --- what runs it -----------------------------------------------------------------------------------------------------


class _Engine(Protocol):
    """Runs the epochs of a driven pipeline."""

    def epoch(self, index: int, at: EpochContext) -> tuple[pa.Table, Reports]:
        """Return the rows of the stream in an epoch, and what buckets reported."""

    def states(self) -> dict[str, list[bytes]]:
        """Return the state of each operator's buckets."""


def _engine(
    pipeline: Pipeline,
    sources: Mapping[str, Sequence[Sequence[Item]]],
    buckets: int,
    token: str,
    stand_ins: Mapping[str, StandIn],
) -> _Engine:
    # Sources arrive in the order in which the test gives them.
    specs = {node.name: node.source_spec for node in pipeline.sources}
    timestamps = {name: specs[name].timestamp for name in sources}
    opened = {name: specs[name].open(name, "") for name in sources}
    if not has_state(pipeline):
        return _ProgramEngine(pipeline, opened, timestamps, token)
    return _LevelEngine(pipeline, opened, timestamps, token, buckets, sources, stand_ins)


class _ProgramEngine:
    """A graph without state: its Arrow program, as :class:`holdfast.spark.evaluation.ColumnarEvaluation` runs it."""

    def __init__(
        self,
        pipeline: Pipeline,
        sources: Mapping[str, Source],
        timestamps: Mapping[str, str | None],
        token: str,
    ) -> None:
        program = build_program(pipeline, as_it_is, token)
        if program is None:
            raise _needs_spark(pipeline.nodes)
        self._program = program
        self._audit = audit_of_program(pipeline, program)
        self._sources = sources
        self._timestamps = timestamps

    def epoch(self, index: int, at: EpochContext) -> tuple[pa.Table, Reports]:
        """Return the rows of the stream in an epoch; there are no buckets."""
        read = ((name, batch) for name, source in self._sources.items() for batch in source.read(Span(index)))
        counts = Counts(self._timestamps)
        (rows,) = self._program.tables(read, self._program.routes.sinks, counts).values()
        _check(self._audit, EpochReport(counts.found, tally=counts.tally), rows, at)
        return rows, {}

    def states(self) -> dict[str, list[bytes]]:
        """Return none."""
        return {}


class _LevelEngine:
    """A graph with state: its stages and levels, one bucket after the other, as Spark's tasks run them."""

    def __init__(
        self,
        pipeline: Pipeline,
        sources: Mapping[str, Source],
        timestamps: Mapping[str, str | None],
        token: str,
        buckets: int,
        given: Mapping[str, Sequence[Sequence[Item]]],
        stand_ins: Mapping[str, StandIn],
    ) -> None:
        self._plan = StandInPlan(stand_ins)
        stages = build_stages(pipeline, as_it_is, token, buckets=buckets, partitions=1, prefix=self._plan.schemas)
        self._stages = stages
        self._audit = audit_of_stages(pipeline, stages)
        self._sources = sources
        self._given = given
        self._levels = {level.number: level for level in levels_of(stages, token)}
        self._first = self._plan.first_stage(stages)
        self._packings = packings(stages, timestamps) if self._first is None else {}
        self._outlets = Outlets.of(stages)
        self._stored: Stored = {}
        self._pace = Pace()

    def epoch(self, index: int, at: EpochContext) -> tuple[pa.Table, Reports]:
        """Return the rows of the stream in an epoch, and what buckets reported."""
        memory = WorkerMemory(Cache(), self._pace)
        chunks = list(self._read(index))
        for number in range(1, len(self._stages.stages)):
            if number not in self._levels:
                chunks = self._plan.led_through(self._stages, number, chunks)
                continue
            level = self._levels[number]
            chunks = [
                made
                for key, mine in level.arriving(chunks)
                for made in level.run(key, mine, DictionaryCells(self._stored, key), at, memory)
            ]
        (rows,) = self._outlets.tables(chunks, self._outlets.routes.sinks).values()
        report = united(reported(chunks))
        _check(self._audit, report, rows, at)
        return rows, report.buckets

    def states(self) -> dict[str, list[bytes]]:
        """Return the state of each operator's buckets, out of its cells."""
        routing = self._stages.routing
        found: dict[str, list[bytes]] = {}
        for name, hosted in ((name, one) for stage in self._stages.stages for name, one in stage.hosted.items()):
            for bucket in range(routing.buckets):
                cells = DictionaryCells(self._stored, (name, label(name, bucket, routing.buckets, routing.partitions)))
                state = load(cells, Record.from_json(cells.record()), hosted.step, None)
                found.setdefault(name, []).append(bytes(tables.encode(state)))
        return found

    def _read(self, index: int) -> Iterator[Chunk]:
        """Read an epoch of every source, as its reader in a run does."""
        if self._first is not None:
            yield from self._read_through(self._first, index)
            return
        for name, source in self._sources.items():
            packing = self._packings[name]
            ended = [name] if ends_in(self._given[name], index) else []
            yield from packing.rows(0, packing.read(source, Span(index)))
            yield from packing.controls(1, ended)

    def _read_through(self, first: FirstStage, index: int) -> Iterator[Chunk]:
        """Read an epoch of every source, as Spark's plan of stage 0 does."""
        for number, (name, source) in enumerate(self._sources.items()):
            batches = source.read_marked(Span(index)) if isinstance(source, MarkedSource) else source.read(Span(index))
            yield from first.chunks(number, name, batches)
        ended = [name for name in self._sources if ends_in(self._given[name], index)]
        yield from first.controls.controls(0, ended)


def _needs_spark(nodes: Sequence[Node]) -> InvalidPipeline:
    """Return the error for what Arrow does not evaluate: the first such operator is named."""
    builder = Builder(as_it_is, "")
    for node in nodes:
        if node.is_source:
            builder.source(node)
    return without_spark(next(node for node in nodes if not builder.add(node)))
