"""The unit of event time: microseconds where a timestamp is a TIMESTAMP, the user's ticks where it is a BIGINT.

Only the user knows what a tick is.  So a duration is text with a unit for TIMESTAMP, a plain number of ticks for
BIGINT, here as in every operator; and sources of both kinds have no time in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.types import units


class TimeUnit(Enum):
    """What a number of event time counts."""

    MICROSECONDS = "microseconds"
    TICKS = "ticks"


class SourceNode(Protocol):
    """What is asked of a source here."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def spec(self) -> Any:
        """Its declaration."""


class TimedNode(Protocol):
    """What is asked of a node here."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def kind(self) -> str:
        """Kind of its declaration."""

    @property
    def inputs(self) -> Sequence[Any]:
        """The nodes whose rows it takes."""

    @property
    def timestamp(self) -> str | None:
        """Its timestamp column, where it is known."""


_KEPT = {
    "map": 'say which column of its rows holds event time: hf.map(..., timestamp="{column}")',
    "map_batches": 'keep the column {column!r} in its schema=, or name another: hf.map_batches(..., timestamp="...")',
    "select": "keep the column {column!r} there, under any name but otherwise as it is",
    "sql": "keep the column {column!r}, under any name but otherwise as it is, in its select list, without a join, a "
    "group or an order",
    "apply": 'say which column of its rows holds event time: hf.apply(..., timestamp="...")',
    "stateful": 'say which column of its rows holds event time: hf.stateful(..., timestamp="...")',
    "aggregate": 'give it a window of event time, hf.aggregate(..., window=hf.tumbling("1 hour")): window_start is the '
    "timestamp then",
    "union": "give its inputs timestamps of one name",
}
"""What makes an operator of a kind pass event time on."""


def no_timestamp(what: str, node: TimedNode, *, here: str | None) -> InvalidPipeline:
    """Return the error of a stream without event time: it names the node that has none, and what gives it one.

    Parameters
    ----------
    what : str
        The stream, as the message calls it.
    node : TimedNode
        The stream's last node.
    here : str, optional
        The operator that needs event time, with the argument that can name the column; None where it has none.
    """
    here = f", or here: {here}" if here else ""
    hides = node
    while hides.inputs and all(each.timestamp is None for each in hides.inputs):
        hides = hides.inputs[0]
    if not hides.inputs:
        why = f"its source, {hides.name!r}, declares none."
        do = f'write timestamp="..." where the source is built{here}.'
    else:
        column = next(each.timestamp for each in hides.inputs if each.timestamp is not None)
        why = f"the {hides.kind} {hides.name!r} before it does not pass {column!r} on as event time."
        kept = _KEPT.get(hides.kind, f"put this operator before {hides.name!r}").format(column=column)
        do = f"{kept}{here}."
    return InvalidPipeline(f"{what} has no known timestamp column.", why=why, do=do)


def unit_of(source: SourceNode) -> TimeUnit | None:
    """Return the unit of a source's timestamps; None where it declares none."""
    timestamp, schema = source.spec.timestamp, source.spec.schema
    if timestamp is None:
        return None
    index = -1 if schema is None else schema.get_field_index(timestamp)
    is_ticks = index >= 0 and pa.types.is_integer(schema.field(index).type)
    return TimeUnit.TICKS if is_ticks else TimeUnit.MICROSECONDS


def common_unit(sources: Iterable[SourceNode]) -> TimeUnit | None:
    """Return the unit of ``pts``: that of all sources with a timestamp; None where they differ, or none has one."""
    found = {unit for source in sources if (unit := unit_of(source)) is not None}
    return found.pop() if len(found) == 1 else None


def check_commit_every(commit_every: str | int, *, argument: str = "commit_every") -> str | int:
    """Return a duration of event time as it was given: text with a unit, or ticks.

    Raises
    ------
    InvalidPipeline
        If it is neither, or not positive.
    """
    is_number = isinstance(commit_every, int) and not isinstance(commit_every, bool)
    amount = commit_every if is_number else units.duration_us(commit_every, argument=argument)  # type: ignore[arg-type]
    if not isinstance(amount, int) or amount < 1:
        raise InvalidPipeline(
            f"{argument}={commit_every!r} is too small.", do=f'write for instance {argument}="1 s", or ticks.'
        )
    return commit_every


