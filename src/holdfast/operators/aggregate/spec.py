"""``aggregate``: one row per key and window with aggregates of its rows; ``reduce`` is its running form."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building, check_choice, require_columns
from holdfast.graph.changes import RETRACTED, Changes
from holdfast.graph.evolution import NOTHING, Evolution, Migration, past_of
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.releases import say_what_releases
from holdfast.graph.shape import Shape
from holdfast.operators.aggregate import window as windows
from holdfast.operators.aggregate.aggregates import Aggregate, no_aggregate
from holdfast.operators.aggregate.collected import START
from holdfast.operators.aggregate.conditions import check_boolean, check_condition, with_conditions
from holdfast.operators.aggregate.cutting import cut_of
from holdfast.operators.aggregate.open import END
from holdfast.operators.aggregate.parts import part_of, values_type
from holdfast.operators.aggregate.ranking import Ranking
from holdfast.operators.aggregate.retractions import check_delete, check_over_changes
from holdfast.operators.aggregate.step import AggregateStep
from holdfast.operators.aggregate.window import Session, Total, Window
from holdfast.operators.arguments import check_promise, checked_limit, limit_of
from holdfast.ports import SideRows
from holdfast.state import keyed
from holdfast.state.timeline import Promise
from holdfast.types import units

_TIMED = 'hf.aggregate(..., timestamp="time_hour")'
_RIGHT = 'hf.aggregate(by="origin", window=hf.tumbling("1 hour"), departures=hf.count())'
_BY_TIME = ("tumbling", "sliding", "session")


@dataclass(frozen=True)
class Aggregation:
    """Aggregates of each key and window.

    Parameters
    ----------
    by : tuple of str
        Key columns; none for one key of all rows.
    window : Window
        How a key's rows are cut.
    aggregates : tuple of (str, Aggregate)
        Output columns.
    emit : str
        ``settled`` or ``changes``.
    timestamp : str, optional
        The timestamp column.
    timestamps : str
        ``ascending`` or ``strict``.
    disorder : str, int or None
        How far a row may be behind.
    idle_us, forget_us : int
        Logged time; 0 for never.
    max_waiting_rows : int, optional
        Open windows and collected values of one key from which that is reported.
    ranking : Ranking, optional
        The first rows of each window, instead of aggregates.
    delete : str, optional
        The output's Boolean column that is true for rows that no longer hold; None: they are not emitted.
    retracted : str, optional
        The input's; None: its rows only come.
    """

    by: tuple[str, ...]
    window: Window
    aggregates: tuple[tuple[str, Aggregate], ...]
    emit: str
    timestamp: str | None
    timestamps: str
    disorder: str | int | None
    idle_us: int
    forget_us: int
    max_waiting_rows: int | None = None
    ranking: Ranking | None = None
    delete: str | None = None
    retracted: str | None = None
    kind: ClassVar[str] = "aggregate"
    input_names: ClassVar[tuple[str, ...]] = ("rows",)

    @property
    def is_by_time(self) -> bool:
        """Whether event time decides to which window a row belongs."""
        return self.window.kind in _BY_TIME

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late``, where event time decides."""
        return {"late": SideRows.of_inputs(self.by, self.input_names)} if self.is_by_time else {}

    @property
    def time_columns(self) -> tuple[str | None, ...]:
        """``timestamp``."""
        return (self.timestamp,)

    @property
    def wakes(self) -> bool:
        """Whether its windows end by the clock, rows or not: those of a timer, or of a key that is silent for long."""
        ends_forgotten = self.forget_us > 0 and self.emit == "settled"
        return self.window.kind == "timer" or ends_forgotten or self.idle_us > 0

    @property
    def watches_clock(self) -> bool:
        """Whether windows end by the clock, or keys are forgotten."""
        return self.wakes or self.forget_us > 0

    def arguments(self) -> Mapping[str, Any]:
        """Return all arguments."""
        return {
            "by": list(self.by),
            "window": windows.arguments(self.window),
            "aggregates": {name: aggregate.arguments() for name, aggregate in self.aggregates},
            "emit": self.emit,
            "timestamp": self.timestamp,
            "timestamps": self.timestamps,
            "disorder": self.disorder,
            "idle_us": self.idle_us,
            "forget_us": self.forget_us,
            **({} if self.max_waiting_rows is None else {"max_waiting_rows": self.max_waiting_rows}),
            **({} if self.ranking is None else {"top": self.ranking.arguments()}),
            **{
                name: column
                for name, column in (("delete", self.delete), (RETRACTED, self.retracted))
                if column is not None
            },
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return key, window and aggregates, after checking the columns."""
        require_columns(self.by, inputs[0].columns, "by=")
        for name, aggregate in self.aggregates:
            require_columns(aggregate.reads, inputs[0].columns, f"{name}=hf.{aggregate.kind}")
        if self.timestamp is not None:
            require_columns([self.timestamp], inputs[0].columns, "timestamp=")
        spans = () if self.window.kind == "total" else (START, END)
        ranked = () if self.ranking is None else (self.ranking.rank, *self.ranking.columns)
        deletes = () if self.delete is None else (self.delete,)
        columns = (*self.by, *spans, *(name for name, _ in self.aggregates), *ranked, *deletes)
        return Shape(columns, START if spans and self.window.kind != "count_window" else None)

    def changes(self, inputs: Sequence[Shape]) -> Changes | None:
        """Return the changes that it emits, if any; after checking that it can be computed of changes."""
        if inputs[0].changes is not None:
            check_over_changes(
                inputs[0].changes, self.by, self.aggregates, self.window, forgets=self.forget_us > 0,
                retracts=self.emit == "settled" or self.delete is not None,
            )  # fmt: skip
        if self.delete is None:
            return None
        windows = () if self.window.kind == "total" else (START,)
        return Changes(self.delete, (*self.by, *windows, *(() if self.ranking is None else (self.ranking.rank,))))

    def reads(self, outputs: Collection[str]) -> Collection[str] | None:
        """Return the columns of keys, windows and aggregates; None where whole rows are kept, or given as late."""
        if self.ranking is not None or outputs:
            return None
        of_rows = {name for name in (self.timestamp, self.retracted) if name is not None}
        return of_rows.union(self.by, *(aggregate.reads for _, aggregate in self.aggregates))

    def step(self, inputs: Mapping[str, pa.Schema]) -> AggregateStep:
        """Return the step for rows of a schema."""
        ((name, schema),) = inputs.items()
        time = None if self.timestamp is None else keyed.time_field(schema, self.timestamp)
        is_timestamp = time is None or time.type != pa.int64()
        disorder = None if self.disorder is None or time is None else windows.ticks(
            self.disorder, is_timestamp=is_timestamp, argument="disorder"
        )  # fmt: skip
        key = keyed.key_schema(schema, self.by)
        for output, one in self.aggregates:
            check_boolean(output, one, schema)
            part_of(output, one, values_type(output, one, schema))
        return AggregateStep(
            name, schema, key, None if time is None else time.name, cut_of(self.window, is_timestamp=is_timestamp),
            dict(self.aggregates), self.emit == "changes", Promise(self.timestamps == "strict", disorder),
            self.idle_us, self.forget_us, limit_of(self.max_waiting_rows),
            None if self.ranking is None else self.ranking.of_schema(schema), self.delete,
            None if self.retracted is None else keyed.field_of(schema, self.retracted, RETRACTED).name,
        )  # fmt: skip


@dataclass(frozen=True)
class AggregationAnywhere:
    """An aggregation that has no input yet: what ``hf.aggregate(...)`` returns."""

    spec: Aggregation
    name: str | None
    origin: Origin
    past: Evolution = NOTHING

    def attach(self, stream: Stream) -> Stream:
        """Return the stream of aggregates."""
        spec = self.spec
        with building(spec.kind, self.name, self.origin):
            column = keyed.timestamp_of(stream, spec.timestamp, here=_TIMED) if spec.window.kind in _BY_TIME else (
                spec.timestamp or stream.timestamp
            )  # fmt: skip
            stream = with_conditions(stream, dict(spec.aggregates), self.origin)
        changes = stream.shape.changes
        ranking = None if spec.ranking is None else replace(spec.ranking, keeps_all=changes is not None)
        spec = replace(spec, timestamp=column, retracted=None if changes is None else changes.column, ranking=ranking)
        return say_what_releases(apply(spec, (stream,), name=self.name, built_at=self.origin, past=self.past))


def aggregate(
    *,
    by: str | Sequence[str] | None = None,
    window: Window,
    emit: str = "settled",
    delete: str | None = None,
    timestamp: str | None = None,
    timestamps: str = "ascending",
    disorder: str | int | None = None,
    idle_after: str | None = None,
    forget_after: str | None = None,
    max_waiting_rows: int | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
    **aggregates: Aggregate,
) -> AggregationAnywhere:
    """Compute aggregates of the rows of each key and window.

    Parameters
    ----------
    by : str or sequence of str, optional
        Key columns; without them all rows have the same key.
    window : Window
        ``hf.tumbling``, ``hf.sliding``, ``hf.session``, ``hf.count_window``, ``hf.timer`` or ``hf.total``.
    emit : {"settled", "changes"}
        One row per window when it is final, or in each epoch one row per window that changed, to be upserted by
        ``(*by, "window_start")``.
    delete : str, optional
        With ``emit="changes"``: name of a Boolean column that is added, true for rows that no longer hold.  A window
        that changes then gives its row as it was, with true, and as it is, with false; nothing where both are the same.
        The argument ``delete=`` of a sink takes it, and so do other aggregations: ``docs/changes.md``.
    timestamp : str, optional
        The timestamp column, TIMESTAMP or BIGINT; by default the one that the source declares.
    timestamps : {"ascending", "strict"}
        What the rows of a key promise: never to go back, or also never to repeat a time.
    disorder : str or int, optional
        How far a row may be below the highest timestamp of its key.
    idle_after : str, optional
        Logged time after which the windows of a silent key are final.
    forget_after : str, optional
        Logged time after which a silent key is forgotten; its open windows are final.
    max_waiting_rows : int, optional
        Number of open windows of one key, with the values that are collected for them, from which the sources are
        throttled where that helps; by default 1,000,000.  A key waits for its own rows, so here it never helps: the
        limit is relaxed and reported (the log, and ``limit_relaxed`` of the status).  Nothing is dropped.
    name : str, optional
        The node's name.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.
    **aggregates : Aggregate
        Output column -> ``hf.count()``, ``hf.mean("dep_delay")`` and so on.

    Raises
    ------
    InvalidPipeline
        If a name, a window or a type does not fit.

    Notes
    -----
    Output: key columns, ``window_start``, ``window_end`` (none for ``hf.total()``), aggregates; ascending by
    ``window_start``, then key.  Rows below the bound of their key are late: they go to the side output ``late``.

    Examples
    --------
    ::

        hourly = flights | hf.aggregate(by="origin", window=hf.tumbling("1 hour"),
                                        departures=hf.count(), delay=hf.mean("dep_delay"), name="hourly")
    """
    return declare(
        aggregates, called="aggregate",
        by=by, window=window, emit=emit, delete=delete, timestamp=timestamp, timestamps=timestamps, disorder=disorder,
        idle_after=idle_after, forget_after=forget_after, max_waiting_rows=max_waiting_rows, name=name,
        renamed_from=renamed_from, migrate=migrate,
    )  # fmt: skip


def reduce(
    *,
    by: str | Sequence[str] | None = None,
    delete: str | None = None,
    forget_after: str | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
    **aggregates: Aggregate,
) -> AggregationAnywhere:
    """Keep aggregates over all rows of each key: one row per changed key and epoch, to be upserted by the key.

    The same as ``hf.aggregate(by=by, window=hf.total(), emit="changes", ...)``; for one row per *input row* there is
    ``hf.accumulate``.

    Parameters
    ----------
    by : str or sequence of str, optional
        Key columns; without them all rows have the same key.
    delete : str, optional
        Name of a Boolean column that is added, true for rows that no longer hold: as of ``hf.aggregate``.
    forget_after : str, optional
        Logged time after which a silent key is forgotten; its next row starts again.
    name : str, optional
        The node's name: the identity of its state.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.
    **aggregates : Aggregate
        Output column = aggregate.

    Examples
    --------
    ::

        balances = bookings | hf.reduce(by="account", balance=hf.sum("amount"), name="balances")
    """
    return declare(
        aggregates, called="reduce", by=by, window=Total(), emit="changes", delete=delete, forget_after=forget_after,
        name=name, renamed_from=renamed_from, migrate=migrate,
    )  # fmt: skip


def declare(
    aggregates: Mapping[str, Aggregate],
    *,
    called: str,
    by: str | Sequence[str] | None,
    window: Window,
    emit: str,
    delete: str | None = None,
    timestamp: str | None = None,
    timestamps: str = "ascending",
    disorder: str | int | None = None,
    idle_after: str | None = None,
    forget_after: str | None = None,
    max_waiting_rows: int | None = None,
    name: str | None,
    renamed_from: str | None,
    migrate: Migration | Mapping[str, Migration] | None,
    ranking: Ranking | None = None,
) -> AggregationAnywhere:
    """Return an aggregation without input, after checking what does not depend on its rows: all its forms end here."""
    with building(called, name) as built_at:
        keys = () if by is None else keyed.key_names(by)
        _check_window(window)
        if ranking is None:
            _check_aggregates(aggregates, (*keys, delete) if isinstance(delete, str) else keys, called)
        check_choice("emit", emit, ("settled", "changes"))
        check_promise(timestamps, disorder)
        if window.kind not in _BY_TIME and (disorder is not None or idle_after is not None):
            raise InvalidPipeline(
                f"disorder= and idle_after= have no meaning for hf.{window.kind}.",
                why="its windows follow from arrival and not from event time.",
                do='leave them out, or choose a window of event time: hf.tumbling("1 hour").',
            )
        if isinstance(window, Session) and emit == "changes" and disorder is not None:
            raise InvalidPipeline(
                'sessions of rows in disorder cannot be emitted with emit="changes".',
                why="a late row joins two sessions to one, and an upsert cannot take the second back.",
                do='write emit="settled", or sort before.',
            )
        spec = Aggregation(
            keys, window, tuple(aggregates.items()), emit, timestamp, timestamps, disorder,
            _us(idle_after, "idle_after"), _us(forget_after, "forget_after"), checked_limit(max_waiting_rows),
            ranking, delete,
        )  # fmt: skip
        if delete is not None:
            ranked = () if ranking is None else (ranking.rank, *ranking.columns)
            check_delete(delete, (*keys, *ranked), emit=emit, forgets=spec.forget_us > 0)
        past = past_of(renamed_from, migrate, kind=Aggregation.kind, built_at=built_at)
        return AggregationAnywhere(spec, name, built_at, past)


def _us(text: str | None, argument: str) -> int:
    return 0 if text is None else units.duration_us(text, argument=argument)


def _check_window(window: Any) -> None:
    if not isinstance(window, Window):
        raise InvalidPipeline(
            f"window= was given {a_type(window)}.", why="a window is a value of its own.", do=f"write {_RIGHT}"
        )


def _check_aggregates(aggregates: Mapping[str, Any], keys: Sequence[str], called: str) -> None:
    if not aggregates:
        raise InvalidPipeline("it computes nothing.", why="no aggregate is given.", do=f"write for instance {_RIGHT}")
    for name, given in aggregates.items():
        if not isinstance(given, Aggregate):
            raise no_aggregate(name, given, called)
        check_condition(name, given)
    taken = [column.lower() for column in (*keys, START, END)]
    for name in aggregates:
        if name.lower() in taken:
            raise InvalidPipeline(
                f"two columns of the output would be called {name!r}.",
                why="key columns, window_start, window_end and aggregates are columns of one output.",
                do=f"give one another name: {name}_=hf....",
            )
        taken.append(name.lower())
