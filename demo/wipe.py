"""What ``WIPE=1`` does after every kill: the checkpoint is removed, except for one snapshot of the state."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.checkpoint.manifest import PREFIX, SnapshotKey
from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.commit.ledger import Standing, survey
from holdfast.store.local import LocalStore

FREQUENT = {"HOLDFAST_CHECKPOINT_FREQ": "300"}
"""Snapshots often enough for one to be there at each kill."""


def kept(checkpoint: Path, held: int = 0) -> SnapshotKey | None:
    """Return the newest snapshot of an epoch that every sink holds; None where there is none.

    A later one has state of rows that a sink never got: what was decided for it goes with the ledger.  ``held`` is
    an epoch that every sink holds as somebody else knows: a pipeline of one sink has no decisions, and after a wipe
    there are none of epochs before it.
    """
    if not checkpoint.is_dir():
        return None
    store = LocalStore(str(checkpoint))
    done = max([held, *(entry.key.epoch for entry in survey(store) if entry.standing is Standing.DONE)])
    return max((key for key in snapshot_keys(store) if key.epoch <= done), key=lambda key: key.epoch, default=None)


def wipe(checkpoint: Path, held: int = 0) -> str:
    """Remove everything but that snapshot; return what was done, in words."""
    snapshot = kept(checkpoint, held)
    assert snapshot is not None, "no snapshot was there before the kill"
    store = LocalStore(str(checkpoint))
    for key in snapshot_keys(store):
        if key != snapshot:
            store.delete(key.path)
    for path in checkpoint.iterdir():
        if path.name == PREFIX.rstrip("/"):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return f"the checkpoint is gone, except for the snapshot of epoch {snapshot.epoch}"
