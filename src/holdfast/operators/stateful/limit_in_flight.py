"""``limit_in_flight``: drop at the entry what downstream could not process in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building, require_columns
from holdfast.graph.evolution import NOTHING, Evolution, Migration, past_of
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.shape import Shape
from holdfast.operators.stateful.limit_step import DONE, ROWS, LimitStep
from holdfast.ports import SideRows
from holdfast.state import checks, keyed
from holdfast.types import units

_RIGHT = 'frames | hf.limit_in_flight(2, by="camera", done=results) or hf.limit_in_flight(30, by="camera", per="1 s")'


@dataclass(frozen=True)
class LimitInFlight:
    """Admit a new timestamp of a key while fewer than ``n`` of its timestamps are in flight, or were admitted lately.

    Parameters
    ----------
    n : int
        Timestamps per key.
    by : tuple of str
        Key columns.
    times : mapping of str to str
        Input -> timestamp column.
    timeout : str or int, optional
        Event time after which a timestamp counts as done.
    per : str, optional
        Span of logged batch time in which at most ``n`` timestamps are admitted.
    forget_after : str, optional
        TTL of a key, in logged batch time.
    """

    n: int
    by: tuple[str, ...]
    times: Mapping[str, str]
    timeout: str | int | None = None
    per: str | None = None
    forget_after: str | None = None
    kind: ClassVar[str] = "limit_in_flight"
    wakes: ClassVar[bool] = False

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late``, and ``shed``: rows as they came."""
        return {"late": SideRows.of_inputs(self.by, [ROWS]), "shed": SideRows(keeps_bounds=True)}

    @property
    def input_names(self) -> tuple[str, ...]:
        """``rows``, and ``done`` where there is one."""
        return tuple(self.times)

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The timestamp of each input."""
        return tuple(self.times.values())

    @property
    def watches_clock(self) -> bool:
        """Whether keys are forgotten."""
        return bool(self.forget_after)

    def arguments(self) -> Mapping[str, Any]:
        """Return every argument."""
        return {
            "n": self.n,
            "by": list(self.by),
            "times": dict(self.times),
            "timeout": self.timeout,
            "per": self.per,
            "forget_after": self.forget_after,
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the shape of the limited stream."""
        for (name, time), shape in zip(self.times.items(), inputs, strict=True):
            require_columns([*self.by, time], shape.columns, f"input {name!r}")
        return inputs[0]

    def step(self, inputs: Mapping[str, pa.Schema]) -> LimitStep:
        """Return the step for inputs of these schemas."""
        key = keyed.key_schema(inputs[ROWS], self.by)
        time = keyed.time_field(inputs[ROWS], self.times[ROWS])
        times = {ROWS: time.name}
        if DONE in inputs:
            done = keyed.time_field(inputs[DONE], self.times[DONE])
            theirs = keyed.key_schema(inputs[DONE], self.by)
            if done.type != time.type or theirs.names != key.names or theirs.types != key.types:
                raise InvalidPipeline(
                    "the stream done= does not fit.",
                    why=f"it has {checks.spelled(theirs)} and {done.name} {done.type}; the limited stream has "
                    f"{checks.spelled(key)} and {time.name} {time.type}.",
                    do="bring key and timestamp to the same names and types before.",
                )
            times[DONE] = done.name
        return LimitStep(
            self.n,
            dict(inputs),
            key,
            times,
            None if self.timeout is None else keyed.duration_ticks(self.timeout, time, "timeout"),
            None if self.per is None else units.duration_us(self.per),
            None if self.forget_after is None else units.duration_us(self.forget_after),
        )


@dataclass(frozen=True)
class LimitAnywhere:
    """A limit that has no input yet: what ``hf.limit_in_flight(...)`` returns."""

    n: int
    by: tuple[str, ...]
    done: Stream | None
    timeout: str | int | None
    per: str | None
    forget_after: str | None
    name: str | None
    origin: Origin
    past: Evolution = NOTHING

    def attach(self, stream: Stream) -> Stream:
        """Return the limited stream."""
        with building(LimitInFlight.kind, self.name, self.origin):
            streams = {ROWS: stream} if self.done is None else {ROWS: stream, DONE: self.done}
            times = {name: keyed.timestamp_of(each, None) for name, each in streams.items()}
            spec = LimitInFlight(self.n, self.by, times, self.timeout, self.per, self.forget_after)
        return apply(spec, tuple(streams.values()), name=self.name, built_at=self.origin, past=self.past)


def limit_in_flight(
    n: int,
    by: str | Sequence[str],
    *,
    done: Stream | None = None,
    timeout: str | int | None = None,
    per: str | None = None,
    forget_after: str | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> LimitAnywhere:
    """Admit at most ``n`` timestamps per key at a time; shed the others at the entry.

    Parameters
    ----------
    n : int
        Timestamps in flight per key (with ``per``: admitted in each span).
    by : str or sequence of str
        Key columns.
    done : Stream, optional
        Says what is finished: a row of it at T finishes every timestamp of its key up to T, a bound all below it.
        Its key columns and timestamp have the names and types of the limited stream's.  A graph has no cycle, so this
        is a source: a topic or table where the consumer acknowledges, not a stream downstream of this operator.
    timeout : str or int, optional
        A timestamp counts as finished when one more than this later arrives: event time, text with a unit or ticks.
    per : str, optional
        Instead of ``done``: admit at most ``n`` timestamps per key in each such span of logged batch time.
    forget_after : str, optional
        Forget a key that was silent for this long, in logged batch time.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Returns
    -------
    LimitAnywhere
        To be used to the right of ``stream |``.  Rows are emitted immediately, in the order of their arrival.  The side
        outputs are ``shed`` (rows unchanged, also counted) and ``late`` (rows below the newest timestamp of their key,
        or below a bound that was declared before).

    Raises
    ------
    InvalidPipeline
        If neither ``done``, ``timeout`` nor ``per`` is given, or ``per`` together with one of the others.

    Notes
    -----
    What is shed depends on the order of arrival, with ``per`` also on how arrivals are divided into epochs.  Decisions
    are part of the state and depend only on rows and the logged batch time: a replay sheds the same rows.

    References
    ----------
    MediaPipe, ``FlowLimiterCalculator``: ``max_in_flight``, ``in_flight_timeout``; its queue is 0 here.

    Examples
    --------
    ::

        frames | hf.limit_in_flight(2, by="camera", done=acknowledged, timeout="1 s", name="entry")
    """
    with building(LimitInFlight.kind, name) as built_at:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InvalidPipeline(f"n={n!r} is not a number of timestamps.", do=f"give 1 or more: {_RIGHT}")
        keys = keyed.key_names(by)
        if done is not None and not isinstance(done, Stream):
            raise InvalidPipeline(f"done= is {a_type(done)} and no stream.", do=f"write {_RIGHT}")
        if (done is None and timeout is None) == (per is None):
            raise InvalidPipeline(
                "nothing says when a timestamp is done." if per is None else "per= comes with done= or timeout=.",
                why="a limit follows either what is finished (done=, timeout=) or the batch time (per=).",
                do=f"write {_RIGHT}",
            )
        if timeout is not None:
            keyed.check_duration(timeout, "timeout")
        for argument, value in (("per", per), ("forget_after", forget_after)):
            if value is not None and units.duration_us(value, argument=argument) < 1:
                raise InvalidPipeline(f"{argument}={value!r} is too small.", do=f"write {_RIGHT}")
        past = past_of(renamed_from, migrate, kind=LimitInFlight.kind, built_at=built_at)
        return LimitAnywhere(n, keys, done, timeout, per, forget_after, name, built_at, past)
