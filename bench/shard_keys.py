"""What it costs to hold rows to the segment of their key, without Spark: claims by the clock, rows in CPU time.

``python -m bench.shard_keys [--rows 500000]``.  The figures stand in design/0048, section 7.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.sides import print_result
from holdfast import read
from holdfast.connectors.files.source.division import FileDivision
from holdfast.connectors.reading.keyed import hold_to_key
from holdfast.ports import Source, SourceSpec
from holdfast.shards.keys import KEYS, KeyTable, ShardKey
from holdfast.types.row_ids import Lanes

TURNS = 5
FILES = 8
NEW = (1, 1_000, 100_000, 1_000_000)


def new_keys(chance: np.random.Generator, count: int) -> Lanes:
    first, second = chance.integers(0, 1 << 63, (2, count), dtype=np.uint64)
    return first, second


def claims(directory: str) -> None:
    key = ShardKey("device", directory)
    key.begin()
    table, chance = KeyTable(directory), np.random.default_rng(1)
    claim_ms = {}
    for count in NEW:
        turns = TURNS if count < NEW[-1] else 1
        times, found = [], []
        for _ in range(turns):
            found = [new_keys(chance, count)]
            begun = time.perf_counter()
            table.claim(found[0], "a")
            times.append((time.perf_counter() - begun) * 1e3)
        begun = time.perf_counter()
        table.claim(found[0], "b")
        known_ns = (time.perf_counter() - begun) * 1e9 / count
        claim_ms[count] = min(times)
        print(f"  {count:>9,} new keys   claimed in {min(times):9.1f} ms   known ones {known_ns:8.0f} ns each")
    begun = time.perf_counter()
    again = KeyTable(directory)
    open_ms = (time.perf_counter() - begun) * 1e3
    size = sum(each.stat().st_size for each in os.scandir(directory) if each.is_file())
    print(f"  {again.count:>9,} keys       read in    {open_ms:9.1f} ms   {size / again.count:8.1f} bytes each on disk")
    print_result({"claim_ms": claim_ms[1], "claim_100k_ms": claim_ms[100_000], "open_ms": open_ms})


def written(root: Path, rows: int, devices: int) -> SourceSpec:
    chance = np.random.default_rng(2)
    for number in range(FILES):
        own = chance.integers(0, max(1, devices // FILES), rows // FILES)
        lines = [
            json.dumps({"device": f"device-{number}-{device}", "reading": index * 0.5, "note": "all is well"})
            for index, device in enumerate(own.tolist())
        ]
        (root / f"{number}").mkdir(parents=True)
        (root / f"{number}" / "rows.json").write_text("\n".join(lines) + "\n")
    schema = "device STRING, reading DOUBLE, note STRING"
    spec: Any = read.files(f"{root}/**/*.json", schema=schema, name="rows").node.spec
    return replace(spec, division=FileDivision())


def read_s(source: Source, turns: int) -> float:
    end = source.latest(source.initial(), bounded=False)
    times = []
    for _ in range(turns):
        begun = time.process_time()
        for span in source.spans(source.initial(), end, parallelism=1):
            for _ in source.read(span):
                pass
        times.append(time.process_time() - begun)
    return min(times)


def rows_of(directory: Path, rows: int, several: Sequence[int]) -> None:
    for devices in several:
        place = directory / str(devices)
        spec = written(place / "in", rows, devices)
        key = ShardKey("device", str(place / KEYS))
        key.begin()
        alone = read_s(spec.open("rows", str(place / "alone")), TURNS)
        held = hold_to_key(spec, key).open("rows", str(place / "held"))
        first, later = read_s(held, 1), read_s(held, TURNS)
        of = [seconds * 1e9 / rows for seconds in (alone, first - alone, later - alone)]
        print(f"  {devices:>9,} devices    read {of[0]:6.0f} ns a row   new +{of[1]:5.0f}   known +{of[2]:5.0f}")
        print_result({"devices": devices, "known": later / alone - 1, "new": first / alone - 1})


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=500_000)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        claims(f"{directory}/claims/{KEYS}")
        rows_of(Path(directory), asked.rows, (100, 10_000, asked.rows))


if __name__ == "__main__":
    main()
