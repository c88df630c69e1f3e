"""``holdfast video import``: files into a stream of encoded packets, each packet once, however often it is killed.

A stream that is imported is a branch of its own in the store, ``import/<stream>``, written by the sink of byte streams.
Each commit says how far the files are read, in the same log entry that makes the packets visible; so there is no other
state, and who repeats the command goes on where the last commit ended.

What each crash leaves: before the first commit of a file nothing of it; after any commit the packets up to there, and
what the file is known by (the sink keeps it with the positions).  Bytes behind a commit are cut by the next opening.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import TracebackType

import pyarrow as pa

from holdfast.connectors.byte_stream.branch import Branch, StreamView
from holdfast.connectors.byte_stream.manifest import directory_name
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline
from holdfast.footage.records import FileRecord, KnownFile, Progress, file_to_begin, known_file, record_of
from holdfast.masking import masked
from holdfast.ports import Carried, EpochRecord, Publication, RunIdentity
from holdfast.store import durable
from holdfast.video.containers import ContainerReader, is_address
from holdfast.video.packets import EncodedPacket, message_times
from holdfast.video.parameters import first_frame
from holdfast.video.timing import SECOND_NS, utc

PIPELINE = "import"
"""First part of the branch's name, where a pipeline's would be."""

BATCH_BYTES = 16 * 2**20
BATCH_PACKETS = 4096
"""Of one commit, about."""

END = "end"
"""As ``start``: where the pictures of the stream end."""

_KEYS_TRIED = 3

_COLUMNS = MessageColumns("timestamp", "data", "stream", "is_key")
_SCHEMA = pa.schema([("stream", pa.string()), ("timestamp", pa.int64()), ("is_key", pa.bool_()), ("data", pa.binary())])


@dataclass(frozen=True)
class FileReport:
    """What became of a file.

    Parameters
    ----------
    file : str
        Its path, without secrets.
    packet_count, known_count : int
        Packets that it has, and how many of them were there before this import.
    start, end : int
        When its first picture is shown and where the last one ends, nanoseconds.
    jump_count, repair_count, other_count : int
        How often its times jump back; packets whose decoding time was repaired; packets of audio and the like, which
        are left out.
    is_skipped : bool
        It was imported before, and not read.
    """

    file: str
    packet_count: int
    known_count: int
    start: int
    end: int
    jump_count: int = 0
    repair_count: int = 0
    other_count: int = 0
    is_skipped: bool = False


class VideoImport:
    """Imports files into one stream.

    Parameters
    ----------
    store : str
        Directory of the store, created if absent.
    stream : str
        Name of the stream.
    batch_bytes : int
        Of one commit, about.
    progress : callable, optional
        Called after each commit with the path, the packets of the file so far, and the time they have come to.

    Notes
    -----
    It takes the branch over: an import into the same stream that runs elsewhere is fenced.
    """

    def __init__(
        self,
        store: str,
        stream: str,
        *,
        batch_bytes: int = BATCH_BYTES,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.stream = stream
        self._batch_bytes = batch_bytes
        self._notify = progress
        name = directory_name(stream)
        spec = ByteStreamSinkSpec(store, _COLUMNS)
        self._sink = spec.connect(name, PIPELINE, _SCHEMA)
        self._branch = Branch(os.path.join(os.path.abspath(durable.local_path(store) or store), PIPELINE, name))
        last = self._branch.log.last()
        self._generation = 1 if last is None else last.generation + 1
        self._held = self._sink.open(RunIdentity(PIPELINE, self._generation))
        self._progress = Progress.of(self._held)
        self._records = [FileRecord.read(each.text) for each in self._sink.explanations()]

    def __enter__(self) -> VideoImport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.close()

    def add(self, path: str, start: int | str | None = None) -> FileReport:
        """Import a file, or what is not there yet of it.

        Parameters
        ----------
        path : str
            A file or an address.
        start : int or "end", optional
            Time of its first picture, nanoseconds of Unix time; where the stream ends.  By default the container's
            ``creation_time``, or where the stream ends if it has none.  Of a file that was begun before: the time that
            it had then.

        Raises
        ------
        InvalidPipeline
            If it is no file with video, or begins before the end of what the stream holds.
        Corrupt
            If it ends early, or cannot be read: what could be read is in the stream.
        """
        shown = masked(path)
        _check_readable(path, shown)
        found = record_of(path, shown)
        known = known_file(self._records, self._progress, found)
        if known is not None and known.is_finished:
            origin = known.record.origin
            return FileReport(
                shown, known.packet_count, known.packet_count, origin, self._progress.end, is_skipped=True
            )
        if known is None:
            known = self._begin(path, found, start)
        with ContainerReader(path, origin=known.record.origin) as reader:
            packets = message_times(reader.packets(), known.record.after)
            count = self._append(path, known, packets, reader)
        return FileReport(
            shown,
            count,
            known.packet_count,
            known.record.origin,
            reader.end,
            reader.jump_count,
            reader.repair_count,
            reader.other_count,
        )

    # --- the beginning of a file --------------------------------------------------------------------

    def _begin(self, path: str, found: FileRecord, start: int | str | None) -> KnownFile:
        with ContainerReader(path, origin=0) as reader:
            created = reader.creation_time
            if not is_address(path):
                _check_decodable(reader)
        origin = self._origin(created, start)
        record = file_to_begin(found, origin=origin, after=self._highest(), before=self._progress)
        return KnownFile(len(self._records) + 1, record, 0, is_finished=False)

    def _origin(self, created: int | None, start: int | str | None) -> int:
        end = self._progress.end
        if isinstance(start, int):
            return start
        if start is not None or created is None:
            return end
        # Containers note it in whole seconds: parts of one recording seem to overlap.
        return end if end - SECOND_NS < created < end else created

    def _view(self) -> StreamView | None:
        return self._branch.view().streams.get(self.stream)

    def _highest(self) -> int | None:
        view = self._view()
        return view.state.highest if view is not None and view.files else None

    # --- its packets --------------------------------------------------------------------------------

    def _append(
        self, path: str, file: KnownFile, packets: Iterator[tuple[int, EncodedPacket]], reader: ContainerReader
    ) -> int:
        """Append what is not there yet, and return how many packets the file has."""
        count = sum(1 for _ in islice(packets, file.packet_count))
        rows: list[tuple[int, EncodedPacket]] = []
        size, failure = 0, None
        while True:
            try:
                row = next(packets, None)
            except HoldfastError as error:
                failure = error  # what could be read is kept
                break
            if row is None:
                break
            if count + len(rows) == file.packet_count:
                self._check_place(path, file, row)
            rows.append(row)
            size += len(row[1].data)
            if size >= self._batch_bytes or len(rows) >= BATCH_PACKETS:
                count, size = count + len(rows), 0
                self._commit(file, rows, count, reader.end)
                self._say(path, count, rows[-1][0])
                rows = []
        count += len(rows)
        if rows or (count and failure is None and file.number >= len(self._records)):
            self._commit(file, rows, count, reader.end, is_finished=failure is None)
        if failure is not None:
            raise failure
        if not count:
            raise InvalidPipeline(
                f"{masked(path)} has no packet of video.",
                why="its container announces a video stream, and there is nothing in it.",
                do="name a file with video in it.",
                participant=masked(path),
            )
        self._say(path, count, reader.end)
        return count

    def _commit(
        self,
        file: KnownFile,
        rows: Sequence[tuple[int, EncodedPacket]],
        count: int,
        end: int,
        *,
        is_finished: bool = False,
    ) -> None:
        progress = Progress(
            file.number,
            file.record.before.packets + count,
            file.number if is_finished else 0,
            max(end, self._progress.end),
        )
        if progress == self._progress:
            return
        told = (file.record.explanation(file.number),) if file.number > len(self._records) else ()
        epoch = EpochRecord(PIPELINE, self._held.epoch + 1, self._generation, progress.positions, explanations=told)
        parts = (Carried(self._table(rows)),) if rows else ()
        self._sink.publish([Publication(epoch, parts)], self._held)
        self._held = replace(self._held, epoch=epoch.epoch, positions=epoch.positions)
        self._progress = progress
        self._records += [file.record] if told else []

    def _table(self, rows: Sequence[tuple[int, EncodedPacket]]) -> pa.Table:
        columns = {
            "stream": [self.stream] * len(rows),
            "timestamp": [at for at, _ in rows],
            "is_key": [packet.is_key for _, packet in rows],
            "data": [packet.to_bytes() for _, packet in rows],
        }
        return pa.table(columns, schema=_SCHEMA)

    def _check_place(self, path: str, file: KnownFile, row: tuple[int, EncodedPacket]) -> None:
        """Refuse packets that would lie before others that are in the stream."""
        highest, packet = self._highest(), row[1]
        is_before = file.number > len(self._records) and highest is not None and packet.pts <= highest
        if highest is not None and (is_before or file.number < len(self._records)):
            raise InvalidPipeline(
                f"{masked(path)} goes on at {utc(packet.pts)}, and stream {self.stream!r} reaches {utc(highest)}.",
                why="times of a stream ascend, and another file was imported that is later.",
                do="append it at the end (--start end), say when it begins (--start TIME), or choose another stream.",
                participant=self.stream,
            )

    def _say(self, path: str, count: int, at: int) -> None:
        if self._notify is not None:
            self._notify(masked(path), count, at)


def _check_readable(path: str, shown: str) -> None:
    if not is_address(path) and not os.path.isfile(path):
        raise InvalidPipeline(
            f"there is no file {shown}.",
            why="it is a directory." if os.path.isdir(path) else "nothing has this name.",
            do="name files with video in them, or an address.",
            participant=shown,
        )


def _check_decodable(reader: ContainerReader) -> None:
    """Refuse a file of which no picture could be decoded: its head describes another video."""
    keys: list[EncodedPacket] = []
    try:
        for packet in reader.packets():
            if packet.is_key and packet.parameters is not None:
                keys.append(packet)
                if first_frame(packet.parameters, packet.data) is not None:
                    return
                if len(keys) == _KEYS_TRIED:
                    break
    except Corrupt:
        pass  # reading it from its beginning says so, and keeps what can be read
    if keys:
        raise Corrupt(
            f"{reader.shown} cannot be decoded: none of its first {len(keys)} key packets, from "
            f"{utc(keys[0].pts)} after its beginning on.",
            why="the codec parameters in its head are not those of its packets, or all of them are damaged.",
            do="get the file again, or mend it with what recorded it (its head is that of another video).",
            participant=reader.shown,
        )
