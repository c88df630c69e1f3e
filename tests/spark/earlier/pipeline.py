"""Pipelines whose checkpoints lie beside this file, made by earlier versions of Holdfast: ``*/*.tar.gz``.

They have what a later version could fail to read: state of three kinds with snapshots, file logs, Spark's own
checkpoint, the targets and ledgers of every kind of sink that keeps one, and a decision that was open when the process
was killed, of which one sink holds a part.  :mod:`tests.spark.earlier.make` makes them; this module is what runs, in
the version that makes an archive as well as in the one that goes on with it, so it imports nothing but ``holdfast``.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast as hf

HERE = Path(__file__).parent
PLACE = Path("/tmp/holdfast-earlier")
"""Where the archives were made and are unpacked: a log of files, and Spark's state, know the place they are of."""

SCHEMA = "k STRING, t BIGINT, v BIGINT"
BUCKET = "earlier"
FILES = 3
"""How many were there when the process was killed: in the epoch of the last one."""


@contextmanager
def place() -> Iterator[Path]:
    """Have :data:`PLACE`, empty, for oneself; it is removed in the end."""
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir(mode=0o700)
        try:
            yield PLACE
        finally:
            shutil.rmtree(PLACE)


def rows_of(source: str, file: int) -> list[dict[str, Any]]:
    """Return the rows of one file: keys a, b, c in turns, times that ascend, values that tell the source."""
    extra = {"left": 0, "right": 1000}[source]
    return [{"k": "abc"[(n + file) % 3], "t": n, "v": extra + n} for n in range(file * 6, file * 6 + 6)]


def arrive(root: Path, file: int) -> None:
    """Put the next file of each source into its directory."""
    for source in ("left", "right"):
        directory = root / source
        directory.mkdir(exist_ok=True)
        hidden = directory / f".{file}.tmp"
        hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows_of(source, file)))
        hidden.rename(directory / f"{file}.json")


def sources(root: Path) -> list[Any]:
    """Return the two sources, which give a file each in every epoch."""
    return [
        hf.read.files(
            str(root / name),
            format="json",
            schema=SCHEMA,
            timestamp="t",
            max_files_per_epoch=1,
            compare="size",  # a checkout gives the files new times and inodes
            name=name,
        )
        for name in ("left", "right")
    ]


def before_the_house(root: Path) -> hf.Pipeline:
    """Return the graph: running sums of a source's keys, both sources side by side, and the latest of the other one."""
    left, right = sources(root)
    sums = left | hf.reduce(by="k", n=hf.count(), total=hf.sum("v"), name="sums")
    pairs = hf.sync({"left": left, "right": right}, by="k", name="pairs")
    latest = hf.merge(left, {"other": right}, by="k", name="latest")
    return hf.Pipeline(
        "earlier",
        sums | hf.write.sqlite(root / "out.db", table="sums", mode="upsert", key=["k"], name="sums_table"),
        pairs | hf.write.sqlite(root / "out.db", table="pairs", name="pairs_table"),
        latest | hf.write.files(root / "latest", format="json", name="latest_files"),
    )


Sinks = Callable[[Path], Mapping[str, list[Any]]]


def _files(root: Path) -> Mapping[str, list[Any]]:
    write = hf.write.files
    return {
        "sums": [write(root / "sums", partition_by=["k"], name="sums_files")],
        "pairs": [write(root / "pairs", format="json", name="pairs_files")],
    }


def _s3(root: Path) -> Mapping[str, list[Any]]:
    write = hf.write.files
    return {
        "sums": [write(f"s3://{BUCKET}/sums", format="json", name="sums_files")],
        "pairs": [write(f"s3://{BUCKET}/pairs", format="json", name="pairs_files")],
    }


def _segments(root: Path) -> Mapping[str, list[Any]]:
    write = hf.write.segments
    return {
        "sums": [write(root / "sums", partition_by=["k"], name="sums_segments")],
        "pairs": [write(root / "pairs", target_size="1 KB", name="pairs_segments")],
    }


