"""``sync``: the rows of several streams in sets, by timestamp and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

import pyarrow as pa

from holdfast import policy as policies
from holdfast import units
from holdfast.checks import a_type, building, require_columns
from holdfast.errors import InvalidPipeline
from holdfast.graph import Shape, Stream, apply
from holdfast.operators.sync_step import SyncStep
from holdfast.policy import Barrier, FixedSize, Immediate, Mux, Policy, TimestampAlign, Within
from holdfast.timeline import Promise

_RIGHT = 'hf.sync({"flight": flights, "weather": weather}, by="origin")'
_OWN_COLUMNS = ("timestamp", "input", "reason")


@dataclass(frozen=True)
class Sync:
    """Bring the rows of several inputs together in sets.

    Parameters
    ----------
    names : tuple of str
        The inputs, in the order of the output's columns.
    by : tuple of str
        Key columns; each key is synchronised by itself.
    times : tuple of str
        Timestamp column of each input.
    policy : Policy
        Which rows make a set, and when.
    timestamps : tuple of str
        ``"strict"`` or ``"ascending"``, for each input.
    disorder : tuple of str, int or None
        For each input, how far a row may lie behind the highest timestamp before it.
    idle_us, forget_us : int, optional
        Microseconds of batch time.
    max_waiting_rows : int, optional
        Waiting rows of one key at which sources that run ahead are throttled.
    """

    names: tuple[str, ...]
    by: tuple[str, ...]
    times: tuple[str, ...]
    policy: Policy
    timestamps: tuple[str, ...]
    disorder: tuple[str | int | None, ...]
    idle_us: int | None = None
    max_waiting_rows: int | None = None
    forget_us: int | None = None
    kind: ClassVar[str] = "sync"

    def arguments(self) -> Mapping[str, Any]:
        """Return inputs, key, policy, promises and limits."""
        return {
            "inputs": list(self.names),
            "by": list(self.by),
            "times": list(self.times),
            "policy": {"kind": self.policy.kind, **self.policy.arguments()},
            "timestamps": list(self.timestamps),
            "disorder": list(self.disorder),
            "idle_us": self.idle_us,
            "max_waiting_rows": self.max_waiting_rows,
            "forget_us": self.forget_us,
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the key columns, ``timestamp`` and one column for each input."""
        for name, shape in zip(self.names, inputs, strict=True):
            require_columns(self.by, shape.columns, f"by= (input {name!r})")
        return Shape((*self.by, "timestamp", *self.names), "timestamp")

    def step(self, inputs: Mapping[str, pa.Schema]) -> SyncStep:
        """Return the step for inputs of these schemas.

        Raises
        ------
        InvalidPipeline
            If a column is missing, a timestamp is no time, or the inputs' keys or timestamps differ in type.
        """
        first = self.names[0]
        schemas = {name: inputs[name] for name in self.names}
        for name, time in zip(self.names, self.times, strict=True):
            require_columns((*self.by, time), schemas[name].names, f"input {name!r}")
            _check_time(name, time, schemas[name].field(time).type)
        time_type = schemas[first].field(self.times[0]).type
        for name, time in zip(self.names, self.times, strict=True):
            _check_same(first, time_type, name, schemas[name].field(time).type, "timestamp")
            for column in self.by:
                _check_same(first, schemas[first].field(column).type, name, schemas[name].field(column).type, column)
        is_ticks = time_type == pa.int64()
        promises = tuple(
            Promise(stamps == "strict", None if late is None else _ticks(late, is_ticks, "disorder"))
            for stamps, late in zip(self.timestamps, self.disorder, strict=True)
        )
        tolerance = _ticks(self.policy.tolerance, is_ticks, "tolerance") if isinstance(self.policy, Within) else 0
        return SyncStep(
            pa.schema([schemas[first].field(column) for column in self.by]),
            schemas,
            self.times,
            promises,
            self.policy,
            policies.groups_of(self.policy, self.names),
            tolerance,
            self._mux_column(schemas),
            self.idle_us,
            self.max_waiting_rows,
            self.forget_us,
        )

    def _mux_column(self, schemas: Mapping[str, pa.Schema]) -> str:
        if not isinstance(self.policy, Mux):
            return ""
        control = self.policy.select
        time = self.times[self.names.index(control)]
        others = [column for column in schemas[control].names if column not in (*self.by, time)]
        column = self.policy.column or (others[0] if len(others) == 1 else None)
        if column is None:
            raise InvalidPipeline(
                f"which column of input {control!r} chooses?",
                why=f"besides key and timestamp it has {', '.join(others) or 'none'}.",
                do=f'name it: hf.policy.mux(select="{control}", column="{(others or ["choice"])[0]}")',
            )
        require_columns([column], schemas[control].names, "mux(column=)")
        kind = schemas[control].field(column).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InvalidPipeline(
                f"column {column!r} of input {control!r} is of type {kind} and cannot choose an input.",
                why="a choice is the name of a data input, or its number from 0.",
                do="make it a STRING or a whole number before: stream | hf.select(...)",
            )
        return column


