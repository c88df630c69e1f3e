"""Runs a query to the end of its events."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.nexmark import queries
from bench.nexmark.tables import Tables

QUERIES = sorted((module.name for module in pkgutil.iter_modules(queries.__path__)), key=lambda name: int(name[1:]))
"""The queries that can be written."""


def pipeline_of(query: str, tables: Tables, out: Path) -> hf.Pipeline:
    """Return a query as a pipeline that writes ``out``: files, or of a result that changes a table in SQLite."""
    module = importlib.import_module(f"{queries.__name__}.{query}")
    rows = module.result(tables)
    if module.KEY:
        delete = vars(module).get("DELETE")
        table = hf.write.sqlite(out, table="result", mode="upsert", key=module.KEY, delete=delete, name="result")
        return hf.Pipeline(query, rows | table)
    return hf.Pipeline(query, rows | hf.write.files(str(out), format="parquet", name="result"))


def run(query: str, tables: Tables, directory: Path, session: Any = None) -> Path:
    """Run a query to its end, and return where its result is."""
    out = directory / "result"
    started = pipeline_of(query, tables, out).start(
        checkpoint=str(directory / "checkpoint"), trigger=hf.available_now(), session=session
    )
    started.wait()
    return out
