"""A pipeline whose checkpoint lies beside this file, made by an earlier version of Holdfast (``earlier/*.tar.gz``).

It has what a later version could fail to read: state of three kinds with snapshots, a file log, two unlike sinks, dead
letters' place, and a decision that was open when its process was killed.  To make one from the version that is checked
out: ``python -m tests.spark.earlier.pipeline NAME``.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast as hf

HERE = Path(__file__).parent
PLACE = Path("/tmp/holdfast-earlier")
"""Where the archives were made and are unpacked: a log of files, and Spark's state, know the place they are of."""

SCHEMA = "k STRING, t BIGINT, v BIGINT"
KILLED_AT = "after-decide:3"


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


def pipeline(root: Path) -> hf.Pipeline:
    """Return the graph: running sums of a source's keys, both sources side by side, and the latest of the other one."""
    left, right = (
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
    )
    sums = left | hf.reduce(by="k", n=hf.count(), total=hf.sum("v"), name="sums")
    pairs = hf.sync({"left": left, "right": right}, by="k", name="pairs")
    latest = hf.merge(left, {"other": right}, by="k", name="latest")
    return hf.Pipeline(
        "earlier",
        sums | hf.write.sqlite(root / "out.db", table="sums", mode="upsert", key=["k"], name="sums_table"),
        pairs | hf.write.sqlite(root / "out.db", table="pairs", name="pairs_table"),
        latest | hf.write.files(root / "latest", format="json", name="latest_files"),
    )


def run(root: Path) -> None:
    """Run until everything is read that is there."""
    pipeline(root).run(checkpoint=str(root / "checkpoint"), trigger=hf.available_now(), master="local[2]")


def make(name: str) -> None:
    """Make the archive: two epochs, and a third one that is decided when the process is killed."""
    with place() as root:
        for file, fault in ((0, {}), (1, {}), (2, {"HOLDFAST_FAULT": KILLED_AT})):
            arrive(root, file)
            life = [sys.executable, "-c", "from tests.spark.earlier.pipeline import *; run(PLACE)"]
            ended = subprocess.run(life, env={**os.environ, "HOLDFAST_CHECKPOINT_FREQ": "1", **fault}, check=False)
            assert ended.returncode == (-signal.SIGKILL if fault else 0), ended.returncode
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(root, arcname=".", filter=_unnamed)
        (HERE / f"{name}.tar.gz").write_bytes(packed.getvalue())


def _unnamed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out who made it, and the log, which may name places."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if Path(member.name).name.startswith("holdfast.log") else member


if __name__ == "__main__":
    make(sys.argv[1])
