"""Rows that somebody adds to the dead letters, so that they are sent through the graph as these are, each once.

They come from files that a sink wrote of a side output (late rows, shed ones, unmatched ones), or that somebody has
corrected.  The address of such a row is that of no position of its source: a digest of the file, and the row's number
in it.  So the same file can be given any number of times, under any name, and each of its rows is one letter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.quarantine.dead_letters import Letter
from holdfast.quarantine.mask import ADDED, Address, one_row
from holdfast.values import REJECT_SCHEMA, SIDE_COLUMNS, side_column

KIND = "Added"
"""Kind of the error of a letter that is none."""

_READ = {".parquet": "Parquet", ".json": "JSON lines", ".jsonl": "JSON lines"}


def letters_of(source: str, paths: Sequence[Path], at_us: int) -> list[Letter]:
    """Return the rows of files as letters of a source, in their order.

    Parameters
    ----------
    source : str
        Whose rows they become.
    paths : sequence of Path
        Parquet files, files of JSON lines, or directories of these.
    at_us : int
        Now, microseconds of Unix time.

    Raises
    ------
    InvalidPipeline
        If a file cannot be read, or holds rows that have been rejected.
    """
    return [letter for path in paths for file in _files(path) for letter in _letters(source, file, at_us)]


def rows_in(table: pa.Table) -> Iterator[tuple[pa.RecordBatch, str]]:
    """Yield each row as it came to the operator that it left beside the others, and the reason why it did.

    Rows without ``input`` and ``reason`` are such rows themselves.

    Examples
    --------
    >>> late = {"k": "a", "timestamp": 3, "input": "rows", "reason": "it is late", "rows": {"k": "a", "t": 3}}
    >>> [(row.to_pylist(), why) for row, why in rows_in(pa.Table.from_pylist([late]))]
    [([{'k': 'a', 't': 3}], 'it is late')]
    >>> [(row.to_pylist(), why) for row, why in rows_in(pa.table({"k": ["a"], "t": [3]}))]
    [([{'k': 'a', 't': 3}], '')]
    """
    whole = table.combine_chunks().to_batches()
    plain = [field.name for field in table.schema if not pa.types.is_struct(field.type)]
    of_time, of_input, of_reason = (side_column(plain, name) for name in SIDE_COLUMNS)
    wholes = set(table.column_names) - set(plain)
    for batch in whole:
        for number in range(batch.num_rows):
            row = batch.slice(number, 1)
            if of_time is None or of_input is None or of_reason is None:
                yield row, ""
                continue
            name, reason = row.column(of_input)[0].as_py(), row.column(of_reason)[0].as_py()
            there = (column for column in wholes if not row.column(column).null_count)
            column = side_column(there, str(name))
            if column is None:
                raise InvalidPipeline(
                    f"row {number} came by input {name!r}, and is not there.",
                    why=f"a row of a side output is a struct in the column of its input; there are: "
                    f"{', '.join(table.column_names)}.",
                    do="write the side output as it is, with all of its columns.",
                )
            given = row.column(column)
            yield pa.RecordBatch.from_arrays(pc.struct_field(given, []).flatten(), names=given.type.names), str(reason)


def _letters(source: str, file: Path, at_us: int) -> Iterator[Letter]:
    data = _bytes(file)
    table = _table(file, data)
    if set(REJECT_SCHEMA.names) == set(table.column_names):
        raise InvalidPipeline(
            f"{file} holds rows that could not be read.",
            why="they have a raw text and no columns: sent again as they are they would be rejected again.",
            do=f"correct them, as rows with the columns of source {source!r}, in a file of JSON lines; and add that.",
            participant=source,
        )
    segment = f"{ADDED}{hashlib.sha256(data).hexdigest()[:16]}"
    for number, (row, reason) in enumerate(rows_in(table)):
        error = {"kind": KIND, "what": f"row {number} of {file.name}.", "why": reason}
        yield Letter(source, Address(segment, number, 0), one_row(row, 0), 0, error, at_us)


def _files(path: Path) -> list[Path]:
    """Return a file, or those of a directory; what begins with a dot or an underscore is no row."""
    if not path.is_dir():
        return [path]
    below = (file for file in sorted(path.rglob("*")) if file.suffix in _READ)
    return [file for file in below if not any(part[0] in "._" for part in file.relative_to(path).parts)]


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidPipeline(f"{file} cannot be read.", why=f"{error}.", do="name a file of rows.") from error


def _table(file: Path, data: bytes) -> pa.Table:
    try:
        if _READ.get(file.suffix) == "Parquet":
            import pyarrow.parquet as pq

            return pq.ParquetFile(pa.BufferReader(data)).read()
        if file.suffix in _READ:
            import pyarrow.json as pj

            return pj.read_json(pa.BufferReader(data))
    except pa.ArrowException as error:
        raise InvalidPipeline(
            f"{file} cannot be read as {_READ[file.suffix]}.",
            why=f"{' '.join(str(error).split())}.",
            do="name a file of rows.",
        ) from error
    raise InvalidPipeline(
        f"{file} is no file of rows.",
        why=f"its name ends with {file.suffix!r}; rows are read from {', '.join(_READ)}.",
        do="write the side output with hf.write.files, or export the table as Parquet or JSON lines.",
    )
