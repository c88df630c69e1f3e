"""The graph of a shard: that of the pipeline, with sources that read the segments of the shard (design/0048, 3 and 4).

Invariants: under one layout each segment of a source is read by one shard; a source that cannot be divided is read by
shard 0; what is looked up in as it changes is read by all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.spark_log import MARKS
from holdfast.connectors.kafka.topics import check_counts
from holdfast.connectors.reading.empty_part import EmptyPartSpec
from holdfast.connectors.reading.parts import divisible, in_parts, part_of
from holdfast.connectors.reading.wrapped import WrappedSpec, innermost_spec
from holdfast.errors import InvalidPipeline
from holdfast.graph.building import upwards
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, is_stateful
from holdfast.operators.lookup.as_of import TABLE, AsOfLookup
from holdfast.ports import SourceSpec
from holdfast.positions import GroupSet, SegmentSet
from holdfast.quarantine.mask import LETTERS
from holdfast.shards.assignment import Assignment, assign
from holdfast.shards.layout import INDEPENDENT, ShardLayout
from holdfast.shards.moves import UnitOf
from holdfast.shards.naming import shard_name

PARTS = 60
"""Segments of a source by hash: many numbers of shards divide it.  Each is a number in every record of positions."""
UNDIVIDED = {"files": "log", "rate": "rows", "segments": "files"}
"""Kind of a source -> the segment that it has until it is divided: its position holds for those without one."""


@dataclass(frozen=True)
class ShardGraphs:
    """The graphs of a pipeline's shards.

    Parameters
    ----------
    pipeline : Graph
        As the user built it.
    checkpoint : Path
        Of the pipeline.

    Raises
    ------
    InvalidPipeline
        If no source can be divided, or one that cannot is joined or grouped with another.
    """

    pipeline: Graph
    checkpoint: Path

    def __post_init__(self) -> None:
        if not self.divisible_sources:
            raise InvalidPipeline(
                f"pipeline {self.pipeline.name!r} has no source that can be read in shards.",
                why=f"{_names_of(self.pipeline.sources)}: none has segments that can be read alone.",
                do="run it without shards; or write the rows to a topic with several partitions, and read that.",
                pipeline=self.pipeline.name,
            )
        for node in self.pipeline.nodes:
            self._check(node)

    @cached_property
    def divisible_sources(self) -> dict[str, SourceSpec]:
        """The sources that are read in parts."""
        sources = (node for node in self.pipeline.sources if node.name not in self.tables)
        return {node.name: node.source_spec for node in sources if divisible(node.source_spec) is not None}

    @cached_property
    def tables(self) -> frozenset[str]:
        """The sources of which tables are made that change as they are looked up in: each shard reads all of them."""
        tables = [node for consumer in self.pipeline.nodes for node in _inputs(consumer, is_table=True)]
        of_tables = {each.name for node in tables for each in _sources(node)}
        if shared := of_tables & self._read_beside_tables():
            raise InvalidPipeline(
                f"source {min(shared)!r} is a table that is looked up in, and its rows go elsewhere too.",
                why="each shard reads the whole of a table: what else its rows lead to would get them from all.",
                do="read it by two sources, one for the table; or run without shards.",
                pipeline=self.pipeline.name,
                participant=min(shared),
            )
        for node in self.pipeline.sources:
            if node.name in of_tables and divisible(node.source_spec) is None:
                raise InvalidPipeline(
                    f"source {node.name!r} is a table that is looked up in, and only one run can read it.",
                    why=f"each shard needs the whole table, and {node.kind} lets rows go when one run has them.",
                    do="write its rows to a topic, and read that; or run without shards.",
                    pipeline=self.pipeline.name,
                    participant=node.name,
                )
        return frozenset(of_tables)

    def _read_beside_tables(self) -> frozenset[str]:
        """Return the sources that lead to a sink by another way than a table."""
        waiting = [node for sink in self.pipeline.sinks for node in sink.inputs]
        seen = dict[str, Node]()
        while waiting:
            node = waiting.pop()
            if node.name not in seen:
                seen[node.name] = node
                waiting += _inputs(node, is_table=False)
        return frozenset(name for name, node in seen.items() if node.is_source)

    def first(self, shard_count: int, by: str) -> ShardLayout:
        """Return a first layout: the segments that there are now, dealt to shards.

        Parameters
        ----------
        shard_count : int
            How many shards.
        by : str
            As for :class:`~holdfast.shards.layout.ShardLayout`.

        Raises
        ------
        Unavailable
            If a source does not answer.
        """
        layout = ShardLayout(Assignment(shard_count), self.parts(shard_count), by)
        return dealt(layout, self.all_units(layout))

    def parts(self, shard_count: int) -> dict[str, int]:
        """Return how many segments by hash each source is to have that has such, where none are known yet."""
        wanted = -(-shard_count // PARTS) * PARTS
        return {name: wanted for name, spec in self.divisible_sources.items() if _parts_of(in_parts(spec, wanted))}

    def all_units(self, layout: ShardLayout) -> dict[str, dict[str, str]]:
        """Return source -> segment -> unit, of the segments that there are now.

        Raises
        ------
        InvalidPipeline
            If rows of one key would be in two units: with a shard key, topics have as many partitions, all of them.
        """
        found = {name: self.units(layout, name) for name in self.divisible_sources}
        if layout.by not in ("", INDEPENDENT):
            of_topics = found.keys() & {node.name for node in self.pipeline.sources if node.kind == "kafka"}
            check_counts(self.pipeline.name, {name: found[name] for name in of_topics})
        return found

    def units(self, layout: ShardLayout, source: str) -> dict[str, str]:
        """Return segment -> unit, of the segments that a source has now."""
        spec = divisible(self._whole(layout, source))
        assert spec is not None
        place = workspace(self.checkpoint, source)
        return {each: self.unit(layout, source, each) for each in spec.segments(source, place)}

    def unit(self, layout: ShardLayout, source: str, segment: str) -> str:
        """Return the unit of a segment: with a shard key, segments of several sources with the same keys are one."""
        spec = divisible(self._whole(layout, source))
        assert spec is not None
        return f"{source}:{segment}" if layout.by in ("", INDEPENDENT) else spec.group_of(segment)

    def unit_of(self, layout: ShardLayout) -> UnitOf:
        """Return what says which unit a name in the positions of a source is of; None: it stays where it is.

        Each shard has letters of its own, whichever segments it reads.
        """
        undivided, notes = self.whole_segments, frozenset((*MARKS.values(), LETTERS))

        def unit(source: str, name: str) -> str | None:
            if source not in undivided or name in notes:
                return None
            return "" if name.startswith("@") or name == undivided[source] else self.unit(layout, source, name)

        return unit

    @cached_property
    def whole_segments(self) -> dict[str, str]:
        """Source -> the segment that it has until it is divided; empty where its segments are its system's."""
        return {name: UNDIVIDED.get(_kind(spec), "") for name, spec in self.divisible_sources.items()}

    def of(self, layout: ShardLayout, shard: int) -> Graph:
        """Return the graph of a shard: its sources read the segments that the layout gives it."""
        specs = {node.name: self._part(layout, shard, node) for node in self.pipeline.sources}
        return self.pipeline.with_sources(shard_name(self.pipeline.name, shard), specs)

    def in_parts(self, parts: Mapping[str, int]) -> Graph:
        """Return the graph of the pipeline with a position for each segment of its sources.

        Parameters
        ----------
        parts : mapping of str to int
            As of :class:`~holdfast.shards.layout.ShardLayout`.
        """
        specs = {name: in_parts(spec, parts.get(name, 0)) for name, spec in self.divisible_sources.items()}
        return self.pipeline.with_sources(self.pipeline.name, specs)

    def _part(self, layout: ShardLayout, shard: int, node: Node) -> SourceSpec:
        if node.name in self.divisible_sources:
            return part_of(self._whole(layout, node.name), self.segments_of(layout, shard, node.name))
        return node.source_spec if shard == 0 or node.name in self.tables else _empty_part_of(node.source_spec)

    def segments_of(self, layout: ShardLayout, shard: int, source: str) -> SegmentSet:
        """Return the segments of a source that a shard reads."""
        wanted, prefix = layout.assignment.units_of(shard), f"{source}:"
        if layout.by not in ("", INDEPENDENT):
            spec = divisible(self._whole(layout, source))
            assert spec is not None
            return GroupSet(wanted.names, wanted.is_rest, spec.group_of)
        names = (unit.removeprefix(prefix) for unit in wanted.names if unit.startswith(prefix))
        return SegmentSet(frozenset(names), is_rest=wanted.is_rest)

    def _whole(self, layout: ShardLayout, source: str) -> SourceSpec:
        return in_parts(self.divisible_sources[source], layout.parts.get(source, 0))

    def _check(self, node: Node) -> None:
        """Refuse an operator that would have rows of a source that shard 0 reads alone, and of others."""
        if not is_stateful(node):
            return
        names = {each.name for each in _sources(node)}
        alone = sorted(names - self.divisible_sources.keys() - self.tables)
        others = sorted(names - {*alone} - self.tables)
        if alone and others:
            raise InvalidPipeline(
                f"{node.kind} {node.name!r} has rows of source {alone[0]!r}, which shard 0 reads alone, and of "
                f"{others[0]!r}, which all shards read.",
                why="rows of the one meet those of the other in shard 0 only.",
                do=f"write the rows of {alone[0]!r} to a topic, and read that; or run without shards.",
                pipeline=self.pipeline.name,
                participant=node.name,
            )


