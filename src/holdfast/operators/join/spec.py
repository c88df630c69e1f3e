"""``join``: the rows of two streams in pairs, by key and within a range of event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.expressions.text import quoted
from holdfast.graph import naming
from holdfast.graph.building import a_type, building, require_columns
from holdfast.graph.evolution import Migration, past_of
from holdfast.graph.nodes import Stream
from holdfast.graph.nodes import apply as put
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import (
    Limit,
    as_distance,
    check_offset,
    checked_limit,
    limit_column,
    limit_of,
    offset_ticks,
)
from holdfast.operators.join.changes_spec import ChangesJoin, changes_join, check_without_delete, delete_of
from holdfast.operators.join.range import PairRange
from holdfast.operators.join.rules import LEFT, RIGHT, SIDES, check_added, right_names, unlike
from holdfast.operators.join.step import JoinStep
from holdfast.operators.select import Select
from holdfast.ports import SideRows
from holdfast.state import keyed
from holdfast.state.timeline import Promise

HOWS = ("inner", "left", "right", "full", "semi", "anti")


class NotSaid(Enum):
    """What an argument is that nobody has given, where None says something."""

    NOT_SAID = "not said"


NOT_SAID = NotSaid.NOT_SAID
_TIMESTAMP = "joined_time"
_RIGHT = 'hf.join(orders, payments, on="order_id", within="2 h")'


@dataclass(frozen=True)
class Join:
    """Pair the rows of two inputs.

    Parameters
    ----------
    on : tuple of str
        Key columns, of the same names in both inputs.
    times : mapping of str to str
        Input -> its timestamp column.
    low, high : str or int, optional
        A pair is one if right's time minus left's time lies between them, both included; or right's time, where one of
        them is a column of left.  None: no limit.
    how : str
        Which rows are given.
    disorder : mapping of str to (str or int)
        Input -> how far a row may be below the newest of the whole input; what is not there counts as 0.
    suffix, timestamp : str
        Of columns of the right input whose name is taken, and the column with the time of a pair.
    max_waiting_rows : int, optional
        Number of rows that wait for an input at which sources that run ahead are throttled.
    forget_after : str or int, optional
        How far apart the two times are at most, where a limit is a column.
    """

    on: tuple[str, ...]
    times: Mapping[str, str]
    low: Limit
    high: Limit
    how: str
    disorder: Mapping[str, str | int]
    suffix: str
    timestamp: str
    max_waiting_rows: int | None = None
    forget_after: str | int | None = None
    kind: ClassVar[str] = "join"
    input_names: ClassVar[tuple[str, ...]] = SIDES

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late`` and ``unmatched``."""
        return {name: SideRows.of_inputs(self.on, self.input_names) for name in ("late", "unmatched")}

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The timestamp of each input."""
        return tuple(self.times[name] for name in SIDES)

    def arguments(self) -> Mapping[str, Any]:
        """Return every argument."""
        limit = {} if self.max_waiting_rows is None else {"max_waiting_rows": self.max_waiting_rows}
        apart = {} if self.forget_after is None else {"forget_after": self.forget_after}
        return {
            "on": list(self.on),
            "times": dict(self.times),
            "within": [self.low, self.high],
            "how": self.how,
            "disorder": dict(self.disorder),
            "suffix": self.suffix,
            "timestamp": self.timestamp,
            **limit,
            **apart,
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of a pair, or those of the left input."""
        for name, shape in zip(SIDES, inputs, strict=True):
            require_columns(self.on, shape.columns, f"on= of input {name!r}")
            require_columns([self.times[name]], shape.columns, f"timestamp of input {name!r}")
        left, right = inputs
        if left.columns is not None:
            _check_limits([self.low, self.high], left.columns, right.columns)
        if self.how in ("semi", "anti"):
            return left
        if left.columns is None or right.columns is None:
            return Shape(None, self.timestamp)
        columns = (*left.columns, *right_names(left.columns, right.columns, self.on, self.suffix).values())
        check_added(columns, self.timestamp, "timestamp")
        return Shape((*columns, self.timestamp), self.timestamp)

    def step(self, inputs: Mapping[str, pa.Schema]) -> JoinStep:
        """Return the step for inputs of these schemas."""
        key = keyed.key_schema(inputs[LEFT], self.on)
        time = keyed.time_field(inputs[LEFT], self.times[LEFT])
        theirs = keyed.key_schema(inputs[RIGHT], self.on)
        other = keyed.time_field(inputs[RIGHT], self.times[RIGHT])
        for one, same in zip(key, theirs, strict=True):
            if one.name != same.name or one.type != same.type:
                raise unlike(f"the key {same.name!r} of right is {same.type}, of left {one.name!r} is {one.type}")
        if other.type != time.type:
            raise unlike(f"the timestamp {other.name!r} of right is {other.type}, of left {time.name!r} is {time.type}")
        step = JoinStep(
            pa.schema([field.with_nullable(True) for field in key]),
            {name: inputs[name] for name in SIDES},
            {LEFT: time.name, RIGHT: other.name},
            self._pair_range(inputs[LEFT], time),
            self.how,
            {
                name: Promise(False, keyed.duration_ticks(self.disorder.get(name, 0), time, "disorder"), is_whole=True)
                for name in SIDES
            },
            self.suffix,
            self.timestamp,
            limit_of(self.max_waiting_rows),
        )
        _ = step.outputs  # says now which names clash
        return step

    def _pair_range(self, left: pa.Schema, time: pa.Field) -> PairRange:
        """Return which times of right a left row's partners have."""
        names = [limit_column(limit) for limit in (self.low, self.high)]
        begin, end = (None if name is None else _limit_field(left, name, time) for name in names)
        low, high = (
            None if limit is None or name is not None else _ticks(limit, time)
            for limit, name in zip((self.low, self.high), names, strict=True)
        )
        if begin == time.name:
            begin, low = None, 0
        if end == time.name:
            end, high = None, 0
        if self.forget_after is not None:
            apart = keyed.duration_ticks(self.forget_after, time, "forget_after")
            low, high = -apart if low is None else max(low, -apart), apart if high is None else min(high, apart)
        if low is not None and high is not None and low > high:
            raise InvalidPipeline(
                f"within=({self.low!r}, {self.high!r}) contains nothing.",
                why="right's time minus left's time lies between the first and the second.",
                do='write the lower one first: within=("-1 h", "2 h")',
            )
        return PairRange(low, high, begin, end)


