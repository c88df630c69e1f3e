"""``write.byte_stream``: an append-only store of timestamped binary messages, exactly-once, with a time index."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.byte_stream.append import StreamRules
from holdfast.connectors.byte_stream.branch import Branch
from holdfast.connectors.byte_stream.log_target import ByteStreamSink
from holdfast.connectors.byte_stream.manifest import StreamEntry
from holdfast.connectors.byte_stream.messages import MessageColumns, check_schema
from holdfast.connectors.byte_stream.publishing import RetentionRules, StreamPublishing
from holdfast.connectors.control.columns import check_no_control
from holdfast.connectors.kit.files.explanations import explanations_in
from holdfast.connectors.kit.rewinds import cannot_keep_rows, of_directory
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.graph.trigger import pace
from holdfast.ports import Guarantee, Reset, SinkLedger, Withdrawal
from holdfast.store import durable
from holdfast.types import units

INDEX_EVERY = 100
"""Where no column marks random access points: to find a time costs reading so many heads at most."""


def byte_stream(
    path: str | os.PathLike[str],
    *,
    timestamp: str = "timestamp",
    data: str = "data",
    stream: str | None = None,
    key: str | None = None,
    index_every: int | None = None,
    target_size: str = "256 MB",
    retain: str | int | None = None,
    retain_bytes: str | None = None,
    commit_every: str | int | None = None,
    control: None = None,
    name: str | None = None,
    freshness: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Append messages (a timestamp and bytes) to streams that can be read from any time on.

    Parameters
    ----------
    path : str or path
        Directory of the store, on a local disk or a mounted file system that driver and executors share.  Created when
        absent.  Several sinks may write to one store; each has streams of its own.
    timestamp : str
        Column of event time: TIMESTAMP, or BIGINT ticks of any unit (nanoseconds, say).
    data : str
        Column of the payload: BINARY, or STRING (stored as UTF-8).
    stream : str, optional
        Column that names the stream, a camera for instance: STRING.  Without it there is one stream, ``main``.
    key : str, optional
        BOOLEAN column that is true for random access points: messages at which a reader can begin, key frames for
        instance.
    index_every : int, optional
        Without ``key``: every so many messages are one, by default 100.
    target_size : str
        A data file of this size is followed by another one.
    retain : str or int, optional
        How much time a stream keeps, counted back from its highest timestamp: ``"7 d"``, or ticks where timestamps are
        BIGINTs.  By default everything.
    retain_bytes : str, optional
        How many bytes a stream keeps, at least: ``"1 TB"``.  Whole files are dropped, at random access points, and
        none that a registered reader still needs.
    commit_every : str or int, optional
        Commit less often than the other sinks: after a duration (``"30 s"``) or a number of epochs, in one transaction.
        What it lacks until then is in the checkpoint: ``docs/sinks/README.md``.  Default: every epoch.
    control : None
        Other sinks have it (``docs/control-rows.md``): this one cannot carry out commands, and says so.
    name : str, optional
        The node's name; the streams are kept under it.
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
        If the path has a remote scheme, or an argument is wrong.

    Notes
    -----
    Within an epoch the messages of a stream are ordered by timestamp, then by arrival.  An epoch becomes visible as a
    whole.  The files: ``docs/formats/byte-stream.md``.
    """
    with building("sink", name):
        check_no_control("write.byte_stream", control)
        columns = MessageColumns(timestamp, data, stream, key)
        if len(set(columns.names())) < len(columns.names()):
            raise InvalidPipeline(
                f"write.byte_stream: {columns.names()} names a column twice.", do="name a column for each purpose."
            )
        if key is not None and index_every is not None:
            raise InvalidPipeline(
                "write.byte_stream takes key= or index_every=, not both.",
                why="either the rows say which messages are random access points, or every n-th is one.",
                do="leave one of the two out.",
            )
        if index_every is not None and (not isinstance(index_every, int) or index_every < 1):
            raise InvalidPipeline(f"index_every={index_every!r} is not a positive number.", do="write index_every=100.")
        if isinstance(retain, int) and (isinstance(retain, bool) or retain < 1):
            raise InvalidPipeline(f"retain={retain!r} is no number of ticks.", do='write retain="7 d", or ticks.')
        spec = ByteStreamSinkSpec(
            os.fspath(path),
            columns,
            INDEX_EVERY if index_every is None else index_every,
            units.size_bytes(target_size, argument="target_size"),
            units.duration_us(retain, argument="retain") * 1000 if isinstance(retain, str) else retain,
            isinstance(retain, int),
            None if retain_bytes is None else units.size_bytes(retain_bytes, argument="retain_bytes"),
        )
        own_pace = pace(commit_every, node="write.byte_stream")
    return nodes.sink(spec, name=name, backfill=backfill, pace=own_pace, freshness=freshness)


