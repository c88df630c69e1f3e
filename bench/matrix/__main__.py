"""Measures the matrix, or a part of it, into ``build/matrix.json``: ``python -m bench.matrix``.

What is there already is not measured again, so a run that was stopped goes on.  ``--publish`` makes
``bench/matrix.json`` of it, and with that the tables in ``docs/matrix.md``.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.matrix import ours, peers
from bench.matrix.lives import ROOT, NotReached, run_chain, scratch
from bench.matrix.table import COMMITTED, PAGE, published
from bench.matrix.targets import TARGETS, Opener, Place

MEASURED = ROOT / "build" / "matrix.json"
OURS = "Holdfast"


class Matrix:
    """The figures, in a file that is written after each chain."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"ours": {}, "peers": {}}

    def ours(self, sink: str) -> dict[str, Any]:
        """Return the cells of one of our sinks."""
        return self.figures["ours"].setdefault(sink, {})

    def of_peer(self, name: str, sink: str) -> dict[str, Any]:
        """Return the cells of a peer's sink."""
        return self.figures["peers"].setdefault(name, {}).setdefault(sink, {})

    def write(self) -> None:
        """Write it, with the day, the machine and the versions; what another process has measured meanwhile stays."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._write()

    def _write(self) -> None:
        there = json.loads(self._path.read_text()) if self._path.exists() else {"ours": {}, "peers": {}}
        for sink, cells in there["ours"].items():
            self.ours(sink).update({**cells, **self.ours(sink)})
        for name, sinks in there["peers"].items():
            for sink, cells in sinks.items():
                self.of_peer(name, sink).update({**cells, **self.of_peer(name, sink)})
        self.figures["date"] = datetime.now(UTC).date().isoformat()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        self.figures["machine"] = {"cores": os.cpu_count(), "memory_gib": round(memory)}
        self.figures["load_max"] = max(round(os.getloadavg()[0]), there.get("load_max", 0))
        names = ("holdfast", "pyspark")
        self.figures["versions"] = {name: version(name) for name in names} | {"python": platform.python_version()}
        hidden = self._path.with_suffix(".tmp")
        hidden.write_text(json.dumps(self.figures, indent=1, sort_keys=True) + "\n")
        hidden.replace(self._path)


def measure_ours(matrix: Matrix, sink: str) -> None:
    """Measure the points of one sink that are not in the matrix yet."""
    cells = matrix.ours(sink)
    with TARGETS[sink]() as opener:
        for chain in ours.chains(_open_points(sink, cells)):
            left = chain
            while left:
                left = _measure_chain(matrix, cells, sink, left, opener)


def _open_points(sink: str, cells: Mapping[str, Any]) -> list[str]:
    return [point for point in ours.POINTS if point not in cells and (sink, point) not in ours.NOT_REACHED]


def _measure_chain(
    matrix: Matrix, cells: dict[str, Any], sink: str, points: tuple[str, ...], opener: Opener
) -> tuple[str, ...]:
    """Run one chain, and return the points that are left where one was not reached."""
    work, skipped = scratch(), ""
    try:
        place = opener(work)
        side, worker = ours.side(sink, points, place, work)

        def keep(found: Mapping[str, Any]) -> None:
            cells.update(found)
            matrix.write()

        found = run_chain(side, place.ids, work / "log", worker, keep)
    except NotReached as missed:
        if not missed.point:  # the death before the one in recovery
            raise
        print(OURS, sink, missed.point, "NOT MEASURED", missed, flush=True)
        found, skipped = missed.found, missed.point
    finally:
        shutil.rmtree(work, ignore_errors=True)
    cells |= found
    matrix.write()
    for point, figures in found.items():
        print(OURS, sink, point, figures, flush=True)
    return tuple(point for point in points if point not in cells and point != skipped)


def measure_peer(matrix: Matrix, name: str) -> None:
    """Measure what is not in the matrix yet of a peer."""
    sinks = peers.PEERS[name].sinks
    # The narrow window comes first, at all sinks: a run that is stopped has what readers ask for.
    for point in reversed(list(peers.POINTS)):
        for sink, declared in sinks.items():
            if point in declared.points and point not in matrix.of_peer(name, sink):
                _measure_cell(matrix, name, sink, point, declared.target)


def _measure_cell(matrix: Matrix, name: str, sink: str, point: str, target: str) -> None:
    cells, work = matrix.of_peer(name, sink), scratch()
    try:
        with _peer_target(target) as opener:
            place = opener(work)
            cells |= run_chain(peers.side(name, sink, point, place, work), place.ids, work / "log")
    except (NotReached, RuntimeError) as error:
        print(name, sink, point, "NOT MEASURED", error, flush=True)
        return
    finally:
        shutil.rmtree(work, ignore_errors=True)
    matrix.write()
    print(name, sink, point, cells[point], flush=True)


@contextmanager
def _peer_target(target: str) -> Iterator[Opener]:
    """Open what a peer writes to: a target of ours, or files that are read as the peer says."""
    own: Mapping[str, Callable[[Path], list[int]]] = {"lines": _ids_of_lines, "spark files": _ids_of_spark_files}
    if target in own:
        read = own[target]
        yield lambda work: Place(str(work / "out"), lambda: read(work / "out"))
        return
    with ExitStack() as stack:
        yield stack.enter_context(TARGETS[target]())


def _ids_of_lines(out: Path) -> list[int]:
    """The numbers in a file of JSON lines, or in the finished files of a directory."""
    paths = [out] if out.is_file() else [p for p in sorted(out.rglob("*")) if p.is_file() and p.name[0] not in "._"]
    found = []
    for path in paths:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found.append(row["id"] if "id" in row else row["number"])
    return found


def _ids_of_spark_files(out: Path) -> list[int]:
    """The numbers in the files that Spark's log of the sink names: what Spark itself reads."""
    import pyarrow.parquet

    found: list[int] = []
    for log in sorted((out / "_spark_metadata").glob("[0-9]*")):
        for line in log.read_text().splitlines()[1:]:
            path = json.loads(line)["path"].removeprefix("file://")
            found += pyarrow.parquet.read_table(path, columns=["id"])["id"].to_pylist()
    return found


def main() -> int:
    """Measure what is asked for, and publish it."""
    parser = argparse.ArgumentParser(prog="python -m bench.matrix", description=__doc__)
    parser.add_argument("--sinks", default=",".join(TARGETS), help="of Holdfast, by comma; empty for none")
    parser.add_argument("--peers", default=",".join(peers.PEERS), help="by comma; empty for none")
    parser.add_argument("--again", action="store_true", help="forget what was measured of these")
    parser.add_argument(
        "--publish", action="store_true", help="write bench/matrix.json and the tables of docs/matrix.md"
    )
    options = parser.parse_args()
    matrix = Matrix(MEASURED)
    for sink in filter(None, options.sinks.split(",")):
        if options.again:
            matrix.ours(sink).clear()
        measure_ours(matrix, sink)
    for name in filter(None, options.peers.split(",")):
        if options.again:
            matrix.figures["peers"].pop(name, None)
        measure_peer(matrix, name)
    matrix.write()
    if options.publish:
        shutil.copyfile(MEASURED, COMMITTED)
        PAGE.write_text(published(PAGE.read_text(), json.loads(COMMITTED.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
