"""Steps: what a stateful operator does, as a pure function over Arrow tables.

A step is called once per bucket and epoch, never per key or row.  It must depend only on its arguments: no
clock, no random number, no memory of its own, so that a replayed epoch yields the same bytes.  State is a set of named
tables; a step returns what *changed* in them, so that an epoch writes what changed and not what exists.

It does not know where it runs: levels host it in production, a dictionary in
``holdfast.testing.drive``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.capabilities import optional
from holdfast.state.timeline import CLOSED as CLOSED
from holdfast.state.timeline import UNBOUNDED as UNBOUNDED
from holdfast.types.casting import by_name

ABSORBED = "(absorbed)"
"""Fate of rows that state or a function took in: how many rows come of them, they do not say."""

PLACE = "__place__"
"""Column (BIGINT, unique within bucket and epoch) that orders the rows and bounds of *all* inputs by their arrival."""

BOUND = "__bound__"
"""Column (BIGINT ticks) of a bound row: no row below it follows on this input for this key."""

ROW_COUNT = "__rows__"
"""Column (BIGINT) of a partial row: how many rows it stands for."""

LEFT_OUT = "__left_out__"
"""Column (list of BIGINT) of a partial row that is one of its rows: the timestamps of the others."""

ALL_KEYS = "__all_keys__"
"""Column (BOOLEAN) of a bound row: it holds for every key, also for those not yet seen; its key columns are null."""


@dataclass(frozen=True)
class StateTable:
    """One named table of an operator's state.

    Parameters
    ----------
    schema : pa.Schema
        Its columns.
    key : tuple of str
        The columns that identify a row: two rows of one table never agree in all of them.  Null is a value like others.
    """

    schema: pa.Schema
    key: tuple[str, ...]

    def is_like(self, other: StateTable) -> bool:
        """Return whether another table has the same columns and the same key: they are found by their names."""
        return sorted(self.key) == sorted(other.key) and by_name(self.schema).equals(by_name(other.schema))


def has_end(bounds: pa.Table) -> bool:
    """Return whether bounds of an input say that no row follows, of any key."""
    return bool(pc.any(pc.and_(bounds.column(ALL_KEYS), pc.equal(bounds.column(BOUND), CLOSED))).as_py())


def with_places(table: pa.Table, anew: Callable[[pa.ChunkedArray], pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Return rows whose places, if they have any, are what a function makes of them."""
    if PLACE not in table.column_names:
        return table
    return table.set_column(table.column_names.index(PLACE), PLACE, anew(table.column(PLACE)))


@dataclass(frozen=True)
class Change:
    """What an epoch did to one state table: deletes first, then upserts.

    Parameters
    ----------
    upserts : pa.Table
        Whole rows in the table's schema; a row with the same key is replaced.
    deletes : pa.Table
        Key columns of rows that are gone; a key that is not there is no error.
    """

    upserts: pa.Table
    deletes: pa.Table


@dataclass(frozen=True)
class Arrivals:
    """What one input delivers to one bucket in one epoch.

    Parameters
    ----------
    rows : pa.Table
        The input's schema and :data:`PLACE`, ascending by place.
    bounds : pa.Table
        The key columns, :data:`ALL_KEYS`, :data:`BOUND` and :data:`PLACE`, ascending by place.
    partials : pa.Table, optional
        What the step itself has made of other rows where they were packed (:class:`Combining`); None: there are none.
    """

    rows: pa.Table
    bounds: pa.Table
    partials: pa.Table | None = None

    @property
    def count(self) -> int:
        """How many rows the input delivers, in whatever form."""
        count: int = self.rows.num_rows
        return count if self.partials is None else count + (pc.sum(self.partials.column(ROW_COUNT)).as_py() or 0)


