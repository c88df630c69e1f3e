"""What many shards cost before a row is read, computed without Spark: dealing, regrouping, records.

``python -m bench.shards_on_paper [--segments 10000] [--shards 100]``.  The figures stand in design/0048, section 11.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench.sides import print_result
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.source.spec import KafkaSourceSpec
from holdfast.connectors.kafka.topics import Selection
from holdfast.positions import SegmentSet
from holdfast.shards.assignment import Assignment, assign, moves, regroup
from holdfast.store import durable, sealed

TURNS = 5


def timed(doing: Callable[[], Any]) -> tuple[float, Any]:
    """Return the shortest of some turns, in milliseconds, and what came of it."""
    times, found = [], None
    for _ in range(TURNS):
        begun = time.perf_counter()
        found = doing()
        times.append((time.perf_counter() - begun) * 1e3)
    return min(times), found


def spec_of(segments: SegmentSet) -> KafkaSourceSpec:
    import pyarrow as pa

    brokers = Brokers("localhost:9092", {}, "read.kafka")
    return KafkaSourceSpec(brokers, Selection((), "events-.*"), "json", pa.schema([]), (), reads=segments)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--segments", type=int, default=10_000)
    options.add_argument("--shards", type=int, default=100)
    asked = options.parse_args()
    count, shards = asked.segments, asked.shards
    names = [f"events-{number // 100:03}@28LoSSUP/{number % 100}" for number in range(count)]
    print(f"{count:,} segments, {shards} shards; milliseconds, the best of {TURNS}")

    dealt_ms, found = timed(lambda: assign(Assignment(shards), names))
    print(f"  a first start deals them       {dealt_ms:8.1f}   {min(found.counts())} to {max(found.counts())} each")
    sets_ms, sets = timed(lambda: [found.units_of(shard) for shard in range(shards)])
    print(f"  the sets of all shards         {sets_ms:8.1f}")
    new_ms, _ = timed(lambda: assign(found, [*names, "events-new@28LoSSUP/0"]))
    print(f"  one more segment               {new_ms:8.1f}")
    regrouped_ms = []
    begun = [{name: 1_000_000 + len(name) for name in names if name in of} for of in sets]
    for to in (shards + 1, shards * 2, shards // 2, shards - 1, 1):
        grouped_ms, after = timed(lambda to=to: regroup(found, to))
        back_ms, back = timed(lambda after=after: regroup(after, shards))
        assert back.shards == found.shards
        regrouped_ms.append(grouped_ms)
        moved = len(moves(found, after))
        print(f"  to {to:4} shards                 {grouped_ms:8.1f}   {moved:,} move; back {back_ms:.1f}, as it was")
    record_ms, text = timed(lambda: json.dumps({**found.to_json(), "positions": begun}))
    print(f"  the record as text             {record_ms:8.1f}   {len(text):,} bytes, with positions")
    read_ms, _ = timed(lambda: Assignment.from_json(json.loads(text)))
    print(f"  the record read                {read_ms:8.1f}")
    with tempfile.TemporaryDirectory(dir=".") as directory:
        path, aside = os.path.join(directory, "record"), os.path.join(directory, "aside")
        durable.prepare(directory, aside=aside)
        put_ms, _ = timed(lambda: durable.replace(path, sealed.seal(text.encode()), aside=aside))
        shown = [{"shard": at, "epoch": 7, "generation": 1, "state": "running", "error": ""} for at in range(shards)]
        progress = json.dumps({"shards": shown}).encode()
        controller_ms, _ = timed(lambda: durable.replace(path, sealed.seal(progress), aside=aside))
    print(f"  the record made durable        {put_ms:8.1f}")
    print(f"  the controller's progress      {controller_ms:8.1f}   {len(progress):,} bytes, durable")
    sizes = sorted(len(pickle.dumps(spec_of(of))) for of in sets)
    print(f"  a shard's declaration, pickled            {sizes[0]:,} to {sizes[-1]:,} bytes")
    result: dict[str, Any] = {
        "deal_ms": round(dealt_ms, 1),
        "regroup_ms": round(max(regrouped_ms), 1),
        "record_ms": round(put_ms, 1),
        "record_bytes": len(text),
    }
    print_result(result)


if __name__ == "__main__":
    main()
