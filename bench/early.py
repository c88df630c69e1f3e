"""How long a row waits for a function that writes by row id: given epochs when they are decided, or before.

One pipeline: JSON files of 100 rows, ten a second, count and maximum of each key (state), upserted into a table; and
the changed keys handed to ``hf.write.foreach_batch(idempotent=True)``, which comes behind the table.  A row has its
creation time; the function notes when it was called.  Sides take turns within one Spark session, each with a new
checkpoint: ``send="decided"`` and ``send="early"``, each alone and with epochs that are grouped (``commit_every``).

``decided_p50_ms``, ``early_p50_ms`` and those with ``grouped_``: from creation to the call.  ``saved_ms`` and
``grouped_saved_ms``: decided less early.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROWS = 100
FILE_EVERY_S = 0.1
FIRST_S = 300.0
SIDES = ("decided", "early", "grouped_decided", "grouped_early")


def write_files(directory: Path, keys: int, stop: threading.Event) -> None:
    """Let files arrive until it is enough; the first has every key, for state of that size."""
    number = 0
    while not stop.wait(FILE_EVERY_S if number else 0):
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        first = number * ROWS
        ids = range(keys) if number == 0 else (id % keys for id in range(first, first + ROWS))
        hidden = directory / f".{number:06}.tmp"
        hidden.write_text("".join(json.dumps({"k": k, "created": now}) + "\n" for k in ids))
        hidden.rename(directory / f"{number:06}.json")
        number += 1


def side(name: str, scratch: Path, keys: int, warm_s: float, seconds: float) -> list[float]:
    """Run one side; return how long each changed key waited, milliseconds."""
    import holdfast as hf
    from holdfast.config import Settings

    given = scratch / "in"
    given.mkdir(parents=True)
    waits: list[tuple[float, list[float]]] = []
    is_called = threading.Event()

    def save(df: Any, epoch: int) -> None:
        called = time.time()
        created = df.select("created").toArrow()["created"]
        waits.append((called, [(called - at.timestamp()) * 1e3 for at in created.to_pylist()]))
        is_called.set()

    schema = "k BIGINT, created TIMESTAMP"
    rows = hf.read.files(given, format="json", schema=schema, timestamp="created", name="rows")
    latest = rows | hf.reduce(by="k", n=hf.count(), created=hf.max("created"), name="latest")
    identified = latest | hf.row_id("k", "n", name="identified")
    send: Any = "early" if name.endswith("early") else "decided"
    pipeline = hf.Pipeline(
        "bench",
        latest | hf.write.sqlite(scratch / "out.db", table="latest", mode="upsert", key="k", name="table"),
        identified | hf.write.foreach_batch(save, idempotent=True, send=send, name="index"),
    )
    stop = threading.Event()
    writer = threading.Thread(target=write_files, args=(given, keys, stop))
    writer.start()
    options: dict[str, Any] = {"commit_every": "1 s"} if name.startswith("grouped") else {}
    run = pipeline.start(
        checkpoint=str(scratch / "checkpoint"),
        trigger=hf.every("0 s"),
        settings=Settings(checkpoint_freq=0),
        **options,
    )
    try:
        if not is_called.wait(FIRST_S):  # with every key, and what has arrived meanwhile
            raise RuntimeError(f"{name}: no epoch was done within {FIRST_S} s")
        time.sleep(warm_s)
        begun = time.time()
        time.sleep(seconds)
    finally:
        stop.set()
        writer.join()
        run.stop()
    return [wait for called, several in waits if called >= begun for wait in several]


def main(arguments: list[str] | None = None) -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--warm-seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)

    found: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(asked.rounds):
        for name in SIDES:
            with tempfile.TemporaryDirectory() as scratch:
                waits = side(name, Path(scratch), asked.keys, asked.warm_seconds, asked.seconds)
            found[name].append(statistics.median(waits))
            print(f"round {number + 1} {name}: p50 {found[name][-1]:.0f} ms of {len(waits)} rows", flush=True)
    medians = {name: statistics.median(several) for name, several in found.items()}
    result: dict[str, Any] = {f"{name}_p50_ms": round(value, 1) for name, value in medians.items()}
    result["saved_ms"] = round(medians["decided"] - medians["early"], 1)
    result["grouped_saved_ms"] = round(medians["grouped_decided"] - medians["grouped_early"], 1)
    print("RESULT " + json.dumps({**result, "keys": asked.keys}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
