"""``read.callback``: rows that a program pushes, journalled to disk before the push returns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from holdfast.connectors.files import journal
from holdfast.connectors.files.source.log import Block
from holdfast.connectors.files.source.planner import grouped, within_limits
from holdfast.connectors.reading import deferred_log as owing
from holdfast.connectors.reading.bounds import with_bounds
from holdfast.connectors.reading.deferred import OwingSource
from holdfast.connectors.reading.identified import ROWS_MAX, KnownPlace, Numbered, numbered
from holdfast.connectors.reading.row_batches import Row, to_batch
from holdfast.errors import BadRow, Corrupt, InvalidPipeline
from holdfast.limits import EpochRoom, ReadLimit
from holdfast.ports import Explanation, Source, Span
from holdfast.positions import SourcePositions
from holdfast.store import durable, sealed
from holdfast.types.casting import fitted
from holdfast.types.conversion import check_ranges

if TYPE_CHECKING:
    from holdfast.graph.nodes import Stream

SEGMENT = "log"


class CallbackFeed:
    """A directory into which rows are pushed, and from which one pipeline reads them.

    Parameters
    ----------
    directory : str
        Local directory, created if absent.  Executors must see it under the same path.
    schema : str, StructType or pyarrow.Schema
        Columns of the rows.
    timestamp : str, optional
        Column that holds event time.
    bounds : str, optional
        BOOLEAN column of the schema: a row in which it is true is not data but a bound, see :meth:`bound`.  Not a
        column of the stream.

    Notes
    -----
    Any number of feeds may be open on one directory, in any threads and
    processes, whether a pipeline runs or not.

    Examples
    --------
    ::

        feed = hf.read.CallbackFeed("data/clicks", schema="user STRING, at TIMESTAMP")
        clicks = hf.read.callback(feed, timestamp="at", name="clicks")
        ...
        feed.push([{"user": "ann", "at": datetime.now(UTC)}])      # from a web handler, say
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        schema: Any,
        timestamp: str | None = None,
        bounds: str | None = None,
    ) -> None:
        from holdfast.types.schema import to_arrow

        self.given = os.fspath(directory)
        self.directory = sealed.local_directory(self.given, participant="callback")
        self.schema = to_arrow(schema)
        self.timestamp = timestamp
        self.bounds = bounds
        self._is_prepared = False

    def push(self, rows: Sequence[Row] | pa.RecordBatch | pa.Table) -> int | None:
        """Add rows; they are durable when this returns, and will reach every sink once.

        Parameters
        ----------
        rows : list of dict, RecordBatch or Table
            Pushed together, read together.  Many rows in one push cost as much as one.

        Returns
        -------
        int or None
            Number of the journal entry; None when there were no rows.

        Raises
        ------
        BadRow
            If the rows do not fit the schema: none of them was taken.
        InvalidPipeline
            If the feed is closed: none of them was taken.
        Unavailable
            If the disk is full or does not answer: none of them was taken.
        InDoubt
            If they are written, and the disk does not say that they survive a power cut: they may have been taken.
        """
        batch = self._batch(rows)
        if batch.num_rows == 0:
            return None
        self._prepare()
        if self.is_closed:
            raise InvalidPipeline(
                f"the feed {self.given} is closed.",
                why="it was closed: no more rows follow, and what waited for more has continued.",
                do="push before close(); or create another feed.",
                participant=self.directory,
            )
        return journal.append(self.directory, batch)

    def bound(self, t: Any, **key: Any) -> int | None:
        """Promise that no row below ``t`` follows; durable when this returns.

        Parameters
        ----------
        t : datetime or int
            A value of the timestamp column.
        **key
            Column -> value: the key it holds for.  Without any it holds for all keys.

        Returns
        -------
        int
            Number of the journal entry.

        Raises
        ------
        InvalidPipeline
            If the feed was made without ``timestamp=`` and ``bounds=``, or is closed.
        BadRow
            If the values do not fit the columns, or another column is NOT NULL.

        Examples
        --------
        ::

            feed = hf.read.CallbackFeed("data/clicks", schema="user STRING, at TIMESTAMP, is_bound BOOLEAN",
                                        timestamp="at", bounds="is_bound")
            feed.bound(datetime.now(UTC))                    # nothing older follows
            feed.bound(datetime.now(UTC), user="ann")        # ann does not
        """
        if self.timestamp is None or self.bounds is None:
            raise InvalidPipeline(
                f"the feed {self.given} has no column for bounds.",
                why="a bound is a row of the journal: its timestamp, and a BOOLEAN column that marks it.",
                do='write CallbackFeed(..., schema="..., is_bound BOOLEAN", timestamp="<column>", bounds="is_bound").',
            )
        return self.push([{**key, self.timestamp: t, self.bounds: True}])

    def close(self) -> None:
        """Declare that no more rows follow, from any process: operators that wait for more receive the end.

        Durable when it returns; a feed that is closed stays so.  A push that another process began before may still
        arrive: its rows come after the end, and are late for operators that use it.
        """
        self._prepare()
        sealed.put_if_absent(_end_marker(self.directory), b"closed")

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called, here or elsewhere."""
        return os.path.exists(_end_marker(self.directory))

    def _prepare(self) -> None:
        if not self._is_prepared:
            sealed.prepare(self.directory)
            self._is_prepared = True

    def _batch(self, rows: Sequence[Row] | pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if isinstance(rows, pa.Table):
            try:
                chosen = rows.select(self.schema.names)
                batches = [fitted(batch, self.schema) for batch in chosen.to_batches()]
                fitting = pa.Table.from_batches(batches, self.schema).cast(self.schema).combine_chunks()
                check_ranges(fitting)
            except (pa.ArrowException, KeyError, ValueError) as error:
                raise BadRow(
                    f"the pushed rows do not fit: {error}.",
                    why=f"the feed's columns are {', '.join(f'{f.name} {f.type}' for f in self.schema)}.",
                    do="push a table with these columns.",
                    participant=self.directory,
                ) from error
            return next(iter(fitting.to_batches()), to_batch([], self.schema))
        try:
            return to_batch(list(rows), self.schema)
        except InvalidPipeline as error:
            raise BadRow(error.what, why=error.why, do=error.do, participant=self.directory) from error


@dataclass(frozen=True)
class CallbackSpec:
    """Declaration of ``read.callback``; see :func:`callback` for the arguments."""

    given: str
    directory: str
    schema: pa.Schema
    timestamp: str | None = None
    max_rows_per_epoch: int | None = None
    bounded: bool = True
    """It ends when the feed is closed."""
    before: int | None = None
    """No row at or above this time is wanted yet, microseconds or ticks; no argument of users."""
    marker: str | None = None
    """Where a time is set to end at: the column that marks bound rows; no argument of users."""
    kind: str = field(default="callback", init=False)
    rejects: bool = field(default=False, init=False)
    numbering: ClassVar[str] = "the number of its entry in the feed, and of the row in it"

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        shown = {
            "directory": self.given,
            "timestamp": self.timestamp,
            "max_rows_per_epoch": self.max_rows_per_epoch,
            "columns": [f"{column.name}: {column.type}" for column in self.schema],
        }
        return {name: value for name, value in shown.items() if value is not None}

    def from_time(self, at_us: int) -> CallbackSpec:
        """Return the source itself: what is left of the journal is read from its beginning."""
        return self

    def up_to(self, before: int, marker: str | None) -> CallbackSpec:
        """Return the source without the rows at or above a time, which it then owes."""
        return replace(self, before=before, marker=marker)

    def open(self, name: str, workspace: str) -> Source:
        """Return the source; the journal is opened when it is first needed."""
        source = CallbackSource(self, name, workspace)
        return source if self.timestamp is None else OwingSource(source, self, SEGMENT, name, workspace)

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return why the feed's journal does not reach from these positions on; the checkpoint holds nothing of it."""
        if not os.path.isdir(self.directory):
            return f"its feed {self.given} is not there."
        if lost := owing.obstacle(workspace, positions, SEGMENT):
            return lost
        begin, end = journal.bounds(self.directory)
        last = owing.entries_of(workspace, {**positions, **(until or {})}, SEGMENT)
        for wanted in (*owing.entries_of(workspace, positions, SEGMENT), *last):
            if not begin <= wanted <= end:
                return f"its feed {self.given} reaches from entry {begin} to {end}, and does not hold {wanted}."
        return ""

    def places(self, name: str, workspace: str, until: SourcePositions) -> Iterator[KnownPlace]:
        """Yield the entries, also those that were removed."""
        for position, number, since, before in owing.entries_before(workspace, until, SEGMENT):
            entry, shown = os.path.basename(journal.path(self.directory, number)), f"entry {number} of the feed"
            yield KnownPlace(entry, 0, ROWS_MAX, SEGMENT, position, shown, since, before)

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return the end of the feed's journal, which may be an older copy as well; nothing where it is gone."""
        if not os.path.isdir(self.directory):
            return {}
        return owing.reached(workspace, SEGMENT, journal.bounds(self.directory)[1])

    def explanations(self, name: str, workspace: str, after: int) -> list[Explanation]:
        """Return what its positions mean where it was read up to a time."""
        return owing.explanations(workspace, name, after)

    def restore(self, name: str, workspace: str, explanations: Sequence[Explanation]) -> None:
        """Note it again."""
        owing.restore(workspace, name, explanations)


