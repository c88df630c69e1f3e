"""Source nodes as streaming frames, watched where their rows must be counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamReader, StreamingQuery
from pyspark.sql.types import TimestampNTZType, TimestampType

from holdfast.checkpoint.directory_header import FILE_NAME
from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.replay_floor import KEY as FLOOR
from holdfast.checkpoint.replay_floor import NAMED_KEY as NAMED_FLOOR
from holdfast.checkpoint.spark_log import plain
from holdfast.checkpoint.targets import FILE_NAME as TARGETS
from holdfast.commit.paced import HELD_KEY
from holdfast.connectors.reading import row_batches
from holdfast.connectors.reading.bounds import MarkedSpec, schema_of_rows
from holdfast.connectors.reading.from_time import from_time
from holdfast.connectors.reading.keyed import hold_to_key
from holdfast.connectors.reading.until import passed_mark, up_to
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Node
from holdfast.operators.expect import Expectation
from holdfast.plan.counts import Observed
from holdfast.plan.levels.packing import Packing
from holdfast.ports import REJECT_COLUMN, RESCUE_COLUMN, Source, SourceSpec
from holdfast.positions import Positions, SourcePositions
from holdfast.shards.keys import ShardKey
from holdfast.shards.naming import sources_place
from holdfast.spark import apply, private
from holdfast.spark.controls import NAME, ControlSpec, mark_of
from holdfast.spark.datasource import FORMAT
from holdfast.spark.reading import Reading
from holdfast.spark.spark_versions import running


@dataclass(frozen=True)
class SourceReader:
    """Opens source nodes as streaming frames."""

    session: SparkSession
    directory: Path
    parallelism: int
    prefetch_bytes: int
    stop_file: str
    spark_directory: str
    has_rows: bool = True
    marks_ends: bool = False
    with_bounds: bool = False
    keeps_replays: bool = False
    pipeline: str = ""
    from_us: int | None = None
    until: int | None = None
    notes_silence: bool = False
    has_paces: bool = False
    follows: bool = False
    is_backfill: bool = False
    is_bounded: bool = False
    keys: Mapping[str, ShardKey] = field(default_factory=dict)

    def spec(self, node: Node) -> SourceSpec:
        """Return the declaration by which a source is read: from the pipeline's start time to the end of this run, as
        far as they are set, with rows held to their segments.
        """
        return hold_to_key(
            from_time(up_to(cast("SourceSpec", node.spec), self.until), self.from_us), self.keys.get(node.name)
        )

    def workspace(self, node: Node) -> str:
        """Return the directory that belongs to a source."""
        return workspace(sources_place(self.directory, self.pipeline), node.name)

    def ends_now(self, sources: Sequence[Node], held: Positions) -> Positions:
        """Return where each source ends now, apart from what has nothing in it.

        Two planners at once are allowed (design/0004), so what is found here is logged as the run would.

        Parameters
        ----------
        sources : sequence of Node
            Of the pipeline.
        held : mapping of str to mapping
            What every sink holds: it is looked from there on.

        Raises
        ------
        InvalidPipeline
            If a source cannot tell.
        """
        found = {}
        for node in sources:
            if node.kind == "spark":
                raise InvalidPipeline(
                    f"source {node.name!r} cannot tell what is in it now.",
                    why="Spark reads it: its positions mean something to Spark alone.",
                    do="wait for rows that you know, in the sinks themselves; or stop the run.",
                    participant=node.name,
                )
            source = self.spec(node).open(node.name, self.workspace(node))
            initial = source.initial()
            end = _end_of(source, {**initial, **plain(held.get(node.name, {}))[0]})
            found[node.name] = {segment: at for segment, at in end.items() if at != initial.get(segment)}
        return found

    def _stream_of(self, name: str) -> DataStreamReader:
        """Return what reads a stream, under a name where Spark has names for streams."""
        stream = self.session.readStream
        return stream.name(name) if running().names_sources else stream

    @property
    def freezes(self) -> bool:
        """Whether sources fix how far this run goes, and the run ends itself there: Spark cannot, before 4.2."""
        return self.is_bounded and not running().asks_from

    def has_given_all(self, query: StreamingQuery) -> bool:
        """Return whether the query is to be ended: in one trigger, no source had any more of what there was."""
        return self.freezes and private.waits_for_rows(query.status)

    @property
    def _marks(self) -> str:
        return str(self.directory / self.spark_directory / "ended")

    def controls(self, sources: Sequence[str], packing: Packing) -> DataFrame:
        """Return the streaming frame of control chunks, for sources whose rows go through Spark's plan."""
        origin_file = str(self.directory / self.spark_directory / FILE_NAME)
        spec = ControlSpec(self._marks, tuple(sources))
        reading = Reading(spec, NAME, self._marks, 1, self.prefetch_bytes, self.stop_file, origin_file, packing=packing)
        stream, reading = self._stream_of(NAME).format(FORMAT), replace(reading, freezes=self.freezes)
        return stream.option("reading", reading.to_option()).load()

    def streams_in(self, frame: DataFrame) -> list[str]:
        """Return the sources of a frame by their places in Spark's plan; none where Spark goes by their names."""
        if running().names_sources:
            return []
        return [Reading.from_option(each).name for each in private.streams_of(frame, "reading") if each]

    def read(self, node: Node, packing: Packing | None = None) -> DataFrame:
        """Return the streaming frame of a source: its rows, watched where they must be counted, or its chunks."""
        spec: Any = self.spec(node)
        stream = self._stream_of(node.name)
        if node.kind == "spark":
            for key, value in spec.options.items():
                stream = stream.option(key, value)
            if spec.schema is not None and len(spec.schema):
                stream = stream.schema(private.spark_schema(schema_of_rows(spec)))
            return watched(stream.format(spec.format).load(), node)
        workspace = self.workspace(node)
        origin_file = str(self.directory / self.spark_directory / FILE_NAME)
        reading = Reading(
            spec,
            node.name,
            workspace,
            self.parallelism,
            self.prefetch_bytes,
            self.stop_file,
            origin_file,
            self.has_rows,
            packing,
            mark_of(self._marks, node.name) if self.marks_ends and packing is None else "",
            str(self.directory / FLOOR) if self.keeps_replays else "",
            str(self.directory / NAMED_FLOOR),
            self.pipeline,
            self.notes_silence,
            self.with_bounds and isinstance(spec, MarkedSpec),
            str(self.directory / HELD_KEY) if self.has_paces else "",
            "" if self.until is None else passed_mark(self.stop_file, node.name),
            str(self.directory / TARGETS) if self.follows else "",
            self.is_backfill,
            self.freezes,
        )
        if not self.has_rows or packing is not None:
            return stream.format(FORMAT).option("reading", reading.to_option()).load()
        return watched(stream.format(FORMAT).option("reading", reading.to_option()).load(), node)


