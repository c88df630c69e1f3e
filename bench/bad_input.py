"""What does bad input cost?  Bad rows against good ones, one long line of quotes, and a small file that holds a lot.

``bad_ratio`` is rows per second of a file of good rows divided by rows per second of a file of bad ones, all of them
rejected: the worst of several kinds of bad rows, each against good rows of its own format.  ``quoted_growth`` is the
time for one CSV line of quoted fields four times as long divided by the time for the line: 4 when the cost is linear,
16 when it is quadratic.  ``gzip_peak_mb`` is how much the process grows while it reads a small compressed file that
holds a single line of half a gigabyte.

The source's own read path runs, without Spark and so without a JVM: what is measured is done by executors in exactly
this way.  Each side has a process of its own, and the sides take turns within it; medians of the rounds.  Seconds are
of the CPU, of all threads: what else runs on the machine does not count.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.sides import WORK, median, print_result, run_side

SCHEMA = (
    "id BIGINT, carrier STRING, origin STRING, dest STRING, dep_delay INT, distance DOUBLE, time_hour TIMESTAMP,"
    " note STRING"
)
JSON_BAD: dict[str, Callable[[str], str]] = {
    "a text for a number": lambda line: line.replace('"dep_delay":', '"dep_delay":"late","was":'),
    "no such day": lambda line: line.replace('"2024-01-01T', '"2024-02-31T'),
    "cut off": lambda line: line[:-20],
    "no JSON": lambda line: line.replace('"', " ").strip("{}"),
}
CSV_BAD: dict[str, Callable[[str], str]] = {
    "a text for a number": lambda line: line.replace('"LAX",', '"LAX",late'),
    "one field too many": lambda line: line + ",9",
    "a quote left open": lambda line: line.replace('"JFK"', '"JFK'),
}


def lines_of(count: int) -> tuple[list[str], list[str]]:
    """Return good rows, as JSON lines (140 bytes) and as CSV with texts in quotes and without a header (80)."""
    chance = random.Random(7)
    rows = [
        {
            "id": number,
            "carrier": "UA",
            "origin": "JFK",
            "dest": "LAX",
            "dep_delay": chance.randrange(100),
            "distance": chance.randrange(100_000) / 100,
            "time_hour": "2024-01-01T12:00:00Z",
            "note": f"gate {number % 97}, belt {number % 13}",
        }
        for number in range(count)
    ]
    as_json = [json.dumps(row, separators=(",", ":")) for row in rows]
    return as_json, [",".join(json.dumps(value) for value in row.values()) for row in rows]


def write(directory: Path, data: bytes, name: str = "file") -> None:
    directory.mkdir(parents=True)
    (directory / name).write_bytes(data)


def read_all(directory: Path, **options: Any) -> tuple[int, int, float]:
    """Read a directory as executors do; return good rows, rejected rows and seconds of CPU."""
    import holdfast as hf
    from holdfast.ports import REJECT_COLUMN

    workspace = directory.with_name(directory.name + "-log")
    shutil.rmtree(workspace, ignore_errors=True)
    arguments: dict[str, Any] = {"schema": SCHEMA, "on_bad_row": "reject", **options}
    stream = hf.read.files(os.fspath(directory), name="input", **arguments)
    source: Any = stream.node.source_spec.open("input", os.fspath(workspace))
    end = source.latest(source.initial(), bounded=False)
    spans = source.spans(source.initial(), end, parallelism=1)
    began = time.process_time()
    good = bad = 0
    for span in spans:
        for batch in source.read(span):
            rejected = batch.num_rows - batch.column(REJECT_COLUMN).null_count
            bad += rejected
            good += batch.num_rows - rejected
    return good, bad, time.process_time() - began


def check(found: tuple[int, int, float], good: int, bad: int, what: str) -> float:
    """Return the seconds, after what came out was compared with what went in."""
    if found[:2] != (good, bad):
        raise RuntimeError(f"{what}: {good} good and {bad} bad rows went in, {found[0]} and {found[1]} came out")
    return found[2]


def side_rows(directory: str, count: int, rounds: int) -> dict[str, Any]:
    """Measure files of good rows and of bad ones, in turns."""
    work = Path(directory)
    as_json, as_csv = lines_of(count)
    times: dict[str, list[float]] = {}
    for format, lines, kinds in (("json", as_json, JSON_BAD), ("csv", as_csv, CSV_BAD)):
        options = {"format": format, **({"header": False} if format == "csv" else {})}
        write(work / format / "good", "\n".join(lines).encode())
        for number, spoil in enumerate(kinds.values()):
            write(work / format / str(number), "\n".join(map(spoil, lines)).encode())
        for _ in range(rounds):
            seconds = check(read_all(work / format / "good", **options), count, 0, f"{format}, good")
            times.setdefault(format, []).append(seconds)
            for number, kind in enumerate(kinds):
                seconds = check(read_all(work / format / str(number), **options), 0, count, f"{format}, {kind}")
                times.setdefault(f"{format}: {kind}", []).append(seconds)
    return {"seconds": {name: median(taken) for name, taken in times.items()}}


def side_quoted(directory: str, fields: int, rounds: int) -> dict[str, Any]:
    """Measure one CSV line of many quoted fields, and one four times as long."""
    seconds: dict[int, list[float]] = {fields: [], 4 * fields: []}
    for many in seconds:
        write(Path(directory) / str(many), b",".join([b'"a""b"'] * many) + b',"x"y\n')
    for _ in range(rounds):
        for many, taken in seconds.items():
            found = read_all(Path(directory) / str(many), format="csv", header=False, schema="a STRING, b STRING")
            taken.append(check(found, 0, 1, f"{many} quoted fields"))
    return {"seconds": [median(taken) for taken in seconds.values()]}


def side_gzip(directory: str, size_mb: int) -> dict[str, Any]:
    """Measure how much this process grows while it reads a small compressed file that holds a lot."""
    work = Path(directory)
    read_warm = work / "warm"
    write(read_warm, gzip.compress(b'{"id":1}\n'), "file.json.gz")
    check(read_all(read_warm), 1, 0, "warm-up")
    (work / "large").mkdir()
    with gzip.open(work / "large" / "file.json.gz", "wb", compresslevel=9) as file:
        file.write(b'{"id":1}\n{"note":"')
        for _ in range(size_mb):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n{"id":3}\n')
    before = _peak_mb()
    check(read_all(work / "large"), 2, 1, "compressed")
    return {"grown_mb": _peak_mb() - before, "file_kb": (work / "large" / "file.json.gz").stat().st_size // 1000}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.bad_input", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--fields", type=int, default=400_000, help="quoted fields of the shorter line")
    parser.add_argument("--gzip-mb", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    work = WORK / "bad_input"
    shutil.rmtree(work, ignore_errors=True)
    module = "bench.bad_input"
    rows = {"directory": str(work / "rows"), "count": options.rows, "rounds": options.rounds}
    seconds = run_side(module, "rows", rows)["seconds"]
    ratios = {kind: taken / seconds[kind.partition(":")[0]] for kind, taken in seconds.items() if ":" in kind}
    for kind, taken in seconds.items():
        ratio = f", {ratios[kind]:.1f} times the good ones" if kind in ratios else " good rows"
        print(f"{kind}: {options.rows / taken:,.0f} rows/s{ratio}", flush=True)
    quoted = run_side(
        module, "quoted", {"directory": str(work / "quoted"), "fields": options.fields, "rounds": options.rounds}
    )
    print(f"one line of quoted fields: {quoted['seconds']} s", flush=True)
    packed = run_side(module, "gzip", {"directory": str(work / "gzip"), "size_mb": options.gzip_mb})
    print(
        f"{packed['file_kb']} kB of gzip: {packed['grown_mb']:.0f} MB more, load {os.getloadavg()[0]:.1f}", flush=True
    )
    shutil.rmtree(work)
    short, long = quoted["seconds"]
    result = {
        "bad_ratio": round(max(ratios.values()), 2),
        "quoted_growth": round(long / short, 2),
        "gzip_peak_mb": round(packed["grown_mb"]),
    }
    print_result({**result, **{kind: round(ratio, 2) for kind, ratio in ratios.items()}})


if __name__ == "__main__":
    main()
