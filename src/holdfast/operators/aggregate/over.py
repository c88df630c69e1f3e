"""``over``: every row with aggregates over the last rows of its key, in the order of event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline, present
from holdfast.graph.building import building, require_columns
from holdfast.graph.evolution import NOTHING, Evolution, Migration, past_of
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.releases import say_what_releases
from holdfast.graph.shape import Shape
from holdfast.operators.aggregate.aggregates import Aggregate, no_aggregate
from holdfast.operators.aggregate.conditions import check_boolean, check_condition, with_conditions
from holdfast.operators.aggregate.over_step import OverStep
from holdfast.operators.aggregate.parts import part_of, values_type
from holdfast.operators.aggregate.ranking import SortTerm, sort_terms, terms_in
from holdfast.operators.arguments import check_promise, checked_limit, limit_of
from holdfast.ports import SideRows
from holdfast.state import keyed
from holdfast.state.timeline import Promise

_KINDS = ("count", "sum", "mean", "variance", "min", "max", "first", "last", "max_by", "min_by")
_OF_WINDOWS = ("window", "emit", "idle_after", "forget_after")
_RIGHT = 'hf.over(rows=10, by="seller", price_of_ten=hf.mean("price"))'


@dataclass(frozen=True)
class Over:
    """Each row with aggregates over the last rows of its key.

    Parameters
    ----------
    by : tuple of str
        Key columns.
    rows : int
        Over how many rows.
    order : tuple of SortTerm
        What decides between rows of one time.
    aggregates : tuple of (str, Aggregate)
        Columns that are added.
    timestamp : str, optional
        The timestamp column; None until it has an input.
    timestamps : str
        ``ascending`` or ``strict``.
    disorder : str, int or None
        How far a row may be behind.
    max_waiting_rows : int, optional
        Waiting rows of one key from which that is reported.
    """

    by: tuple[str, ...]
    rows: int
    order: tuple[SortTerm, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    timestamp: str | None
    timestamps: str
    disorder: str | int | None
    max_waiting_rows: int | None = None
    kind: ClassVar[str] = "over"
    input_names: ClassVar[tuple[str, ...]] = ("rows",)

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late``."""
        return {"late": SideRows.of_inputs(self.by, self.input_names)}

    @property
    def time_columns(self) -> tuple[str | None, ...]:
        """``timestamp``."""
        return (self.timestamp,)

    def arguments(self) -> Mapping[str, Any]:
        """Return all arguments."""
        return {
            "by": list(self.by),
            "rows": self.rows,
            "order": [list(term) for term in self.order],
            "aggregates": {name: aggregate.arguments() for name, aggregate in self.aggregates},
            "timestamp": self.timestamp,
            "timestamps": self.timestamps,
            "disorder": self.disorder,
            **({} if self.max_waiting_rows is None else {"max_waiting_rows": self.max_waiting_rows}),
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the input's columns, without those of conditions, and the aggregates."""
        columns = inputs[0].columns
        require_columns(self.by, columns, "by=")
        require_columns([term.column for term in self.order], columns, "order=")
        if self.timestamp is not None:
            require_columns([self.timestamp], columns, "timestamp=")
        for name, one in self.aggregates:
            require_columns(one.reads, columns, f"{name}=hf.{one.kind}")
            if columns is not None and name.lower() in {column.lower() for column in columns}:
                raise InvalidPipeline(
                    f"two columns of the output would be called {name!r}.",
                    why="a row keeps its columns, and the aggregates are added to them.",
                    do=f"give the aggregate another name: {name}_of_last=hf....",
                )
        if columns is None:
            return Shape(None, self.timestamp, inputs[0].ids)
        conditions = {one.condition for _, one in self.aggregates}
        stays = (column for column in columns if column not in conditions)
        return Shape((*stays, *(name for name, _ in self.aggregates)), self.timestamp, inputs[0].ids)

    def step(self, inputs: Mapping[str, pa.Schema]) -> OverStep:
        """Return the step for rows of a schema."""
        ((name, schema),) = inputs.items()
        time = keyed.time_field(schema, present(self.timestamp, "it has no timestamp."))
        disorder = None if self.disorder is None else keyed.duration_ticks(self.disorder, time, "disorder")
        aggregates = {output: _with_names_of(output, one, schema) for output, one in self.aggregates}
        for output, one in aggregates.items():
            check_boolean(output, one, schema)
            part_of(output, one, values_type(output, one, schema))
        return OverStep(
            name, schema, keyed.key_schema(schema, self.by), time.name, self.rows, terms_in(schema, self.order),
            aggregates, Promise(self.timestamps == "strict", disorder), limit_of(self.max_waiting_rows),
        )  # fmt: skip


def _with_names_of(output: str, one: Aggregate, schema: pa.Schema) -> Aggregate:
    """Return an aggregate whose columns are named as in a schema."""
    column, order = (None if name is None else keyed.field_of(schema, name, output).name for name in
                     (one.column, one.order))  # fmt: skip
    return replace(one, column=column, order=order)


@dataclass(frozen=True)
class OverAnywhere:
    """Aggregates over last rows that have no input yet: what ``hf.over(...)`` returns."""

    spec: Over
    name: str | None
    origin: Origin
    past: Evolution = NOTHING

    def attach(self, stream: Stream) -> Stream:
        """Return the stream with the aggregates."""
        spec = self.spec
        with building(Over.kind, self.name, self.origin):
            column = keyed.timestamp_of(stream, spec.timestamp, here='hf.over(..., timestamp="time_hour")')
            stream = with_conditions(stream, dict(spec.aggregates), self.origin)
        spec = replace(spec, timestamp=column)
        return say_what_releases(apply(spec, (stream,), name=self.name, built_at=self.origin, past=self.past))


def over(
    *,
    rows: int,
    by: str | Sequence[str],
    order: str | None = None,
    timestamp: str | None = None,
    timestamps: str = "ascending",
    disorder: str | int | None = None,
    max_waiting_rows: int | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
    **aggregates: Aggregate,
) -> OverAnywhere:
    """Add to every row aggregates over the last rows of its key, the row itself among them, in the order of event time.

    Parameters
    ----------
    rows : int
        Over how many rows, at least 1; a key's first rows have fewer before them.
    by : str or sequence of str
        Key columns.
    order : str, optional
        What decides between rows of one time: columns with ``asc`` or ``desc``, as of ``hf.top``.  Rows that are equal
        by it, and without it all rows of one time, stay in the order of arrival.
    timestamp : str, optional
        The timestamp column, TIMESTAMP or BIGINT; by default the one that the source declares.
    timestamps : {"ascending", "strict"}
        What the rows of a key promise: never to go back, or also never to repeat a time.
    disorder : str or int, optional
        How far a row may be below the highest timestamp of its key.
    max_waiting_rows : int, optional
        Number of waiting rows of one key from which the sources are throttled where that helps; by default 1,000,000.
        A row waits for others of its own source, so here it never helps: the limit is relaxed and reported (the log,
        and ``limit_relaxed`` of the status).  Nothing is dropped.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.
    **aggregates : Aggregate
        New column -> ``hf.count(...)``, ``hf.sum``, ``hf.mean``, ``hf.variance``, ``hf.min``, ``hf.max``,
        ``hf.first``, ``hf.last``, ``hf.max_by`` or ``hf.min_by``, each also with ``where=``.

    Returns
    -------
    OverAnywhere
        To be used to the right of ``stream |``: the input's columns, then the aggregates; ascending by time in each
        key.  Rows below the bound of their key are late, and go to the side output ``late``.

    Raises
    ------
    InvalidPipeline
        If ``rows`` is no number of rows, nothing is computed, an aggregate has no form over rows, or (when attached) a
        column does not exist or there is no timestamp.

    Notes
    -----
    SQL's ``OVER (PARTITION BY by ORDER BY timestamp, order ROWS BETWEEN rows - 1 PRECEDING AND CURRENT ROW)``.  A row
    leaves when none before it can come any more.  State is the columns that are read, of ``rows - 1`` rows of each key,
    kept permanently, and the rows that wait.

    Examples
    --------
    ::

        sold | hf.over(rows=10, by="seller", price_of_ten=hf.mean("price"), name="lately")
    """
    with building(Over.kind, name) as built_at:
        keys = keyed.key_names(by)
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise InvalidPipeline(
                f"rows={rows!r} is not a number of rows.", do=f"write a whole number from 1: {_RIGHT}"
            )
        terms = () if order is None else sort_terms(order)
        check_promise(timestamps, disorder)
        _check_aggregates(aggregates)
        spec = Over(
            keys, rows, terms, tuple(aggregates.items()), timestamp, timestamps, disorder,
            checked_limit(max_waiting_rows),
        )  # fmt: skip
        past = past_of(renamed_from, migrate, kind=Over.kind, built_at=built_at)
        return OverAnywhere(spec, name, built_at, past)


def _check_aggregates(aggregates: Mapping[str, Any]) -> None:
    if not aggregates:
        raise InvalidPipeline("it computes nothing.", why="no aggregate is given.", do=f"write {_RIGHT}")
    for output, one in aggregates.items():
        if output in _OF_WINDOWS and not isinstance(one, Aggregate):
            raise InvalidPipeline(
                f"hf.over has no argument {output}=.",
                why="it goes over the last rows of a key, however far they are apart, and each row leaves once.",
                do=f"leave it out; or write hf.aggregate(..., {output}=...), with a window of event time.",
            )
        if not isinstance(one, Aggregate):
            raise no_aggregate(output, one, "over")
        if one.kind not in _KINDS:
            raise InvalidPipeline(
                f"{output}= was given hf.{one.kind}.",
                why=f"there are forms over rows of {', '.join(_KINDS)}.",
                do=f"write for instance {_RIGHT}; hf.aggregate(...) takes every aggregate, of a window.",
            )
        check_condition(output, one)