def _byte_stream(root: Path) -> Mapping[str, list[Any]]:
    def write(store: str, **arguments: Any) -> Any:
        return hf.write.byte_stream(root / store, timestamp="t", data="said", name=f"{store}_store", **arguments)

    return {"sums": [write("sums", stream="k")], "pairs": [write("pairs", stream="k", index_every=2)]}


def _sqlite(root: Path) -> Mapping[str, list[Any]]:
    def write(table: str, **arguments: Any) -> Any:
        return hf.write.sqlite(root / "out.db", table=table, name=f"{table}_table", **arguments)

    return _of_sql(write)


def _postgres(root: Path) -> Mapping[str, list[Any]]:
    def write(table: str, **arguments: Any) -> Any:
        return hf.write.postgres("${EARLIER_POSTGRES}", table=table, name=f"{table}_table", **arguments)

    return _of_sql(write)


def _of_sql(write: Callable[..., Any]) -> Mapping[str, list[Any]]:
    return {
        "sums": [write("sums", rewindable=True), write("newest", mode="upsert", key=["k"])],
        "pairs": [write("pairs")],
    }


def _redis(root: Path) -> Mapping[str, list[Any]]:
    def write(key: str, **arguments: Any) -> Any:
        return hf.write.redis("${EARLIER_REDIS}", key=key, name=f"{key}_keys", **arguments)

    return {
        "sums": [write("sums", id="said"), write("newest", kind="fields", id="k")],
        "pairs": [write("pairs", kind="hash", id="said")],
    }


def _kafka(root: Path) -> Mapping[str, list[Any]]:
    def write(topic: str, **arguments: Any) -> Any:
        return hf.write.kafka("${EARLIER_KAFKA}", topic, compression="none", name=f"{topic}_topic", **arguments)

    return {"sums": [write("sums", key="k")], "pairs": [write("pairs")]}


SINKS: Mapping[str, Sinks] = {
    "files": _files,
    "s3": _s3,
    "segments": _segments,
    "byte_stream": _byte_stream,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "redis": _redis,
    "kafka": _kafka,
}
"""Kind of sinks -> stream -> the sinks that get it.  Those that are not here keep nothing: ``http``, ``console``,
``memory`` and ``foreach_batch`` have their ledger in the checkpoint, if anywhere."""


WITH_ID = ("segments", "sqlite")
"""Kinds whose rows have one column more."""


def pipeline(root: Path, kind: str) -> hf.Pipeline:
    """Return the graph with sinks of one kind: running sums of a source's keys, and both sources side by side."""
    left, right = sources(root)
    sums = left | hf.reduce(by="k", n=hf.count(), total=hf.sum("v"), name="sums")
    pairs = hf.sync({"left": left, "right": right}, by="k", name="pairs")
    times = {"sums": "n", "pairs": "timestamp"}
    more = {name: {"id": f"concat(k, cast({at} AS STRING))"} if kind in WITH_ID else {} for name, at in times.items()}
    said = {
        "sums": sums
        | hf.select(
            "k",
            t="n",
            **more["sums"],
            said="concat(k, ' ', cast(n AS STRING), ' ', cast(total AS STRING))",
            name="said_sums",
        ),
        "pairs": pairs
        | hf.select(
            "k",
            t="timestamp",
            **more["pairs"],
            said="concat(k, ' ', cast(left.v AS STRING), ' ', cast(right.v AS STRING))",
            name="said_pairs",
        ),
    }
    return hf.Pipeline(
        "earlier", *(said[stream] | sink for stream, sinks in SINKS[kind](root).items() for sink in sinks)
    )


def run(kind: str) -> None:
    """Run until everything is read that is there."""
    graph = pipeline(PLACE, kind)
    graph.run(checkpoint=str(PLACE / "checkpoint"), trigger=hf.available_now(), master="local[2]")


if __name__ == "__main__":
    run(sys.argv[1])
