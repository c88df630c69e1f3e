"""Messages into a byte stream: what exactly-once, a checksum per message and a time index cost against a plain file.

Two loads: ``frames``, of cameras in 4K (a key frame of 1.5 MB in 30, others of 100 kB), and ``samples`` of 1 kB.  An
epoch is a second of them.  Sides, each in a process of its own, in turns:

- ``plain``: all messages of an epoch in one write behind one file, and one sync: no streams, no index, no checksum, and
  after a crash nobody knows what is in it;
- ``carried``: ``write.byte_stream`` as the driver writes small epochs, from Arrow columns;
- ``staged``: as it writes large ones: a task stages the messages, and they are copied behind the streams.

Every side syncs in every epoch what it needs.  What a side wrote is counted before its time is accepted, and read
again: ``read`` is what the source reads, every checksum compared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.sides import WORK, median, print_result, run_side

CAMERAS = 8
FRAMES_PER_S = 30
SAMPLE_SIZE = 1000
SIDES = ("plain", "carried", "staged")


def epochs(load: str, seconds: int) -> Iterator[pa.Table]:
    """Yield the messages of each second."""
    rng = np.random.default_rng(5)
    for second in range(seconds):
        if load == "frames":
            number = np.repeat(np.arange(FRAMES_PER_S), CAMERAS)
            keys = number == 0
            sizes = np.where(keys, 1_500_000, 100_000)
            offset_ns = number * 1_000_000_000 // FRAMES_PER_S
        else:
            number = np.arange(30_000)
            keys = number // CAMERAS % 100 == 0
            sizes = np.full(len(number), SAMPLE_SIZE)
            offset_ns = number * 1_000_000_000 // len(number)
        data = pa.py_buffer(rng.integers(0, 2**63, int(sizes.sum()) // 8 + 1, np.int64).tobytes())
        borders = pa.py_buffer(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        columns = {
            "at": pa.array(second * 1_000_000_000 + offset_ns, pa.int64()),
            "camera": pa.array([f"camera {one % CAMERAS}" for one in range(len(sizes))]),
            "is_key": pa.array(keys),
            "frame": pa.Array.from_buffers(pa.binary(), len(sizes), [None, borders, data]),
        }
        yield pa.table(columns)


def _payloads(rows: pa.Table) -> memoryview:
    column = rows.column("frame").chunk(0)
    return memoryview(column.buffers()[2])[: int(pa.compute.sum(pa.compute.binary_length(column)).as_py())]


def side_plain(load: str, seconds: int, directory: str) -> dict[str, Any]:
    """Append to one file, synced once in an epoch."""
    os.makedirs(directory)
    spent, size = 0.0, 0
    fd = os.open(os.path.join(directory, "plain"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for rows in epochs(load, seconds):
        begin = time.perf_counter()
        view = _payloads(rows)
        while view:
            written = os.write(fd, view)
            view, size = view[written:], size + written
        os.fsync(fd)
        spent += time.perf_counter() - begin
    os.close(fd)
    assert os.path.getsize(os.path.join(directory, "plain")) == size
    return {"seconds": spent, "bytes": size}


def side_carried(load: str, seconds: int, directory: str) -> dict[str, Any]:
    """Measure epochs that the driver holds."""
    return _measured(load, seconds, directory, is_staged=False)


def side_staged(load: str, seconds: int, directory: str) -> dict[str, Any]:
    """Measure epochs that a task stages."""
    return _measured(load, seconds, directory, is_staged=True)


def _measured(load: str, seconds: int, directory: str, *, is_staged: bool) -> dict[str, Any]:
    from holdfast import read
    from holdfast.connectors.byte_stream.messages import MessageColumns
    from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
    from holdfast.ports import Carried, EpochRecord, Held, Part, Publication, RunIdentity, Task

    store = os.path.join(directory, "store")
    columns = MessageColumns("at", "frame", "camera", "is_key")
    spec, sink = ByteStreamSinkSpec(store, columns), None
    spent, size, count = 0.0, 0, 0
    for epoch, rows in enumerate(epochs(load, seconds), start=1):
        if sink is None:
            sink = spec.connect("out", "bench", rows.schema)
            sink.open(RunIdentity("bench", 1))
        begin = time.perf_counter()
        part: Part = Carried(rows)
        if is_staged:
            writer = sink.writer_factory()(Task("bench", 1, epoch, 0, 0))
            for batch in rows.to_batches(max_chunksize=100):
                writer.write(batch)
            part = writer.stage()
        record = EpochRecord("bench", epoch, 1, {"bench": {"log": epoch}})
        sink.publish([Publication(record, (part,))], Held())
        spent += time.perf_counter() - begin
        size, count = size + len(_payloads(rows)), count + rows.num_rows
    stream: Any = read.byte_stream(store, timestamps="bigint", holds_retention=False, name="back")
    source = stream.node.spec.open("back", os.path.join(directory, "workspace"))
    begin = time.perf_counter()
    start = source.initial()
    found = [0, 0]
    for span in source.spans(start, source.latest(start, bounded=False), parallelism=1):
        for batch in source.read(span):
            found[0] += batch.num_rows
            found[1] += pa.compute.sum(pa.compute.binary_length(batch.column("data"))).as_py()
    assert found == [count, size], f"{count} messages of {size} bytes were written, and {found} read"
    return {"seconds": spent, "bytes": size, "read_seconds": time.perf_counter() - begin, "messages": count}


def main() -> None:
    """Run all sides in turns, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.byte_stream", description=__doc__)
    parser.add_argument("--seconds", type=int, default=20, help="of what cameras and sensors make")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    work = WORK / f"byte_stream-{os.getpid()}"
    figures: dict[str, Any] = {}
    try:
        for load in ("frames", "samples"):
            rates: dict[str, list[float]] = {side: [] for side in (*SIDES, "read")}
            for number in range(options.rounds):
                for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                    directory = Path(work / side)
                    ran = run_side(
                        "bench.byte_stream",
                        side,
                        {"load": load, "seconds": options.seconds, "directory": str(directory)},
                    )
                    shutil.rmtree(directory)
                    rates[side].append(ran["bytes"] / ran["seconds"] / 1e6)
                    if "read_seconds" in ran:
                        rates["read"].append(ran["bytes"] / ran["read_seconds"] / 1e6)
                    print(f"round {number + 1} {load} {side}: {rates[side][-1]:,.0f} MB/s", flush=True)
            medians = {side: median(values) for side, values in rates.items()}
            figures[load] = {
                "ratio": round(medians["carried"] / medians["plain"], 3),
                "staged_ratio": round(medians["staged"] / medians["plain"], 3),
                **{f"{side}_mb_per_s": round(rate) for side, rate in medians.items()},
            }
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print_result({"benchmark": "byte_stream", **figures["frames"], "samples": figures["samples"]})


if __name__ == "__main__":
    main()
