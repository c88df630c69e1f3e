"""State of a named checkpoint as tables for people, and a checkpoint with other tables in their place.

A named checkpoint never changes.  Editing one makes another: with new files for one operator, below its own name, where
nothing is pruned, and the files of every other operator as they are.  Durable writes: the new files; copies of the
files below the old name (of an import, or of an earlier edit); then the manifest, which makes it valid.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from holdfast.checkpoint import named, portable
from holdfast.checkpoint.given_state import GivenState
from holdfast.checkpoint.manifest import BucketState, Manifest, OperatorState, StateSchema
from holdfast.checkpoint.snapshot import Bucket, checked, from_parquet, verify, write_bucket
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.operators.aggregate.step import AggregateStep
from holdfast.operators.flow.step import FlowStep
from holdfast.operators.join.changes_step import ChangesJoinStep
from holdfast.operators.join.step import JoinStep
from holdfast.operators.stateful.distinct import DistinctStep
from holdfast.operators.stateful.gate_step import GateStep
from holdfast.operators.stateful.merge_step import MergeStep
from holdfast.operators.sync.step import SyncStep
from holdfast.plan.levels.seed import StateDivision
from holdfast.ports import Store
from holdfast.state.tables import encode

_FOR_ALL_KEYS = {
    "aggregate": AggregateStep.for_all_keys,
    "distinct": DistinctStep.for_all_keys,
    "flow": FlowStep.for_all_keys,
    "gate": GateStep.for_all_keys,
    "join": JoinStep.for_all_keys,
    "join_changes": ChangesJoinStep.for_all_keys,
    "lookup_as_of": MergeStep.for_all_keys,
    "merge": MergeStep.for_all_keys,
    "sync": SyncStep.for_all_keys,
}
"""Kind -> its rows that are in every bucket; a checkpoint is read without its graph."""


def division_of(operator: str, schema: StateSchema, pipeline: str) -> StateDivision:
    """Return how the state of an operator is divided, of which only the record in a checkpoint is known."""
    return StateDivision(operator, schema, _FOR_ALL_KEYS.get(schema.kind, {}), pipeline)


def state_of(store: Store, name: str, operator: str) -> dict[str, pa.Table]:
    """Return the state tables of one operator in a named checkpoint, those of all buckets together.

    Raises
    ------
    InvalidPipeline
        If there is no such checkpoint, or no such operator in it.
    Corrupt
        If a file is damaged: names it.
    """
    manifest = portable.kept(store, name).manifest
    of = _operator(manifest, name, operator)
    division = division_of(operator, of.schema, manifest.pipeline)
    return {
        table: division.united(table, each, [_read(store, of, table, number) for number in sorted(of.buckets)])
        for table, each in of.schema.tables.items()
    }


def edited(store: Store, name: str, given: GivenState, new_name: str) -> Manifest:
    """Make a named checkpoint of another one with the state of one operator replaced; return its manifest.

    Raises
    ------
    InvalidPipeline
        If a name or the operator is none, the new name is taken, or what is given does not fit the operator.
    Corrupt
        If a file of the checkpoint is damaged: names it.
    """
    found = portable.kept(store, name)
    of = _operator(found.manifest, name, given.operator)
    tables = given.tables(of.schema)
    named.claim(store, new_name)
    try:
        moved = portable.taken_along(store, found, new_name)
        buckets = _written(store, moved, given.operator, of, tables, portable.below(new_name))
        made = replace(moved, operators={**moved.operators, given.operator: OperatorState(of.schema, buckets)})
        verify(store, made)
        named.put_claimed(store, new_name, made)
    except BaseException:
        with suppress(HoldfastError):  # the first error explains more
            named.discard(store, new_name)
        raise
    return made


def _operator(manifest: Manifest, name: str, operator: str) -> OperatorState:
    if operator not in manifest.operators:
        raise InvalidPipeline(
            f"checkpoint {name!r} has no state of operator {operator!r}.",
            why=f"it has that of: {', '.join(manifest.operators) or 'none'}.",
            do="name one of those.",
            participant=operator,
        )
    return manifest.operators[operator]


def _read(store: Store, of: OperatorState, table: str, number: int) -> pa.Table:
    schema = of.schema.tables[table].schema
    file = of.buckets[number].files.get(table)
    return schema.empty_table() if file is None else from_parquet(checked(store.get(file.key), file), schema, file.key)


def _written(
    store: Store, manifest: Manifest, operator: str, of: OperatorState, tables: dict[str, pa.Table], below: str
) -> dict[int, BucketState]:
    """Write tables as the state of an operator; each bucket keeps the bounds that it has received."""
    empty = {name: each.schema.empty_table() for name, each in of.schema.tables.items()}
    parts = dict(division_of(operator, of.schema, manifest.pipeline).divided(tables, manifest.buckets))
    version = max((each.version for each in of.buckets.values()), default=manifest.ended.step_epoch)
    written = {}
    for number in sorted(of.buckets.keys() | parts.keys()):
        rows = parts.get(number, empty)
        feeds = of.buckets[number].feeds if number in of.buckets else {}
        digest = hashlib.blake2b(encode(rows), digest_size=8).hexdigest()
        written[number] = write_bucket(store, Bucket(operator, number, version, digest, feeds, rows), below)
    return written
