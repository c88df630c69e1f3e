"""Segments: rows that grow in a journal, and seal into one well-sized Parquet file for each partition; exactly-once."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from holdfast.connectors.control.columns import ControlColumns, control_arguments
from holdfast.connectors.kit.files import existing as check
from holdfast.connectors.kit.files.explanations import explanations_in
from holdfast.connectors.kit.rewinds import cannot_keep_rows, of_directory
from holdfast.connectors.segments import policies
from holdfast.connectors.segments.journal import retention
from holdfast.connectors.segments.manifest import SegmentsManifest, as_opened
from holdfast.connectors.segments.places import Places
from holdfast.connectors.segments.policies import Policy
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building, names_of
from holdfast.ports import Guarantee, Reset, SinkLedger
from holdfast.store import durable
from holdfast.types.units import duration_us, size_bytes


def segments(
    path: str | os.PathLike[str],
    *,
    partition_by: str | Sequence[str] = (),
    format: Literal["parquet"] = "parquet",
    target_size: str = "128 MB",
    max_age: str | None = None,
    sort_by: str | Sequence[str] = (),
    compression: str | None = "zstd",
    retain: str | None = None,
    compact: bool = True,
    seal: Sequence[Policy] | None = None,
    commit_every: None = None,
    control: str | None = None,
    extra: str | None = None,
    name: str | None = None,
    freshness: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Write rows as files of a chosen size, each epoch exactly once, whatever the trigger.

    An epoch's rows become durable in the sink's own journal.  A partition's rows of consecutive epochs are a *segment*;
    when it has reached its size, or its age, it becomes one Parquet file.  ``hf.read.segments`` and
    ``holdfast.segments.open`` show what grows, too.

    Parameters
    ----------
    path : str or path
        The directory, on a local disk or a mounted file system that driver and executors share.  Created when absent.
        Several pipelines may write to one directory; streams of one pipeline are united first (``hf.union``).
    partition_by : str or sequence of str
        Columns that become hive-style directories, ``column=value/``, outermost first.
    format : {"parquet"}
        Of the sealed files.
    target_size : str
        Size at which a segment is sealed: of the file.  One that a single epoch fills is larger.
    max_age : str, optional
        Age at which it is sealed however small it is, give or take a tenth (``"1 h"``).
    sort_by : str or sequence of str
        Columns by which the rows of a file are sorted; without them they are in the order in which they came.
    compression : str, optional
        Of Parquet: ``"zstd"``, ``"snappy"``, ``"lz4"``, ``"gzip"``; None for none.
    retain : str, optional
        How much of what is sealed is kept: an age (``"30 d"``) or a size (``"500 GB"``).  Default: everything.
    compact : bool
        Whether neighbouring files that are small are joined, in the background.
    seal : sequence of callable, optional
        Further policies, ``(holdfast.segments.Segment) -> reason or None``.  Default: ``pressure("4 GB")`` and
        ``shutdown()`` of ``holdfast.segments``.
    commit_every : None
        Other sinks have it.  Here ``target_size`` and ``max_age`` say when files appear, and every epoch is in the
        journal at once.
    control : str, optional
        Text column whose values that are not null are commands (``hf.control``), carried out in order with the rows.
        Not stored; ``docs/control-rows.md``.
    extra : str, optional
        Column with values of columns that commands have added: a JSON object as text, or a map of text to text.  Not
        stored.
    name : str, optional
        The node's name; the sink's manifest is kept under it.
    freshness : str, optional
        How old the oldest row may be that the sink lacks (``"5 min"``), before the health of the run says so:
        ``docs/expectations.md``.
    backfill : bool
        Whether the sink, added to a pipeline that has run, gets everything from the beginning: ``docs/state.md``.

    Returns
    -------
    SinkNode
        To be used to the right of ``stream |``.

    Raises
    ------
    InvalidPipeline
        If an argument is not usable.  Columns are compared with what is there when the run starts.

    Examples
    --------
    >>> import holdfast as hf
    >>> hf.write.segments("out/flights", partition_by=["origin"], max_age="1 h").spec.target_bytes
    128000000
    """
    with building("sink", name):
        if commit_every is not None:
            raise InvalidPipeline(
                f"write.segments: commit_every={commit_every!r} has no meaning.",
                why="segments have a pace of their own: every epoch goes to their journal, and becomes files later.",
                do="say when a file is made: target_size, max_age, seal; and leave commit_every out.",
            )
        spec = SegmentsSinkSpec(
            os.fspath(path),
            format,
            names_of(partition_by),
            target_size,
            max_age,
            names_of(sort_by),
            compression,
            policies.DEFAULT if seal is None else tuple(seal),
            retain,
            compact,
            ControlColumns.of("write.segments", control, extra),
        )
    return nodes.sink(spec, name=name, backfill=backfill, freshness=freshness)


