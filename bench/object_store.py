"""What a checkpoint in an object store adds to an epoch: the same pipeline with it on S3, and in a directory.

A pipeline with two sinks, so that each epoch is decided in the checkpoint: a small file every 100 ms, rows into two
SQLite databases.  What an epoch took is what the run's status says, from its beginning to the end of its publication.
The two take turns.  The server is moto's, on this machine: its requests take about as long as those of a bucket nearby.

``extra_ms`` = median epoch on S3 - median epoch in a directory; ``request_ms`` = median of one put to the same server,
made by the same process while its pipeline is idle.  At most three requests' worth are promised.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from bench.sides import median, print_result, run_side
from tools.s3_server import s3_server

FILE_EVERY_S = 0.1
SIDES = ("directory", "object_store")


def side_directory(scratch: str, epochs: int, warm: int) -> dict[str, Any]:
    """The checkpoint in a directory."""
    return _epochs(f"{scratch}/checkpoint", scratch, epochs, warm)


def side_object_store(scratch: str, epochs: int, warm: int) -> dict[str, Any]:
    """The checkpoint on S3, and what one request takes."""
    address = f"s3://checkpoints/{uuid.uuid4().hex}"
    return {**_epochs(address, scratch, epochs, warm), "request_ms": _request_ms(f"{address}-requests")}


def _epochs(checkpoint: str, scratch: str, epochs: int, warm: int) -> dict[str, Any]:
    import holdfast as hf

    source = Path(scratch, "readings")
    source.mkdir()
    readings = hf.read.files(source, format="json", schema="id BIGINT, celsius DOUBLE", name="readings")
    rows = readings | hf.select("id", "celsius * 1.8 + 32 AS fahrenheit", name="converted")
    sinks = [rows | hf.write.sqlite(f"{scratch}/{name}.db", table="readings", name=name) for name in ("one", "two")]
    run = hf.Pipeline("bench", *sinks).start(checkpoint=checkpoint, trigger=hf.every("0 s"), master="local[2]")
    took: dict[int, float] = {}
    for number in range(warm + epochs):
        hidden = source / f".{number:06}.tmp"
        hidden.write_text("".join(json.dumps({"id": number * 100 + row, "celsius": row}) + "\n" for row in range(100)))
        hidden.rename(source / f"{number:06}.json")
        until = time.perf_counter() + FILE_EVERY_S
        while time.perf_counter() < until:
            last = run.status().last_epoch
            if last is not None:
                took.setdefault(last.epoch, sum(last.duration_ms.values()))
            time.sleep(0.005)
    run.stop()
    run.wait()
    return {"epoch_ms": [took[epoch] for epoch in sorted(took)[warm:]]}


def _request_ms(address: str) -> float:
    from holdfast.store.objects.store import open_objects

    objects, took = open_objects(address), []
    for number in range(200):
        began = time.perf_counter()
        objects.put(f"{number}", b"x" * 1000)
        took.append((time.perf_counter() - began) * 1e3)
    return median(took)


def main() -> int:
    """Let the two take turns; print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.object_store", description=__doc__)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--warm", type=int, default=30, help="epochs that are left out")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with s3_server() as variables:
        os.environ.update(variables)
        for _ in range(options.rounds):
            for side in SIDES:
                scratch = tempfile.mkdtemp(prefix="holdfast-bench-")
                os.environ["HOLDFAST_SPARK_CHECKPOINT"] = f"{scratch}/spark"
                try:
                    arguments = {"scratch": scratch, "epochs": options.epochs, "warm": options.warm}
                    figures[side].append(run_side("bench.object_store", side, arguments))
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
                print(f"{side}: {median(figures[side][-1]['epoch_ms']):.1f} ms an epoch", flush=True)
    epoch_ms = {side: median([median(each["epoch_ms"]) for each in several]) for side, several in figures.items()}
    request_ms = median([each["request_ms"] for each in figures["object_store"]])
    extra_ms = epoch_ms["object_store"] - epoch_ms["directory"]
    print_result(
        {
            "bench": "object_store",
            "extra_ms": round(extra_ms, 2),
            "request_ms": round(request_ms, 2),
            "requests_worth": round(extra_ms / request_ms, 2),
            "epoch_ms": {side: round(value, 2) for side, value in epoch_ms.items()},
            "rounds": options.rounds,
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
