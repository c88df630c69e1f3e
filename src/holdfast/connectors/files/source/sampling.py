"""Some rows of the newest file of a source, for a look before a start: reads only."""

from __future__ import annotations

import os
from typing import NamedTuple

from holdfast.connectors.files.source import discovery
from holdfast.connectors.files.source.discovery import Discovery
from holdfast.connectors.files.source.layout import Cutter
from holdfast.connectors.files.source.selection import FilesSelection
from holdfast.connectors.formats.access import UTF_8, FilePart

_READ = 1 << 20
"""Bytes of the file that are looked at."""


class FileSample(NamedTuple):
    """Beginning of a file: its name, and whole lines as UTF-8."""

    name: str
    data: bytes


def newest_lines(spec: FilesSelection) -> FileSample | None:
    """Return lines of the newest file; None where there is no file yet.

    Raises
    ------
    HoldfastError
        If files cannot be listed or read.
    Undecodable
        If the file cannot be decompressed.
    """
    if spec.where.is_local and not os.path.exists(spec.where.root):
        return None
    where = discovery.settled(spec.where)
    found = Discovery(where, spec.min_age_us, follow_links=spec.follow_links).new_files(frozenset())
    if not found:
        return None
    newest = found[-1]
    part, layout = FilePart(where.path(newest.name), newest.size, 0, -1, newest.identity), spec.layout
    if layout.is_compressed(newest.name) or layout.encoding != UTF_8:
        pieces = Cutter(None, layout.max_record_size, layout.encoding).pieces(part)
        data = next((piece.data for piece in pieces if not piece.problem), b"")
    else:
        data = part.head(_READ)
    if len(data) >= _READ:
        data = data[: data.rfind(b"\n", 0, _READ) + 1]
    return FileSample(newest.name, data)
