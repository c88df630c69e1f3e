"""What the memory of a pipeline consists of: driver, JVM, and the Python processes beside it.

The graph of ``bench.apply`` with its ``apply``, a look-up table, and five sinks of four kinds (SQLite, files, segments,
a byte stream): small epochs of 100 rows from each of two streams, then a large one.  Every half second the run looks at
its processes.  MB; what several share is divided among them (``Pss``), but for ``driver_peak`` and ``jvm_peak``, the
kernel's own high-water marks, in which it is whole.

- ``driver``, ``jvm``, ``python`` (``python_count`` processes), ``all``: medians of the second half of the small epochs;
  ``jvm_anon``, ``all_anon``: of these, what is no file's, so that the kernel cannot drop it;
- ``heap_used``, ``heap_committed``, ``metaspace`` (with the classes' own space), ``code``, ``direct``: of the JVM, in
  the same time, by its own word, committed but for ``heap_used``;
- ``driver_peak``, ``jvm_peak``, ``python_peak``, ``all_peak``: the most, the large epoch included.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from bench.apply import COURIERS, DATABASE, Day, streams_of
from bench.epoch_latency import until_told
from bench.lives import make_archive, until
from bench.sides import WORK, figures_in, median, print_result, start_side

DATA = {"columns": "'moved'", "plan": "CAST(metres AS STRING)"}
"""Side -> an expression: one that Arrow evaluates, and one that only Spark does."""

MEDIANS = ("driver", "jvm", "jvm_anon", "python", "python_count", "all", "all_anon")
JVM_PARTS = ("heap_used", "heap_committed", "metaspace", "code", "direct")
PEAKS = ("driver_peak", "jvm_peak", "python_peak", "all_peak")


def pipeline_of(side: str, inputs: Path, out: Path) -> Any:
    """Return the graph with its sinks; the side says what evaluates one of its expressions."""
    import holdfast as hf

    streams = streams_of("function", inputs)
    couriers = pa.table({"courier": list(range(COURIERS)), "city": [f"city {n % 7}" for n in range(COURIERS)]})
    rates = hf.lookup(streams["rates"], couriers, on="courier", name="rates_by_city")
    told = streams["moves"] | hf.select("t", f"{DATA[side]} AS data", name="told")
    keyed = [
        stream | hf.write.sqlite(out / DATABASE, table=name, mode="upsert", key=["courier"], name=f"{name}_table")
        for name, stream in {"rides": streams["rides"], "rates": rates}.items()
    ]
    return hf.Pipeline(
        "footprint",
        *keyed,
        streams["notes"] | hf.write.files(out / "notes", name="notes_files"),
        streams["due"] | hf.write.segments(out / "due", partition_by=["courier"], name="due_segments"),
        told | hf.write.byte_stream(out / "told", timestamp="t", data="data", name="told_stream"),
    )


def side_run(side: str, inputs: str, out: str) -> dict[str, Any]:
    """Run the graph until the parent says so; return what was seen of the processes."""
    import holdfast as hf

    pipeline = pipeline_of(side, Path(inputs), Path(out))
    run = pipeline.start(checkpoint=f"{out}/ckpt", trigger=hf.every("0 s"), master="local[2]")
    seen: list[dict[str, float]] = []
    until_told(lambda: seen.append({"at": time.time(), **_processes(), **_jvm_parts()}))
    run.stop()
    run.wait()
    return {"seen": seen, "driver_peak": _highest_mb(os.getpid())}


def _processes() -> dict[str, float]:
    """Return the memory of the processes of this run, in MB."""
    found = dict.fromkeys(("driver", "jvm", "jvm_anon", "jvm_peak", "python", "python_count", "all", "all_anon"), 0.0)
    driver = psutil.Process()
    for each in [driver, *driver.children(recursive=True)]:
        with suppress(psutil.Error, OSError):  # it has ended meanwhile
            kind = "driver" if each == driver else "jvm" if "java" in each.name() else "python"
            size, anonymous = _resident_mb(each.pid)
            found["all"] += size
            found["all_anon"] += anonymous
            found[kind] += size
            if kind == "jvm":
                found["jvm_anon"] += anonymous
                found["jvm_peak"] = _highest_mb(each.pid)
            if kind == "python":
                found["python_count"] += 1
    return found


def _resident_mb(process: int) -> tuple[float, float]:
    """Return what a process has in memory, and how much of that is no file's."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines[1:]}
    return sizes["Pss:"], sizes["Pss_Anon:"]


def _highest_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


def _jvm_parts() -> dict[str, float]:
    """Return what the JVM says of its own memory, in MB."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    management = jvm.java.lang.management.ManagementFactory
    heap = management.getMemoryMXBean().getHeapMemoryUsage()
    committed = {pool.getName(): pool.getUsage().getCommitted() for pool in management.getMemoryPoolMXBeans()}
    parts = {
        "heap_used": heap.getUsed(),
        "heap_committed": heap.getCommitted(),
        "metaspace": committed["Metaspace"] + committed["Compressed Class Space"],
        "code": sum(size for name, size in committed.items() if name.startswith("Code")),
        "direct": jvm.io.netty.util.internal.PlatformDependent.usedDirectMemory(),
    }
    return {name: size / 1e6 for name, size in parts.items()}


def measured(side: str, seconds: float, large: int) -> dict[str, float]:
    """Run one life with small epochs and a large one; return its figures."""
    day = Day(f"footprint-{side}")
    arguments = {"side": side, "inputs": str(day.inputs), "out": str(day.out)}
    with start_side("bench.footprint", "run", arguments) as process:
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                if line.startswith("READY"):
                    break
            began = time.time()
            while (end := time.time()) < began + seconds:
                day.arrive()
                until(day.has_all, process)
            day.arrive(large)
            until(day.has_all, process)
            output, _ = process.communicate(timeout=120)  # closes its input: the sign to stop
        finally:
            process.kill()
    figures = figures_in(said + output, process.returncode, "run")
    seen = figures["seen"]
    small = [each for each in seen if (began + end) / 2 <= each["at"] <= end]
    return {
        **{name: median([each[name] for each in small]) for name in (*MEDIANS, *JVM_PARTS)},
        "driver_peak": figures["driver_peak"],
        "jvm_peak": seen[-1]["jvm_peak"],
        **{f"{name}_peak": max(each[name] for each in seen) for name in ("python", "all")},
    }


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.footprint", description=__doc__)
    parser.add_argument("--seconds", type=float, default=150, help="of small epochs; idle workers end after a minute")
    parser.add_argument("--rows", type=int, default=400_000, help="of each stream, in the large epoch")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=DATA, help="measure one side; prints no RESULT")
    options = parser.parse_args()
    make_archive(WORK / "footprint-cache")
    sides = [options.only] if options.only else list(DATA)
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            rounds[side].append(measured(side, options.seconds, options.rows))
            sizes = {name: round(size) for name, size in rounds[side][-1].items()}
            print(f"{side}: {sizes}, load {os.getloadavg()[0]:.1f}", flush=True)
    for path in WORK.glob("footprint*"):
        shutil.rmtree(path, ignore_errors=True)
    if options.only:
        return
    names = (*MEDIANS, *JVM_PARTS, *PEAKS)
    figures = {
        side: {name: round(median([each[name] for each in of])) for name in names} for side, of in rounds.items()
    }
    print_result(
        {"bench": "footprint", "ratio": round(figures["plan"]["all"] / figures["columns"]["all"], 2), **figures}
    )


if __name__ == "__main__":
    main()
