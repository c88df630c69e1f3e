"""What the tests of files share: a source over a directory, and everything it gives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast import read
from holdfast.connectors.files.source.spec import FilesSource
from holdfast.ports import REJECT_COLUMN


def source_over(path: Path | str, workspace: Path, schema: str, **options: Any) -> FilesSource:
    """Return the source as a run opens it."""
    stream = read.files(os.fspath(path), schema=schema, name="source", **options)
    source: Any = stream.node.source_spec.open("source", os.fspath(workspace))
    return source


def everything(source: FilesSource, parallelism: int = 2) -> list[dict[str, Any]]:
    """Return all rows that are there now, over as many epochs as it takes."""
    rows: list[dict[str, Any]] = []
    start = source.initial()
    while (end := source.latest(start, bounded=False)) != start:
        for span in source.spans(start, end, parallelism=parallelism):
            rows += [row for batch in source.read(span) for row in batch.to_pylist()]
        start = end
    return rows


def rows_of(tmp_path: Path, text: str | bytes, schema: str, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of one file; good and rejected ones as they come."""
    directory = tmp_path / "in"
    directory.mkdir(exist_ok=True)
    (directory / "file").write_bytes(text.encode() if isinstance(text, str) else text)
    return everything(source_over(directory, tmp_path / "workspace", schema, **options))


def rejected(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return what was rejected, with the file's name instead of its path."""
    found = [row[REJECT_COLUMN] for row in rows if row[REJECT_COLUMN] is not None]
    return [{**one, "position": one["position"].rpartition("/")[2]} for one in found]


def good(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the good rows without the hidden column."""
    return [{k: v for k, v in row.items() if k != REJECT_COLUMN} for row in rows if row[REJECT_COLUMN] is None]