@dataclass(frozen=True)
class ByteStreamSinkSpec:
    """Declaration of a byte stream sink; parameters as :func:`byte_stream`, sizes in bytes, times in nanoseconds."""

    path: str
    columns: MessageColumns
    index_every: int = INDEX_EVERY
    target_bytes: int = 256 * 10**6
    retain: int | None = None
    is_retained_in_ticks: bool = False
    retain_bytes: int | None = None

    kind = "byte_stream"
    guarantee = Guarantee.EXACTLY_ONCE

    def __post_init__(self) -> None:
        if durable.local_path(self.path) is None:
            raise InvalidPipeline(
                f"write.byte_stream cannot write to {self.path.partition('://')[0]}:// addresses.",
                why="messages are appended to files; object stores only replace whole objects.",
                do="choose a mounted path (a local disk, NFS, EFS), or copy finished files into the store afterwards.",
            )

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments for display and fingerprint."""
        shown = {
            "path": self.path,
            "timestamp": self.columns.timestamp,
            "data": self.columns.data,
            "stream": self.columns.stream,
            "key": self.columns.key,
            "index_every": None if self.columns.key is not None else self.index_every,
            "target_bytes": self.target_bytes,
            "retain": self.retain,
            "retain_bytes": self.retain_bytes,
        }
        return {name: value for name, value in shown.items() if value is not None}

    def withdrawal(self) -> Withdrawal:
        """Return what its sink withdraws in a rewind, as far as this declaration says."""
        return Withdrawal()

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check that the columns are there, where the columns are known."""
        missing = [column for column in self.columns.names() if columns is not None and column not in columns]
        if missing:
            raise InvalidPipeline(
                f"write.byte_stream stores column {missing[0]!r}, which its rows do not have.",
                why=f"they have {', '.join(columns or ())}.",
                do="name the columns: timestamp=, data=, stream=, key=.",
            )

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> ByteStreamSink:
        """Check the columns, create the directory, return the sink."""
        check_schema(name, self.columns, schema)
        if self.retain is not None and self.is_retained_in_ticks != (self.columns.times(schema) == "ticks"):
            raise InvalidPipeline(
                f"Sink {name!r}: retain= does not fit column {self.columns.timestamp!r}.",
                why="a duration is for a TIMESTAMP, a number of ticks for a BIGINT.",
                do='write retain="7 d" for a TIMESTAMP, and retain=<ticks> for a BIGINT.',
                participant=name,
            )
        rules = StreamRules(self.target_bytes, self.columns.key is not None, self.index_every)
        retention = RetentionRules(self.retain, self.retain_bytes)
        return ByteStreamSink(name, pipeline, schema, self._store, self.columns, StreamPublishing(rules, retention))

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the log of its streams says."""
        own = os.path.join(self._store, pipeline, name)
        last = self._last(name, own)
        if last is None:
            return None
        held = last.held()
        kept = explanations_in(os.path.join(own, "positions"), f"sink {name!r}")
        return SinkLedger(held, tuple(kept.all(kept.count(held), last.explanations)))

    def streams(self, name: str, pipeline: str) -> Collection[str]:
        """Return the streams that a pipeline, or a shard of it, has written."""
        last = self._last(name, os.path.join(self._store, pipeline, name))
        return () if last is None else last.streams.keys()

    @property
    def _store(self) -> str:
        # Absolute: executors have working directories of their own.
        return os.path.abspath(durable.local_path(self.path) or "")

    def _last(self, name: str, own: str) -> StreamEntry | None:
        with durable.explained(f"reading the log of sink {name!r}"):
            return Branch(own).log.last()

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove the directory of the sink's streams."""
        store = self._store
        own = os.path.join(store, pipeline, name)
        if not rows:
            raise cannot_keep_rows(name, f"the log in {own} says which bytes of its streams count")
        return of_directory(own, list, store, rows=rows, is_dry_run=is_dry_run)
