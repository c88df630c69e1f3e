"""``merge``: adds to each row of a main stream the latest rows of slower streams, as of its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building, require_columns
from holdfast.graph.evolution import Migration, past_of
from holdfast.graph.nodes import Stream
from holdfast.graph.nodes import apply as put
from holdfast.graph.releases import say_what_releases
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import checked_limit, limit_of
from holdfast.operators.stateful.merge_step import MAIN, MergeStep
from holdfast.ports import SideRows
from holdfast.state import keyed
from holdfast.state.timeline import Promise
from holdfast.types import units

_RIGHT = 'hf.merge(flights, {"weather": weather}, by="origin")'
_ORDERS = ("ascending", "strict")


@dataclass(frozen=True)
class Merge:
    """Add to each main row the latest row of each slow input at or before its time.

    Parameters
    ----------
    by : tuple of str
        Key columns, of the same names in all inputs.
    times : mapping of str to str
        Input -> its timestamp column; the main input is ``main`` and comes first.
    tolerance : str or int, optional
        How old a slow row may be.
    timestamps : mapping of str to str
        Input -> ``ascending`` or ``strict``.
    disorder : mapping of str to (str or int)
        Inputs that do not ascend -> by how much not.
    idle_after, forget_after : str, optional
        Durations of logged batch time.
    max_waiting_rows : int, optional
        Waiting rows of one key at which sources that run ahead are throttled.
    """

    by: tuple[str, ...]
    times: Mapping[str, str]
    tolerance: str | int | None
    timestamps: Mapping[str, str]
    disorder: Mapping[str, str | int]
    idle_after: str | None
    forget_after: str | None
    max_waiting_rows: int | None = None
    kind: ClassVar[str] = "merge"

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late``, and ``unmatched``: rows of the main input, which leave in the order of time."""
        return {
            "late": SideRows.of_inputs(self.by, self.input_names),
            "unmatched": SideRows.of_inputs(self.by, self.input_names, keeps_bounds=True),
        }

    @property
    def input_names(self) -> tuple[str, ...]:
        """``main``, then the slow inputs."""
        return tuple(self.times)

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The timestamp of each input."""
        return tuple(self.times.values())

    @property
    def wakes(self) -> bool:
        """Whether rows leave it by the clock, rows or not: those that waited for long enough."""
        return bool(self.idle_after)

    @property
    def watches_clock(self) -> bool:
        """Whether rows leave it by the clock, or keys are forgotten."""
        return self.wakes or bool(self.forget_after)

    def arguments(self) -> Mapping[str, Any]:
        """Return every argument."""
        limit = {} if self.max_waiting_rows is None else {"max_waiting_rows": self.max_waiting_rows}
        return {
            "by": list(self.by),
            "times": dict(self.times),
            "tolerance": self.tolerance,
            "timestamps": dict(self.timestamps),
            "disorder": dict(self.disorder),
            "idle_after": self.idle_after,
            "forget_after": self.forget_after,
            **limit,
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the main columns and a column for each slow input."""
        for (name, time), shape in zip(self.times.items(), inputs, strict=True):
            require_columns(self.by, shape.columns, f"by= of input {name!r}")
            require_columns([time], shape.columns, f"timestamp of input {name!r}")
        main = inputs[0]
        slow = self.input_names[1:]
        if main.columns is None:
            return Shape(None, main.timestamp, main.ids)
        taken = {column.lower() for column in main.columns}
        if twice := [name for name in slow if name.lower() in taken]:
            raise InvalidPipeline(
                f"the slow input {twice[0]!r} has the name of a column of the main stream.",
                why="each slow input becomes a column beside the main columns.",
                do="give the input another name in the mapping.",
            )
        return Shape((*main.columns, *slow), main.timestamp, main.ids)

    def step(self, inputs: Mapping[str, pa.Schema]) -> MergeStep:
        """Return the step for inputs of these schemas."""
        key = keyed.key_schema(inputs[MAIN], self.by)
        time = keyed.time_field(inputs[MAIN], self.times[MAIN])
        times: dict[str, str] = {}
        for name, schema in inputs.items():
            mine = keyed.time_field(schema, self.times[name])
            times[name] = mine.name
            theirs = keyed.key_schema(schema, self.by)
            if mine.type != time.type:
                raise _unlike(name, f"the timestamp {mine.name!r} is {mine.type}, in main it is {time.type}")
            for one, other in zip(key, theirs, strict=True):
                if one.name != other.name or one.type != other.type:
                    raise _unlike(name, f"the key is {other.name!r} {other.type}, in main {one.name!r} {one.type}")
        promises = {
            name: Promise(
                self.timestamps[name] == "strict",
                keyed.duration_ticks(self.disorder[name], time, "disorder") if name in self.disorder else None,
            )
            for name in inputs
        }
        tolerance = None if self.tolerance is None else keyed.duration_ticks(self.tolerance, time, "tolerance")
        idle_us, forget_us = _us(self.idle_after), _us(self.forget_after)
        limit = limit_of(self.max_waiting_rows)
        step = MergeStep(dict(inputs), key, times, promises, tolerance, idle_us, forget_us, max_waiting_rows=limit)
        _ = step.outputs  # says now which names clash
        return step


def _unlike(name: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"the slow input {name!r} does not fit the main stream.",
        why=f"{why}.",
        do='bring them to one name and type before: stream | hf.select("*", origin="CAST(... AS STRING)")',
    )


