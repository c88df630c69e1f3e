"""Plays what the pipelines wrote, as anybody does who has FFmpeg: no pipeline, no coordinator, only files."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import av
import cv2
import numpy as np

from examples.video.scene import Picture
from holdfast.connectors.byte_stream.branch import branches
from holdfast.connectors.byte_stream.data_file import StoredFile


def messages(store: Path, *, stream: str = "", sink: str = "") -> Iterator[tuple[int, bool, bytes]]:
    """Yield time, whether a reader can begin there, and payload of each message of a stream, or of all of a sink."""
    for name, branch in branches(str(store)).items():
        for each in branch.view().streams.values():
            if stream not in ("", each.name) or sink not in ("", name.split("/")[-1]):
                continue
            for file in each.files:
                with StoredFile(each.directory, each.name, file) as stored:
                    for chunk in stored.messages(file.first, file.end):
                        payloads = map(bytes, chunk.payloads)
                        yield from zip(chunk.timestamps, chunk.keys, payloads, strict=True)


def frames(container: bytes) -> Iterator[tuple[float, av.VideoFrame]]:
    """Yield seconds and picture of each frame of a video."""
    with av.open(BytesIO(container)) as video:
        for frame in video.decode(video=0):
            assert frame.time is not None
            yield frame.time, frame


def to_mp4(container: bytes, path: Path) -> None:
    """Put the packets of a video into a file that any player opens; nothing is encoded again."""
    with av.open(BytesIO(container)) as video, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(video.streams.video[0])
        first = None
        for packet in video.demux(video=0):
            if packet.dts is None or packet.pts is None:
                continue
            first = packet.dts if first is None else first
            packet.pts, packet.dts, packet.stream = packet.pts - first, packet.dts - first, stream
            output.mux(packet)


def contact_sheet(videos: dict[str, bytes], path: Path, columns: int = 6, width: int = 320) -> None:
    """Write a picture of pictures: a line for each video, with frames from its beginning to its end."""
    lines = []
    for name, container in videos.items():
        shown = [frame for _, frame in frames(container)]
        chosen = [shown[place * (len(shown) - 1) // (columns - 1)] for place in range(columns)]
        tiles = [_tile(frame.to_ndarray(format="bgr24"), width) for frame in chosen]
        cv2.putText(tiles[0], name, (6, tiles[0].shape[0] - 8), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (255, 255, 255), 1)
        lines.append(np.hstack(tiles))
    cv2.imwrite(str(path), np.vstack(lines))


def _tile(picture: Picture, width: int) -> Picture:
    return cv2.resize(picture, (width, width * picture.shape[0] // picture.shape[1]), interpolation=cv2.INTER_AREA)
