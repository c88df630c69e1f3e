"""State as tables: their schemas, and how an epoch's changes are applied.

Pure functions that steps and their hosts share.

Tables of state and changes of them as bytes, which are read without a copy.

A head (magic, count), then for each table its name, its size and one Arrow IPC stream at a multiple of 64.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pyarrow as pa

from holdfast.errors import Corrupt, invariant
from holdfast.state import joins
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, Change, StateTable, Step
from holdfast.types.casting import fitted_column


def empty(schema: pa.Schema) -> pa.Table:
    """Return a table of this schema without rows."""
    return schema.empty_table()


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table under a schema of the same columns: they are found by their names, in whatever order they are.

    Nullability and metadata become the schema's.
    """
    if table.schema.equals(schema, check_metadata=True):
        return table
    invariant(
        sorted(table.schema.names) == sorted(schema.names),
        f"a table has the columns {table.schema.names}, and {schema.names} are expected.",
        why="what is kept under names is found by these names.",
    )
    return pa.Table.from_arrays([_fit(table.column(field.name), field.type) for field in schema], schema=schema)


def _fit(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    return pa.chunked_array([fitted_column(chunk, kind) for chunk in column.chunks], kind)


def united(parts: Sequence[pa.Table], schema: pa.Schema | None = None) -> pa.Table:
    """Return the rows of several tables of the same columns, whose order and nullability may differ.

    Parameters
    ----------
    parts : sequence of pa.Table
        One or more.
    schema : pa.Schema, optional
        Of the result; by default that of the first, where a column may be null that may be so in any of them.

    Examples
    --------
    >>> united([pa.table({"k": ["a"], "n": [1]}), pa.table({"n": [2], "k": ["b"]})]).to_pylist()
    [{'k': 'a', 'n': 1}, {'k': 'b', 'n': 2}]
    """
    if schema is None:
        schema = parts[0].schema
        if not all(part.schema.equals(schema) for part in parts[1:]):
            schemas = [part.schema for part in parts]
            schema = pa.schema([
                field.with_nullable(any(of.field(field.name).nullable for of in schemas)) for field in schema
            ])  # fmt: skip
    return pa.concat_tables([fitted(part, schema) for part in parts])


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
    keys = united([upserts.select(key), change.deletes.select(key)], key_schema(declared))
    stays = joins.anti_join(table, keys, key)
    if not key and change.upserts.num_rows:  # the one row of a table without a key
        stays = table.slice(0, 0)
    return united([stays, upserts], declared.schema) if upserts.num_rows else stays


def merged_change(first: Change, then: Change, declared: StateTable) -> Change:
    """Return the one change that does what two do in turn; for the compaction of deltas."""
    key = list(declared.key)
    kept = first.upserts
    for gone in (then.deletes, then.upserts):
        kept = joins.anti_join(kept, gone, key)
    upserts = united([kept, then.upserts], declared.schema)
    # A row of `first` that `then` deletes may also be in the base, so it is deleted there.
    deletes = united([first.deletes, then.deletes], key_schema(declared))
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


_MAGIC = b"HFTABLE1"
_HEAD = struct.Struct("<8sI")
_PART = struct.Struct("<HQ")
_ALIGNMENT = 64


def encode(tables: Mapping[str, pa.Table]) -> pa.Buffer:
    """Return named tables as bytes: a short head, then one Arrow IPC stream for each table, aligned for zero copies.

    Notes
    -----
    The same tables yield the same bytes, however they are divided into chunks.  The sizes are known before anything is
    written, so each value is copied once.
    """
    whole = {name: table.combine_chunks() for name, table in tables.items()}
    heads: list[bytes] = []
    at = _HEAD.size
    for name, table in whole.items():
        size = _stream_of(table, pa.MockOutputStream()).size()
        label = name.encode()
        head = _PART.pack(len(label), size) + label
        heads.append(head + b"\0" * (-(at + len(head)) % _ALIGNMENT))
        at += len(heads[-1]) + size
    data = pa.allocate_buffer(at)
    sink = pa.FixedSizeBufferWriter(data)
    sink.write(_HEAD.pack(_MAGIC, len(whole)))
    for head, table in zip(heads, whole.values(), strict=True):
        sink.write(head)
        _stream_of(table, sink)
    return data


def _stream_of(table: pa.Table, sink: pa.NativeFile) -> pa.NativeFile:
    """Return a sink with the stream of a table in it."""
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink


def decode(data: bytes | pa.Buffer) -> dict[str, pa.Table]:
    """Return the tables that :func:`encode` wrote.  They are views of ``data``: nothing is copied.

    Raises
    ------
    Corrupt
        If the bytes are not such tables.
    """
    whole = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    view = memoryview(whole)
    tables: dict[str, pa.Table] = {}
    try:
        magic, count = _HEAD.unpack_from(view, 0)
        if magic != _MAGIC:
            raise ValueError(f"they begin with {magic!r} and not with {_MAGIC!r}")
        at = _HEAD.size
        for _ in range(count):
            label_size, size = _PART.unpack_from(view, at)
            at += _PART.size
            name = bytes(view[at : at + label_size]).decode()
            at += label_size
            at += -at % _ALIGNMENT
            if at + size > whole.size:
                raise ValueError(f"table {name!r} is truncated")
            with pa.ipc.open_stream(whole.slice(at, size)) as reader:
                tables[name] = reader.read_all()
            at += size
    except (ValueError, struct.error, OSError, pa.ArrowException) as error:
        raise Corrupt(
            f"{whole.size} bytes of stored state cannot be read.",
            why=str(error),
            do="restore the checkpoint from a copy, or start from the sinks' positions: holdfast rewind.",
        ) from error
    return tables


def encode_changes(changes: Mapping[str, Change]) -> pa.Buffer:
    """Return an epoch's changes as bytes, the delta to a base: see :func:`encode`."""
    parts: dict[str, pa.Table] = {}
    for name, change in changes.items():
        parts[f"-{name}"] = change.deletes
        parts[f"+{name}"] = change.upserts
    return encode(parts)


def decode_changes(data: bytes | pa.Buffer) -> dict[str, Change]:
    """Return the changes that :func:`encode_changes` wrote.

    Raises
    ------
    Corrupt
        If the bytes are not such changes.
    """
    parts = decode(data)
    return {name[1:]: Change(table, parts[f"-{name[1:]}"]) for name, table in parts.items() if name[0] == "+"}