class CallbackSource:
    """Position = number of the next journal entry."""

    def __init__(self, spec: CallbackSpec, name: str, workspace: str) -> None:
        self.spec = spec
        self.name = name
        self.workspace = workspace
        self._blocks: dict[int, Block] = {}
        self._frozen: int | None = None
        self._is_open = False
        self._durable_below = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (CallbackSource, (self.spec, self.name, self.workspace))

    @property
    def _directory(self) -> str:
        if not self._is_open:
            sealed.prepare(self.spec.directory)
            _claim(self.spec.directory, self.name, self.workspace)
            self._is_open = True
        return self.spec.directory

    def initial(self) -> SourcePositions:
        """Positions before the oldest entry."""
        return {SEGMENT: journal.bounds(self._directory)[0]}

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: the entries that are there, within the limit."""
        first = _number(start)
        if bounded and self._frozen is None:
            self.freeze()
        known = self._known(first, self._frozen if bounded else None)
        count, _ = within_limits(known, 0, EpochRoom(None, self.spec.max_rows_per_epoch, limit))
        self._make_durable(first + count)
        return {SEGMENT: first + count}

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether the feed is closed and these positions are after its last entry."""
        if not os.path.exists(_end_marker(self._directory)):
            return False
        return _number(positions) >= journal.bounds(self._directory)[1]  # read after the mark

    def freeze(self) -> None:
        """Record which entries are there now."""
        self._frozen = journal.bounds(self._directory)[1]

    def newest(self) -> SourcePositions | None:
        """Position after the last entry."""
        return {SEGMENT: journal.bounds(self._directory)[1]}

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes of the entries between two positions."""
        return sum(block.size_bytes for block in self._between(start, end))

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Rows between two positions."""
        return sum(block.row_count or 0 for block in self._between(start, end))

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Group neighbouring entries into spans of about equal size."""
        return [
            Span(
                tuple(block.name for block in group),
                sum(block.row_count or 0 for block in group),
                sum(block.size_bytes for block in group),
            )
            for group in grouped(self._between(start, end), parallelism)
        ]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span."""
        for _, batch in self.read_numbered(span):
            yield batch

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield the rows of a span with their numbers."""
        for name in span.value:
            first = 0
            for batch in journal.read(name):
                rows = batch if batch.schema.equals(self.spec.schema) else _fitting(batch, self.spec.schema, name)
                yield numbered(os.path.basename(name), first, rows)
                first += rows.num_rows

    def committed(self, end: SourcePositions) -> None:
        """Remove the entries that every sink holds."""
        number = _number(end)
        journal.drop(self._directory, number)
        for known in [one for one in self._blocks if one < number]:
            del self._blocks[known]

    def _known(self, first: int, end: int | None) -> list[Block]:
        """Return the entries from ``first`` on, without a gap."""
        found: list[Block] = []
        while end is None or first + len(found) < end:
            number = first + len(found)
            block = self._blocks.get(number) or journal.block(self._directory, number)
            if block is None:
                break
            self._blocks[number] = block
            found.append(block)
        if not found:
            begin, known_end = journal.bounds(self._directory)
            if not begin <= first <= known_end:  # removed; or the whole feed was, and numbers restart
                raise _gone(self.spec.directory, first if first < begin else known_end)
        return found

    def _make_durable(self, end: int) -> None:
        """Sync the names of the entries below ``end``.

        Between its link and its sync an entry is seen, and does not survive a power cut.  Were it read then, the next
        push, which its writer repeats because the first one never returned, would get its number and be skipped.
        """
        if end > self._durable_below:
            with durable.explained(f"syncing {self._directory}"):
                durable.sync_directory(self._directory)
            self._durable_below = end

    def _between(self, start: SourcePositions, end: SourcePositions) -> list[Block]:
        first, last = _number(start), _number(end)
        found = self._known(first, last) if last > first else []
        if len(found) < last - first:
            raise _gone(self.spec.directory, first + len(found))
        return found


def _end_marker(directory: str) -> str:
    return os.path.join(directory, "closed")


def _gone(directory: str, number: int) -> Corrupt:
    return Corrupt(
        f"entry {number} of the feed {directory} is gone.",
        why="it, or the whole feed, was removed or replaced before every sink of this pipeline held its rows.",
        do="restore it from a copy; or start over with a new checkpoint, a new feed and empty targets.",
        participant=directory,
    )


def _number(positions: SourcePositions) -> int:
    return int(positions.get(SEGMENT, 0))


def _claim(directory: str, name: str, workspace: str) -> None:
    """Make this source the feed's only reader: entries are removed when *its* sinks hold them."""
    marker = os.path.join(directory, "reader")
    reader = {"source": name, "workspace": sealed.local_directory(workspace, participant=name)}
    held = sealed.read_sealed(marker)
    if held is None:
        sealed.put_if_absent(marker, json.dumps(reader).encode())
        held = sealed.read_sealed(marker)
    other = json.loads(held or b"{}")
    if other != reader:
        raise InvalidPipeline(
            f"the feed {directory} has another reader: {other.get('source')!r} of {other.get('workspace')}.",
            why="an entry is removed when that source's sinks hold it: a second reader would miss rows.",
            do=f"give each pipeline a feed of its own; if the other one is gone for good, remove {marker}.",
            participant=name,
        )


