"""What the tests of snapshots share: the state of an imaginary operator, and stores that die."""

from __future__ import annotations

import pyarrow as pa

from holdfast.checkpoint.manifest import BucketState, EpochEnd, Manifest, OperatorState, StateSchema
from holdfast.checkpoint.snapshot import Bucket, commit, write_bucket
from holdfast.ports import Store
from holdfast.state.step import StateTable

SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
NOTES = pa.schema([("text", pa.string())])
KEEPS = StateSchema("counting", "{}", pa.schema([("k", pa.string())]), {
    "counts": StateTable(SCHEMA, ("k",)),
    "notes": StateTable(NOTES, ("text",)),
})  # fmt: skip


def bucket(number: int, version: int, digest: str = "") -> Bucket:
    """Return a bucket that says which version of itself it is."""
    counts = pa.table({"k": ["a", "b"], "n": [version, number], "at": [0, None]}, schema=SCHEMA)
    feeds = {"rows": {"given": version}}
    tables = {"counts": counts, "notes": NOTES.empty_table()}
    return Bucket("counted", number, version, digest or f"d{version}", feeds, tables)


def ended(epoch: int) -> EpochEnd:
    """Return the end of an epoch of one row."""
    return EpochEnd(epoch, epoch, {"given": {"log": epoch}}, epoch * 1000, epoch)


def manifest(buckets: dict[int, BucketState], epoch: int, generation: int = 1) -> Manifest:
    """Return a manifest over some buckets."""
    operators = {"counted": OperatorState(KEEPS, buckets)}
    return Manifest("counts", generation, 99, "0123", ended(epoch), 2, operators)


def snapshot(store: Store, epoch: int, *, quiet_since: int = 0, generation: int = 1) -> Manifest:
    """Write a snapshot of two buckets, of which one did not change since an epoch."""
    states = {0: write_bucket(store, bucket(0, epoch)), 1: write_bucket(store, bucket(1, quiet_since or epoch))}
    made = manifest(states, epoch, generation)
    commit(store, made)
    return made
