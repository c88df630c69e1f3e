"""A video stream in a store of byte streams, as packets: of messages that are packets, or parts of a container."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from holdfast.connectors.byte_stream.branch import StreamView, branches
from holdfast.connectors.byte_stream.data_file import MessageChunk
from holdfast.errors import InvalidPipeline
from holdfast.store import durable
from holdfast.video.containers import ContainerReader
from holdfast.video.holes import WholeGroups
from holdfast.video.packets import MAGIC, EncodedPacket
from holdfast.video.timing import utc

if TYPE_CHECKING:
    from typing import BinaryIO

AFTER_END = 2**63 - 1
"""Later than every time."""


class VideoStream:
    """A stream of a store, from which packets are read by time.

    Parameters
    ----------
    store : str
        Directory of the store.
    stream : str
        Name of the stream.
    branch : str, optional
        ``<pipeline>/<sink>`` that writes it, where several write streams of this name.

    Raises
    ------
    InvalidPipeline
        If there is no such stream, several are, or it is empty.
    """

    def __init__(self, store: str, stream: str, branch: str | None = None) -> None:
        self.name = stream
        self._view = _find(os.path.abspath(durable.local_path(store) or store), stream, branch)
        first = next(iter(self._view.read(self._view.files[0].first, self._view.files[0].first + 1)))
        self.is_of_packets = bytes(first.payloads[0][: len(MAGIC)]) == MAGIC
        """Whether its messages are encoded packets; else they are parts of a container."""
        self.first = first.timestamps[0]
        """Time of its first message, nanoseconds of Unix time."""
        self.left_out_count = 0
        """Packets that :meth:`packets` has left out, because one is missing before them."""

    @property
    def last(self) -> int:
        """Time of its last message, nanoseconds of Unix time."""
        return self._view.state.highest

    def packets(self, at: int | None = None) -> Iterator[EncodedPacket]:
        """Yield packets from the last key packet on from which every picture at or after a time can be decoded.

        What cannot be decoded is left out: pictures that are shown before the first one, and the rest of a group in
        which a packet is missing.

        Parameters
        ----------
        at : int, optional
            Nanoseconds of Unix time.  By default all packets.
        """
        view = self._view
        begin = view.files[0].first if at is None else view.access_point(at)
        chunks = view.read(begin, view.end)
        yield from self._decodable(_packets(chunks) if self.is_of_packets else _demuxed_packets(chunks))

    def _decodable(self, packets: Iterator[EncodedPacket]) -> Iterator[EncodedPacket]:
        groups = WholeGroups()
        first: int | None = None
        for packet in packets:
            if groups.take(packet):
                first = packet.pts if first is None else first
                yield packet
            elif first is not None and packet.pts > first:
                self.left_out_count += 1


def _find(store: str, stream: str, branch: str | None) -> StreamView:
    known = {name: each.view().streams for name, each in branches(store).items()}
    found = {name: streams[stream] for name, streams in known.items() if stream in streams}
    if branch is not None:
        found = {name: view for name, view in found.items() if name == branch}
    if not found:
        names = sorted({f"{each} ({name})" for name, streams in known.items() for each in streams})
        raise InvalidPipeline(
            f"there is no stream {stream!r} in {store}.",
            why=f"it has {', '.join(names)}." if names else "no stream was written there.",
            do="name one of them: --stream, and --branch where several have the name.",
            participant=stream,
        )
    if len(found) > 1:
        raise InvalidPipeline(
            f"{len(found)} streams of {store} are called {stream!r}.",
            why=f"{', '.join(sorted(found))} write one each.",
            do=f"say which: --branch {min(found)}",
            participant=stream,
        )
    (view,) = found.values()
    if not view.files:
        raise InvalidPipeline(
            f"stream {stream!r} in {store} is empty.",
            why="nothing was written, or retention has dropped all of it.",
            do="name another stream.",
            participant=stream,
        )
    return view


def _packets(chunks: Iterator[MessageChunk]) -> Iterator[EncodedPacket]:
    for chunk in chunks:
        for payload in chunk.payloads:
            yield EncodedPacket.from_bytes(bytes(payload))


def _demuxed_packets(chunks: Iterator[MessageChunk]) -> Iterator[EncodedPacket]:
    """Yield the packets in parts of a container, which begin with a part that begins a file."""
    parts = _Parts(chunks)
    if parts.first is not None:
        # The first packet has the time of the first message; pictures that are shown before it may follow.
        with ContainerReader(cast("BinaryIO", parts), clock=lambda _: parts.first) as reader:
            yield from reader.packets()


class _Parts(io.RawIOBase):
    """Messages one after the other, as a file that is read once."""

    def __init__(self, chunks: Iterator[MessageChunk]) -> None:
        self._parts = (
            (at, part) for chunk in chunks for at, part in zip(chunk.timestamps, chunk.payloads, strict=True)
        )
        self.first: int | None = None
        self._rest = self._next()

    def read(self, size: int = -1) -> bytes:
        """Return some bytes; none at the end."""
        if not self._rest:
            self._rest = self._next()
        taken = len(self._rest) if size < 0 else size
        found, self._rest = bytes(self._rest[:taken]), self._rest[taken:]
        return found

    def readable(self) -> bool:
        """Return True."""
        return True

    def _next(self) -> memoryview:
        at, part = next(self._parts, (0, memoryview(b"")))
        self.first = at if self.first is None and part else self.first
        return part


def check_range(stream: VideoStream, start: int | None, end: int | None) -> None:
    """Refuse a range of times that has nothing of a stream.

    Raises
    ------
    InvalidPipeline
        If it ends before it begins, or the stream is elsewhere.
    """
    first = stream.first if start is None else start
    last = AFTER_END if end is None else end
    if first >= last:
        raise InvalidPipeline(
            f"--from {utc(first)} is not before --to {utc(last)}.", do="exchange the two.", participant=stream.name
        )
    if last <= stream.first or first > stream.last:
        raise InvalidPipeline(
            f"stream {stream.name!r} has nothing there.",
            why=f"it reaches from {utc(stream.first)} to {utc(stream.last)}.",
            do="name times in between: --from, --to.",
            participant=stream.name,
        )