def commit_every_ticks(commit_every: str | int | None, sources: Iterable[SourceNode]) -> int | None:
    """Return by how much ``pts`` must move for a commit, in its own unit.

    Raises
    ------
    InvalidPipeline
        If a source declares no timestamp, their units differ, or text is given for BIGINT ticks, whose unit only the
        user knows, or a bare number TIMESTAMPs.
    """
    if commit_every is None:
        return None
    check_commit_every(commit_every)
    listed = list(sources)
    of_source = {source.name: unit_of(source) for source in listed}
    untimed = [name for name, unit in of_source.items() if unit is None]
    if untimed:
        raise InvalidPipeline(
            f"commit_every needs timestamps, and source {untimed[0]!r} declares none.",
            why="commits are grouped by the minimum timestamp over the inputs.",
            do=f'declare timestamp="<column>" on {", ".join(map(repr, untimed))}, or leave commit_every out.',
        )
    why = "commits are grouped by the minimum timestamp over the inputs, and these have no unit in common."
    in_ticks = _all_in_ticks(of_source, shown="commit_every", argument="commit_every", why=why)
    if isinstance(commit_every, str) == bool(in_ticks):
        kind = "BIGINT ticks of your own unit" if in_ticks else "TIMESTAMPs"
        right = "commit_every=30000" if in_ticks else 'commit_every="30 s"'
        raise InvalidPipeline(
            f"commit_every={commit_every!r} does not fit the timestamps of source {listed[0].name!r}.",
            why=f"they are {kind}.",
            do=f"write for instance {right}.",
        )
    return commit_every if isinstance(commit_every, int) else units.duration_us(commit_every)


def begin_at(at: str | datetime | int | None, sources: Iterable[SourceNode]) -> int | None:
    """Return the time at which sources begin, in microseconds; a number as it is, in the unit of their timestamps.

    Raises
    ------
    InvalidPipeline
        If it is not a time, if a source has BIGINT timestamps and it is not a number of ticks, or if only some sources
        have those.
    """
    why = "every source begins at the same time, and these have no unit in common."
    return _time_of(at, sources, argument="at", why=why)


def end_at(until: str | datetime | int | None, sources: Iterable[SourceNode], *, at: int | None) -> int | None:
    """Return the time at which a run ends, exclusive, in the unit of :func:`begin_at`.

    Parameters
    ----------
    until : str, datetime or int, optional
        As the user wrote it.
    sources : iterable of SourceNode
        Those of the pipeline.
    at : int, optional
        Where it begins.

    Raises
    ------
    InvalidPipeline
        As for :func:`begin_at`; or if it is not after the beginning.
    """
    why = "every source is read up to the same time, and these have no unit in common."
    end = _time_of(until, sources, argument="until", why=why)
    if end is not None and at is not None and end <= at:
        raise InvalidPipeline(
            f"until={until!r} is not after the time at which the pipeline begins: nothing would be read.",
            why="until= is exclusive.",
            do="exchange the two, or leave one of them out.",
        )
    return end


def _time_of(
    time: str | datetime | int | None, sources: Iterable[SourceNode], *, argument: str, why: str
) -> int | None:
    if time is None:
        return None
    of_source = {source.name: unit for source in sources if (unit := unit_of(source)) is not None}
    in_ticks = _all_in_ticks(of_source, shown=f"{argument}={time!r}", argument=argument, why=why)
    if in_ticks and isinstance(time, str) and time.isdigit():  # as on a command line
        return int(time)
    if in_ticks and not isinstance(time, int):
        raise InvalidPipeline(
            f"{argument}={time!r} does not fit the timestamps of source {in_ticks[0]!r}.",
            why="they are BIGINT ticks of your own unit.",
            do=f"write the number of ticks: for instance {argument}=1700000000000.",
        )
    return units.time_us(time, argument=argument)


def _all_in_ticks(of_source: Mapping[str, TimeUnit | None], *, shown: str, argument: str, why: str) -> list[str]:
    """Return the sources whose timestamps are ticks: all of them, or none.

    Raises
    ------
    InvalidPipeline
        If they are some of them.
    """
    in_ticks = [name for name, unit in of_source.items() if unit is TimeUnit.TICKS]
    other = next((name for name in of_source if name not in in_ticks), None)
    if in_ticks and other is not None:
        raise InvalidPipeline(
            f"{shown} has no unit: source {in_ticks[0]!r} has BIGINT timestamps, source {other!r} TIMESTAMPs.",
            why=why,
            do=f"declare all of them as TIMESTAMP, or all as BIGINT; or leave {argument} out.",
        )
    return in_ticks