@dataclass(frozen=True)
class StepTime:
    """The only time that a step may use: what Spark logged for the epoch before it ran.

    Parameters
    ----------
    epoch : int
        Number of the epoch.
    batch_us : int
        Batch time, microseconds of Unix time; the same in every replay.
    heard_us : mapping of str to int
        Input -> the time up to which it counts as active, because its sources had more to deliver then; the batch time
        itself while they still have.  An input that is missing never had a backlog.  Logged like the batch time.
    """

    epoch: int
    batch_us: int
    heard_us: Mapping[str, int] = field(default_factory=dict)

    def silent_since(self, name: str, waits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return since when waits on an input count: none of the time in which its sources had more to deliver."""
        return np.maximum(waits, self.heard_us.get(name, UNBOUNDED))


@dataclass(frozen=True)
class Result:
    """What a step made of one epoch in one bucket.

    Parameters
    ----------
    outputs : mapping of str to pa.Table
        For each of the step's outputs, its rows in the declared schema; a missing one is empty.
    changes : mapping of str to Change
        For each state table that changed, how.
    bounds : pa.Table, optional
        Bounds of the output ``rows`` for downstream stateful operators: key columns of the output, ALL_KEYS, BOUND.
    counts : mapping of str to int
        For the status: ``late`` rows, rows ``shed``, and so on; summed over buckets.
    due_us : int, optional
        The earliest batch time after this one at which something leaves although nothing arrives; None: at none.  An
        epoch without rows is made then, and only then: state that is forgotten, and of which nothing leaves, waits for
        the next one.
    pts : int, optional
        Of the gate before the sinks: the time below which everything has left it; None: nothing has, or it is no gate.
    fates : mapping of str to int, optional
        For the audit, what became of the rows that came and no longer wait, by the step's own decision: how many went
        into which output (under its name: row for row), or were dropped, or absorbed by the state (:data:`ABSORBED`).
        None: the step does not say.
    """

    outputs: Mapping[str, pa.Table] = field(default_factory=dict)
    changes: Mapping[str, Change] = field(default_factory=dict)
    bounds: pa.Table | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    due_us: int | None = None
    pts: int | None = None
    fates: Mapping[str, int] | None = None


class Step(Protocol):
    """One stateful operator with its schemas known.  Frozen and picklable.

    The declaration of an operator returns it (:class:`holdfast.ports.StatefulSpec`).  What it may have besides, for the
    day on which the graph or the number of buckets changes: :class:`Growable`, :class:`Broadcasting`.
    """

    @property
    def key(self) -> pa.Schema:
        """The key columns: rows of one key are in one bucket.  Empty: all rows have the same key."""

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """Input name -> schema of its rows, key columns included; in the order the user gave them."""

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """Table name -> what the state holds."""

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Output name -> schema: ``rows``, and ``late`` where rows can be late."""

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Return the output of the epoch.

        Parameters
        ----------
        state : mapping of str to pa.Table
            Every table of the bucket, in its schema, in no particular order of rows; empty when there is nothing.
        arrivals : mapping of str to Arrivals
            Every input, also those without rows.
        at : StepTime
            The epoch and its logged time.
        """


@optional(Step)
class CountsHeld(Protocol):
    """What a step may offer for the audit, where rows of its inputs wait in its state."""

    def held(self, state: Mapping[str, pa.Table]) -> int:
        """Return how many wait."""


@optional(Step)
class Timed(Protocol):
    """What a step may say that goes by event time: rows that several buckets send to it are interleaved by that."""

    def time_of(self, name: str) -> str | None:
        """Return the timestamp column of an input."""


@optional(Step)
class Selective(Protocol):
    """What a step may offer: an output that it gives only where the graph reads it, as it costs something."""

    def giving(self, outputs: Collection[str]) -> Step:
        """Return the step that gives these of its side outputs, besides those that cost nothing."""


@optional(Step)
class Promising(Protocol):
    """What a step offers for whose rows something is promised about those to come, by which some of them are late."""

    def by_bounds(self, inputs: Collection[str]) -> Step:
        """Return the step for which rows of these inputs promise nothing: only the bounds that they receive count."""


@optional(Step)
class Combining(Protocol):
    """What a step offers that takes, in place of rows that share a key, a row of partial results for each key."""

    @property
    def partial_schema(self) -> pa.Schema | None:
        """The key columns, :data:`ROW_COUNT` and what is made of the rows; None where it takes rows alone.

        With :data:`PLACE` partial rows have places among the rows that go as they are, and the order of arrival counts.
        """

    def combine(self, rows: pa.Table) -> pa.Table | None:
        """Return partial rows for some rows of its only input; None where these are to be sent as they are.

        That must follow from the rows alone.  State and output must not depend on which rows are combined.  A place is
        the number of a row among all of these; who sends it makes of it the number among those of its bucket.
        """


@optional(Step)
class Growable(Protocol):
    """What a step may offer for the day on which its tables get columns (:mod:`holdfast.state.growth`)."""

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return a state table of an earlier version of itself (None: there was none) under the present schema.

        None where it is unknown what new columns would hold.
        """


@optional(Step)
class Broadcasting(Protocol):
    """What a step may say for the day on which the number of buckets changes: which rows are in every bucket."""

    for_all_keys: Mapping[str, str]
    """State table -> the column that marks its rows that hold for all keys; empty: all rows do.

    Of several buckets the greatest values count.  A column ``__all_keys__`` says the same unasked.
    """