def _end_of(source: Source, start: SourcePositions) -> SourcePositions:
    """Return where a source ends now, apart from what it has promised; what is there when it is first asked."""
    end = start
    while (further := source.latest(end, bounded=True)) != end:
        end = further
    return {segment: at for segment, at in end.items() if not segment.startswith("@")}


def is_watched(node: Node) -> bool:
    """Return whether Spark must count at a source: it declares a timestamp, has rejects, or a column ``_rescued``."""
    return timestamp_of(node) is not None or node.source_spec.rejects or _has_rescued(node)


def _has_rescued(node: Node) -> bool:
    return node.columns is not None and RESCUE_COLUMN in node.columns


def watched(frame: DataFrame, node: Node) -> DataFrame:
    """Let Spark count rows, rejects, what is rescued and the highest timestamp as they pass, where they are needed."""
    if not is_watched(node):
        return frame
    column = timestamp_of(node)
    has_rejects = node.source_spec.rejects
    is_bound = apply.marked(node.spec, frame)
    one = F.lit(1) if is_bound is None else F.when(~is_bound, 1)
    rejects = F.count(F.col(REJECT_COLUMN)) if has_rejects else F.lit(0).cast("long")
    time = F.lit(None).cast("long") if column is None else _microseconds(frame, column)
    highest = F.max(time if is_bound is None else F.when(~is_bound, time)) if column is not None else time
    counts = [F.count(one).alias("rows"), rejects.alias("rejects"), highest.alias("timestamp_max")]
    counts += [_reasons()] if has_rejects else []
    counts += _members(frame) if _has_rescued(node) else []
    return frame.observe(apply.observation(node.name), *counts)


