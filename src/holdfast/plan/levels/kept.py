"""State as it was at the end of an epoch, out of the journal, into the files of a snapshot.

A version of the journal never changes, so it is read beside the epochs that follow; without Spark, by any process that
sees the checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.checkpoint.manifest import BucketState, Manifest, OperatorState, StateSchema
from holdfast.checkpoint.snapshot import Bucket, checked, write_bucket
from holdfast.errors import Corrupt
from holdfast.plan.levels.host import JournalCells
from holdfast.plan.levels.journal import At, JournalReader
from holdfast.plan.levels.store import Record, load
from holdfast.ports import Store
from holdfast.state.step import StateTable


@dataclass(frozen=True)
class KeptTables:
    """As much of a step as loading its state takes."""

    tables: Mapping[str, StateTable]


def read_state(
    store: Store,
    below: str,
    batch_id: int,
    state_schemas: Mapping[str, StateSchema],
    *,
    known: Manifest | None = None,
    seed: Manifest | None = None,
    only: Collection[At] | None = None,
) -> dict[str, OperatorState]:
    """Write the files of all operators as of the end of an epoch, and return what the manifest says of them.

    Parameters
    ----------
    store : Store
        The checkpoint.
    below : str
        Spark's directory below it.
    batch_id : int
        The epoch, as Spark numbers it there.
    state_schemas : mapping of str to StateSchema
        The operators whose state is wanted.
    known : Manifest, optional
        The last snapshot: buckets that did not change since are taken from it, if their files are whole.
    seed : Manifest, optional
        The snapshot that the directory began with: buckets that were not called since have their state there.
    only : collection of At, optional
        The buckets that are wanted, by operator and number; default is all.

    Raises
    ------
    Corrupt
        If what the journal holds cannot be read.
    """
    reader = JournalReader(store, below)
    version = reader.version(batch_id)
    states = {}
    for name, of in state_schemas.items():
        began = seed.operators[name].buckets if seed is not None and name in seed.operators else {}
        buckets = {number: state for number, state in began.items() if only is None or (name, number) in only}
        for at, stored in version.buckets.items():
            if at[0] != name or (only is not None and at not in only):
                continue
            record = Record.from_json(stored.record)
            state = same_as_known(store, known, at, record)
            if state is None:
                step = KeptTables(dict(of.tables))
                tables = load(JournalCells(stored, reader.piece), record, step, None)
                state = write_bucket(store, Bucket(*at, record.version, record.token, record.feeds, tables))
            buckets[at[1]] = state
        states[name] = OperatorState(of, buckets)
    return states


def same_as_known(store: Store, known: Manifest | None, at: At, record: Record) -> BucketState | None:
    """Return what the last snapshot has of a bucket, if it did not change since, and its files are whole."""
    operator, number = at
    of = None if known is None else known.operators.get(operator)
    before = None if of is None else of.buckets.get(number)
    if before is None or (before.version, before.digest) != (record.version, record.token):
        return None
    try:
        for file in before.files.values():
            checked(store.get(file.key), file)
    except Corrupt:
        return None  # written again
    return BucketState(record.version, record.token, record.feeds, before.files)