def _ticks(value: str | int, time: pa.Field) -> int:
    try:
        return offset_ticks(value, time.type)
    except InvalidPipeline as error:
        right = "within=100" if time.type == pa.int64() else 'within="2 h"'
        raise InvalidPipeline(
            f"within={value!r} does not fit timestamps of type {time.type}.", why=error.why, do=f"write {right}"
        ) from error


def _limit_field(left: pa.Schema, name: str, time: pa.Field) -> str:
    """Return the column of left that is a limit, as it is written there."""
    _check_limits([name], left.names, None)
    found = keyed.field_of(left, name, "within=")
    if found.type != time.type:
        raise InvalidPipeline(
            f"within= names the column {found.name!r}, which is of type {found.type}.",
            why=f"the timestamps are of type {time.type}, and a limit is one of them.",
            do=f'bring it to that type before: left | hf.select("* except ({found.name})", '
            f'{found.name}="CAST({found.name} AS {"BIGINT" if time.type == pa.int64() else "TIMESTAMP"})")',
        )
    return str(found.name)


def _check_limits(limits: Sequence[Limit], left: Sequence[str], right: Sequence[str] | None) -> None:
    """Check that the columns which are limits are there.

    Raises
    ------
    InvalidPipeline
        If left has no such column; says so where right has it.
    """
    names = [name for limit in limits if (name := limit_column(limit)) is not None]
    mine, other = {name.lower() for name in left}, {name.lower() for name in right or ()}
    for name in names:
        if name.lower() not in mine and name.lower() in other:
            raise InvalidPipeline(
                f"within= names the column {name!r}, which the right stream has and the left one has not.",
                why="the range is that of each row of left.",
                do="exchange the streams: hf.join(right, left, ...)",
            )
    require_columns(names, left, "within=")