def dealt(layout: ShardLayout, units: Mapping[str, Mapping[str, str]]) -> ShardLayout:
    """Return a layout with units of sources; those that have a shard keep it."""
    new = [unit for of in units.values() for unit in of.values()]
    return replace(layout, assignment=assign(layout.assignment, new))


def _kind(spec: SourceSpec) -> str:
    return innermost_spec(spec).kind


def _inputs(node: Node, *, is_table: bool) -> list[Node]:
    """Return the inputs of a node that are tables which change as it looks up in them, or those that are none."""
    if not isinstance(node.spec, AsOfLookup):
        return [] if is_table else [*node.inputs]
    pairs = zip(node.spec.input_names, node.inputs, strict=True)
    return [each for name, each in pairs if (name == TABLE) is is_table]


def _sources(node: Node) -> Iterator[Node]:
    return (each for each in upwards(node) if each.is_source)


def _parts_of(spec: SourceSpec) -> int:
    found = divisible(spec)
    assert found is not None
    return found.parts


def _empty_part_of(spec: SourceSpec) -> SourceSpec:
    """Return the declaration of a source without its rows, in the wrappers that it has."""
    if isinstance(spec, WrappedSpec):
        return cast("SourceSpec", replace(spec, given=_empty_part_of(spec.given)))
    if spec.kind == "spark":
        raise InvalidPipeline(
            "a source that Spark reads cannot be left out of a shard.",
            why="its rows do not pass through Holdfast before Spark has planned them.",
            do="write them to a topic, and read that with read.kafka; or run without shards.",
        )
    return EmptyPartSpec(spec)


def _names_of(sources: Collection[Node]) -> str:
    return ", ".join(f"{node.kind} {node.name!r}" for node in sources)
