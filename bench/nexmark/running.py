"""Runs a query to the end of its events."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.nexmark import queries
from bench.nexmark.tables import Readable

QUERIES = sorted((module.name for module in pkgutil.iter_modules(queries.__path__)), key=lambda name: int(name[1:]))
"""The queries that can be written."""


def module_of(query: str) -> Any:
    """Return the module of a query."""
    return importlib.import_module(f"{queries.__name__}.{query}")


def pipeline_of(query: str, tables: Readable, out: Path) -> hf.Pipeline:
    """Return a query as a pipeline that writes ``out``: files, or of a result that changes a table in SQLite."""
    module = module_of(query)
    rows = module.result(tables)
    if module.KEY:
        delete = vars(module).get("DELETE")
        table = hf.write.sqlite(out, table="result", mode="upsert", key=module.KEY, delete=delete, name="result")
        return hf.Pipeline(query, rows | table)
    return hf.Pipeline(query, rows | hf.write.files(str(out), format="parquet", name="result"))


def run(query: str, tables: Readable, directory: Path, session: Any = None) -> Path:
    """Run a query to its end, and return where its result is."""
    out = directory / "result"
    started = pipeline_of(query, tables, out).start(
        checkpoint=str(directory / "checkpoint"), trigger=hf.available_now(), session=session
    )
    started.wait()
    return out
