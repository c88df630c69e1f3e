"""A run that dies at a write of what it is told.

Arguments: directory, number of the entry, ``before`` or ``after``; 0: none, ``flush``: the request of one; then
``state`` where it is to keep some, ``paced`` where its sink waits, and ``shards`` where it runs in two.
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


def pipeline_in(directory: Path, *, keeps_state: bool, is_paced: bool) -> Pipeline:
    """Return files that lead to a table."""
    rides = hf.read.files(str(directory / "in"), schema="id BIGINT", name="rides", timestamp="id")
    if keeps_state:
        rides = rides | hf.distinct(by="id", horizon=100, disorder=100, name="once")
    pace = "1 h" if is_paced else None
    table = hf.write.sqlite(str(directory / "rides.db"), table="rows", name="table", commit_every=pace)
    return hf.Pipeline("rides", rides | table)


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


def die_at_request(moment: str) -> None:
    """Die before, or after, the request of a flush is put."""
    plain = LocalStore.put

    def put(store: LocalStore, key: str, data: bytes) -> None:
        if key.startswith("flush/") and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        plain(store, key, data)
        if key.startswith("flush/"):
            os.kill(os.getpid(), signal.SIGKILL)

    LocalStore.put = put  # type: ignore[method-assign, assignment]


def main() -> None:
    """Run."""
    directory, entry, moment = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if entry == "flush":
        die_at_request(moment)
    elif int(entry):
        die_at(int(entry), moment)
    run = pipeline_in(directory, keeps_state="state" in sys.argv, is_paced="paced" in sys.argv).start(
        checkpoint=directory / "checkpoint",
        trigger=hf.every("20 ms"),
        master="local[1]",
        shards=2 if "shards" in sys.argv else None,
    )
    run.wait()


if __name__ == "__main__":
    main()
