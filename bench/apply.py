"""What one Python function costs a graph: the same 31 nodes and five sinks, with an ``apply`` and without any.

A delivery company: two streams come in, operators with state stand one behind the other, and five sinks take what comes
out.  In the side *function* one operator is ``hf.apply``; in the side *plain* it is a ``reduce`` that gives the same
columns.

- ``restart_ratio``: from SIGKILL of the process group to the first new row, function divided by plain.
- ``epoch_ms``: from the arrival of files of 100 rows to their last effect, with the function; ``plain_epoch_ms``
  without.
- ``rows_per_s``: rows of one large epoch with the function, by the time that it took.

Every life is a new process with a new JVM; the sides take turns; medians.  Of times, CPU seconds of the process tree
are given as well (``restart_cpu_ratio``, ``epoch_cpu_ms``): on a machine that others use they can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.lives import cpu_s, life_of, make_archive, memory_mb, until
from bench.sides import WORK, median, print_result

SIDES = ("plain", "function")
COURIERS = 50
SMALL = 100
"""Rows of a file; an epoch takes one of each stream."""

DATABASE = "out.db"
RIDE = "courier BIGINT, n BIGINT, metres BIGINT, t BIGINT"


def ride(courier: int, rows: list[dict[str, Any]], state: Any) -> Iterator[dict[str, Any]]:
    """Count the moves and metres of a courier."""
    n = state.get("n", 0) + len(rows)
    metres = state.get("metres", 0) + sum(row["metres"] for row in rows)
    state.set(n=n, metres=metres)
    yield {"courier": courier, "n": n, "metres": metres, "t": max(row["t"] for row in rows)}


def streams_of(side: str, inputs: Path) -> dict[str, Any]:
    """Return what comes out of the graph, by name; the side says what ``rides`` is."""
    import holdfast as hf

    def stream(name: str, columns: str) -> hf.Stream:
        schema = f"{columns}, t BIGINT NOT NULL"
        at: dict[str, Any] = {"timestamp": "t", "max_files_per_epoch": 1, "name": name}
        return hf.read.files(inputs / name, format="json", schema=schema, **at)

    orders = stream("orders", "order_id BIGINT, courier BIGINT, cents BIGINT")
    scans = stream("scans", "order_id BIGINT, courier BIGINT, metres BIGINT, kind STRING")
    paid = orders | hf.filter("cents > 0", name="paid")
    priced = paid | hf.select("*", fee="cents * 15", name="priced")
    fresh = priced | hf.distinct(by="order_id", horizon=10**6, disorder=10**6, name="fresh")
    moves = scans | hf.filter("kind = 'move'", name="moves") | hf.select("courier", "metres", "t", name="moved")
    done = scans | hf.filter("kind = 'done'", name="done") | hf.select("order_id", "t", name="finished")
    if side == "function":
        state = "n BIGINT, metres BIGINT"
        sums = moves | hf.apply(ride, by="courier", state=state, schema=RIDE, timestamp="t", name="sums")
    else:
        counts: dict[str, Any] = {"n": hf.count(), "metres": hf.sum("metres"), "t": hf.max("t")}
        sums = moves | hf.reduce(by="courier", **counts, name="sums")
    rides = sums | hf.select("courier", "n", "metres", "metres * 100 AS centimetres", "t", name="rides")
    far = sums | hf.filter("metres > 1000", name="far") | hf.select("courier", "metres", "t", name="far_rides")
    balances = fresh | hf.accumulate(by="courier", balance=hf.sum("fee"), name="balances")
    due = balances | hf.filter("balance > 1000", name="due") | hf.select("courier", "balance", "t", name="fees_due")
    delivered = hf.join(fresh, done, on="order_id", within=(0, 10**6), disorder=10**6, name="delivered")
    slow = delivered | hf.filter("t_right - t > 1000", name="slow") | hf.select("courier", "order_id", "t", name="late")
    kept = hf.union(slow | hf.select("courier", "t", name="slow_notes"), far | hf.select("courier", "t", name="notes"))
    notes = kept | hf.reduce(by="courier", notes=hf.count(), name="notes_of")
    totals = delivered | hf.reduce(by="courier", orders=hf.count(), cents=hf.sum("cents"), name="totals")
    known = totals | hf.filter("orders > 0", name="known")
    rates = known | hf.select("courier", "orders", "cents - orders AS net", name="rates")
    return {"rides": rides, "notes": notes, "rates": rates, "due": due, "moves": moves}


def pipeline_of(side: str, inputs: Path, out: Path) -> Any:
    """Return the graph with its sinks."""
    import holdfast as hf

    def table(name: str, **options: Any) -> hf.SinkNode:
        return hf.write.sqlite(out / DATABASE, table=name, name=f"{name}_table", **options)

    streams = streams_of(side, inputs)
    keyed = [streams[name] | table(name, mode="upsert", key=["courier"]) for name in ("rides", "notes", "rates")]
    files = streams["moves"] | hf.write.files(out / "moves", name="moves_files")
    return hf.Pipeline("bench", *keyed, streams["due"] | table("due"), files)


def side_run(side: str, inputs: str, out: str) -> dict[str, Any]:
    """Run the graph until it is killed."""
    import holdfast as hf

    pipeline = pipeline_of(side, Path(inputs), Path(out))
    pipeline.start(checkpoint=f"{out}/ckpt", trigger=hf.every("0 s"), master="local[2]").wait()
    return {}


class Day:
    """What arrives in one experiment, and what has come of it.

    Parameters
    ----------
    name : str
        Of the directories.
    """

    def __init__(self, name: str) -> None:
        self.inputs, self.out = WORK / f"{name}-in", WORK / name
        self.moves = 0
        self._files = 0
        for directory in (self.inputs, self.out):
            shutil.rmtree(directory, ignore_errors=True)
        for stream in ("orders", "scans"):
            (self.inputs / stream).mkdir(parents=True)
        self.out.mkdir(parents=True)

    def life(self, side: str) -> Any:
        """Begin a life of the pipeline."""
        arguments = {"side": side, "inputs": str(self.inputs), "out": str(self.out)}
        return life_of("bench.apply", "run", arguments, self.out)

    def arrive(self, rows: int = SMALL) -> None:
        """Let one file of each stream arrive; of the scans three of four are moves."""
        first = self._files * 10**6
        orders = [
            {"order_id": first + i, "courier": i % COURIERS, "cents": 500 + i % 999, "t": first + i}
            for i in range(rows)
        ]
        scans = [
            {**{name: order[name] for name in ("order_id", "courier", "t")}, "metres": i % 997, "kind": kind}
            for i, order in enumerate(orders)
            for kind in [("done" if i % 4 == 0 else "move")]
        ]
        for stream, each in (("orders", orders), ("scans", scans)):
            hidden = self.inputs / stream / f".{self._files:05}.tmp"
            hidden.write_text("\n".join(map(json.dumps, each)) + "\n")
            hidden.rename(self.inputs / stream / f"{self._files:05}.json")
        self._files += 1
        self.moves += rows - (rows + 3) // 4

    def has_all(self) -> bool:
        """Tell whether every move has had its effect."""
        try:
            with sqlite3.connect(f"file:{self.out / DATABASE}?mode=ro", uri=True) as connection:
                return connection.execute("SELECT sum(n) FROM rides").fetchone()[0] == self.moves
        except sqlite3.OperationalError:
            return False


def measured(side: str, epochs: int, large: int) -> dict[str, float]:
    """Run one life with small epochs and a large one, kill it, and measure the next one to its first new row."""
    day = Day(f"apply-{side}")
    found: dict[str, float] = {}
    times, cpu = [], []
    day.arrive()
    with day.life(side) as process:
        until(day.has_all, process)
        for number in range(epochs):
            used, began = cpu_s(process.pid), time.perf_counter()
            day.arrive()
            until(day.has_all, process)
            if number >= epochs // 3:  # those before are warm-up
                times.append(time.perf_counter() - began)
                cpu.append(cpu_s(process.pid) - used)
        found["epoch_ms"], found["epoch_cpu_ms"] = median(times) * 1e3, median(cpu) * 1e3
        day.arrive(large)
        began = time.perf_counter()
        until(day.has_all, process)
        found["rows_per_s"] = 2 * large / (time.perf_counter() - began)
    killed = time.perf_counter()
    day.arrive()
    with day.life(side) as process:
        until(day.has_all, process)
        found["restart_s"], found["restart_cpu_s"] = time.perf_counter() - killed, cpu_s(process.pid)
        found["memory_mb"] = memory_mb(process.pid)
    return found


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.apply", description=__doc__)
    parser.add_argument("--epochs", type=int, default=60, help="small ones")
    parser.add_argument("--rows", type=int, default=400_000, help="of each stream, in the large epoch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    make_archive(WORK / "apply-cache")
    sides: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            sides[side].append(measured(side, options.epochs, options.rows))
            print(f"{side}: {sides[side][-1]}, load {os.getloadavg()[0]:.1f}", flush=True)
    plain, function = (
        {name: median([each[name] for each in sides[side]]) for name in sides[side][0]} for side in SIDES
    )
    for path in WORK.glob("apply*"):
        shutil.rmtree(path, ignore_errors=True)
    result = {
        "restart_ratio": round(function["restart_s"] / plain["restart_s"], 2),
        "restart_cpu_ratio": round(function["restart_cpu_s"] / plain["restart_cpu_s"], 2),
        **{name: round(function[name]) for name in ("epoch_ms", "epoch_cpu_ms", "rows_per_s", "memory_mb")},
        **{f"plain_{name}": round(plain[name]) for name in ("epoch_ms", "epoch_cpu_ms", "rows_per_s", "memory_mb")},
        **{name: round(function[name], 1) for name in ("restart_s", "restart_cpu_s")},
    }
    print_result({"bench": "apply", **result})


if __name__ == "__main__":
    main()