def _reasons() -> Column:
    """Return the count of rejected rows by reason: exact, as few reasons differ once they have no values."""
    reason = F.col(REJECT_COLUMN)["reason"]
    for pattern, instead in row_batches.SUBSTITUTIONS:
        reason = F.regexp_replace(reason, pattern, instead)
    # One more than are kept: rows that are no rejects count as null.
    return F.call_function("approx_top_k", reason, F.lit(row_batches.KINDS_MAX + 1), F.lit(1000)).alias("reasons")


_BETWEEN_NAMES = "\x1f"


def _members(frame: DataFrame) -> list[Column]:
    """Return how many rows have something rescued, and the count of rows by what it is of: its names together."""
    text, beside = F.col(RESCUE_COLUMN), [name for name in frame.columns if name != REJECT_COLUMN]
    names = F.transform(
        F.json_object_keys(text), lambda name: F.when(name.isin(beside), F.concat(name, F.lit(".*"))).otherwise(name)
    )
    kind = F.array_join(F.array_sort(names), _BETWEEN_NAMES)
    kinds = F.call_function("approx_top_k", kind, F.lit(row_batches.KINDS_MAX + 1), F.lit(1000))
    return [F.count(text).alias("rescued"), kinds.alias("members")]


def _microseconds(frame: DataFrame, column: str) -> Any:
    kind = frame.schema[column].dataType
    value = F.col(f"`{column}`")
    if isinstance(kind, TimestampType):
        return F.unix_micros(value)
    if isinstance(kind, TimestampNTZType):
        return F.unix_micros(value.cast("timestamp"))
    return value.cast("long")


def counts_of(query: StreamingQuery, nodes: Sequence[Node]) -> dict[str, Observed]:
    """Return Spark's counts at watched sources and at expectations, of all attempts at the epoch that is evaluated."""
    found = {}
    for name in [node.name for node in nodes if node.kind == Expectation.kind or (node.is_source and is_watched(node))]:
        counted = private.observed_metrics(query, apply.observation(name))
        if counted is not None:
            rows, rejects = counted.number("rows") or 0, counted.number("rejects") or 0
            reasons = _all_reasons(counted.pairs("reasons"), rejects)
            rescued, members = counted.number("rescued") or 0, _each_name(counted.pairs("members"))
            found[name] = Observed(rows, rejects, counted.number("timestamp_max"), reasons, rescued, members)
    return found


def _all_reasons(reasons: Sequence[tuple[str, int]], rejects: int) -> dict[str, int]:
    """Return counts by reason, the rows of reasons that were left out among them."""
    rest = rejects - sum(count for _, count in reasons)
    return row_batches.limited([*reasons, *([(row_batches.OTHERS, rest)] if rest else [])])


def _each_name(kinds: Sequence[tuple[str, int]]) -> dict[str, int]:
    r"""Return how many rows have each member, of counts by all that they have.

    Examples
    --------
    >>> _each_name([("tip", 3), ("tip\x1fvip", 2)])
    {'tip': 5, 'vip': 2}
    """
    each = ((name, count) for kind, count in kinds for name in kind.split(_BETWEEN_NAMES))
    return row_batches.limited(each, row_batches.OTHER_MEMBERS)


def timestamp_of(node: Node) -> str | None:
    """Return a source's timestamp column; None where it declares none."""
    return node.source_spec.timestamp