def sync(
    inputs: Mapping[str, Stream],
    *,
    by: str | Sequence[str] | None = None,
    policy: Policy | None = None,
    timestamps: str | Mapping[str, str] = "strict",
    disorder: str | int | Mapping[str, str | int | None] | None = None,
    idle_after: str | None = None,
    max_waiting_rows: int | None = None,
    forget_after: str | None = None,
    name: str | None = None,
) -> Stream:
    """Return the rows of several streams in sets: by default all rows of one timestamp once it is settled on each.

    Parameters
    ----------
    inputs : mapping of str to Stream
        Two or more streams with a known timestamp column, by the name of their column in the output.
    by : str or sequence of str, optional
        Key columns, of the same name and type in every input; each key is synchronised by itself.
    policy : Policy, optional
        One of ``hf.policy``; by default ``hf.policy.settled()``.
    timestamps : str or mapping of str to str
        What each input promises for each key: ``"strict"``, at most one row for each timestamp and none goes back; or
        ``"ascending"``, repeats are allowed.  Inputs not in a mapping are strict.
    disorder : str, int or mapping, optional
        How far a row may lie behind the highest timestamp before it: a duration, or ticks where timestamps are BIGINT.
    idle_after : str, optional
        Duration after which a key waits no longer on a silent input, decided on logged batch time.
    max_waiting_rows : int, optional
        Waiting rows of one key at which the sources that run ahead are throttled.
    forget_after : str, optional
        Duration after which a key without rows is forgotten; what waits under it goes to the late rows.
    name : str, optional
        The node's name: the identity of its state.

    Returns
    -------
    Stream
        Key columns; ``timestamp``; one column for each input: a struct of the row's other columns for strict inputs, a
        list of structs otherwise, null when the input has nothing there.  Ascending for each key.  Rows that reach no
        set are in the side output ``late``, with the reason.

    Raises
    ------
    InvalidPipeline
        If there are fewer than two inputs, a name is taken twice, a policy names an unknown input, an input has no
        known timestamp column, or the arguments do not go together.

    Notes
    -----
    Runs on the executors, once per bucket and epoch.

    References
    ----------
    MediaPipe, "Synchronization": timestamp bounds, settled timestamps, input sets and input policies.

    Examples
    --------
    ::

        aligned = hf.sync({"flight": late, "weather": weather}, by="origin", name="flight_weather")
    """
    with building(Sync.kind, name) as built_at:
        streams = _checked_inputs(inputs)
        names = tuple(streams)
        chosen = policies.settled() if policy is None else policy
        keys = _checked_keys(by, names)
        _check_policy(chosen, names)
        stamps = _of_each(timestamps, names, "timestamps", "strict")
        for of, value in zip(names, stamps, strict=True):
            if value not in ("strict", "ascending"):
                raise InvalidPipeline(
                    f"timestamps={value!r} of input {of!r} is no promise.",
                    why="known are 'strict' and 'ascending'.",
                    do='write for instance timestamps={"weather": "ascending"}',
                )
        disorders = _of_each(disorder, names, "disorder", None)
        for late in disorders:
            _check_disorder(late)
        _check_together(chosen, names, stamps, disorders, idle_after)
        spec = Sync(
            names,
            keys,
            tuple(_time_of(of, stream) for of, stream in streams.items()),
            chosen,
            stamps,
            disorders,
            _duration(idle_after, "idle_after"),
            _checked_limit(max_waiting_rows),
            _duration(forget_after, "forget_after"),
        )
    return apply(spec, tuple(streams.values()), name=name, built_at=built_at)


def _checked_inputs(inputs: Any) -> dict[str, Stream]:
    if not isinstance(inputs, Mapping):
        raise InvalidPipeline(
            f"its inputs are {a_type(inputs)}.",
            why="each input has a name: that of its column in the output.",
            do=f"write {_RIGHT}",
        )
    for name, stream in inputs.items():
        if not isinstance(name, str) or not name or name.startswith("__"):
            raise InvalidPipeline(
                f"{name!r} is no name for an input.",
                why="it becomes a column, and names with two leading underscores are Holdfast's own.",
                do=f"write {_RIGHT}",
            )
        if not isinstance(stream, Stream):
            raise InvalidPipeline(f"input {name!r} is {a_type(stream)} and no stream.", do=f"write {_RIGHT}")
    if len(inputs) < 2:
        line = next((f"; only {name!r}, built at {stream.origin}, is given" for name, stream in inputs.items()), "")
        raise InvalidPipeline(
            f"it has {len(inputs)} input{'' if len(inputs) == 1 else 's'}{line}.",
            why="there is nothing to synchronise with.",
            do=f'right: {_RIGHT}; wrong: hf.sync({{"flight": flights}})',
        )
    seen: dict[str, str] = {}
    for name in inputs:
        other = seen.setdefault(name.lower(), name)
        if other != name or name.lower() in _OWN_COLUMNS:
            what = f"{other!r} and {name!r} are one name" if other != name else f"{name!r} is a column of sync's own"
            raise InvalidPipeline(
                f"{what}.",
                why="each input becomes a column, and columns are compared without regard to case.",
                do="give the input another name.",
            )
    return dict(inputs)


