"""Some rows of the newest file of a source, and their drift, for a look before a start: reads only."""

from __future__ import annotations

import os
from typing import NamedTuple

import pyarrow as pa

from holdfast.connectors.files.source import discovery
from holdfast.connectors.files.source.discovery import Discovery
from holdfast.connectors.files.source.layout import Cutter
from holdfast.connectors.files.source.selection import FilesSelection
from holdfast.connectors.formats.access import UTF_8, FilePart, Undecodable
from holdfast.connectors.formats.json_lines import JsonParser
from holdfast.connectors.reading.drift import declared_columns, drift_of
from holdfast.ports import SourceDrift

_READ = 1 << 20
"""Bytes of the file that are looked at."""

_ROWS_MAX = 1000


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


def drift_of_files(spec: FilesSelection, name: str) -> SourceDrift | None:
    """Return what the first rows of the newest file have otherwise than the schema; None where there is no such file.

    Raises
    ------
    HoldfastError
        If files cannot be listed or read.
    """
    if spec.layout.format != "json":
        return None
    try:
        sample = newest_lines(spec)
    except (Undecodable, OSError) as error:
        return SourceDrift(name, problem=str(error))
    if sample is None:
        return None
    declared = declared_columns(spec.schema, spec.layout.on_new)
    schema = pa.schema([column for column in declared if column.name not in spec.partition_by])
    records = JsonParser(schema, spec.layout.encoding).records(sample.data)
    places = list(zip(records.starts.tolist(), records.ends.tolist(), strict=True))[:_ROWS_MAX]
    lines = [sample.data[start:end] for start, end in places]
    problems = {at: why for at, why in records.problems.items() if at < len(lines)}
    of = SourceDrift(name, sample.name, on_new=spec.layout.on_new, rejects=spec.rejects)
    return drift_of(of, lines, schema, problems)
