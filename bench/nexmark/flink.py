"""The side of Flink: its SQL in a session cluster of its own environment, beside the same rows as Parquet files.

PyFlink comes from PyPI into an environment of its own (``bench/peers``), the format from Maven by a pinned list; the
classes of Hadoop that this asks for are those of Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark

from bench.lives import Watch
from bench.matrix.lives import ROOT
from bench.matrix.peers import python_of
from bench.nexmark.compared import Difference, compare
from bench.nexmark.events import Events
from bench.nexmark.expected import database, expected
from bench.nexmark.files import write_parts
from bench.nexmark.flink_sql import QUERIES, SETTINGS, discarding, tables, writing
from bench.sides import WORK
from holdfast.testing.servers.kafka import artifacts, cache, fetch

CORES = 2
EVENTS_PER_SLICE = 20_000
HEAP = "12g"
"""All state is in it: with 3 GB, query 9 of ten million events collects garbage for most of its time."""

CHECK = Events(rate=1000)
CHECK_COUNT = 60_000
"""A minute of event time: windows end while rows still come, and somebody sells who bids."""

_JARS = ROOT / "bench" / "flink_jars.txt"
_SCRIPT = ROOT / "bench" / "peers" / "flink_sql.py"


class FlinkFailed(RuntimeError):
    """Flink refused or stopped a query; the text is the end of what it says."""


class Cluster:
    """A cluster in a process of its own; its queries run one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def run(self, statements: Sequence[str]) -> float:
        """Run statements, each to its end, and return the seconds of the last one.

        Raises
        ------
        FlinkFailed
            If one of them fails.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(statements)) + "\n")
        self._process.stdin.flush()
        said = []
        for line in self._process.stdout or ():
            if line.startswith("DONE "):
                return float(line.split()[1])
            said.append(line)
            if line.startswith("FAILED "):
                raise FlinkFailed(json.loads(line.removeprefix("FAILED ")))
        raise FlinkFailed("".join(said)[-3000:])


@contextmanager
def cluster(work: Path, slots: int = CORES) -> Iterator[Cluster]:
    """Start a cluster, yield it, and end it.

    Parameters
    ----------
    work : Path
        Where its checkpoints go.
    slots : int
        How many tasks of an operator run side by side.
    """
    work.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HADOOP_CLASSPATH": _class_path(), "JVM_ARGS": f"-Xmx{HEAP}"}
    environment.pop("PYTHONPATH", None)  # its environment has nothing of ours
    with (work / "flink.log").open("w") as log:
        process = subprocess.Popen(
            [str(python_of("Flink")), str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
    try:
        settings = {**SETTINGS, "execution.checkpointing.dir": (work / "checkpoints").as_uri()}
        assert process.stdin is not None
        process.stdin.write(json.dumps({"settings": settings, "slots": slots}) + "\n")
        yield Cluster(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its JVM, too
        process.communicate()


def _class_path() -> str:
    version = artifacts(_JARS)[0][1]
    place = cache(_JARS, "flink", version)
    if not place.is_dir():
        fetch(_JARS, place, "XDG_CACHE_HOME")
    hadoop = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")
    return os.pathsep.join(map(str, [*sorted(place.glob("*.jar")), *sorted(hadoop)]))


def side_flink(query: str, inputs: str, out: str) -> dict[str, Any]:
    """Measure Flink."""
    with cluster(Path(out)) as flink:
        flink.run([*tables(Path(inputs) / "warm-parts"), discarding(query)])
        with Watch(flink.pid) as watch:
            seconds = flink.run([*tables(Path(inputs) / "large-parts"), discarding(query)])
    return {**watch.figures(), "seconds": seconds}


def differences(queries: Sequence[str], work: Path) -> Iterator[tuple[str, Difference | FlinkFailed]]:
    """Run queries with few events, in order and one after the other, and compare what they find with what they should.

    One task reads one file: rows whose order the query's own text leaves open then come in that of the events.
    """
    inputs = work / "check"
    write_parts(inputs, CHECK, CHECK_COUNT, 1, EVENTS_PER_SLICE)
    with database(CHECK, CHECK_COUNT) as events, cluster(work, 1) as flink:
        for query in queries:
            out = work / "found" / query
            shutil.rmtree(out, ignore_errors=True)
            try:
                flink.run([*tables(inputs), writing(query, out)])
            except FlinkFailed as failure:
                yield query, failure
                continue
            yield query, compare(query, read_changes(out, expected(query, events).schema), events)


def read_changes(out: Path, schema: pa.Schema) -> pa.Table:
    """Return the rows that are left of lines of changes (:func:`~bench.nexmark.flink_sql.writing`)."""
    counts: dict[tuple[Any, ...], int] = {}
    for path in sorted(out.rglob("[!._]*")):
        for line in path.read_text().splitlines() if path.is_file() else ():
            change = json.loads(line)
            is_removed = change["op"] == "d"
            values = change["before" if is_removed else "after"]
            row = tuple(values[name] for name in schema.names)
            counts[row] = counts.get(row, 0) + (-1 if is_removed else 1)
    rows = [row for row, count in counts.items() for _ in range(count)]
    if not rows:
        return schema.empty_table()
    return pa.table(dict(zip(schema.names, map(list, zip(*rows, strict=True)), strict=True)))


def write_inputs(directory: Path, events: Events, count: int, warm_count: int) -> None:
    """Write the rows that :func:`side_flink` reads."""
    write_parts(directory / "large-parts", events, count, CORES, EVENTS_PER_SLICE)
    write_parts(directory / "warm-parts", events, warm_count, CORES, EVENTS_PER_SLICE)


def main() -> None:
    """Compare queries, all or those that are named, and print what differs: ``python -m bench.nexmark.flink q5 q9``."""
    for query, found in differences(sys.argv[1:] or list(QUERIES), WORK / "nexmark-flink-check"):
        print(query, found, flush=True)


if __name__ == "__main__":
    main()
