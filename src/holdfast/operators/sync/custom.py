"""A policy of the user's own: a function that says which of what waits leaves now, and when its sets are.

The function is given everything that waits under the keys that the epoch concerns, as flat arrays, and answers with one
number for each row: the timestamp of the set that it leaves in, :data:`WAITS` or :data:`DROPS`.  Rows of one key with
the same answer are one set.  It is called once for each bucket and epoch, never for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type
from holdfast.graph.naming import callable_text
from holdfast.state.timeline import CLOSED, UNBOUNDED, Ints, settled_before
from holdfast.types import units

WAITS = CLOSED
"""Answer for a row that stays: it is asked about again when something new is known of its key."""

DROPS = UNBOUNDED
"""Answer for a row that leaves in no set: it goes to the side output ``late``, with the policy as reason."""

_RIGHT = 'def bursts(waiting): ... and hf.policy.custom(bursts, delay="6 s")'


@dataclass(frozen=True)
class WaitingRows:
    """What waits under some keys: what the function of a custom policy is given.

    Rows stand ascending by key, then by timestamp, then in the order of the inputs, then as they came.  Which rows
    these are, and how they stand, follows from rows and bounds alone.  Arrays are not to be written to.

    Parameters
    ----------
    inputs : tuple of str
        The inputs' names.
    key : array of int64
        The key of each row, as a number from 0: a row of ``bounds``.  Another epoch may number keys otherwise.
    at : array of int64
        The timestamp of each row: microseconds of a TIMESTAMP, ticks of a BIGINT.
    input : array of int64
        The input of each row, as a place in ``inputs``.
    bounds : array of int64, keys x inputs
        The lowest timestamp that each input may still bring for each key; above every timestamp where it has ended.

    Examples
    --------
    >>> one = WaitingRows(("a", "b"), *map(np.array, ([0, 0], [3, 5], [0, 1], [[4, 6]])), (), np.arange(2))
    >>> one.settled.tolist(), one.arrived.tolist()
    ([4], [0, 1])
    """

    inputs: tuple[str, ...]
    key: Ints
    at: Ints
    input: Ints
    bounds: Ints
    tables: Sequence[pa.Table] = field(repr=False)
    orders: Ints = field(repr=False)

    @cached_property
    def settled(self) -> Ints:
        """For each key the time below which no input has further rows."""
        return settled_before(self.bounds)

    @cached_property
    def arrived(self) -> Ints:
        """For each row its number in the order of arrival; what it decides depends on arrival."""
        arrived = np.empty(len(self.orders), np.int64)
        arrived[np.argsort(self.orders, kind="stable")] = np.arange(len(self.orders))
        return arrived

    def rows(self, name: str) -> pa.Table:
        """Return the rows of an input with all their columns, in their order: those where ``input`` is its place."""
        return self.tables[self.inputs.index(name)]


Decide = Callable[[WaitingRows], Any]


@dataclass(frozen=True)
class Custom:
    """What a function of the user's says."""

    decide: Decide
    delay: str | int | None = None
    many: bool = False
    kind: ClassVar[str] = "custom"

    @property
    def name(self) -> str:
        """The function's, for messages."""
        return callable_text(self.decide).partition("#")[0]

    def arguments(self) -> Mapping[str, Any]:
        """Return the function's name and hash, and what it promises."""
        return {"decide": callable_text(self.decide), "delay": self.delay, "many": self.many}


def custom(decide: Decide, *, delay: str | int | None = None, many: bool = False) -> Custom:
    """Return a policy of your own.

    Parameters
    ----------
    decide : function of WaitingRows, giving an array of int64
        One number for each row: the timestamp of the set that it leaves in, ``hf.policy.WAITS`` or ``hf.policy.DROPS``.
        Rows of one key with one answer are one set.  It must depend on its argument alone, and judge each key by
        itself: an epoch may be replayed, and its rows are those of the keys of one bucket that have changed.
    delay : str or int, optional
        How far the timestamp of a set may be below what is settled: a duration, or ticks where timestamps are BIGINT.
        A promise that every answer must keep: sets ascend, and downstream operators receive bounds.  Without one, sets
        may come in any order and downstream operators receive only the end.
    many : bool
        Whether a set may hold several rows of one input: columns are lists then.

    Raises
    ------
    InvalidPipeline
        If ``decide`` is no such function, or the delay neither a duration nor a number of ticks; in a run, if an answer
        is no number for each row, breaks the delay, or puts two rows of an input in a set of one.

    Notes
    -----
    Rows that still wait when every input has ended go to ``late``.  A function of timestamps and bounds gives
    the same sets however rows are cut into epochs; ``arrived`` and letting go what may still be joined do not.

    Examples
    --------
    ::

        def bursts(waiting):  # rows of any inputs less than GAP apart are one set, at the time of the last
            begins = np.ones(len(waiting.at), bool)
            begins[1:] = (np.diff(waiting.key) != 0) | (np.diff(waiting.at) >= GAP)
            ends = np.append(np.flatnonzero(begins), len(begins))[1:] - 1
            last = waiting.at[ends][np.cumsum(begins) - 1]
            return np.where(last + GAP <= waiting.settled[waiting.key], last, hf.policy.WAITS)

        hf.sync(streams, by="object", policy=hf.policy.custom(bursts, delay="6 s", many=True))
    """
    from holdfast.operators.arguments import check_callable  # workers import this module, and need no parser of SQL

    check_callable(decide, "decide", ["waiting"], right=_RIGHT)
    if isinstance(delay, str):
        units.duration_us(delay, argument="delay")
    elif delay is not None and (not isinstance(delay, int) or isinstance(delay, bool) or delay < 0):
        raise InvalidPipeline(
            f"delay={delay!r} is no distance in time.",
            why=f"{'it is negative' if isinstance(delay, int) else a_type(delay) + ' was given'}.",
            do='write for instance delay="6 s", or a number of ticks where timestamps are BIGINT.',
        )
    return Custom(decide, delay, bool(many))
