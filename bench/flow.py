"""Flowgraphs: packets a second through a node that waits for its inputs, alone, beside MediaPipe, and in a pipeline.

- ``packets_per_s``, ``packets_per_s_4``: a node of two and of four inputs with the policy settled, one packet for each
  input and time, one thread, from adding to the observer;
- ``node_us``: what one pass-through node more in a chain costs a packet;
- ``mediapipe_packets_per_s``: MediaPipe's ``CalculatorGraph`` with a ``PassThroughCalculator`` of two inputs, fed and
  observed from Python; ``vs_mediapipe`` is ours by theirs.  It runs in an environment of its own, made once, since it
  wants other versions of what is installed here; where it cannot be had, both keys are missing;
- ``columnar_rows_per_s``: the same sets by the step of ``hf.sync``; ``vs_columnar`` is ours by that;
- ``pipeline_rows_per_s``: the graph of four inputs as an operator, from Parquet files, exactly once into SQLite.

Sides take turns, each in a process of its own; medians.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.sides import WORK, median, print_result, run_side
from bench.sync import STREAMS, run_holdfast, write_input

MEDIAPIPE = "mediapipe==0.10.21"
"""The last one with graphs in Python."""

CHAIN = 8

_THEIRS = """
import json, sys, time
import mediapipe as mp
from mediapipe.python import packet_creator
count, times = int(sys.argv[1]), 0
graph = mp.CalculatorGraph(graph_config='''
    input_stream: "a" input_stream: "b" output_stream: "oa"
    node { calculator: "PassThroughCalculator" input_stream: "a" input_stream: "b"
           output_stream: "oa" output_stream: "ob" }''')
seen = []
graph.observe_output_stream("oa", lambda name, packet: seen.append(packet))
graph.start_run()
begin = time.perf_counter()
for t in range(count):
    graph.add_packet_to_input_stream("a", packet_creator.create_int(t).at(t))
    graph.add_packet_to_input_stream("b", packet_creator.create_int(t).at(t))
