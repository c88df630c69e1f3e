"""A run that dies at a write of what it is told.

Arguments: directory, number of the entry, ``before`` or ``after``; 0: none; then ``state`` where it is to keep some.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import holdfast as hf
from holdfast.pipeline import Pipeline
from holdfast.steer.entries import PREFIX
from holdfast.store.local import LocalStore


def pipeline_in(directory: Path, *, keeps_state: bool) -> Pipeline:
    """Return files that lead to a table."""
    rides = hf.read.files(str(directory / "in"), schema="id BIGINT", name="rides", timestamp="id")
    if keeps_state:
        rides = rides | hf.distinct(by="id", horizon=100, disorder=100, name="once")
    return hf.Pipeline("rides", rides | hf.write.sqlite(str(directory / "rides.db"), table="rows", name="table"))


def die_at(entry: int, moment: str) -> None:
    """Die before, or after, an entry is put."""
    plain, wanted = LocalStore.put_if_absent, f"{PREFIX}{entry:08d}.json"

    def put_if_absent(store: LocalStore, key: str, data: bytes) -> bool:
        if key == wanted and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = plain(store, key, data)
        if key == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    LocalStore.put_if_absent = put_if_absent  # type: ignore[method-assign, assignment]


def main() -> None:
    """Run."""
    directory, entry, moment = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if entry:
        die_at(entry, moment)
    run = pipeline_in(directory, keeps_state="state" in sys.argv).start(
        checkpoint=directory / "checkpoint", trigger=hf.every("20 ms"), master="local[1]"
    )
    run.wait()


if __name__ == "__main__":
    main()
