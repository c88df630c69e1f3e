"""Input policies: which rows of several inputs make one set, and when.  The namespace ``hf.policy``; frozen values.

======================  ==================================================  =====================================
policy                  a set is                                            depends on
======================  ==================================================  =====================================
``settled``             all rows of one settled timestamp                   timestamps
``sync_sets``           the same, within each group of inputs               timestamps (order across groups: epochs)
``early_close``         as settled, until the first input has ended         timestamps
``mux``                 a control row and the row that it chooses           timestamps
``within``              rows that are each other's nearest                  timestamps
``timestamp_align``     as settled, after shifting each input to the base   arrival until aligned, then timestamps
``barrier``             the next row of each input, whatever its timestamp  the order within each input
``immediate``           what has arrived                                     arrival
``fixed_size``          as settled, keeping only the newest                 arrival
``custom``              what a function of yours says                       what it looks at
======================  ==================================================  =====================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type
from holdfast.operators.sync.custom import DROPS, WAITS, Custom, WaitingRows, custom
from holdfast.types import units

__all__ = [
    "DROPS",
    "WAITS",
    "WaitingRows",
    "barrier",
    "custom",
    "early_close",
    "fixed_size",
    "immediate",
    "mux",
    "settled",
    "sync_sets",
    "timestamp_align",
    "within",
]


@dataclass(frozen=True)
class Settled:
    """All rows of one timestamp as soon as it is settled on every input; ascending."""

    kind: ClassVar[str] = "settled"

    def arguments(self) -> Mapping[str, Any]:
        """Return none."""
        return {}


@dataclass(frozen=True)
class SyncSets:
    """Settled within each group of inputs; groups do not wait for each other."""

    groups: tuple[tuple[str, ...], ...]
    kind: ClassVar[str] = "sync_sets"

    def arguments(self) -> Mapping[str, Any]:
        """Return the groups."""
        return {"groups": [list(group) for group in self.groups]}


@dataclass(frozen=True)
class Immediate:
    """What has arrived, immediately, without waiting for anything."""

    kind: ClassVar[str] = "immediate"

    def arguments(self) -> Mapping[str, Any]:
        """Return none."""
        return {}


@dataclass(frozen=True)
class Barrier:
    """The next row of each input, whatever its timestamp."""

    kind: ClassVar[str] = "barrier"

    def arguments(self) -> Mapping[str, Any]:
        """Return none."""
        return {}


@dataclass(frozen=True)
class EarlyClose:
    """Settled, until the first input has ended and is consumed."""

    kind: ClassVar[str] = "early_close"

    def arguments(self) -> Mapping[str, Any]:
        """Return none."""
        return {}


@dataclass(frozen=True)
class FixedSize:
    """Settled, but an input whose queue grows to ``trigger`` rows keeps only the newest ``target``."""

    trigger: int = 2
    target: int = 1
    min_size: bool = False
    kind: ClassVar[str] = "fixed_size"

    def arguments(self) -> Mapping[str, Any]:
        """Return the sizes."""
        return {"trigger": self.trigger, "target": self.target, "min_size": self.min_size}


@dataclass(frozen=True)
class Mux:
    """Each row of the control input chooses which data input's row of that timestamp goes with it."""

    select: str
    column: str | None = None
    kind: ClassVar[str] = "mux"

    def arguments(self) -> Mapping[str, Any]:
        """Return the control input and its column."""
        return {"select": self.select, "column": self.column}


@dataclass(frozen=True)
class TimestampAlign:
    """Settled, after each other input was shifted to the base's time at the first meeting."""

    base: str
    kind: ClassVar[str] = "timestamp_align"

    def arguments(self) -> Mapping[str, Any]:
        """Return the base."""
        return {"base": self.base}


@dataclass(frozen=True)
class Within:
    """Rows of the base and of each other input that are each other's nearest, at most ``tolerance`` apart."""

    tolerance: str | int
    base: str | None = None
    kind: ClassVar[str] = "within"

    def arguments(self) -> Mapping[str, Any]:
        """Return tolerance and base."""
        return {"tolerance": self.tolerance, "base": self.base}


Policy = Settled | SyncSets | Immediate | Barrier | EarlyClose | FixedSize | Mux | TimestampAlign | Within | Custom


def settled() -> Settled:
    """Return the default policy: all rows of one timestamp as soon as it is settled on every input.

    Nothing is dropped, sets ascend, and the result depends only on timestamps.
    """
    return Settled()


def sync_sets(groups: Sequence[Sequence[str]]) -> SyncSets:
    """Return the policy that settles groups of inputs separately.

    Parameters
    ----------
    groups : sequence of sequence of str
        Input names; each input in at most one group.  Inputs in no group form one more, the last; so without any
        group it is the policy settled.

    Raises
    ------
    InvalidPipeline
        If a group is empty or an input is in two places.

    Examples
    --------
    >>> sync_sets([["camera", "lidar"], ["gps"]]).groups
    (('camera', 'lidar'), ('gps',))
    """
    right = 'hf.policy.sync_sets([["camera", "lidar"], ["gps"]])'
    is_list = isinstance(groups, Sequence) and not isinstance(groups, str)
    if not is_list or not all(isinstance(group, Sequence) and not isinstance(group, str) for group in groups):
        raise InvalidPipeline(
            f"sync_sets takes a list of lists of input names, not {groups!r}.", do=f"write for instance {right}"
        )
    named = [name for group in groups for name in group]
    if not all(groups):
        raise InvalidPipeline("sync_sets has an empty group.", do=f"write for instance {right}")
    twice = next((name for place, name in enumerate(named) if name in named[:place]), None)
    if twice is not None:
        raise InvalidPipeline(
            f"sync_sets names the input {twice!r} twice.",
            why="the groups are a partition: each row goes into one set.",
            do="keep it in one group.",
        )
    return SyncSets(tuple(tuple(group) for group in groups))


