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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from holdfast.connectors.byte_stream import messages as messages_module
from holdfast.connectors.byte_stream.branch import Branch, BranchView
from holdfast.connectors.byte_stream.manifest import LOG, STREAMS, StreamEntry, fence_of
from holdfast.connectors.byte_stream.messages import MessageColumns, MessagePart, StagedPayloads, messages_of
from holdfast.connectors.byte_stream.publishing import NextStreams, StreamPublishing, StreamsBehind, streams_behind
from holdfast.connectors.byte_stream.staging import MessageStaging
from holdfast.connectors.kit.expected import went_back
from holdfast.connectors.kit.explained import explained_with
from holdfast.connectors.kit.files.explanations import explanations_in
from holdfast.connectors.kit.files.staged import FileStaging, StagedDirectory, directory_of
from holdfast.connectors.kit.log_sink import AttemptName, RewindableLogSink
from holdfast.errors import (
    Diverged,
    InvalidPipeline,
    invariant,
)
from holdfast.ports import (
    Explanation,
    Held,
    Publication,
    RunIdentity,
    Staged,
    Withdrawal,
)
from holdfast.positions import Positions
from holdfast.store import durable

log = logging.getLogger("holdfast.connectors.byte_stream")

_OURS = re.compile(r"\d+-(\d+)\.(?:data|index|files)")


@dataclass(frozen=True)
class _Written:
    """What was written behind the streams for an entry."""

    streams: NextStreams
    back: StreamsBehind | None


class ByteStreamSink(RewindableLogSink[StreamEntry, _Written, StreamsBehind]):
    """The sink of a run; see :class:`holdfast.ports.Sink`.

    Notes
    -----
    ``publish`` syncs two files of each stream that gets messages, and the log entry and its directory; where a file
    begins or is finished, also the stream's directory and its list of files.
    """

    _log = log
    holder = "streams hold"
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
        super().__init__(name, pipeline)
        self._directory = os.path.join(store, pipeline, name)
        self._schema = schema
        self._columns = columns
        self._times = columns.times(schema)
        aside = os.path.join(self._directory, "writing")
        durable.prepare(self._directory, aside=aside, published=store)
        self._publishing = dataclasses.replace(publishing, store=store, branch=f"{pipeline}/{name}", aside=aside)
        self._branch = Branch(self._directory, aside=aside, gap=_gap)
        self._staging = MessageStaging(
            FileStaging(os.path.join(self._directory, "staging"), schema, is_published=False), columns
        )
        self._before: BranchView  # of the moment before this run took the log over
        self._explanations = explanations_in(os.path.join(self._directory, "positions"), f"sink {name!r}")
        with durable.explained(f"opening {self._directory}"):
            for place in (self._staging.places.directory, *(os.path.join(self._directory, x) for x in (LOG, STREAMS))):
                durable.make_directory(place)
        self._check_times()

    def __repr__(self) -> str:
        return f"ByteStreamSink({self.name!r}, {self._directory!r})"

    @property
    def place(self) -> str:
        """Where the log lies, in errors."""
        return self._directory

    def _fence(self, last: StreamEntry, run: RunIdentity) -> StreamEntry:
        # Before the fence: what it names is of lower generations, which append to none of it any more.
        self._before = self._view()
        return dataclasses.replace(fence_of(last, run.generation), times=self._times)

    def _took_over(self, fence: StreamEntry, last: StreamEntry) -> Held:
        self._remove_uncommitted(self._before)
        self._branch.log.prune_fences()
        return last.held()

    def writer_factory(self) -> MessageStaging:
        """Return the factory that executors call."""
        return self._staging

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose files are gone."""
        return [part.name for part in parts if self._staging.missing(part) is not None]

    def inspect(self) -> tuple[Held, list[str]]:
        """Return what the last log entry says, and the names of what is staged and was not published."""
        last = self._last()
        staged = [each.name for each in self._staging.places.directories() if each.epoch > last.epoch]
        # A directory is named generation-epoch-task-attempt-token.
        names = {"/".join([self._pipeline, *name.split("-")[:4]]) for name in staged}
        return last.held(), sorted(names)

    # --- publishing -------------------------------------------------------------------------------------------------

    def _prepare(self, new: Sequence[Publication], last: StreamEntry, carried: list[Staged]) -> _Written:
        """Write the messages of some epochs behind their streams, where no reader sees them yet."""
        view, number = self._view(), last.number + 1
        if view.entry.number != last.number:  # another run opened the sink since
            self.fenced_out()
        back = self._back(new[-1].record, last)
        opened: list[StagedPayloads] = []
        try:
            with durable.explained(f"writing messages of sink {self.name!r}"):
                if back is not None:
                    return _Written(self._publishing.rewound(view, back, number, self._generation), back)
                parts = [part for publication in new for part in self._parts(publication, opened)]
                return _Written(self._publishing.appended(view, parts, number, self._generation), None)
        finally:
            for payloads in opened:
                payloads.close()

    def _entry(
        self, new: Sequence[Publication], last: StreamEntry, prepared: _Written, told: Sequence[Explanation]
    ) -> StreamEntry:
        record, streams, back = new[-1].record, prepared.streams, prepared.back
        return StreamEntry(
            number=last.number + 1,
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
            explained=explained_with(self._explanation_counts(last), told),
            explanations=tuple(told),
        )

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

    def _check_successor(self, entry: StreamEntry, last: StreamEntry) -> None:
        invariant(
            all(state.next <= entry.streams[name].next for name, state in last.streams.items()),
            f"entry {entry.number} of the log of sink {self.name!r} takes a stream back, behind entry {last.number}.",
            why="the ordinals of streams only grow.",
            pipeline=self._pipeline,
            participant=self.name,
            epoch=entry.epoch,
            generation=entry.generation,
        )

    def _try(self, entry: StreamEntry) -> bool:
        return self._branch.log.append(entry)

    def _check(self, rows: pa.Table) -> None:
        for batch in rows.to_batches():
            messages_module.check(self._columns, self._schema, batch)

    def _explanation_counts(self, last: StreamEntry) -> Mapping[str, int]:
        return self._explanations.count(last.held())

    def _staged(self) -> Iterable[StagedDirectory]:
        return self._staging.places.directories()

    def _remove(self, names: Iterable[AttemptName]) -> int:
        return sum(self._staging.places.remove(each.name) for each in names)

    # --- rewinds ----------------------------------------------------------------------------------------------------

    def _standing(self, last: StreamEntry) -> Sequence[StreamEntry]:
        with durable.explained(f"reading the log of sink {self.name!r}"):
            return self._branch.log.standing()

    def _behind(self, entries: Sequence[StreamEntry], to: Positions) -> StreamsBehind | None:
        return streams_behind(entries, to)

    def _withdrawal(self, back: StreamsBehind) -> Withdrawal:
        return Withdrawal(back.target.epoch, back.epoch_count, back.message_count(self._view()))

    # --- tidying: repeated by who opens the sink next ---------------------------------------------------------------

    def _tidy(self, publications: Sequence[Publication], entry: StreamEntry | None) -> None:
        if entry is not None:
            self._branch.log.prune()
        self._remove_staged(publications)

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

    # --- the log ----------------------------------------------------------------------------------------------------

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


def _gap(path: str, entry: StreamEntry) -> Diverged:
    return went_back(
        f"the log entry before {path} is gone; nothing was published.",
        participant=path,
        epoch=entry.epoch,
        generation=entry.generation,
    )
