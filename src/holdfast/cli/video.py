"""``holdfast video``: files into byte streams, and files and pictures out of them.  Needs no Java."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from holdfast.cli import frame
from holdfast.cli.frame import AsJson
from holdfast.clock import SystemClock
from holdfast.errors import InvalidPipeline
from holdfast.footage.exporting import export_video
from holdfast.footage.importing import END, FileReport, VideoImport
from holdfast.footage.pictures import save_picture
from holdfast.footage.streams import VideoStream
from holdfast.types import units
from holdfast.video.timing import utc

app = typer.Typer(
    help="Import video files into byte streams, export parts of them, or save a picture.", no_args_is_help=True
)

Store = Annotated[str, typer.Option("--store", metavar="DIR", help="Directory of the byte streams.")]
StreamName = Annotated[str, typer.Option("--stream", metavar="NAME", help="The stream, a camera for instance.")]
BranchName = Annotated[
    str | None,
    typer.Option("--branch", metavar="PIPELINE/SINK", help="Who writes it, where several streams have the name."),
]
Output = Annotated[str, typer.Argument(metavar="OUT", help="The file that is written.")]

_SHOWN_EVERY_S = 0.5


@app.command("import")
def import_files(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files, or addresses, that FFmpeg reads.")],
    store: Store,
    stream: StreamName,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|now|end",
            help="When the first file begins (ISO 8601, or nanoseconds). Default: its creation time, or the end.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Append the packets of files to a stream, each once: repeat it after a crash, and it goes on.

    Nothing is encoded again; audio is left out.  A file that is longer by now continues where it ended.
    """
    with frame.settings(as_json):
        begins = _start(start)
        with VideoImport(store, stream, progress=_progress(stream)) as importing:
            reports = []
            for number, file in enumerate(files):
                reports.append(importing.add(file, begins if not number else (END if begins is not None else None)))
                if not as_json:
                    frame.print_lines([_import_line(reports[-1])])
        if as_json:
            frame.print_json({"stream": stream, "files": [asdict(report) for report in reports]})


@app.command("export")
def export(
    out: Output,
    store: Store,
    stream: StreamName,
    start: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Begin here. Default: all.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End before this. Default: all.")] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Encode again, to begin at the exact picture: else at the key frame before it."),
    ] = False,
    branch: BranchName = None,
    as_json: AsJson = False,
) -> None:
    """Write a part of a stream into an MP4, MPEG-TS or Matroska file (.mp4, .ts, .mkv)."""
    with frame.settings(as_json):
        found = VideoStream(store, stream, branch)
        done = export_video(found, out, _time(start, "--from"), _time(end, "--to"), is_exact=exact)
        lines = [f"{out}: {done.packet_count} packets, from {utc(done.start)} to {utc(done.end)}."]
        if done.damage_count:
            lines.append(f"{done.damage_count} packets could not be decoded, and are not in it.")
        frame.answer({"file": out, **asdict(done)}, lines, as_json)


@app.command("frame")
def save_frame(
    out: Output,
    store: Store,
    stream: StreamName,
    at: Annotated[str, typer.Option("--at", metavar="TIME", help="ISO 8601, or nanoseconds.")],
    branch: BranchName = None,
    as_json: AsJson = False,
) -> None:
    """Save the picture that is shown at a time as a PNG."""
    with frame.settings(as_json):
        wanted = _time(at, "--at")
        assert wanted is not None
        shown = save_picture(VideoStream(store, stream, branch), wanted, out)
        frame.answer({"file": out, "at": shown}, [f"{out}: the picture of {utc(shown)}."], as_json)


def _start(text: str | None) -> int | str | None:
    if text == "now":
        return SystemClock().now_us() * 1000
    return text if text in (None, END) else _time(text, "--start")


def _time(text: str | None, option: str) -> int | None:
    """Return nanoseconds of Unix time."""
    if text is None:
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise InvalidPipeline(
            f"{option} {text!r} is no time.", do=f"write {option} 2026-01-01T06:00:00Z, or nanoseconds of Unix time."
        ) from None
    return units.time_us(text, argument=option) * 1000


def _import_line(report: FileReport) -> str:
    if report.is_skipped:
        return f"{report.file}: {report.packet_count} packets are in the stream already."
    new = report.packet_count - report.known_count
    parts = [f"{new} packets, from {utc(report.start)} to {utc(report.end)}"]
    parts += [f"{report.known_count} were there already"] if report.known_count else []
    parts += [f"times jump back {report.jump_count} times, and go on where they were"] if report.jump_count else []
    parts += [f"{report.repair_count} decoding times repaired"] if report.repair_count else []
    parts += [f"{report.other_count} packets of audio and the like left out"] if report.other_count else []
    return f"{report.file}: {'; '.join(parts)}."


def _progress(stream: str) -> Callable[[str, int, int], None] | None:
    """Return what shows how far an import is, on a terminal; None elsewhere."""
    if not sys.stderr.isatty():
        return None
    last = 0.0

    def show(file: str, count: int, at: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SHOWN_EVERY_S:
            last = now
            sys.stderr.write(f"\r\x1b[K{stream}: {file}, {count} packets, at {utc(at)}\r")
            sys.stderr.flush()

    return show
