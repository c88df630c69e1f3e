"""Rows of a directory of files, and when epochs were published there, for ``holdfast trace``."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.files.sink.dataset import FilesDataset
from holdfast.connectors.files.sink.log import FilesLog
from holdfast.connectors.files.sink.tables import FilesTable
from holdfast.errors import InvalidPipeline
from holdfast.expressions.compile import columnar
from holdfast.ports import PublishedEpoch


def history(log_directory: str) -> list[PublishedEpoch]:
    """Return the epochs that the entries of the log name; the time is that of the file of the entry."""
    log, found, last = FilesLog(log_directory, aside=""), [], 0
    for number in log.numbers():
        try:
            entry = log.read(number)
            at_us = os.stat(os.path.join(log_directory, f"{number:012d}.json")).st_mtime_ns // 1000
        except FileNotFoundError:
            continue  # removed because a hundred newer ones are there
        if entry.epoch > last and not entry.is_compaction:
            found.append(PublishedEpoch(entry.epoch, entry.generation, entry.positions, at_us))
        last = entry.epoch
    return found


def find(path: str, name: str, where: str | tuple[str, str], limit: int) -> list[dict[str, Any]]:
    """Return rows of the directory: parameters as of :class:`~holdfast.ports.LineageSpec`; a condition is Spark SQL."""
    return found(FilesDataset(path).table(), name, where, limit)


def found(rows: FilesTable, name: str, where: str | tuple[str, str], limit: int) -> list[dict[str, Any]]:
    """Return rows of files; parameters as of :func:`find`."""
    test = _condition(where, rows.schema, name)
    several: list[dict[str, Any]] = []
    for batch in rows.batches(rows.schema):
        chosen = batch.filter(test(batch)).slice(0, limit - len(several))
        several += chosen.to_pylist()
        if len(several) == limit:
            break
    return several


def _condition(where: str | tuple[str, str], schema: pa.Schema, name: str) -> Any:
    if not isinstance(where, str):
        column, value = where
        return lambda batch: pc.equal(batch.column(column).cast(pa.string()), value)
    compiled = columnar(where, schema)
    if compiled is None or compiled.type != pa.bool_():
        raise InvalidPipeline(
            f"sink {name!r}: its rows cannot be asked for by {where!r}.",
            why="that is no condition of the SQL that is evaluated without Spark, over the columns "
            f"{', '.join(schema.names)}.",
            do="write comparisons with AND, OR, NOT, IN, BETWEEN, IS NULL.",
            participant=name,
        )
    return compiled.evaluate
