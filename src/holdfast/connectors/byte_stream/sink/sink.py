"""The runtime of the byte stream sink: messages are appended and synced, and one log entry says how far they count.

Invariants: what an entry names is durable before it; nothing below a committed size is ever written again; a file is
written by the generation in its name only; ordinals only grow.  After the entry nothing is left to do but tidying, so
an epoch is published or absent, and nothing between (design/0017).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.byte_stream.sink import messages as messages_module
from holdfast.connectors.byte_stream.sink.messages import MessageColumns, StagedPayloads, messages_of
from holdfast.connectors.byte_stream.sink.ordering import MessagePart
from holdfast.connectors.byte_stream.sink.publishing import StreamPublishing
from holdfast.connectors.byte_stream.sink.rewinding import StreamsBehind, streams_behind
from holdfast.connectors.byte_stream.sink.staging import MessageStaging
from holdfast.connectors.byte_stream.store.branch import Branch, BranchView
from holdfast.connectors.byte_stream.store.manifest import LOG, STREAMS, StreamEntry, fence_of
from holdfast.connectors.kit import refusals
from holdfast.connectors.kit.believed import fresh, went_back
from holdfast.connectors.kit.explained import explained_with, lacking
from holdfast.connectors.kit.files.explanations import FileExplanations
from holdfast.connectors.kit.files.log_owner import check_owner, fenced
from holdfast.connectors.kit.files.staged import FileStaging, directory_of
from holdfast.connectors.kit.rewinds import cannot_go_back
from holdfast.errors import (
    Diverged,
    Fenced,
    InvalidPipeline,
    Unavailable,
    invariant,
)
from holdfast.ports import (
    Explanation,
    Guarantee,
    Held,
    Outcome,
    Publication,
    Refused,
    RunIdentity,
    Sink,
    Staged,
    Withdrawal,
)
from holdfast.positions import Positions
from holdfast.store import durable
from holdfast.store.entry_log import KEPT

log = logging.getLogger("holdfast.connectors.byte_stream")

_OURS = re.compile(r"\d+-(\d+)\.(?:data|index|files)")


class ByteStreamSink:
    """The sink of a run; see :class:`holdfast.ports.Sink`.

    Notes
    -----
    ``publish`` syncs two files of each stream that gets messages, and the log entry and its directory; where a file
    begins or is finished, also the stream's directory and its list of files.
    """

    guarantee = Guarantee.EXACTLY_ONCE
    staging = "payload files, copied behind the stream when published"

    def __init__(
        self,
        name: str,
        pipeline: str,
        schema: pa.Schema,
        store: str,
        columns: MessageColumns,
        publishing: StreamPublishing,
    ) -> None:
        self.name = name
        self._pipeline = pipeline
        self._directory = os.path.join(store, pipeline, name)
        self._schema = schema
        self._columns = columns
        self._times = columns.times(schema)
        self._generation = 0
        aside = os.path.join(self._directory, "writing")
        durable.prepare(self._directory, aside=aside, published=store)
        self._publishing = dataclasses.replace(publishing, store=store, branch=f"{pipeline}/{name}", aside=aside)
        self._branch = Branch(self._directory, aside=aside, gap=_gap)
        self._staging = MessageStaging(
            FileStaging(os.path.join(self._directory, "staging"), schema, is_published=False), columns
        )
        self._explanations = FileExplanations(os.path.join(self._directory, "positions"), f"sink {name!r}")
        with durable.explained(f"opening {self._directory}"):
            for place in (self._staging.places.directory, *(os.path.join(self._directory, x) for x in (LOG, STREAMS))):
                durable.make_directory(place)
        self._check_times()

    def __repr__(self) -> str:
        return f"ByteStreamSink({self.name!r}, {self._directory!r})"

    def open(self, run: RunIdentity) -> Held:
        """Fence lower generations, remove what they left uncommitted, return what is held."""
        while True:
            view = self._view()
            last = view.entry
            if last.generation >= run.generation:  # another run took it between our claim and here
                raise self._fenced(run.generation, last)
            self._finish(last)
            fence = dataclasses.replace(fence_of(last, run.generation), times=self._times)
            if self._append(fence, last):  # else another process has appended since we read: what it published counts
                break
        self._generation = run.generation
        self._remove_uncommitted(view)
        self._branch.log.prune_fences()
        return dataclasses.replace(_held(last), explained=dict(last.explained))

    def writer_factory(self) -> MessageStaging:
        """Return the factory that executors call."""
        return self._staging

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Check what a message cannot be; staged rows have been checked."""
        refusals.check_carried(publication, self._check)
        return False

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, list[Refused]]:
        """Find the carried rows that cannot be messages; staged ones have been checked."""
        return refusals.rejected_carried(publication, self._check)

    def publish(self, publications: Sequence[Publication], believed: Held) -> None:
        """Make the epochs visible: messages behind their streams, then one log entry."""
        view = self._view()
        last = view.entry
        self._check_generation(last)
        new = fresh(f"sink {self.name!r}", self._pipeline, publications, _held(last), believed)
        self._finish(last)
        if new:
            self._publish(new, view)
        self._remove_staged(publications)

    def outcome(self, epoch: int) -> Outcome:
        """Ask the log."""
        try:
            return Outcome.PUBLISHED if epoch <= self._last().epoch else Outcome.ABSENT
        except (Unavailable, InvalidPipeline, OSError) as error:
            log.warning("sink %s did not answer for epoch %d: %s", self.name, epoch, error)
            return Outcome.UNKNOWN

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose files are gone."""
        return [part.name for part in parts if self._staging.missing(part) is not None]

    def inspect(self) -> tuple[Held, list[str]]:
        """Return what the last log entry says, and the names of what is staged and was not published."""
        last = self._last()
        staged = [each.name for each in self._staging.places.directories() if each.epoch > last.epoch]
        # A directory is named generation-epoch-task-attempt-token.
        names = {"/".join([self._pipeline, *name.split("-")[:4]]) for name in staged}
        return _held(last), sorted(names)

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        last = self._last()
        return self._explanations.all(last.explained, last.explanations)

    def sweep(self, *, below_epoch: int) -> int:
        """Drop orphans by name."""
        if self._last().generation != self._generation:  # fenced: what is staged may be the newer run's
            return 0
        places = self._staging.places
        orphans = [
            each.name
            for each in places.directories()
            if (each.generation, each.epoch) < (self._generation, below_epoch)
        ]
        return sum(places.remove(name) for name in orphans)

    def close(self) -> None:
        """Nothing is held open."""

    # --- publishing -------------------------------------------------------------------------------------------------

    def _publish(self, new: Sequence[Publication], view: BranchView) -> None:
        last, record = view.entry, new[-1].record
        number = last.number + 1
        back: StreamsBehind | None = None
        if record.rewound_to is not None:
            entries = self._branch.log.standing()
            back = streams_behind(entries, record.positions)
            if back is None:
                raise cannot_go_back(f"sink {self.name!r}", record, sorted({entry.epoch for entry in entries}))
        opened: list[StagedPayloads] = []
        try:
            with durable.explained(f"writing messages of sink {self.name!r}"):
                if back is not None:
                    streams = self._publishing.rewound(view, back, number, self._generation)
                else:
                    parts = [part for publication in new for part in self._parts(publication, opened)]
                    streams = self._publishing.appended(view, parts, number, self._generation)
        finally:
            for payloads in opened:
                payloads.close()
        for publication in new:
            faults.reach("publish-uncommitted", publication.record.epoch)
        told = lacking(new, last.explained, f"sink {self.name!r}")
        entry = StreamEntry(
            number=number,
            generation=self._generation,
            epoch=record.epoch,
            positions=record.positions,
            pts=record.pts,
            back_to=None if back is None else back.target.epoch,
            times=self._times,
            message_count=streams.message_count,
            streams=streams.states,
            removals=tuple(streams.removals),
            recent_ends=record.recent_ends,
            explained=explained_with(last.explained, told),
            explanations=tuple(told),
        )
        # The commit.
        if not self._append(entry, last):  # another run opened the sink between our reading of the log and the append
            self._check_generation(self._last())
            raise Unavailable(f"Sink {self.name!r} lost its place in its log to itself.", do="start again.")
        for publication in new:
            faults.reach("publish-begun", publication.record.epoch)
        self._finish(entry, is_new=True)
        self._branch.log.prune()

    def _parts(self, publication: Publication, opened: list[StagedPayloads]) -> list[MessagePart]:
        epoch = publication.record.epoch
        found = []
        for part in publication.parts:
            if isinstance(part, Staged):
                try:
                    staged = self._staging.part(self.name, epoch, part)
                except Diverged:
                    self._check_generation(self._last())  # a newer generation may have swept it
                    raise
                if staged is not None:
                    opened.append(staged[1])
                    found.append(staged[0])
            else:
                batches = part.rows.to_batches()
                found += [MessagePart(epoch, *messages_of(self._columns, self._schema, batch)) for batch in batches]
        return found

    def _append(self, entry: StreamEntry, last: StreamEntry) -> bool:
        """Append an entry after the last one; see :meth:`~holdfast.store.entry_log.EntryLog.append`."""
        nexts = [(state.next, entry.streams[name].next) for name, state in last.streams.items()]
        invariant(
            entry.number == last.number + 1
            and entry.generation >= last.generation
            and entry.epoch >= last.epoch
            and all(before <= after for before, after in nexts),
            f"entry {entry.number} of the log of sink {self.name!r}, of generation {entry.generation} and epoch "
            f"{entry.epoch}, is to follow entry {last.number}, of {last.generation} and {last.epoch}.",
            why="numbers, generations, epochs and the ordinals of streams only grow.",
            pipeline=self._pipeline,
            participant=self.name,
            epoch=entry.epoch,
            generation=entry.generation,
        )
        return self._branch.log.append(entry)

    def _check(self, rows: pa.Table) -> None:
        for batch in rows.to_batches():
            messages_module.check(self._columns, self._schema, batch)

    # --- rewinds ----------------------------------------------------------------------------------------------------

    def withdrawal(self, to: Positions) -> Withdrawal:
        """Say what going back to some positions would withdraw: what streams have got after them."""
        with durable.explained(f"reading the log of sink {self.name!r}"):
            entries = self._branch.log.standing()
        back = streams_behind(entries, to)
        if back is not None:
            return Withdrawal(back.target.epoch, back.epoch_count, back.message_count(self._view()))
        ends = sorted({entry.epoch for entry in entries if entry.epoch})
        if not ends:
            return Withdrawal(obstacle="it holds nothing")
        return Withdrawal(
            obstacle=f"none of its log entries ended there; it keeps the last {KEPT}, which can go back to epochs "
            f"{ends[0]} to {ends[-1]}"
        )

    # --- tidying: repeated by who opens the sink next ---------------------------------------------------------------

    def _finish(self, entry: StreamEntry, *, is_new: bool = False) -> None:
        """Carry an entry out, before the next one: copy what it explains, remove what nothing names any more."""
        self._explanations.keep(entry.explanations, is_new=is_new)
        with suppress(OSError):
            for path in entry.removals:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._directory, path))

    def _remove_uncommitted(self, view: BranchView) -> None:
        """Remove what lower generations wrote and did not commit; none of them can commit it any more."""
        with suppress(OSError):  # nobody reads it: it costs space, and the next start tries again
            above = os.path.join(self._directory, STREAMS)
            known = {stream.directory: stream for stream in view.streams.values()}
            for directory in (entry.path for entry in os.scandir(above)):
                stream = known.get(directory)
                files = () if stream is None else stream.files
                sizes = {f"{file.stem}.data": file.size for file in files}
                sizes |= {f"{file.stem}.index": file.index_size for file in files}
                named = None if stream is None else stream.state.list
                for entry in os.scandir(directory):
                    match = _OURS.fullmatch(entry.name)
                    if entry.name in sizes:
                        if entry.stat().st_size > sizes[entry.name]:
                            os.truncate(entry.path, sizes[entry.name])
                    elif match and entry.name != named and int(match[1]) < self._generation:
                        os.unlink(entry.path)

    def _remove_staged(self, publications: Iterable[Publication]) -> None:
        for publication in publications:
            for part in publication.parts:
                name = directory_of(part) if isinstance(part, Staged) else None
                if name is not None:
                    self._staging.places.remove(name)

    # --- fence ------------------------------------------------------------------------------------------------------

    def _last(self) -> StreamEntry:
        with durable.explained(f"reading the log of sink {self.name!r}"):
            return self._branch.log.last() or StreamEntry()

    def _view(self) -> BranchView:
        with durable.explained(f"reading the log of sink {self.name!r}"):
            return self._branch.view()

    def _check_times(self) -> None:
        last = self._last()
        if last.streams and last.times != self._times:
            kinds = {"time": "times (TIMESTAMP)", "ticks": "ticks (BIGINT)"}
            raise InvalidPipeline(
                f"Sink {self.name!r} writes {kinds[self._times]}, and its streams have {kinds[last.times]}.",
                why="all messages of a stream have timestamps of one kind.",
                do=f"cast column {self._columns.timestamp!r}, or choose another path or name=.",
                participant=self.name,
            )

    def _check_generation(self, last: StreamEntry) -> None:
        check_owner(
            self.name,
            self._pipeline,
            self._generation,
            _held(last),
            what="log",
            place=self._directory,
            holder="streams hold",
        )

    def _fenced(self, generation: int, last: StreamEntry) -> Fenced:
        return fenced(self.name, self._pipeline, generation, _held(last))


def _held(entry: StreamEntry) -> Held:
    return Held(entry.epoch, entry.generation, entry.positions, entry.pts, recent_ends=entry.recent_ends)


def _gap(path: str, entry: StreamEntry) -> Diverged:
    return went_back(
        f"the log entry before {path} is gone; nothing was published.",
        participant=path,
        epoch=entry.epoch,
        generation=entry.generation,
    )