def _checked_keys(by: Any, names: Sequence[str]) -> tuple[str, ...]:
    keys = () if by is None else (by,) if isinstance(by, str) else by
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
        raise InvalidPipeline(
            f"by={by!r} names no key columns.",
            why="a name or a list of different names is expected.",
            do=f"write {_RIGHT}",
        )
    taken = {name.lower() for name in (*names, *_OWN_COLUMNS)}
    clash = next((key for key in keys if key.lower() in taken), None)
    if clash is not None:
        raise InvalidPipeline(
            f"the key column {clash!r} has the name of another output column.",
            why=f"the output has the key columns, {', '.join(_OWN_COLUMNS)} and one column for each input.",
            do=f'rename it before: stream | hf.select("*", {clash}_key="{clash}"), or name the input otherwise.',
        )
    return tuple(keys)


def _check_policy(policy: Any, names: Sequence[str]) -> None:
    if not isinstance(policy, Policy):
        raise InvalidPipeline(
            f"policy={policy!r} is no policy.",
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


def _of_each(value: Any, names: Sequence[str], argument: str, default: Any) -> tuple[Any, ...]:
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


def _check_disorder(value: Any) -> None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return
    if not isinstance(value, str):
        raise InvalidPipeline(
            f"disorder={value!r} is no distance in time.",
            why="it is a duration, or a number of ticks from 0 where timestamps are BIGINT.",
            do='write for instance disorder="5 s"',
        )
    units.duration_us(value, argument="disorder")


def _check_together(
    policy: Policy, names: Sequence[str], stamps: Sequence[str], disorders: Sequence[Any], idle_after: Any
) -> None:
    by_arrival = Immediate | Barrier | FixedSize | TimestampAlign
    if isinstance(policy, by_arrival) and any(late is not None for late in disorders):
        raise InvalidPipeline(
            f"disorder= and the policy {policy.kind} do not go together.",
            why="this policy takes the rows of an input in the order in which they come.",
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
            "within.",
            do="leave idle_after= out; a source may send bounds instead.",
        )


def _time_of(name: str, stream: Stream) -> str:
    if stream.timestamp is None:
        raise InvalidPipeline(
            f"input {name!r}, the stream {stream.name!r} built at {stream.origin}, has no known timestamp column.",
            why="its source declares none, or an operator before (map, or a computed column) has hidden it.",
            do='write timestamp="..." where the source is built, and sync before the operator that hides it.',
        )
    return stream.timestamp


def _checked_limit(limit: Any) -> int | None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InvalidPipeline(
            f"max_waiting_rows={limit!r} is no number of rows.", do="write for instance max_waiting_rows=10_000"
        )
    return limit


def _duration(text: Any, argument: str) -> int | None:
    return None if text is None else units.duration_us(text, argument=argument)


def _ticks(value: str | int, is_ticks: bool, argument: str) -> int:
    """Return a distance in the ticks of the timestamps."""
    if isinstance(value, str) and is_ticks:
        raise InvalidPipeline(
            f"{argument}={value!r} is a duration, but the timestamps are BIGINT.",
            why="the unit of a BIGINT is the user's own.",
            do=f"give a number of ticks: {argument}=5000",
        )
    if isinstance(value, int) and not is_ticks:
        raise InvalidPipeline(
            f"{argument}={value!r} has no unit.",
            why="the timestamps are TIMESTAMP.",
            do=f'give a duration: {argument}="5 s"',
        )
    return value if isinstance(value, int) else units.duration_us(value, argument=argument)


def _check_time(name: str, column: str, kind: pa.DataType) -> None:
    if kind == pa.int64() or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return
    raise InvalidPipeline(
        f"the timestamp {column!r} of input {name!r} is of type {kind}.",
        why="event time is a TIMESTAMP in microseconds, or a BIGINT of ticks.",
        do=f'convert it before: stream | hf.select("*", {column}="cast({column} as timestamp)")',
    )


def _check_same(first: str, first_type: pa.DataType, other: str, other_type: pa.DataType, what: str) -> None:
    if first_type != other_type:
        raise InvalidPipeline(
            f"{what} is of type {first_type} in input {first!r} and of type {other_type} in input {other!r}.",
            why="rows meet by key and timestamp, so both are of one type everywhere.",
            do="convert one of them before: stream | hf.select(...)",
        )
