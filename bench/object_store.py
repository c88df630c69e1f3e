"""What a checkpoint in an object store adds to an epoch: the same pipeline with it on S3, and in a directory.

Two pipelines in one process and one Spark session, alike but for their checkpoints.  Each has two sinks, so that each
epoch is decided in the checkpoint.  A small file goes to the one, and when its rows are published one to the other, so
that whatever else the machine does meets both.  What an epoch took is what the run's status says, from its beginning to
the end of its publication.  The server is moto's, on this machine: its requests take about as long as those of a bucket
nearby; they are measured between the epochs, one put each time.

``extra_ms`` = median, over the pairs, of the epoch on S3 minus the epoch in a directory beside it; ``request_ms`` =
median of the puts.  At most three requests' worth are promised.
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

SIDES = ("directory", "object_store")


def side_pairs(scratch: str, epochs: int, warm: int) -> dict[str, Any]:
    """Both pipelines, a file each in turns; and what one request takes."""
    from holdfast.store.objects.store import open_objects

    address = f"s3://checkpoints/{uuid.uuid4().hex}"
    runs = [_Fed("directory", scratch, f"{scratch}/checkpoint"), _Fed("object_store", scratch, address)]
    objects, request_ms = open_objects(f"{address}-requests"), []
    took: dict[str, list[float]] = {run.name: [] for run in runs}
    for number in range(warm + epochs):
        for run in runs if number % 2 else reversed(runs):
            took[run.name].append(run.epoch_ms(number))
        began = time.perf_counter()
        objects.put(f"{number}", b"x" * 1000)
        request_ms.append((time.perf_counter() - began) * 1e3)
    for run in runs:
        run.stop()
    return {"request_ms": request_ms[warm:], **{name: several[warm:] for name, several in took.items()}}


class _Fed:
    """A pipeline that is given one file at a time."""

    def __init__(self, name: str, scratch: str, checkpoint: str) -> None:
        import holdfast as hf

        self.name = name
        self._source = Path(scratch, name)
        self._source.mkdir()
        readings = hf.read.files(self._source, format="json", schema="id BIGINT, celsius DOUBLE", name="readings")
        rows = readings | hf.select("id", "celsius * 1.8 + 32 AS fahrenheit", name="converted")
        sinks = [
            rows | hf.write.sqlite(f"{scratch}/{name}-{number}.db", table="readings", name=number)
            for number in ("one", "two")
        ]
        pipeline = hf.Pipeline(name, *sinks)
        self._run = pipeline.start(checkpoint=checkpoint, trigger=hf.every("0 s"), master="local[2]")

    def epoch_ms(self, number: int) -> float:
        """Give it a file; return what its epoch took."""
        hidden = self._source / f".{number:06}.tmp"
        hidden.write_text("".join(json.dumps({"id": number * 100 + row, "celsius": row}) + "\n" for row in range(100)))
        hidden.rename(self._source / f"{number:06}.json")
        while True:
            last = self._run.status().last_epoch
            if last is not None and last.epoch > number:
                return sum(last.duration_ms.values())
            if self._run.wait(0.002):
                raise RuntimeError(f"the run with its checkpoint in {self.name} has ended")

    def stop(self) -> None:
        """End the run."""
        self._run.stop()
        self._run.wait()


def main() -> int:
    """Run both, in some processes after each other; print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.object_store", description=__doc__)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--warm", type=int, default=30, help="epochs that are left out")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures: dict[str, list[float]] = {name: [] for name in (*SIDES, "request_ms", "extra")}
    rounds = []
    with s3_server() as variables:
        os.environ.update(variables)
        for _ in range(options.rounds):
            scratch = tempfile.mkdtemp(prefix="holdfast-bench-")
            os.environ["HOLDFAST_SPARK_CHECKPOINT"] = f"{scratch}/spark"
            try:
                arguments = {"scratch": scratch, "epochs": options.epochs, "warm": options.warm}
                found = run_side("bench.object_store", "pairs", arguments)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            found["extra"] = [there - here for here, there in zip(*(found[side] for side in SIDES), strict=True)]
            rounds.append(round(median(found["extra"]), 2))
            for name, several in figures.items():
                several += found[name]
            print(f"{rounds[-1]} ms more on S3, a request {median(found['request_ms']):.1f} ms", flush=True)
    extra_ms, request_ms = median(figures["extra"]), median(figures["request_ms"])
    print_result(
        {
            "bench": "object_store",
            "extra_ms": round(extra_ms, 2),
            "request_ms": round(request_ms, 2),
            "requests_worth": round(extra_ms / request_ms, 2),
            "epoch_ms": {side: round(median(figures[side]), 2) for side in SIDES},
            "extra_ms_of_rounds": rounds,
            "pairs": len(figures["extra"]),
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
