"""A table that changes by a stream, and the look-up in it as of the event time of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building, require_columns
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream
from holdfast.graph.nodes import apply as put
from holdfast.graph.shape import Shape
from holdfast.operators.lookup.spec import ADDING
from holdfast.operators.select import Select
from holdfast.operators.stateful.merge_step import MAIN, Flat, MergeStep
from holdfast.ports import SideRows
from holdfast.state import keyed
from holdfast.state.bucket_report import WAITING_ROWS_MAX
from holdfast.state.timeline import Promise
from holdfast.types import units

TABLE = "table"


@dataclass(frozen=True)
class ChangingTable:
    """The latest row of each key of a stream, as of a time: what :func:`table` returns.

    Parameters
    ----------
    stream : Stream
        Its changes.
    key : tuple of str
        Key columns.
    timestamp : str
        From when on a row counts.
    disorder : str, int or None
        How far a change may be below the newest one.
    idle_after : str, optional
        After how long without a change rows no longer wait for one.
    """

    stream: Stream
    key: tuple[str, ...]
    timestamp: str
    disorder: str | int | None
    idle_after: str | None


def table(
    stream: Stream,
    *,
    key: str | Sequence[str],
    disorder: str | int | None = None,
    idle_after: str | None = None,
) -> ChangingTable:
    """Return a stream of changes as a table, for ``hf.lookup``: of each key the row that is valid at a time.

    Parameters
    ----------
    stream : Stream
        The changes: a row is valid from its timestamp on, until the next one of its key.
    key : str or sequence of str
        Key columns.
    disorder : str or int, optional
        How far a change may be below the newest one, whatever their keys: ``"10 min"``, or ticks where timestamps are
        BIGINT.  By default changes ascend.
    idle_after : str, optional
        Rows that have waited this long, in logged batch time, leave with what the table holds: for a table that may
        not change for hours.  By default they wait.

    Returns
    -------
    ChangingTable

    Raises
    ------
    InvalidPipeline
        If the stream has no known timestamp, or a duration cannot be read.

    Examples
    --------
    ::

        known = hf.lookup(orders, hf.table(customers, key="id"), on="customer", name="known")
    """
    with building(TABLE):
        if not isinstance(stream, Stream):
            raise InvalidPipeline(
                f"{a_type(stream)} stands for the stream of changes.", do='write hf.table(customers, key="id")'
            )
        keys = keyed.key_names(key, "key")
        require_columns(keys, stream.columns, "key=")
        if disorder is not None:
            keyed.check_duration(disorder, "disorder", least=0)
        if idle_after is not None:
            units.duration_us(idle_after, argument="idle_after")
        return ChangingTable(stream, keys, keyed.timestamp_of(stream, None), disorder, idle_after)


@dataclass(frozen=True)
class AsOfLookup:
    """Add the columns of the row of a table that is valid at each row's time.

    Parameters
    ----------
    by : tuple of str
        Key columns, of the same names in both inputs.
    times : tuple of (str, str)
        Timestamp columns: of the rows, of the table.
    how : str
        ``left``, ``inner``, ``semi`` or ``anti``.
    columns : tuple of (str, str), optional
        What is added; None: all but key and timestamp.
    disorder : tuple of (str, int or None)
        How far the rows, and changes of the table, may be out of order, whatever their keys.
    idle_after : str, optional
        After how long rows no longer wait.
    """

    by: tuple[str, ...]
    times: tuple[str, str]
    how: str
    columns: tuple[tuple[str, str], ...] | None
    disorder: tuple[str | int | None, str | int | None]
    idle_after: str | None
    kind: ClassVar[str] = "lookup_as_of"
    input_names: ClassVar[tuple[str, ...]] = (MAIN, TABLE)

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late``, and ``unmatched``: rows that find nothing."""
        return {
            "late": SideRows.of_inputs(self.by, self.input_names),
            "unmatched": SideRows.of_inputs(self.by, self.input_names, keeps_bounds=True),
        }

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The timestamp of each input."""
        return self.times

    @property
    def wakes(self) -> bool:
        """Whether rows leave it by the clock: those that waited for long enough."""
        return self.idle_after is not None

    @property
    def watches_clock(self) -> bool:
        """Whether rows leave it by the clock."""
        return self.wakes

    def arguments(self) -> Mapping[str, Any]:
        """Return every argument."""
        return {
            "by": list(self.by),
            "times": list(self.times),
            "how": self.how,
            "columns": None if self.columns is None else dict(self.columns),
            "disorder": list(self.disorder),
            "idle_after": self.idle_after,
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of the rows, and those that are added."""
        main, of_table = inputs
        require_columns(self.by, main.columns, "on=")
        require_columns([theirs for _, theirs in self.columns or ()], of_table.columns, "columns=")
        if self.how not in ADDING:
            return main
        if main.columns is None or (of_table.columns is None and self.columns is None):
            return Shape(None, main.timestamp, main.ids)
        names = [name for name, _ in self._added(of_table.columns or ())]
        taken = {column.lower() for column in main.columns}
        if twice := [name for at, name in enumerate(names) if name.lower() in taken or name in names[:at]]:
            raise InvalidPipeline(
                f"the look-up adds a second column {twice[0]!r}.",
                why="the stream, or another column of the table, has one of this name.",
                do=f'give it another one: hf.lookup(..., columns={{"table_{twice[0]}": "{twice[0]}"}}), with all that '
                "are wanted.",
            )
        return Shape((*main.columns, *names), main.timestamp, main.ids)

    def step(self, inputs: Mapping[str, pa.Schema]) -> MergeStep:
        """Return the step: that of a merge, whose inputs promise an order of all of their rows."""
        main, of_table = inputs[MAIN], inputs[TABLE]
        key, theirs = keyed.key_schema(main, self.by), keyed.key_schema(of_table, self.by)
        time, other = keyed.time_field(main, self.times[0]), keyed.time_field(of_table, self.times[1])
        if time.type != other.type:
            raise _unlike(f"its timestamp {other.name!r} is {other.type}, and that of the rows is {time.type}")
        for one, two in zip(key, theirs, strict=True):
            if one.type != two.type:
                raise _unlike(f"the key {one.name!r} is {two.type} there, and {one.type} in the rows")
        promises = {
            name: Promise(False, None if by is None else keyed.duration_ticks(by, time, "disorder"), is_whole=True)
            for name, by in zip(self.input_names, self.disorder, strict=True)
        }
        idle_us = None if self.idle_after is None else units.duration_us(self.idle_after)
        times = {MAIN: time.name, TABLE: other.name}
        self.shape([Shape(tuple(main.names), time.name), Shape(tuple(of_table.names), other.name)])
        flat = Flat(self.how, self._added(of_table.names) if self.how in ADDING else ())
        return MergeStep(
            dict(inputs), key, times, promises, None, idle_us, None, max_waiting_rows=WAITING_ROWS_MAX, flat=flat
        )

    def _added(self, there: Sequence[str]) -> tuple[tuple[str, str], ...]:
        if self.columns is not None:
            return self.columns
        return tuple((name, name) for name in there if name not in (*self.by, self.times[1]))