def immediate() -> Immediate:
    """Return the policy that emits every row in the epoch in which it arrives.

    Rows of one timestamp make one set only if they arrive in one epoch: by nature the result depends on arrival.
    """
    return Immediate()


def barrier() -> Barrier:
    """Return the policy that takes the next row of each input, whatever its timestamp."""
    return Barrier()


def early_close() -> EarlyClose:
    """Return the policy that is settled until the first input has ended and is consumed; the rest is dropped."""
    return EarlyClose()


def fixed_size(trigger: int = 2, target: int = 1, min_size: bool = False) -> FixedSize:
    """Return the policy that keeps only the newest rows where they accumulate.

    Parameters
    ----------
    trigger : int
        Queue length at which rows are dropped; at least 1.
    target : int
        Rows that are then kept; from 1 to ``trigger``.
    min_size : bool
        Drop only when every input has ``trigger`` rows, so that each keeps at least ``target``.

    Raises
    ------
    InvalidPipeline
        If the sizes are no such numbers.
    """
    sizes = (trigger, target)
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes) or not 1 <= target <= trigger:
        raise InvalidPipeline(
            f"fixed_size(trigger={trigger!r}, target={target!r}) cannot be.",
            why="both are whole numbers with 1 <= target <= trigger.",
            do="write for instance hf.policy.fixed_size(trigger=2, target=1)",
        )
    return FixedSize(trigger, target, bool(min_size))


def mux(select: str, column: str | None = None) -> Mux:
    """Return the policy in which each row of a control input chooses a data input.

    Parameters
    ----------
    select : str
        Name of the control input.
    column : str, optional
        Its column that holds the choice: the name of a data input (STRING) or its number, from 0 in the order given
        and without the control input (whole number).  Not needed when it has only one besides key and timestamp.

    Raises
    ------
    InvalidPipeline
        If a name is not a text.
    """
    _check_name("mux", "select", select, 'hf.policy.mux(select="camera")')
    if column is not None:
        _check_name("mux", "column", column, 'hf.policy.mux(select="camera", column="choice")')
    return Mux(select, column)


def timestamp_align(base: str) -> TimestampAlign:
    """Return the policy for clocks that differ by a constant: each input is shifted to the base's time.

    Parameters
    ----------
    base : str
        The input whose clock counts.

    Raises
    ------
    InvalidPipeline
        If it is not a text.
    """
    _check_name("timestamp_align", "base", base, 'hf.policy.timestamp_align(base="camera")')
    return TimestampAlign(base)


def within(tolerance: str | int, base: str | None = None) -> Within:
    """Return the policy for approximate matches: each row is used once, and sets never cross.

    Parameters
    ----------
    tolerance : str or int
        Greatest distance: a duration such as ``"20 ms"``; an int of ticks where timestamps are BIGINT.
    base : str, optional
        The input that the others are matched with; the first one by default.

    Raises
    ------
    InvalidPipeline
        If the tolerance is neither, or negative.
    """
    is_ticks = isinstance(tolerance, int) and not isinstance(tolerance, bool)
    if isinstance(tolerance, str):
        units.duration_us(tolerance, argument="tolerance")
    elif not is_ticks or tolerance < 0:
        raise InvalidPipeline(
            f"tolerance={tolerance!r} is not a distance in time.",
            why=f"{'it is negative' if is_ticks else a_type(tolerance) + ' was given'}.",
            do='write for instance hf.policy.within("20 ms"), or a number of ticks where timestamps are BIGINT.',
        )
    if base is not None:
        _check_name("within", "base", base, 'hf.policy.within("20 ms", base="camera")')
    return Within(tolerance, base)


def _check_name(policy: str, argument: str, name: Any, right: str) -> None:
    if not isinstance(name, str):
        raise InvalidPipeline(
            f"{policy}({argument}={name!r}) names no input.",
            why=f"{a_type(name)} was given.",
            do=f"write for instance {right}",
        )


def named_inputs(policy: Policy) -> tuple[str, ...]:
    """Return the inputs that a policy names, for the check that they exist."""
    match policy:
        case SyncSets(groups):
            return tuple(name for group in groups for name in group)
        case Mux(select):
            return (select,)
        case TimestampAlign(base):
            return (base,)
        case Within(_, base) if base is not None:
            return (base,)
        case _:
            return ()


def groups_of(policy: Policy, inputs: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return which inputs settle together, as places in ``inputs``; those in no group form the last one.

    Examples
    --------
    >>> groups_of(sync_sets([["b"]]), ["a", "b", "c"])
    ((1,), (0, 2))
    """
    if not isinstance(policy, SyncSets):
        return (tuple(range(len(inputs))),)
    named = named_inputs(policy)
    rest = tuple(place for place, name in enumerate(inputs) if name not in named)
    groups = tuple(tuple(inputs.index(name) for name in group) for group in policy.groups)
    return (*groups, rest) if rest else groups


def leaves_in_order(policy: Policy) -> bool:
    """Return whether rows without a partner keep the bounds of the sets: where a policy drops none, and moves none."""
    return isinstance(policy, Settled | Within)


def ascends(policy: Policy, groups: int) -> bool:
    """Return whether a policy's sets ascend by time, where inputs settle in this number of groups."""
    if isinstance(policy, Immediate | Barrier | FixedSize) or groups > 1:
        return False
    return not isinstance(policy, Custom) or policy.delay is not None
