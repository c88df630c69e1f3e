"""A camera on loopback, in a process of its own: MPEG-TS over TCP, or RTSP; it sends a file as it was recorded."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKET = 188


def serve(file: str, port: str, seconds: str) -> None:
    """Send a file to whoever connects, within so many seconds; then send nothing, and keep the connection."""
    data = Path(file).read_bytes()
    with socket.create_server(("127.0.0.1", int(port)), reuse_port=False) as server:
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        kept = []
        while True:
            connection, _ = server.accept()
            kept.append(connection)
            pieces = [data[at : at + PACKET] for at in range(0, len(data), PACKET)]
            begin = time.monotonic()
            try:
                for number, piece in enumerate(pieces):
                    connection.sendall(piece)
                    ahead = begin + float(seconds) * number / len(pieces) - time.monotonic()
                    if ahead > 0:
                        time.sleep(ahead)
            except OSError:
                continue


@contextmanager
def camera_server(file: Path, port: int = 0, seconds: float = 1.0) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start one; yield its port and its process, which is killed at the end."""
    with _process("serve", str(file), str(port), str(seconds)) as (line, process):
        yield int(line), process


@contextmanager
def rtsp_camera(file: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Start a camera that sends to an RTSP server on a port, as soon as that one listens; it is killed at the end."""
    with _process("push", str(file), f"rtsp://127.0.0.1:{port}/camera") as (_, process):
        yield process


def push(file: str, address: str) -> None:
    """Send a file by RTP as fast as it was recorded."""
    import av

    with av.open(file) as read:
        video = read.streams.video[0]
        for _ in range(300):
            try:
                out = av.open(address, "w", format="rtsp", container_options={"rtsp_transport": "tcp"})
                stream = out.add_stream_from_template(video)
                out.start_encoding()
                break
            except OSError:
                time.sleep(0.1)
        sys.stdout.write("connected\n")
        sys.stdout.flush()
        begin = time.monotonic()
        for packet in read.demux(video):
            if packet.dts is not None:
                ahead = begin + float(packet.dts * video.time_base) - time.monotonic()
                time.sleep(max(0.0, ahead))
                packet.stream = stream
                out.mux(packet)
        out.close()


@contextmanager
def _process(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the camera did not start"
        yield line, process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


if __name__ == "__main__":
    {"serve": serve, "push": push}[sys.argv[1]](*sys.argv[2:])
