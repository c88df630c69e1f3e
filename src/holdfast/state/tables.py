"""State as tables: apply a change, find rows by key, write and read tables as bytes, check what a step returns.

Pure functions over Arrow tables that steps and their hosts share.  Nothing here loops over rows or keys.  A key column
is of a type that Arrow can hash (numbers, strings, binary, dates, times, booleans, decimals); null is a value like
others: it equals null and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRow, Corrupt, InvalidPipeline
from holdfast.state import key_filter
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, Change, Result, StateTable, Step

_MAGIC = b"HFTABLE1"
_HEAD = struct.Struct("<8sI")
_PART = struct.Struct("<HQ")
_ALIGNMENT = 64
_ROWS_SHOWN = 3
_DENSE = 4
"""Up to so many possible numbers for each row, a table of all of them is quicker than a hash table."""
_FEW = 16
"""With fewer keys than a 16th of the rows, a scan of one column leaves few rows for the other columns."""


# --- rows by key ----------------------------------------------------------------------------------------------


def empty(schema: pa.Schema) -> pa.Table:
    """Return a table of this schema without rows."""
    return schema.empty_table()


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table under a schema of the same names and types: nullability and metadata become the schema's."""
    if table.schema.equals(schema, check_metadata=True):
        return table
    return pa.Table.from_arrays(table.columns, schema=schema)


