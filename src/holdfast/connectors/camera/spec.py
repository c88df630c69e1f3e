"""``read.camera``: what a camera sends, as rows of encoded packets, each exactly once from the journal on."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from holdfast.connectors.camera.connection import CameraAddress, ClockKind
from holdfast.connectors.camera.receiving import Receiving
from holdfast.connectors.camera.source import CameraSource
from holdfast.connectors.files.callback import CallbackFeed, CallbackSpec
from holdfast.connectors.reading.identified import KnownPlace
from holdfast.connectors.reading.wrapped import WrappedSpec
from holdfast.errors import InvalidPipeline
from holdfast.ports import Source
from holdfast.positions import SourcePositions
from holdfast.types import units

if TYPE_CHECKING:
    from holdfast.graph.nodes import Stream

_COLUMNS = "stream STRING, timestamp BIGINT, is_key BOOLEAN, data BINARY"


@dataclass(frozen=True)
class CameraSpec(WrappedSpec):
    """Declaration of ``read.camera``.

    Parameters
    ----------
    given : CallbackSpec
        Of the journal.
    of : Receiving
        What is received.
    """

    of: Receiving
    numbering: ClassVar[str] = CallbackSpec.numbering

    @property
    def kind(self) -> str:
        """Kind of the source."""
        return "camera"

    @property
    def sends_secret(self) -> bool:
        """Whether a secret travels to executors."""
        return self.of.address.masked_address != self.of.address.address

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint, without secrets."""
        address = self.of.address
        shown = {
            "address": address.masked_address,
            "stream": self.of.stream,
            "clock": address.clock,
            "gap": self.of.gap,
        }
        return {**self.given.arguments(), **{name: value for name, value in shown.items() if value is not None}}

    def up_to(self, before: int, marker: str | None) -> CameraSpec:
        """Return the source without the rows at or above a time, which it then owes."""
        return replace(self, given=cast("CallbackSpec", self.given).up_to(before, marker))

    def from_time(self, at_us: int) -> CameraSpec:
        """Return the source itself: what is left of the journal is read from its beginning."""
        return self

    def places(self, name: str, workspace: str, until: SourcePositions) -> Iterator[KnownPlace]:
        """Yield the entries of the journal, also those that were removed."""
        return cast("CallbackSpec", self.given).places(name, workspace, until)

    def open(self, name: str, workspace: str) -> Source:
        """Return the source; it receives once epochs are planned."""
        return cast("Source", CameraSource(self.given.open(name, workspace), self.of))


def camera(
    address: str | os.PathLike[str],
    *,
    journal: str | os.PathLike[str],
    stream: str | None = None,
    gap: str | None = None,
    clock: ClockKind = "arrival",
    timeout: str = "10 s",
    options: Mapping[str, str] | None = None,
    max_rows_per_epoch: int | None = None,
    name: str | None = None,
) -> Stream:
    """Read what a camera sends: ``stream`` STRING, ``timestamp`` BIGINT, ``is_key`` BOOLEAN, ``data`` BINARY.

    Parameters
    ----------
    address : str or path
        What FFmpeg reads: ``"rtsp://user:password@host/path"``, ``"tcp://host:port"``, ``"/dev/video0"``, a file.
        A password is masked wherever the address is shown.
    journal : str or path
        Local directory for what was received and is not in every sink yet; created if absent, of this source alone.
        Executors must see it under the same path.
    stream : str, optional
        Value of the column ``stream``; by default the source's name.
    gap : str, optional
        Name of one more column, BIGINT: of the first packet after a gap it says for how many nanoseconds nothing was
        received; else null.
    clock : {"arrival", "ntp"}
        What times begin with in each connection: when its first packet arrives here, or what the camera's clock says of
        it (RTSP: RTCP sender reports).  From there on they go by the camera's timestamps.
    timeout : str
        How long the camera may take to answer and to send something, before it is connected again.
    options : mapping of str to str, optional
        Options of FFmpeg: ``{"rtsp_transport": "udp"}``.
    max_rows_per_epoch : int, optional
        Limit of one epoch; what came together is never divided.
    name : str, optional
        The source's name.

    Raises
    ------
    InvalidPipeline
        If an argument makes no sense, or PyAV is not installed.

    Notes
    -----
    Timestamps are nanoseconds of Unix time and ascend strictly, in the order of decoding; ``data`` is an
    :class:`~holdfast.video.EncodedPacket` as bytes.  After a gap, and at first, comes a key packet.

    Examples
    --------
    ::

        packets = hf.read.camera("rtsp://admin:...@10.0.0.7/stream1", journal="data/front", name="front")
        packets | hf.write.byte_stream("data/cameras", data="data", stream="stream", key="is_key", name="recorder")
    """
    from holdfast.graph.building import building
    from holdfast.graph.nodes import stream_from

    with building("source", name):
        if importlib.util.find_spec("av") is None:
            raise InvalidPipeline(
                "read.camera needs PyAV, which is not installed.",
                why="it carries FFmpeg, which speaks with cameras.",
                do="pip install 'holdfast[video]'.",
            )
        if clock not in ("arrival", "ntp"):
            raise InvalidPipeline(f"clock={clock!r} is not known.", do='write clock="arrival" or clock="ntp".')
        if max_rows_per_epoch is not None and (not isinstance(max_rows_per_epoch, int) or max_rows_per_epoch < 1):
            raise InvalidPipeline(
                f"max_rows_per_epoch={max_rows_per_epoch!r} is not a positive number.", do="leave it out."
            )
        seconds = units.duration_us(timeout, argument="timeout") / 1e6
        place = CameraAddress(os.fspath(address), dict(options or {}), seconds, clock)
        columns = _COLUMNS if gap is None else f"{_COLUMNS}, `{gap}` BIGINT"
        feed = CallbackFeed(journal, schema=columns, timestamp="timestamp")
        given = CallbackSpec(
            feed.given, feed.directory, feed.schema, "timestamp", max_rows_per_epoch, bounded=place.is_file
        )
        spec = CameraSpec(given, Receiving(place, feed, stream or name or "camera", gap))
    return stream_from(spec, name=name)
