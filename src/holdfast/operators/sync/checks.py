"""Checks of what users give to ``sync``, each error with its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type
from holdfast.graph.event_time import no_timestamp
from holdfast.graph.nodes import Stream
from holdfast.operators.sync import policy as policies
from holdfast.operators.sync.custom import Custom
from holdfast.operators.sync.policy import Barrier, FixedSize, Immediate, Mux, Policy, TimestampAlign
from holdfast.types import units

OWN_COLUMN = "timestamp"
"""Of a set, beside key columns and inputs."""

RIGHT = 'hf.sync({"flight": flights, "weather": weather}, by="origin")'


def checked_inputs(inputs: Any) -> dict[str, Stream]:
    """Return the inputs: two or more streams, each under a name that can be a column."""
    if not isinstance(inputs, Mapping):
        raise InvalidPipeline(
            f"its inputs are {a_type(inputs)}.",
            why="each input has a name: that of its column in the output.",
            do=f"write {RIGHT}",
        )
    for name, stream in inputs.items():
        if not isinstance(name, str) or not name or name.startswith("__"):
            raise InvalidPipeline(
                f"{name!r} is not a name for an input.",
                why="it becomes a column, and names with two leading underscores are Holdfast's own.",
                do=f"write {RIGHT}",
            )
        if not isinstance(stream, Stream):
            raise InvalidPipeline(f"input {name!r} is {a_type(stream)} and no stream.", do=f"write {RIGHT}")
    if len(inputs) < 2:
        line = next((f"; only {name!r}, built at {stream.origin}, is given" for name, stream in inputs.items()), "")
        raise InvalidPipeline(
            f"it has {len(inputs)} input{'' if len(inputs) == 1 else 's'}{line}.",
            why="there is nothing to synchronise with.",
            do=f'right: {RIGHT}; wrong: hf.sync({{"flight": flights}})',
        )
    seen: dict[str, str] = {}
    for name in inputs:
        other = seen.setdefault(name.lower(), name)
        if other != name or name.lower() == OWN_COLUMN:
            what = f"{other!r} and {name!r} are one name" if other != name else f"{name!r} is a column of sync's own"
            raise InvalidPipeline(
                f"{what}.",
                why="each input becomes a column, and columns are compared without regard to case.",
                do="give the input another name.",
            )
    return dict(inputs)


def checked_keys(by: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the key columns."""
    keys = () if by is None else (by,) if isinstance(by, str) else by
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
        raise InvalidPipeline(
            f"by={by!r} names no key columns.",
            why="a name or a list of different names is expected.",
            do=f"write {RIGHT}",
        )
    taken = {name.lower() for name in (*names, OWN_COLUMN)}
    clash = next((key for key in keys if key.lower() in taken), None)
    if clash is not None:
        raise InvalidPipeline(
            f"the key column {clash!r} has the name of another output column.",
            why=f"the output has the key columns, {OWN_COLUMN} and one column for each input.",
            do=f'rename it before: stream | hf.select("*", {clash}_key="{clash}"), or name the input otherwise.',
        )
    return tuple(keys)


def check_policy(policy: Any, names: Sequence[str]) -> None:
    """Check that it is a policy and names only inputs."""
    if not isinstance(policy, Policy):
        raise InvalidPipeline(
            f"policy={policy!r} is not a policy.",
            why=f"{a_type(policy)} was given.",
            do="write for instance policy=hf.policy.settled(), with its parentheses.",
        )
    for named in policies.named_inputs(policy):
        if named not in names:
            near = get_close_matches(named, names, n=1)
            raise InvalidPipeline(
                f"policy {policy.kind} names the input {named!r}, which does not exist.",
                why=f"the inputs are {', '.join(names)}.",
                do=f"{f'did you mean {near[0]!r}? ' if near else ''}Name one of these.",
            )


def of_each(value: Any, names: Sequence[str], argument: str, default: Any) -> tuple[Any, ...]:
    """Return an argument's value for each input."""
    if not isinstance(value, Mapping):
        return (value,) * len(names)
    unknown = next((name for name in value if name not in names), None)
    if unknown is not None:
        raise InvalidPipeline(
            f"{argument}= names the input {unknown!r}, which does not exist.",
            why=f"the inputs are {', '.join(names)}.",
            do="name one of these.",
        )
    return tuple(value.get(name, default) for name in names)


