"""A model that several processes call, and one of its callers: it does what stdin says, and tells how that went."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf

HOLD, ENTERED, LOADED = "hold", "entered", "loaded"
"""Files in the directory of the test: while the first is there the model computes, and says so in the second."""


def work() -> Path:
    """Return the directory of the test."""
    return Path(os.environ["CRASH_WORK"])


class Echo:
    """Says again what it was called with, and who does."""

    def __init__(self) -> None:
        with (work() / LOADED).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        while (work() / HOLD).exists():
            (work() / ENTERED).write_text(str(os.getpid()))
            time.sleep(0.005)
        return pa.table({"told": batch["told"], "process": [os.getpid()] * batch.num_rows})


def model_of(**arguments: Any) -> Any:
    """Return the model: all who give the same arguments share one."""
    return hf.shared(Echo, "told STRING, process BIGINT", inputs="told STRING", name="echo", **arguments)


def calls(model: Any, who: str, *, count: int, rows: int = 1, size: int = 0) -> dict[str, Any]:
    """Call so often, with so many rows of such a size; return how many answers are wrong, and from which processes."""
    wrong, processes = 0, set()
    for number in range(count):
        told = [f"{who} {number} {row} {'.' * size}" for row in range(rows)]
        answer = model(pa.table({"told": told}))
        wrong += answer["told"].to_pylist() != told
        processes |= set(answer["process"].to_pylist())
    return {"answers": count, "wrong": wrong, "processes": sorted(processes)}


if __name__ == "__main__":
    found = model_of(**json.loads(sys.argv[2]))
    for line in sys.stdin:
        said = calls(found, sys.argv[1], **json.loads(line))
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
