"""``sync``: the rows of several streams in sets, by timestamp and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import building, require_columns
from holdfast.graph.evolution import Migration, past_of
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.releases import say_what_releases
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import checked_limit, limit_of
from holdfast.operators.sync import policy as policies
from holdfast.operators.sync.checks import (
    check_disorder,
    check_policy,
    check_same,
    check_time,
    check_together,
    checked_inputs,
    checked_keys,
    duration,
    of_each,
    ticks,
    time_of,
)
from holdfast.operators.sync.custom import Custom
from holdfast.operators.sync.policy import Mux, Policy, Within
from holdfast.operators.sync.step import SyncStep
from holdfast.ports import SideRows
from holdfast.state.timeline import Promise


@dataclass(frozen=True)
class Sync:
    """Join the rows of several inputs in sets.

    Parameters
    ----------
    names : tuple of str
        The inputs, in the order of the output's columns.
    by : tuple of str
        Key columns; each key is synchronised separately.
    times : tuple of str
        Timestamp column of each input.
    policy : Policy
        Which rows make a set, and when.
    timestamps : tuple of str
        ``"strict"`` or ``"ascending"``, for each input.
    disorder : tuple of str, int or None
        For each input, how far a row may be behind the highest timestamp before it.
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

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late`` and ``unmatched``."""
        return {
            "late": SideRows.of_inputs(self.by, self.names),
            "unmatched": SideRows.of_inputs(self.by, self.names, keeps_bounds=policies.leaves_in_order(self.policy)),
        }

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs' names, in their order."""
        return self.names

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The timestamp of each input."""
        return self.times

    @property
    def wakes(self) -> bool:
        """Whether rows leave it by the clock: those that wait for long, or under a key that is forgotten."""
        return bool(self.idle_us) or self.forget_us is not None

    @property
    def watches_clock(self) -> bool:
        """Whether rows leave it by the clock."""
        return self.wakes

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

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound holds downstream of it."""
        if not policies.ascends(self.policy, len(policies.groups_of(self.policy, self.names))):
            return f"sets of the policy {self.policy.kind} need not ascend"
        return None

    def step(self, inputs: Mapping[str, pa.Schema]) -> SyncStep:
        """Return the step for inputs of these schemas.

        Raises
        ------
        InvalidPipeline
            If a column is missing, a timestamp is not a time, or the inputs' keys or timestamps differ in type.
        """
        first = self.names[0]
        schemas = {name: inputs[name] for name in self.names}
        for name, time in zip(self.names, self.times, strict=True):
            require_columns((*self.by, time), schemas[name].names, f"input {name!r}")
            check_time(name, time, schemas[name].field(time).type)
        time_type = schemas[first].field(self.times[0]).type
        for name, time in zip(self.names, self.times, strict=True):
            check_same(first, time_type, name, schemas[name].field(time).type, "timestamp")
            for column in self.by:
                check_same(first, schemas[first].field(column).type, name, schemas[name].field(column).type, column)
        is_ticks = time_type == pa.int64()
        promises = tuple(
            Promise(stamps == "strict", None if late is None else ticks(late, is_ticks, "disorder"))
            for stamps, late in zip(self.timestamps, self.disorder, strict=True)
        )
        tolerance = ticks(self.policy.tolerance, is_ticks, "tolerance") if isinstance(self.policy, Within) else 0
        delay = self.policy.delay if isinstance(self.policy, Custom) else None
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
            limit_of(self.max_waiting_rows),
            self.forget_us,
            None if delay is None else ticks(delay, is_ticks, "delay"),
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
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Stream:
    """Return the rows of several streams in sets: by default all rows of one timestamp once it is settled on each.

    Parameters
    ----------
    inputs : mapping of str to Stream
        Two or more streams with a known timestamp column, by the name of their column in the output.
    by : str or sequence of str, optional
        Key columns, of the same name and type in every input; each key is synchronised separately.
    policy : Policy, optional
        One of ``hf.policy``; by default ``hf.policy.settled()``.
    timestamps : str or mapping of str to str
        What each input promises for each key: ``"strict"``, at most one row for each timestamp and none goes back; or
        ``"ascending"``, repeats are allowed.  Inputs not in a mapping are strict.
    disorder : str, int or mapping, optional
        How far a row may be behind the highest timestamp before it: a duration, or ticks where timestamps are BIGINT.
    idle_after : str, optional
        Duration after which a key no longer waits on a silent input, decided on logged batch time.
    max_waiting_rows : int, optional
        Number of waiting rows of one key from which the sources that run ahead are throttled; by default 1,000,000.
    forget_after : str, optional
        Duration after which a key without rows is forgotten; its waiting rows go to the late rows.
    name : str, optional
        The node's name: the identity of its state.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

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
        streams = checked_inputs(inputs)
        names = tuple(streams)
        chosen = policies.settled() if policy is None else policy
        keys = checked_keys(by, names)
        check_policy(chosen, names)
        stamps = of_each(timestamps, names, "timestamps", "strict")
        for of, value in zip(names, stamps, strict=True):
            if value not in ("strict", "ascending"):
                raise InvalidPipeline(
                    f"timestamps={value!r} of input {of!r} is not a promise.",
                    why="known are 'strict' and 'ascending'.",
                    do='write for instance timestamps={"weather": "ascending"}',
                )
        disorders = of_each(disorder, names, "disorder", None)
        for late in disorders:
            check_disorder(late)
        check_together(chosen, names, stamps, disorders, idle_after)
        spec = Sync(
            names,
            keys,
            tuple(time_of(of, stream) for of, stream in streams.items()),
            chosen,
            stamps,
            disorders,
            duration(idle_after, "idle_after"),
            checked_limit(max_waiting_rows),
            duration(forget_after, "forget_after"),
        )
        past = past_of(renamed_from, migrate, kind=Sync.kind, built_at=built_at)
    return say_what_releases(apply(spec, tuple(streams.values()), name=name, built_at=built_at, past=past))