def _us(duration: str | None) -> int | None:
    return None if duration is None else units.duration_us(duration)


def merge(
    main: Stream,
    slow: Mapping[str, Stream],
    *,
    by: str | Sequence[str],
    tolerance: str | int | None = None,
    timestamps: str | Mapping[str, str] = "ascending",
    disorder: str | int | Mapping[str, str | int] | None = None,
    idle_after: str | None = None,
    max_waiting_rows: int | None = None,
    forget_after: str | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Stream:
    """Add the latest rows of slower streams to each row of a main stream, as of its time.

    Parameters
    ----------
    main : Stream
        The stream to whose rows columns are added; each row is emitted once.
    slow : mapping of str to Stream
        Name -> stream.  The name becomes a column: a struct of the slow row's columns without the key, null where
        there is no row at or before the main row's time.
    by : str or sequence of str
        Key columns, of the same names and types in all streams.
    tolerance : str or int, optional
        A slow row that is older than this at the main row's time does not count.
    timestamps : str or mapping, optional
        What an input promises per key: ``"ascending"`` (repeats allowed; of several slow rows of one time the last to
        arrive counts) or ``"strict"``; for all inputs, or by name, the main one being ``"main"``.
    disorder : str, int or mapping, optional
        How far rows may be below the newest of their key; for all inputs, or by name.
    idle_after : str, optional
        A main row that has waited this long, in logged batch time, is emitted with what has arrived.
    max_waiting_rows : int, optional
        Number of waiting rows of one key, of all inputs together, from which the sources that run ahead are throttled;
        by default 1,000,000.  A main row waits for the slow inputs, a slow row for the main input.
    forget_after : str, optional
        Forget a key that was silent for this long, in logged batch time, and has no waiting rows.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Returns
    -------
    Stream
        The main columns and one column per slow input; ascending in time per key.  Late rows of every input are in
        the side output ``late``.

    Raises
    ------
    InvalidPipeline
        If a stream has no known timestamp, a column is missing, types differ, or a name is not that of an input.

    Notes
    -----
    A main row at T is emitted when the bound of its key is above T in each slow input, and no earlier main row can
    arrive. The result depends on timestamps only (among rows of one time, on their order of arrival), not on how
    arrivals of different inputs interleave or are divided into epochs.

    Examples
    --------
    ::

        seen = hf.merge(flights, {"weather": weather}, by="origin", tolerance="2 h", name="seen")
    """
    with building(Merge.kind, name) as built_at:
        streams = _checked_streams(main, slow)
        keys = keyed.key_names(by)
        times = {each: keyed.timestamp_of(stream, None) for each, stream in streams.items()}
        if tolerance is not None:
            keyed.check_duration(tolerance, "tolerance", least=0)
        for argument, value in (("idle_after", idle_after), ("forget_after", forget_after)):
            if value is not None:
                units.duration_us(value, argument=argument)
        orders = _by_input(timestamps, "timestamps", tuple(streams))
        for order in orders.values():
            if order not in _ORDERS:
                raise InvalidPipeline(
                    f"timestamps={order!r} is not a promise.",
                    do="write 'ascending' or 'strict', or a mapping of inputs.",
                )
        allowed = {} if disorder is None else _by_input(disorder, "disorder", tuple(streams))
        for amount in allowed.values():
            keyed.check_duration(amount, "disorder", least=0)
        promised = {each: orders.get(each, "ascending") for each in streams}
        spec = Merge(
            keys, times, tolerance, promised, allowed, idle_after, forget_after, checked_limit(max_waiting_rows)
        )
        past = past_of(renamed_from, migrate, kind=Merge.kind, built_at=built_at)
    return say_what_releases(put(spec, tuple(streams.values()), name=name, built_at=built_at, past=past))


def _checked_streams(main: Any, slow: Any) -> dict[str, Stream]:
    if not isinstance(slow, Mapping) or not slow:
        raise InvalidPipeline(
            f"{a_type(slow)} was given for the slow streams." if slow else "no slow stream was given.",
            why="slow streams are given by name.",
            do=f"write {_RIGHT}",
        )
    streams = {MAIN: main, **slow}
    if MAIN in slow:
        raise InvalidPipeline(f"a slow input is named {MAIN!r}.", do="give it another name: this is the main stream's.")
    for name, stream in streams.items():
        if not isinstance(stream, Stream):
            raise InvalidPipeline(f"{a_type(stream)} stands for {name!r}.", do=f"give streams: {_RIGHT}")
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
            raise InvalidPipeline(
                f"the slow input's name {name!r} is not allowed.",
                why="it becomes a column: a letter, then letters, digits and underscores.",
                do=f"write for instance {_RIGHT}",
            )
    seen: dict[str, str] = {}
    for name in slow:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidPipeline(
                f"{other!r} and {name!r} are one name.",
                why="each slow input becomes a column, and columns are compared without regard to case.",
                do="give the input another name.",
            )
    return streams


def _by_input(value: Any, argument: str, inputs: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return dict.fromkeys(inputs, value)
    if unknown := [name for name in value if name not in inputs]:
        raise InvalidPipeline(
            f"{argument}= names the input {unknown[0]!r}, which does not exist.",
            why=f"the inputs are {', '.join(inputs)}.",
            do="name one of these.",
        )
    return dict(value)