@dataclass(frozen=True)
class SegmentsSinkSpec:
    """Declaration of a segments sink; parameters as :func:`segments`."""

    path: str
    format: Literal["parquet"] = "parquet"
    partition_by: tuple[str, ...] = ()
    target_size: str = "128 MB"
    max_age: str | None = None
    sort_by: tuple[str, ...] = ()
    compression: str | None = "zstd"
    seal: tuple[Policy, ...] = field(default=policies.DEFAULT)
    retain: str | None = None
    compact: bool = True
    control: ControlColumns | None = None

    kind = "segments"
    guarantee = Guarantee.EXACTLY_ONCE

    def __post_init__(self) -> None:
        if self.format != "parquet":
            raise InvalidPipeline(f"write.segments: format={self.format!r} is not known.", do='choose "parquet".')
        if self.compression not in (None, "zstd", "snappy", "lz4", "gzip", "brotli"):
            raise InvalidPipeline(
                f"write.segments: compression={self.compression!r} is not known.",
                do='choose "zstd", "snappy", "lz4", "gzip", "brotli" or None.',
            )
        for argument in ("partition_by", "sort_by"):
            columns = getattr(self, argument)
            if len(set(columns)) < len(columns):
                raise InvalidPipeline(f"write.segments: {argument}={list(columns)} names a column twice.", do="once.")
        if both := set(self.partition_by) & set(self.sort_by):
            raise InvalidPipeline(
                f"write.segments: sort_by names the partition column {sorted(both)[0]!r}.",
                why="all rows of a file have one value of it, and it is not stored in the file.",
                do="leave it out of sort_by.",
            )
        check.check_partition_columns("write.segments", self.partition_by)
        if self.target_bytes < 1:
            raise InvalidPipeline(f"write.segments: target_size={self.target_size!r} is no size.", do="give more.")
        if self.max_age is not None:
            duration_us(self.max_age, argument="max_age")
        retention(self.retain)
        if not all(map(callable, self.seal)):
            raise InvalidPipeline(
                "write.segments: seal= names something that is not a policy.",
                do="give functions of one segment, such as seal=[holdfast.segments.rows(1_000_000)].",
            )
        check.check_renames("write.segments", self.path)

    @property
    def target_bytes(self) -> int:
        """Size at which a segment is sealed."""
        return size_bytes(self.target_size, argument="target_size")

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments for display and fingerprint."""
        return {
            "path": self.path,
            "format": self.format,
            "partition_by": list(self.partition_by),
            "target_size": self.target_size,
            "max_age": self.max_age,
            "sort_by": list(self.sort_by),
            "compression": self.compression,
            "retain": self.retain,
            "compact": self.compact,
            "seal": [policies.named(policy) for policy in self.seal],
            **control_arguments(self.control),
        }

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check that the partition columns and those to sort by are there, where the columns are known."""
        if self.control is not None:
            self.control.check_columns("write.segments", columns, (*self.partition_by, *self.sort_by))
        for argument, wanted in (("partition_by", self.partition_by), ("sort_by", self.sort_by)):
            missing = [column for column in wanted if columns is not None and column not in columns]
            if missing:
                raise InvalidPipeline(
                    f"write.segments: {argument} names column {missing[0]!r}, which its rows do not have.",
                    why=f"they have {', '.join(columns or ())}.",
                    do=f"correct {argument}, or add the column before the sink.",
                )

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> SegmentsSink:
        """Check the columns, create the directory, return the sink."""
        return self.connected(name, pipeline, schema)

    def connected(self, name: str, pipeline: str, schema: pa.Schema, *, is_tended: bool = True) -> SegmentsSink:
        """Return the sink, with or without the thread that seals."""
        # Absolute: executors have working directories of their own.
        directory = os.path.abspath(durable.local_path(self.path) or "")
        schema = schema if self.control is None else self.control.data(f"sink {name!r}", schema)
        check.check_partition_types(name, schema, self.partition_by)
        return SegmentsSink(
            name,
            pipeline,
            schema,
            directory,
            partition_by=self.partition_by,
            policies=policies.chosen(self.max_age, self.seal),
            target_bytes=self.target_bytes,
            sort_by=self.sort_by,
            compression=self.compression,
            retention=retention(self.retain),
            joins_small=self.compact,
            control=self.control,
            is_tended=is_tended,
        )

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the manifest says, as an opening would find it."""
        places = Places(os.path.abspath(durable.local_path(self.path) or ""), pipeline, name)
        with durable.explained(f"reading the manifest of sink {name!r}"):
            holdings = as_opened(SegmentsManifest(places.manifest), places.journal)
        if not holdings.last.number:
            return None
        kept = explanations_in(places.explanations, f"sink {name!r}")
        told = kept.all(kept.count(holdings.held()), holdings.last.explanations)
        return SinkLedger(holdings.held(), tuple(told), holdings.refill)

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove manifest and journal, and the sealed files: their names say whose they are."""
        places = Places(os.path.abspath(durable.local_path(self.path) or ""), pipeline, name)
        if not rows:
            raise cannot_keep_rows(name, f"segments that grow have their rows in {places.journal}")
        return of_directory(places.own, places.sealed, places.directory, rows=rows, is_dry_run=is_dry_run)
