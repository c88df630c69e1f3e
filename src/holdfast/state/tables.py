"""State as tables: their schemas, and how an epoch's changes are applied.

Pure functions that steps and their hosts share.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from holdfast.state import joins
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, Change, StateTable, Step


def empty(schema: pa.Schema) -> pa.Table:
    """Return a table of this schema without rows."""
    return schema.empty_table()


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table under a schema of the same names and types: nullability and metadata become the schema's."""
    if table.schema.equals(schema, check_metadata=True):
        return table
    return pa.Table.from_arrays(table.columns, schema=schema)


def apply_change(table: pa.Table, declared: StateTable, change: Change) -> pa.Table:
    """Return a state table after an epoch's change: deletes first, then upserts.

    Parameters
    ----------
    table : pa.Table
        What there was, in the declared schema.
    declared : StateTable
        Schema and key.
    change : Change
        What the epoch did.

    Notes
    -----
    Rows that stay keep their order and their memory's chunks; upserted rows come last.
    """
    key = list(declared.key)
    upserts = fitted(change.upserts, declared.schema)
    keys = [upserts.select(key), fitted(change.deletes.select(key), key_schema(declared))]
    stays = joins.anti_join(table, pa.concat_tables(keys), key)
    if not key and change.upserts.num_rows:  # the one row of a table without a key
        stays = table.slice(0, 0)
    return pa.concat_tables([stays, upserts]) if upserts.num_rows else stays


def merged_change(first: Change, then: Change, declared: StateTable) -> Change:
    """Return the one change that does what two do in turn; for the compaction of deltas."""
    key = list(declared.key)
    kept = first.upserts
    for gone in (then.deletes, then.upserts):
        kept = joins.anti_join(kept, gone, key)
    upserts = pa.concat_tables([kept, fitted(then.upserts, kept.schema)])
    # A row of `first` that `then` deletes may also be in the base, so it is deleted there.
    deletes = pa.concat_tables([first.deletes, fitted(then.deletes, first.deletes.schema)])
    return Change(upserts, joins.distinct_keys(deletes, key) if key else deletes)


def apply_changes(
    state: Mapping[str, pa.Table], declared: Mapping[str, StateTable], changes: Mapping[str, Change]
) -> dict[str, pa.Table]:
    """Return all tables of a bucket after an epoch's changes."""
    return {
        name: apply_change(state[name], table, changes[name]) if name in changes else state[name]
        for name, table in declared.items()
    }


def no_change(declared: StateTable) -> Change:
    """Return the change that changes nothing; replace what is needed of it."""
    return Change(empty(declared.schema), empty(key_schema(declared)))


def key_schema(declared: StateTable) -> pa.Schema:
    """Return the schema of a table's deletes: its key columns."""
    return pa.schema([declared.schema.field(name) for name in declared.key])


def empty_state(step: Step) -> dict[str, pa.Table]:
    """Return the tables of a bucket that has seen nothing."""
    return {name: empty(table.schema) for name, table in step.tables.items()}


def end_for_all(key: pa.Schema) -> pa.Table:
    """Return the bound that says that no row follows, of any key."""
    return pa.Table.from_pylist([{ALL_KEYS: True, BOUND: CLOSED}], schema=bounds_schema(key))


def bounds_schema(key: pa.Schema) -> pa.Schema:
    """Return the schema of the bounds of a step's output: its key columns, ALL_KEYS and BOUND."""
    keys = [field.with_nullable(True) for field in key]
    return pa.schema([*keys, pa.field(ALL_KEYS, pa.bool_()), pa.field(BOUND, pa.int64())])
