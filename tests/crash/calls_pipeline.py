"""The pipeline that is killed while it asks a service: numbers with twice the number, as the service says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import holdfast as hf
from tests.asked_service import twice

WORK = Path(os.environ["CRASH_WORK"])
PORT = int(os.environ["CRASH_SERVICE"])


async def ask(row: dict[str, Any]) -> dict[str, Any]:
    """Ask about a row."""
    return await twice(PORT, row["n"])


numbers = hf.read.files(WORK / "in", format="json", schema="n BIGINT", max_files_per_epoch=2, name="numbers")
called = (
    numbers
    | hf.row_id()
    | hf.call(
        ask,
        "twice BIGINT",
        key="row_id",
        answers=WORK / "answers.sqlite",
        max_concurrency=int(os.environ.get("CRASH_CONCURRENCY", "8")),
        name="called",
    )
)
pipeline = hf.Pipeline("calls", called | hf.write.sqlite(WORK / "out.db", table="rows", name="table"))
