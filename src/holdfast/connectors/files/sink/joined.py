"""Writes one file with the rows of several, in their order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.kit.files.rows import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from holdfast.errors import invariant

_BUFFER_BYTES = 2**20


def write_joined(path: str, sources: Sequence[str], *, compression: str | None) -> int | None:
    """Write a file, durably but for its directory; return its size in bytes.

    Parameters
    ----------
    path : str
        The file; it must not be there.
    sources : sequence of str
        Files of one format, which their names tell.
    compression : str or None
        Of Parquet.

    Returns
    -------
    int or None
        None where the columns of these files differ: nothing is written.

    Raises
    ------
    FileNotFoundError
        If one of them is gone.
    """
    if not sources[0].endswith(".parquet"):
        return _write_lines(path, sources)
    schema = pq.read_schema(sources[0]).remove_metadata()
    if any(not pq.read_schema(source).equals(schema) for source in sources[1:]):
        return None
    return _write_parquet(path, sources, schema, compression)


def _write_parquet(path: str, sources: Sequence[str], schema: pa.Schema, compression: str | None) -> int:
    row_count = 0
    file: BinaryIO
    with open(path, "xb", _BUFFER_BYTES) as file:
        with pq.ParquetWriter(file, schema, compression=compression or "none") as writer:
            for rows in _row_groups(sources, schema):
                writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
                row_count += rows.num_rows
        size_bytes = _finished(file)
    expected = sum(pq.read_metadata(source).num_rows for source in sources)
    invariant(row_count == expected, f"{row_count} rows were written to {path}, of {expected} that were read.")
    return size_bytes


def _row_groups(sources: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows in tables of a good size, however small the files are."""
    held: list[pa.Table] = []
    row_count = size_bytes = 0
    for source in sources:
        with pq.ParquetFile(source) as file:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number).cast(schema)
                if held and (size_bytes + rows.nbytes > ROW_GROUP_BYTES or row_count + rows.num_rows > ROW_GROUP_ROWS):
                    yield pa.concat_tables(held)
                    held, row_count, size_bytes = [], 0, 0
                held.append(rows)
                row_count += rows.num_rows
                size_bytes += rows.nbytes
    if held:
        yield pa.concat_tables(held)


def _write_lines(path: str, sources: Sequence[str]) -> int:
    file: BinaryIO
    with open(path, "xb", _BUFFER_BYTES) as file:
        for source in sources:
            with open(source, "rb") as lines:
                shutil.copyfileobj(lines, file, _BUFFER_BYTES)
        size_bytes = _finished(file)
    expected = sum(os.path.getsize(source) for source in sources)
    invariant(size_bytes == expected, f"{size_bytes} bytes were written to {path}, of {expected} that were read.")
    return size_bytes


def _finished(file: BinaryIO) -> int:
    file.flush()
    os.fsync(file.fileno())
    return file.tell()