graph.close_all_packet_sources()
graph.wait_until_done()
took = time.perf_counter() - begin
assert len(seen) == count, len(seen)
print(json.dumps(2 * count / took))
"""


def both(a: int, b: int) -> int:
    """Give the sum of an input set."""
    return a + b


def four(s0: Any = None, s1: Any = None, s2: Any = None, s3: Any = None) -> dict[str, Any]:
    """Give how many there are, and their sum."""
    present = [each["v"] for each in (s0, s1, s2, s3) if each is not None]
    return {"present": len(present), "total": sum(present)}


def forward(value: int) -> int:
    """Give what came."""
    return value


def rate(inputs: int, sets: int) -> float:
    """Return packets a second through a node of some inputs."""
    from holdfast import flow

    names = [f"s{number}" for number in range(inputs)]

    class Sum(flow.Calculator):
        contract = flow.Contract(inputs=names, outputs="sum", timestamp_offset=0, is_pure=True)

        def process(self, context: flow.Context) -> None:
            context.emit("sum", sum(context[name] for name in names))

    graph = flow.Graph()
    graph.output("sum", {name: graph.input(name) for name in names} | flow.node(Sum))
    run = graph.start(executor=flow.Application())
    found = run.collect("sum")
    begin = time.perf_counter()
    for t in range(sets):
        for name in names:
            run.add(name, t, t)
    run.finish()
    took = time.perf_counter() - begin
    assert len(found) == sets, len(found)
    return inputs * sets / took


def chain_s(nodes: int, packets: int) -> float:
    """Return the seconds of packets through a chain."""
    from holdfast import flow

    graph = flow.Graph()
    stream = graph.input("first")
    for number in range(nodes):
        stream = stream | flow.node(flow.calculators.PassThrough, name=f"node_{number}")
    graph.output("last", stream)
    run = graph.start(executor=flow.Application())
    found = run.collect("last")
    begin = time.perf_counter()
    for t in range(packets):
        run.add("first", t, t)
    run.finish()
    assert len(found) == packets, len(found)
    return time.perf_counter() - begin


def side_alone(sets: int) -> dict[str, float]:
    """Measure graphs in this process."""
    short, long = chain_s(1, sets // 4), chain_s(1 + CHAIN, sets // 4)
    return {"two": rate(2, sets), "four": rate(4, sets), "node_us": (long - short) / CHAIN / (sets // 4) * 1e6}


def side_columnar(sets: int) -> dict[str, float]:
    """Measure the step of ``hf.sync``, an epoch of all rows."""
    import holdfast as hf
    from holdfast.state import tables
    from holdfast.state.step import ALL_KEYS, BOUND, PLACE, Arrivals, StepTime

    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
    sources = {name: hf.read.rows([], schema="k BIGINT, t BIGINT, v BIGINT", timestamp="t", name=name) for name in "ab"}
    spec: Any = hf.sync(sources, by="k", name="sets").node.spec
    step = spec.step(dict.fromkeys("ab", schema))
    times = pa.array(range(sets), pa.int64())
    rows = pa.table([pa.repeat(pa.scalar(0, pa.int64()), sets), times, times], schema=schema)
    bounds = pa.schema([("k", pa.int64()), (ALL_KEYS, pa.bool_()), (BOUND, pa.int64()), (PLACE, pa.int64())])
    given = {
        name: Arrivals(rows.append_column(PLACE, pa.array(range(first, 2 * sets, 2), pa.int64())), bounds.empty_table())
        for first, name in enumerate("ab")
    }
    state = tables.empty_state(step)
    begin = time.perf_counter()
    result = step.apply(state, given, StepTime(1, 0))
    took = time.perf_counter() - begin
    assert result.outputs["rows"].num_rows == sets, result.outputs["rows"].num_rows
    return {"rows_per_s": 2 * sets / took}


def side_pipeline(inputs: str, out: str, rows: int) -> dict[str, float]:
    """Measure the operator."""
    import holdfast as hf
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import create_session

    session = create_session("local[2]", "3g", rows=RowsInJvm.NONE)

    def run(directory: Path, target: Path) -> Any:
        streams = {
            f"s{number}": hf.read.files(
                directory / f"s{number}",
                format="parquet",
                schema="k BIGINT, ts TIMESTAMP, v BIGINT",
                timestamp="ts",
                bounded=True,
                max_files_per_epoch=2,
                name=f"s{number}",
            )
            for number in range(STREAMS)
        }
        graph = hf.flow.Graph("sums")
        graph.output("sums", {name: graph.input(name) for name in streams} | hf.flow.node(four))
        sets = hf.flow(streams, graph, by="k", schema="present BIGINT, total BIGINT", name="flow")
        sums = sets | hf.map_batches(checksum, "sets BIGINT, present BIGINT, total BIGINT", name="sums")
        return run_holdfast(session, sums, ("sets", "present", "total"), target)

    run(Path(inputs) / "warm", Path(out) / "warm")
    done = run(Path(inputs) / "large", Path(out) / "large")
    assert done.found[1] == rows, (done.found, rows)
    epochs = len(done.epochs)
    return {"rows_per_s": rows * (epochs - 1) / epochs / done.seconds}


def checksum(sets: pa.RecordBatch) -> pa.RecordBatch:
    """Count the sets of a batch, and what is in them."""
    present, total = (sum(sets.column(name).to_pylist()) for name in ("present", "total"))
    return pa.RecordBatch.from_pydict({"sets": [sets.num_rows], "present": [present], "total": [total]})


def mediapipe() -> Path | None:
    """Return the Python of an environment that has MediaPipe, made where it is missing; None where it cannot be had."""
    directory = WORK.parent.parent / "build" / "mediapipe"
    python = directory / "bin" / "python"
    done = directory / "done"
    if not done.exists():
        shutil.rmtree(directory, ignore_errors=True)
        commands = ([sys.executable, "-m", "venv", directory], [python, "-m", "pip", "install", "--quiet", MEDIAPIPE])
        for command in commands:
            made = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)
            if made.returncode:
                print(f"mediapipe: not here: {(made.stderr.strip().splitlines() or ['?'])[-1]}", flush=True)
                return None
        done.touch()
    return python


def theirs(python: Path, sets: int) -> float:
    """Return packets a second of MediaPipe."""
    ran = subprocess.run([python, "-c", _THEIRS, str(sets)], capture_output=True, text=True, check=True)
    return float(ran.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.flow", description=__doc__)
    parser.add_argument("--sets", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=400_000, help="of the pipeline")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    inputs = WORK / "flow-in"
    write_input(inputs / "warm", options.rows // 20, 8, 3)
    rows = write_input(inputs / "large", options.rows, 8, 8)
    python = mediapipe()
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        figures = run_side("bench.flow", "alone", {"sets": options.sets})
        figures["columnar"] = run_side("bench.flow", "columnar", {"sets": options.sets})["rows_per_s"]
        if python is not None:
            figures["mediapipe"] = theirs(python, options.sets)
        if number < max(1, options.rounds // 2):
            arguments = {"inputs": str(inputs), "out": str(WORK / "flow-out"), "rows": rows}
            figures["pipeline"] = run_side("bench.flow", "pipeline", arguments)["rows_per_s"]
        print(figures, flush=True)
        for name, value in figures.items():
            found.setdefault(name, []).append(value)
    for path in WORK.glob("flow-*"):
        shutil.rmtree(path, ignore_errors=True)
    middle = {name: median(values) for name, values in found.items()}
    result = {
        "packets_per_s": round(middle["two"]),
        "packets_per_s_4": round(middle["four"]),
        "node_us": round(middle["node_us"], 2),
        "columnar_rows_per_s": round(middle["columnar"]),
        "vs_columnar": round(middle["two"] / middle["columnar"], 3),
        "pipeline_rows_per_s": round(middle["pipeline"]),
    }
    if "mediapipe" in middle:
        result["mediapipe_packets_per_s"] = round(middle["mediapipe"])
        result["vs_mediapipe"] = round(middle["two"] / middle["mediapipe"], 2)
    print_result({"bench": "flow", **result})


if __name__ == "__main__":
    main()