def index_in(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return for each row of a table the first row of ``keys`` that agrees with it in the columns ``on``, or -1.

    Parameters
    ----------
    table : pa.Table
        Any number of rows.
    keys : pa.Table
        The rows looked for; has the columns ``on`` in the same types.
    on : sequence of str
        Key columns.  Without any, every row agrees with the first of ``keys``.

    Returns
    -------
    numpy array of int64
        As long as ``table``.

    Notes
    -----
    A scan of the key columns of ``table``, and hash tables the size of ``keys`` only.

    Examples
    --------
    >>> rows = pa.table({"k": ["a", "b", None], "t": [1, 2, 3]})
    >>> index_in(rows, pa.table({"k": [None, "a"]}), ["k"]).tolist()
    [1, -1, 0]
    """
    if keys.num_rows == 0 or table.num_rows == 0:
        return np.full(table.num_rows, -1, np.int64)
    if not on:
        return np.zeros(table.num_rows, np.int64)
    packed = _packed(table, keys, on)
    if packed is not None:
        found = pc.index_in(pa.array(packed[0]), value_set=pa.array(packed[1]))  # the first of equal ones
        return np.asarray(found.fill_null(-1)).astype(np.int64)
    ours, theirs = _looked_up(table, keys, on[0])
    for name in on[1:]:
        more_ours, more_theirs = _looked_up(table, keys, name)
        # Two codes become one; coded anew by the rows of `keys`, so that no number of columns overflows.
        width = int(more_theirs.max()) + 1
        both = np.where((ours < 0) | (more_ours < 0), -1, ours * width + more_ours)
        distinct = pc.unique(pa.array(theirs * width + more_theirs))
        theirs = _positions(pa.array(theirs * width + more_theirs), distinct)
        ours = _positions(pa.array(both), distinct)
    # Codes are those of first appearances; the row of each is the first that has it.
    first = np.full(int(theirs.max()) + 1, keys.num_rows, np.int64)
    np.minimum.at(first, theirs, np.arange(keys.num_rows, dtype=np.int64))
    return np.where(ours < 0, np.int64(-1), first[ours])


def _packed(
    table: pa.Table, keys: pa.Table, on: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Return one number for each row's key in both tables, equal where the keys are: whole numbers and times whose
    ranges together fit 63 bits; None for other keys.
    """
    ours = np.zeros(table.num_rows, np.int64)
    theirs = np.zeros(keys.num_rows, np.int64)
    size = 1
    for name in on:
        mine, other = _plain(table.column(name)), _plain(keys.column(name))
        if mine is None or other is None:
            return None
        lowest = min(int(mine.min()), int(other.min()))
        width = max(int(mine.max()), int(other.max())) - lowest + 1
        size *= width
        if size >= 2**63:
            return None
        ours, theirs = ours * width + (mine - lowest), theirs * width + (other - lowest)
    return ours, theirs


def _plain(column: pa.ChunkedArray) -> npt.NDArray[np.int64] | None:
    """Return whole numbers or times without nulls as int64; None for anything else."""
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        return None
    if kind == pa.uint64():
        return None
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    if not pa.types.is_integer(kind):
        array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    return np.asarray(array).astype(np.int64, copy=False)


def _looked_up(table: pa.Table, keys: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    distinct = pc.unique(keys.column(name))
    return _positions(table.column(name), distinct), _positions(keys.column(name), distinct)


def _positions(column: pa.ChunkedArray | pa.Array, distinct: pa.Array) -> npt.NDArray[np.int64]:
    found = pc.fill_null(pc.index_in(column, value_set=distinct, skip_nulls=False), -1)
    return np.asarray(found).astype(np.int64)


def semi_join(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> pa.Table:
    """Return the rows of a table whose key is among ``keys``, in their order."""
    return _matching(table, keys, on, wanted=True)


def anti_join(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> pa.Table:
    """Return the rows of a table whose key is not among ``keys``, in their order."""
    return _matching(table, keys, on, wanted=False)


def _matching(table: pa.Table, keys: pa.Table, on: Sequence[str], *, wanted: bool) -> pa.Table:
    if keys.num_rows == 0 or table.num_rows == 0:
        return table.slice(0, 0) if wanted else table
    there = members(table, keys, on)
    if len(there) == table.num_rows:
        return table if wanted else table.slice(0, 0)
    if wanted:
        return table.take(pa.array(there))
    if not len(there):
        return table
    stays = np.ones(table.num_rows, bool)
    stays[there] = False
    return table.filter(pa.array(stays))


def members(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows of a table whose key is among ``keys``, ascending.

    Notes
    -----
    A cheap look at all rows, by their signatures or a column at a time, until few are left; only these are compared
    as a whole.
    """
    if not on or keys.num_rows == 0:
        return np.arange(table.num_rows if keys.num_rows else 0, dtype=np.int64)
    if keys.num_rows * _FEW > table.num_rows and len(on) > 1:
        return np.flatnonzero(index_in(table, keys, on) >= 0)
    if keys.num_rows * _FEW <= table.num_rows:
        few = key_filter.candidates(table.select(list(on)), keys.select(list(on)))
        if few is not None:
            left = table.select(list(on)).take(pa.array(few))
            return few[index_in(left, keys, on) >= 0]
    near: npt.NDArray[np.int64] | None = None
    left = table.select(list(on))
    for name in on:
        if near is not None and len(near) * 4 <= table.num_rows:
            break
        inside = np.flatnonzero(np.asarray(_among(left, keys, name)))
        near = inside if near is None else near[inside]
        left = left.take(pa.array(inside)) if len(inside) < left.num_rows else left
    assert near is not None
    return near if len(on) == 1 else near[index_in(left, keys, on) >= 0]


def member_mask(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> pa.Array:
    """Return for each row of a table whether its key is among ``keys``."""
    mask = np.zeros(table.num_rows, bool)
    mask[members(table, keys, on)] = True
    return pa.array(mask)


def _among(table: pa.Table, keys: pa.Table, name: str) -> pa.ChunkedArray:
    return pc.is_in(table.column(name), value_set=pc.unique(keys.column(name)))


def key_codes(table: pa.Table, on: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return a number for each row's key: 0, 1, 2, … in the order in which the keys first appear.

    Examples
    --------
    >>> key_codes(pa.table({"k": ["b", "a", "b", None]}), ["k"]).tolist()
    [0, 1, 0, 2]
    """
    if not on or table.num_rows == 0:
        return np.zeros(table.num_rows, np.int64)
    codes = _codes(table.column(on[0]))
    for name in on[1:]:
        more = _codes(table.column(name))
        codes = _codes(pa.array(codes * (int(more.max()) + 1) + more))
    return codes


def _codes(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):  # larger than one array can be
        return _positions(whole, pc.unique(whole))
    plain = _plain(pa.chunked_array([whole]))
    if plain is not None:
        lowest = int(plain.min())
        width = int(plain.max()) - lowest + 1
        if width <= _DENSE * len(plain):
            return _dense_codes(plain - lowest, width)
    encoded = whole.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64)


def _dense_codes(values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """Return the codes of numbers below ``width``: a table of them instead of a hash table."""
    every = np.arange(len(values))
    first = np.empty(width, np.int64)
    first[values[::-1]] = every[::-1]  # of repeated indices the last assignment stays
    first_of = first[values]
    return (np.cumsum(first_of == every) - 1)[first_of]


def distinct_keys(table: pa.Table, on: Sequence[str]) -> pa.Table:
    """Return the key columns of a table, each key once, in the order in which the keys first appear."""
    chosen = table.select(list(on))
    if not on or table.num_rows == 0:
        return chosen
    codes = key_codes(table, on)
    _, first = np.unique(codes, return_index=True)
    return chosen if len(first) == len(codes) else chosen.take(pa.array(first))


# --- changes --------------------------------------------------------------------------------------------------


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
    stays = anti_join(table, pa.concat_tables(keys), key)
    if not key and change.upserts.num_rows:  # the one row of a table without a key
        stays = table.slice(0, 0)
    return pa.concat_tables([stays, upserts]) if upserts.num_rows else stays


def merged_change(first: Change, then: Change, declared: StateTable) -> Change:
    """Return the one change that does what two do in turn; for the compaction of deltas."""
    key = list(declared.key)
    kept = first.upserts
    for gone in (then.deletes, then.upserts):
        kept = anti_join(kept, gone, key)
    upserts = pa.concat_tables([kept, fitted(then.upserts, kept.schema)])
    # A row of `first` that `then` deletes may also be in the base, so it is deleted there.
    deletes = pa.concat_tables([first.deletes, fitted(then.deletes, first.deletes.schema)])
    return Change(upserts, distinct_keys(deletes, key) if key else deletes)


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


# --- bytes ----------------------------------------------------------------------------------------------------


def encode(tables: Mapping[str, pa.Table]) -> bytes:
    """Return named tables as bytes: a short head, then one Arrow IPC stream for each table, aligned for zero copies.

    Notes
    -----
    The same tables give the same bytes, however they are cut into chunks.
    """
    parts: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, len(tables))]
    at = _HEAD.size
    for name, table in tables.items():
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        body = stream.getvalue()
        label = name.encode()
        head = _PART.pack(len(label), body.size) + label
        head += b"\0" * (-(at + len(head)) % _ALIGNMENT)
        parts += [head, memoryview(body)]
        at += len(head) + body.size
    return b"".join(parts)


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
                raise ValueError(f"table {name!r} is cut off")
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


def encode_changes(changes: Mapping[str, Change]) -> bytes:
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


# --- checks ---------------------------------------------------------------------------------------------------


def check_result(operator: str, step: Step, result: Result) -> Result:
    """Return what a step returned, completed and under the declared schemas.

    Parameters
    ----------
    operator : str
        Name of the operator, for the error.
    step : Step
        What was declared.
    result : Result
        What came.

    Returns
    -------
    Result
        With every output present, and each table under exactly its declared schema.

    Raises
    ------
    InvalidPipeline
        If the result names an output or a state table that is not declared, or a table has other columns or types.
        The error names the operator and both schemas.
    """
    if not isinstance(result, Result):
        raise InvalidPipeline(
            f"the step of operator {operator!r} returned a {type(result).__name__}.",
            why="a step returns a Result.",
            do="write return Result(outputs={...}, changes={...}).",
            participant=operator,
        )
    _check_names(operator, "output", result.outputs, step.outputs)
    _check_names(operator, "state table", result.changes, step.tables)
    outputs = {
        name: _checked(operator, f"output {name!r}", result.outputs[name], schema)
        if name in result.outputs
        else empty(schema)
        for name, schema in step.outputs.items()
    }
    changes = {
        name: Change(
            _checked(operator, f"the upserts of state table {name!r}", change.upserts, step.tables[name].schema),
            _checked(operator, f"the deletes of state table {name!r}", change.deletes, key_schema(step.tables[name])),
        )
        for name, change in result.changes.items()
    }
    bounds = result.bounds
    if bounds is not None:
        bounds = _checked(operator, "the bounds", bounds, bounds_schema(step.key))
    return Result(outputs, changes, bounds, dict(result.counts), result.due_us)


def bounds_schema(key: pa.Schema) -> pa.Schema:
    """Return the schema of the bounds of a step's output: its key columns, ALL_KEYS and BOUND."""
    keys = [field.with_nullable(True) for field in key]
    return pa.schema([*keys, pa.field(ALL_KEYS, pa.bool_()), pa.field(BOUND, pa.int64())])


def end_of(bounds: pa.Table) -> pa.Table | None:
    """Return the bound that says to operators behind that an input has ended; None where it has not.

    For operators whose function may give any timestamp: nothing else that they are told holds for what they give.
    """
    is_end = pc.and_(bounds.column(ALL_KEYS), pc.equal(bounds.column(BOUND), CLOSED))
    ends = bounds.filter(is_end)
    return ends.slice(0, 1).drop_columns([PLACE]) if ends.num_rows else None


def _check_names(operator: str, what: str, found: Mapping[str, object], declared: Mapping[str, object]) -> None:
    unknown = [name for name in found if name not in declared]
    if unknown:
        raise InvalidPipeline(
            f"the step of operator {operator!r} returned the {what} {unknown[0]!r}, which it does not declare.",
            why=f"it declares {', '.join(map(repr, declared)) or 'none'}.",
            do=f"declare it, or return one of the declared {what}s.",
            participant=operator,
        )


def _checked(operator: str, what: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    if not isinstance(table, pa.Table):
        raise InvalidPipeline(
            f"{what} of the step of operator {operator!r} is a {type(table).__name__}.",
            why="tables go in and out as pyarrow.Table.",
            do="return a pyarrow.Table; a polars frame gives one with .to_arrow().",
            participant=operator,
        )
    if table.schema.names != schema.names or table.schema.types != schema.types:
        raise InvalidPipeline(
            f"{what} of the step of operator {operator!r} has another schema than declared.",
            why=f"declared: {spelled(schema)}; returned: {spelled(table.schema)}.",
            do="let the step return the declared columns in their order, or declare what it returns.",
            participant=operator,
        )
    return fitted(table, schema)


def spelled(schema: pa.Schema) -> str:
    """Return a schema on one line, for error texts."""
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def first_rows(table: pa.Table, count: int = _ROWS_SHOWN) -> str:
    """Return the first rows of a table on one line, for error texts; columns of our own are left out."""
    shown = [name for name in table.schema.names if not name.startswith("__")]
    rows = table.select(shown).slice(0, count).to_pylist()
    return "; ".join(", ".join(f"{name}={_short(value)}" for name, value in row.items()) for row in rows) or "no rows"


def _short(value: object) -> str:
    text = str(value) if isinstance(value, int | float) or value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def require_values(rows: pa.Table, columns: Sequence[str], source: str) -> None:
    """Check that key and timestamp columns have no null.

    Parameters
    ----------
    rows : pa.Table
        Rows of one input.
    columns : sequence of str
        Columns that need a value in every row.
    source : str
        Name of the input, for the error.

    Raises
    ------
    BadRow
        Naming the input, the column and the first such rows; who calls the step adds the operator.
    """
    for name in columns:
        column = rows.column(name)
        if column.null_count:
            bad = rows.filter(pc.is_null(column))
            raise BadRow(
                f"{bad.num_rows} row(s) of input {source!r} have no value in {name!r}.",
                why=f"a row without a key or a timestamp has no place in the order of time; the first: "
                f"{first_rows(bad)}.",
                do=f'drop such rows before: stream | hf.filter("{name} IS NOT NULL"), or give them a value.',
            )