def join(
    left: Stream,
    right: Stream,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    within: str | int | tuple[str | int | None, str | int | None] | None = None,
    how: str = "inner",
    forget_after: str | int | NotSaid | None = NOT_SAID,
    disorder: str | int | Mapping[str, str | int] | None = None,
    suffix: str = "_right",
    timestamp: str = _TIMESTAMP,
    max_waiting_rows: int | None = None,
    delete: str | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Stream:
    """Pair the rows of two streams that have one key and lie within a range of event time.

    Parameters
    ----------
    left, right : Stream
        Two streams with a known timestamp column.
    on : str, sequence of str, or mapping of str to str
        Key columns, of one type in both streams; where their names differ, column of left -> column of right.  A key
        that is null has no partner.
    within : str, int or pair of them, optional
        ``"2 h"``: at most two hours apart.  ``("-1 h", "2 h")``: right's time minus left's time is between these.
        Ticks where timestamps are BIGINT.  ``("opens", "closes")``: right's time is between these columns of the left
        row.  None in the pair: no limit at that end, and the rows for which it is one are kept for ever.
    how : str
        ``"inner"``: pairs.  ``"left"``, ``"right"``, ``"full"``: besides, rows of that stream (of both) that have no
        partner, with nulls.  ``"semi"``: rows of left that have a partner, once, with the columns of left alone.
        ``"anti"``: those that have none.
    forget_after : str or int, optional
        Instead of ``within``: how long, in event time, a row waits for partners.  None, written out: for ever.  Beside
        a ``within`` with columns: how far apart the two times are at most.
    disorder : str, int or mapping, optional
        How far a row may be below the newest of its whole stream, whatever its key; for both streams or
        ``{"left": ..., "right": ...}``.  Rows further below are late.  By default 0, with a warning in ``explain``,
        ``plan`` and at the start: write ``disorder=0`` where streams are in the order of time.
    suffix : str
        Added to columns of right that have the name of a column of left.
    timestamp : str
        Name of the column with the time of a pair: the later of the two.
    max_waiting_rows : int, optional
        Number of rows that wait for the other stream from which the sources that run ahead are throttled; by default
        1,000,000.
    delete : str, optional
        Instead of ``within``, whatever the times of rows: name of a Boolean column that is added, true for rows that no
        longer hold.  A pair is emitted when its second row comes, and retracted when one of its rows no longer holds;
        a row without a partner as soon as it comes, until it has one: ``docs/changes.md``.  The streams need no
        timestamp, and either may be one of changes; there is no column ``timestamp``.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Returns
    -------
    Stream
        The columns of left, those of right without the key, and ``timestamp``; for ``semi`` and ``anti`` the columns
        of left.  Late rows are in the side output ``late``, rows without a partner in ``unmatched``; with ``delete``
        there are none.

    Raises
    ------
    InvalidPipeline
        If a stream has no known timestamp, a column is missing, types differ, or nothing is said of how far apart the
        rows of a pair are; if rows of a stream may be retracted, and there is no ``delete``.

    Notes
    -----
    A pair leaves when both streams are past its later row; a row without a partner when the other stream is past the
    last time that a partner may have.  The result depends on keys and timestamps only.

    Examples
    --------
    ::

        paid = hf.join(orders, payments, on="order_id", within=("0 s", "2 h"), how="left", name="paid")
    """
    with building(Join.kind, name) as built_at:
        for side, stream in ((LEFT, left), (RIGHT, right)):
            if not isinstance(stream, Stream):
                raise InvalidPipeline(f"{a_type(stream)} stands for the {side} stream.", do=f"write {_RIGHT}")
        if left.node is right.node:
            raise InvalidPipeline(
                f"stream {left.name!r} is given twice.",
                why="each of its rows would be its own partner.",
                do='to pair rows of one stream give one of them another form first: stream | hf.select("*")',
            )
        keys = _keys(on)
        if how not in HOWS:
            raise InvalidPipeline(
                f"how={how!r} is no kind of join.", why=f"there are {', '.join(HOWS)}.", do=f"write {_RIGHT}"
            )
        for argument, text in (("suffix", suffix), ("timestamp", timestamp)):
            if not isinstance(text, str) or not text:
                raise InvalidPipeline(f"{argument}={text!r} is not a text.", do=f'write {argument}="_2"')
        spec: Join | ChangesJoin
        if delete is not None:
            by_time = {"within": within, "disorder": disorder, "max_waiting_rows": max_waiting_rows}
            by_time |= {"forget_after": None if forget_after is NOT_SAID else forget_after}
            by_time |= {"timestamp": None if timestamp == _TIMESTAMP else timestamp}
            spec = changes_join(left, right, list(keys), how, suffix, delete_of(delete, by_time))
        else:
            spec = _join_by_time(
                left, right, tuple(keys), within, how, forget_after, _disorder(disorder), suffix, timestamp,
                checked_limit(max_waiting_rows),
            )  # fmt: skip
        past = past_of(renamed_from, migrate, kind=spec.kind, built_at=built_at)
        renamed = {other: mine for mine, other in keys.items() if other != mine}
        if renamed and right.columns is not None:
            _check_renamed(right.columns, renamed)
    if renamed:
        items = [f"* except ({', '.join(map(quoted, renamed))})"]
        items += [f"{quoted(other)} AS {quoted(mine)}" for other, mine in renamed.items()]
        as_named = None if name is None else naming.extended(name, "right")
        right = put(Select(tuple(items)), (right,), name=as_named, built_at=built_at, is_derived=True)
    return put(spec, (left, right), name=name, built_at=built_at, past=past)


def _join_by_time(
    left: Stream, right: Stream, on: tuple[str, ...], within: Any, how: str, forget_after: Any,
    disorder: Mapping[str, str | int], suffix: str, timestamp: str, max_waiting_rows: int | None,
) -> Join:  # fmt: skip
    check_without_delete(left, right)
    times = {side: keyed.timestamp_of(stream, None) for side, stream in ((LEFT, left), (RIGHT, right))}
    low, high, apart = _range(within, forget_after)
    _check_waits(low, apart, forget_after, times[LEFT])
    return Join(on, times, low, high, how, disorder, suffix, timestamp, max_waiting_rows, apart)


def _keys(on: Any) -> dict[str, str]:
    """Return the key columns of left, each with that of right."""
    if not isinstance(on, Mapping):
        return {name: name for name in keyed.key_names(on, "on")}
    mine = keyed.key_names(list(on), "on")
    other = keyed.key_names(list(on.values()), "on")
    return dict(zip(mine, other, strict=True))


def _check_renamed(columns: Sequence[str], renamed: Mapping[str, str]) -> None:
    require_columns(list(renamed), columns, "on=")
    stays = {column.lower() for column in columns} - {name.lower() for name in renamed}
    if taken := [mine for mine in renamed.values() if mine.lower() in stays]:
        raise InvalidPipeline(
            f"the right stream has a column {taken[0]!r}, besides the one that is joined on.",
            why="in the pairs the key has the name that it has in the left stream.",
            do=f'give that column another name before: right | hf.select("* except ({taken[0]})", other="{taken[0]}")',
        )


def _range(within: Any, forget_after: Any) -> tuple[Limit, Limit, str | int | None]:
    """Return between which limits right's time minus left's time lies, or right's time; and how far apart they are."""
    is_said = forget_after is not NOT_SAID
    if within is None and not is_said:
        raise InvalidPipeline(
            "no limit in event time is given.",
            why="rows would wait for partners for ever, and the state would grow without end.",
            do='say how far apart the rows of a pair may be: within="2 h", or within=("-1 h", "2 h"); '
            'or how long a row waits: forget_after="30 d", or for ever: forget_after=None',
        )
    apart = keyed.check_duration(forget_after, "forget_after") if is_said and forget_after is not None else None
    if within is None:
        return (None, None, None) if apart is None else (*_both_ways(apart), None)
    if not isinstance(within, Sequence) or isinstance(within, str):
        if limit_column(within) is not None:
            raise InvalidPipeline(
                f"within={within!r} is one column.", do=f'give two limits: within=("0 s", "{within}")'
            )
        keyed.check_duration(within, "within", least=0)
        within = _both_ways(within)
    if len(within) != 2:
        raise InvalidPipeline(
            f"within={within!r} is not a range.", do='give two limits: within=("-1 h", "2 h"), or one: within="2 h"'
        )
    names = [limit_column(limit) for limit in within]
    if apart is not None and not any(names):
        raise InvalidPipeline(
            "within= and forget_after= are both given.",
            why="both say how far two rows may be apart.",
            do='write one of them: within="2 h", or within=("-1 h", None) where an end is open',
        )
    for limit, name in zip(within, names, strict=True):
        if name is None:
            check_offset(limit, "within")
    low, high = within
    return low, high, apart


def _both_ways(distance: str | int) -> tuple[str | int, str | int]:
    return (f"-{distance.strip()}" if isinstance(distance, str) else -distance), distance


def _check_waits(low: Limit, apart: str | int | None, forget_after: Any, timestamp: str) -> None:
    """Check that it is said how long rows of right wait where a column of left, of any time, is their lower limit."""
    name = limit_column(as_distance(low, timestamp))
    if name is None or forget_after is not NOT_SAID:
        return
    raise InvalidPipeline(
        f"within= begins with the column {name!r}, and nothing says how long rows of right are needed.",
        why=f"a row of left may come whose {name} is far below its timestamp {timestamp!r}: each row of right would be "
        "kept for it.",
        do=f'say how far apart the times of a pair are at most: forget_after="30 d"; keep all rows of right: '
        f'forget_after=None; or begin with the timestamp: within=("{timestamp}", ...)',
    )


def _disorder(value: Any) -> dict[str, str | int]:
    if isinstance(value, Mapping):
        if unknown := [name for name in value if name not in SIDES]:
            raise InvalidPipeline(
                f"disorder= names the input {unknown[0]!r}, which does not exist.",
                why="the inputs are left and right.",
                do='name one of these: disorder={"right": "5 min"}',
            )
        given = dict(value)
    else:
        given = dict.fromkeys(SIDES, value)
    for amount in given.values():
        if amount is not None:
            keyed.check_duration(amount, "disorder", least=0)
    return {name: given[name] for name in SIDES if given.get(name) is not None}