def _fitting(batch: pa.RecordBatch, schema: pa.Schema, name: str) -> pa.RecordBatch:
    try:
        return pa.Table.from_batches([batch]).select(schema.names).cast(schema).combine_chunks().to_batches()[0]
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise BadRow(
            f"{name} does not fit the feed's schema: {error}.",
            why="it was pushed with another schema.",
            do="use the schema that the rows were pushed with until they are read.",
            participant=name,
        ) from error


def callback(
    feed: CallbackFeed, *, timestamp: str | None = None, max_rows_per_epoch: int | None = None, name: str | None = None
) -> Stream:
    """Read the rows that are pushed into a feed, each exactly once.

    Parameters
    ----------
    feed : CallbackFeed
        Where they are pushed.  It has one reader.
    timestamp : str, optional
        Column that holds event time; by default the feed's.
    max_rows_per_epoch : int, optional
        Limit of one epoch; one push is never divided.
    name : str, optional
        The source's name.
    """
    from holdfast.graph.building import building
    from holdfast.graph.nodes import stream_from

    with building("source", name):
        if not isinstance(feed, CallbackFeed):
            raise InvalidPipeline(
                f"callback was given a {type(feed).__name__}.",
                do='write feed = hf.read.CallbackFeed("data/clicks", schema="user STRING"); hf.read.callback(feed).',
            )
        if max_rows_per_epoch is not None and (not isinstance(max_rows_per_epoch, int) or max_rows_per_epoch < 1):
            raise InvalidPipeline(
                f"max_rows_per_epoch={max_rows_per_epoch!r} is not a positive number.", do="leave it out."
            )
        time = timestamp or feed.timestamp
        given = CallbackSpec(feed.given, feed.directory, feed.schema, time, max_rows_per_epoch)
        spec = with_bounds(given, feed.bounds)
    return stream_from(spec, name=name)