def check_disorder(value: Any) -> None:
    """Check one value of ``disorder=``."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return
    if not isinstance(value, str):
        raise InvalidPipeline(
            f"disorder={value!r} is not a distance in time.",
            why="it is a duration, or a number of ticks from 0 where timestamps are BIGINT.",
            do='write for instance disorder="5 s"',
        )
    units.duration_us(value, argument="disorder")


def check_together(
    policy: Policy, names: Sequence[str], stamps: Sequence[str], disorders: Sequence[Any], idle_after: Any
) -> None:
    """Check that policy, promises and the idle rule go together."""
    by_arrival = Immediate | Barrier | FixedSize | TimestampAlign
    if isinstance(policy, by_arrival) and any(late is not None for late in disorders):
        raise InvalidPipeline(
            f"disorder= and the policy {policy.kind} do not go together.",
            why="this policy takes the rows of an input in the order in which they arrive.",
            do="leave disorder= out, or sort first with a sync of the policy settled.",
        )
    if isinstance(policy, FixedSize) and "ascending" in stamps:
        raise InvalidPipeline(
            f"fixed_size needs strict timestamps; input {names[stamps.index('ascending')]!r} is ascending.",
            why="it keeps a number of newest timestamps, and rows of one timestamp are not divided.",
            do='write timestamps="strict".',
        )
    if idle_after is not None and isinstance(policy, by_arrival | Mux):
        raise InvalidPipeline(
            f"idle_after= and the policy {policy.kind} do not go together.",
            why="the idle rule is for policies that wait on the bounds of all inputs: settled, sync_sets, early_close, "
            "within, and custom with a delay.",
            do="leave idle_after= out; a source may send bounds instead.",
        )
    if idle_after is not None and isinstance(policy, Custom) and policy.delay is None:
        raise InvalidPipeline(
            f"idle_after= and the policy custom({policy.name}) without delay= do not go together.",
            why="the idle rule raises bounds until what waits is settled, and without a delay that is unknown.",
            do='write for instance hf.policy.custom(..., delay="6 s"), or leave idle_after= out.',
        )


def time_of(name: str, stream: Stream) -> str:
    """Return the timestamp column of an input."""
    if stream.timestamp is None:
        called = f"input {name!r}, the stream {stream.name!r} built at {stream.origin},"
        raise no_timestamp(called, stream.node, here=None)
    return stream.timestamp


def duration(text: Any, argument: str) -> int | None:
    """Return a duration in microseconds, None where there is none."""
    return None if text is None else units.duration_us(text, argument=argument)


def ticks(value: str | int, is_ticks: bool, argument: str) -> int:
    """Return a distance in the ticks of the timestamps; a zero may be written as 0 for either kind."""
    if isinstance(value, str) and is_ticks:
        raise InvalidPipeline(
            f"{argument}={value!r} is a duration, but the timestamps are BIGINT.",
            why="the unit of a BIGINT is the user's own.",
            do=f"give a number of ticks: {argument}=5000",
        )
    if isinstance(value, int) and value and not is_ticks:
        raise InvalidPipeline(
            f"{argument}={value!r} has no unit.",
            why="the timestamps are TIMESTAMP.",
            do=f'give a duration: {argument}="5 s"',
        )
    return value if isinstance(value, int) else units.duration_us(value, argument=argument)


def check_time(name: str, column: str, kind: pa.DataType) -> None:
    """Check that a timestamp column can be one."""
    if kind == pa.int64() or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return
    raise InvalidPipeline(
        f"the timestamp {column!r} of input {name!r} is of type {kind}.",
        why="event time is a TIMESTAMP in microseconds, or a BIGINT of ticks.",
        do=f'convert it before: stream | hf.select("*", {column}="cast({column} as timestamp)")',
    )


def check_same(first: str, first_type: pa.DataType, other: str, other_type: pa.DataType, what: str) -> None:
    """Check that two inputs agree in the type of a column."""
    if first_type != other_type:
        raise InvalidPipeline(
            f"{what} is of type {first_type} in input {first!r} and of type {other_type} in input {other!r}.",
            why="rows are matched by key and timestamp, so both are of one type everywhere.",
            do="convert one of them before: stream | hf.select(...)",
        )
