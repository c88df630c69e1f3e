"""What a sync decides on: rows, waiting rows and bounds of one epoch as arrays, and the names of its state tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.state.timeline import Bools, Ints

ORDER = "__order__"
"""Column of a waiting row (BIGINT): its place among all rows of its key, over all epochs."""

SINCE = "__since__"
"""Column of a waiting row (BIGINT): batch time of its epoch, microseconds."""

SENT = "__sent__"
"""Column of a waiting row (BOOLEAN), policy ``within`` only: already in a set, kept because neighbours use it."""

ACTIVE = "__active_us__"
KEYS = "keys"
INPUTS = "inputs"
PLACES = 2**32
"""How many places an epoch has in :data:`ORDER`."""


@dataclass(frozen=True)
class Pool:
    """The rows of one input that a decision is about: those that waited, then those that arrived and are in time.

    Parameters
    ----------
    table : pa.Table
        Columns of the waiting table.
    key : array of int64
        Code of each row's key.
    at : array of int64
        Its timestamp, ticks.
    order : array of int64
        Its place among all rows.
    waited_count : int
        How many of them, from the first on, are in state.
    """

    table: pa.Table
    key: Ints
    at: Ints
    order: Ints
    waited_count: int

    @property
    def place(self) -> Ints:
        """Place within the epoch; -1 for rows that waited."""
        place = self.order % PLACES
        place[: self.waited_count] = -1
        return place


@dataclass(frozen=True)
class Events:
    """Rows and bounds of one input in this epoch, ordered by key and place: what moved its bounds."""

    key: Ints
    place: Ints
    value: Ints
    all_place: Ints
    all_value: Ints


@dataclass(frozen=True)
class Late:
    """Rows of one input below their bound, or at the timestamp of an earlier row."""

    rows: pa.Table
    at: Ints
    below: Ints
    is_repeat: Bools


@dataclass(frozen=True)
class Epoch:
    """Everything that a policy decides on.

    Parameters
    ----------
    keys : pa.Table
        The keys concerned, ascending; their places are the codes.
    known : pa.Table
        Their rows in state, in no particular order.
    known_key : array of int64
        Code of each of these.
    pools, events, late : tuple
        One for each input.
    before, own, bounds : array of int64, keys x inputs
        Bounds before the epoch; the key's own after it; and these with those that hold for all keys.
    touched : array of bool, keys x inputs
        Where the epoch has a row or bound of the key itself.
    all_before, all_bounds : array of int64
        The bounds for all keys, before and after.
    all_signs : array of bool
        Which inputs have a bound for all keys.
    seen_us : array of int64
        Batch time of the last of these; UNBOUNDED where there was none.
    """

    keys: pa.Table
    known: pa.Table
    known_key: Ints
    pools: tuple[Pool, ...]
    events: tuple[Events, ...]
    late: tuple[Late, ...]
    before: Ints
    own: Ints
    bounds: Ints
    touched: Bools
    all_before: Ints
    all_bounds: Ints
    all_signs: Bools
    seen_us: Ints

    def column(self, name: str, missing: int) -> Ints:
        """Return a BIGINT column of the keys' state, one value for each key."""
        values = np.full(self.keys.num_rows, missing, np.int64)
        if self.known.num_rows:
            values[self.known_key] = whole(self.known.column(name), missing)
        return values


def whole(column: pa.ChunkedArray, missing: int = 0) -> Ints:
    """Return a BIGINT or TIMESTAMP column as int64, without a copy where it has one chunk and no null."""
    if len(column) == 0:
        return np.empty(0, np.int64)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if array.type != pa.int64():
        array = array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array.cast(pa.int64())
    if array.null_count:
        array = array.fill_null(missing)
    return np.asarray(array)


def waiting_table(name: str) -> str:
    """Return the name of the state table of an input's waiting rows."""
    return f"waiting_{name}"


def bound_column(name: str) -> str:
    """Return the column of the keys' state that holds an input's bound."""
    return f"__bound_{name}"


def waits_column(name: str) -> str:
    """Return the column of the keys' state that says since when a key waits on an input; null: it does not."""
    return f"__waits_{name}"


def offset_column(name: str) -> str:
    """Return the column of the keys' state by which ``timestamp_align`` shifts an input."""
    return f"__offset_{name}"