def _unlike(why: str) -> InvalidPipeline:
    return InvalidPipeline(
        "the table does not fit the rows.",
        why=f"{why}.",
        do='bring them to one type before: changes | hf.select("* except (id)", id="CAST(id AS STRING)")',
    )


def as_of(
    stream: Stream,
    changes: ChangingTable,
    *,
    on: tuple[tuple[str, str], ...],
    how: str,
    columns: tuple[tuple[str, str], ...] | None,
    disorder: str | int | None,
    name: str | None,
    built_at: Origin,
) -> Stream:
    """Return the rows of a stream with those of a table as of their time; arguments as those of ``lookup``."""
    theirs = tuple(other for _, other in on)
    if set(theirs) != set(changes.key):
        raise InvalidPipeline(
            f"on= names the table's {', '.join(theirs)}, and its key is {', '.join(changes.key)}.",
            why="the state holds the latest row of each key.",
            do="name the whole key; or make another table, hf.table(stream, key=...).",
        )
    if disorder is not None:
        keyed.check_duration(disorder, "disorder", least=0)
    renamed = changes.stream
    if any(ours != other for ours, other in on):
        items = [f"* except ({', '.join(f'`{other}`' for other in theirs)})"]
        items += [f"`{other}` AS `{ours}`" for ours, other in on]
        renamed = put(Select(tuple(items)), (renamed,), name=None, built_at=built_at)
    spec = AsOfLookup(
        tuple(ours for ours, _ in on),
        (keyed.timestamp_of(stream, None), changes.timestamp),
        how,
        columns,
        (disorder, changes.disorder),
        changes.idle_after,
    )
    return put(spec, (stream, renamed), name=name, built_at=built_at)
