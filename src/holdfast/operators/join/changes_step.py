"""The step of a join of changes: of the rows that hold in both inputs, which pairs hold from now on or no longer do.

Nothing waits for event time: what holds after an epoch is the join, as in SQL, of the rows that hold then
(design/0065).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.join.output import pair_columns
from holdfast.operators.join.rules import LEFT, RIGHT, SIDES, pair_fields, right_names
from holdfast.operators.join.side import INPUT
from holdfast.state import joins, tables
from holdfast.state.keys import Ints, by_code, coded, found, numbers, ordinals_from
from holdfast.state.rows import rows_at
from holdfast.state.step import ABSORBED, PLACE, Arrivals, Change, Result, StateTable, StepTime, has_end
from holdfast.state.timeline import Bools

EPOCH = "__epoch__"
"""Column of a row in the state: the epoch in which it came."""

NUMBER = "__number__"
"""Column of a row in the state: its place among all that came in that epoch."""

ENDED = "ended"
"""Name of the table with the inputs that have ended."""

_ALONE = {LEFT: ("left", "full", "anti"), RIGHT: ("right", "full")}
"""Input -> the joins that give its rows without a partner."""


@dataclass(frozen=True)
class InputDelta:
    """The rows of one input whose keys have rows in an epoch.

    Parameters
    ----------
    rows : pa.Table
        The rows that held before the epoch, in the order in which they came, then those that hold after it and came in
        it.
    keys : array of int64
        The number of the key of each.
    was, now : array of bool
        Which of them held before the epoch, and which hold after it.
    """

    rows: pa.Table
    keys: Ints
    was: Bools
    now: Bools

    @staticmethod
    def of(known: pa.Table, came: pa.Table, keys: tuple[Ints, Ints], is_gone: Bools) -> InputDelta:
        """Return what holds of the rows of the state and of those that came, as rows that are equal cancel each other.

        Parameters
        ----------
        known, came : pa.Table
            With the columns of the state.
        keys : tuple of array of int64
            The number of the key of each row of both.
        is_gone : array of bool
            Which of those that came say that a row no longer holds.  Which of several equal rows that is cannot be
            told, and is the last one here: so those that stay are not written again.
        """
        order = np.lexsort((numbers(known.column(NUMBER)), numbers(known.column(EPOCH))))
        rows = tables.united([known.take(pa.array(order)), came], known.schema)
        codes = joins.key_codes(rows, [name for name in rows.column_names if name not in (EPOCH, NUMBER)])
        size = int(codes.max(initial=-1)) + 1
        comes = np.concatenate([np.ones(known.num_rows, bool), ~is_gone])
        left = np.bincount(codes[comes], minlength=size) - np.bincount(codes[~comes], minlength=size)
        which = np.flatnonzero(comes)
        was = which < known.num_rows
        now = ordinals_from(np.zeros(size, np.int64), codes[which], size) < left[codes[which]]
        stays = was | now
        of_key = np.concatenate([keys[0][order], keys[1]])[which[stays]]
        return InputDelta(rows_at(rows, which[stays]), of_key, was[stays], now[stays])

    @property
    def that_change(self) -> Ints:
        """The rows that come or go."""
        return np.flatnonzero(self.was != self.now)

    @property
    def that_stay(self) -> Ints:
        """The rows that held, and hold."""
        return np.flatnonzero(self.was & self.now)

    def has_any(self, which: Bools, size: int) -> Bools:
        """Return for each key whether it has any of some rows."""
        return np.bincount(self.keys[which], minlength=size) > 0

    def change(self, table: StateTable) -> Change:
        """Return what becomes of the state."""
        gone = rows_at(self.rows.select(list(table.key)), np.flatnonzero(self.was & ~self.now))
        return Change(rows_at(self.rows, np.flatnonzero(self.now & ~self.was)), gone)


@dataclass(frozen=True)
class JoinDelta:
    """What the join has before an epoch or after it, and not both: rows of the inputs by their numbers, -1 for none.

    Parameters
    ----------
    left, right : array of int64
        The rows.
    is_gone : array of bool
        Which hold no longer.
    """

    left: Ints
    right: Ints
    is_gone: Bools

    @staticmethod
    def between(left: Ints, right: Ints, was: Bools, now: Bools) -> JoinDelta:
        """Return those that were and are not, or are and were not."""
        differs = was != now
        return JoinDelta(left[differs], right[differs], was[differs])

    @staticmethod
    def of_all(parts: list[JoinDelta]) -> JoinDelta:
        """Return all of them."""
        return JoinDelta(
            np.concatenate([part.left for part in parts]),
            np.concatenate([part.right for part in parts]),
            np.concatenate([part.is_gone for part in parts]),
        )


@dataclass(frozen=True)
class ChangesJoinStep:
    """The rows of two inputs in pairs, as they come and go.

    State: ``left`` and ``right``, the rows that hold; ``ended``, the inputs of which no row follows.

    Parameters
    ----------
    key : pa.Schema
        Key columns.
    inputs : mapping of str to pa.Schema
        ``left`` and ``right``.
    how : str
        ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``.
    suffix : str
        What columns of the right input get that have the name of one of the left.
    delete : str
        The output's Boolean column that is true for rows that no longer hold.
    retracted : mapping of str to str
        Input -> its column that says so; what is not there only comes.
    """

    key: pa.Schema
    inputs: Mapping[str, pa.Schema]
    how: str
    suffix: str
    delete: str
    retracted: Mapping[str, str]
    for_all_keys: ClassVar[Mapping[str, str]] = {ENDED: ""}

    @property
    def is_of_pairs(self) -> bool:
        """Whether its rows are pairs; else they are rows of the left input."""
        return self.how not in ("semi", "anti")

    @cached_property
    def columns(self) -> Mapping[str, pa.Schema]:
        """Input -> the columns of its rows that are kept: of right the key alone, where only partners count."""
        found = {}
        for side, schema in self.inputs.items():
            names = [name for name in schema.names if name != self.retracted.get(side)]
            found[side] = pa.schema([schema.field(name) for name in names])
        return found if self.is_of_pairs else {**found, RIGHT: self.key}

    @cached_property
    def tables(self) -> Mapping[str, StateTable]:
        """The rows of each input that hold, and which inputs have ended."""
        own = [pa.field(EPOCH, pa.int64()), pa.field(NUMBER, pa.int64())]
        key = (*self.key.names, EPOCH, NUMBER)
        rows = {side: StateTable(pa.schema([*schema, *own]), key) for side, schema in self.columns.items()}
        return {**rows, ENDED: StateTable(pa.schema([(INPUT, pa.string())]), (INPUT,))}

    @cached_property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Pairs, or rows of the left input, with the column that says which no longer hold."""
        left, right = self.columns[LEFT], self.columns[RIGHT]
        fields = list(left)
        if self.is_of_pairs:
            names = right_names(left.names, right.names, self.key.names, self.suffix)
            fields = pair_fields(left, right, names, self.key.names, self.how)
        return {"rows": pa.schema([*fields, pa.field(self.delete, pa.bool_())])}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Take in what came and what no longer holds; give the pairs that come or go by that."""
        came = {side: self._came(side, arrivals[side].rows, at) for side in SIDES}
        keys = tables.united([rows.select(self.key.names) for rows, _ in came.values()])
        codes, first = coded(keys)
        keys = rows_at(keys, first)
        held: dict[str, InputDelta] = {}
        for side, own in zip(SIDES, np.split(codes, [came[LEFT][0].num_rows]), strict=True):
            positions, known = found(state[side], keys)
            rows, is_gone = came[side]
            held[side] = InputDelta.of(rows_at(state[side], positions), rows, (known, own), is_gone)
        is_joined = ~np.logical_or.reduce([np.asarray(pc.is_null(column)) for column in keys.columns])
        changes = {side: rows.change(self.tables[side]) for side, rows in held.items()}
        changes[ENDED], bounds = self._ends(state[ENDED], arrivals)
        return Result(
            {"rows": self._rows(held[LEFT], held[RIGHT], self._delta(held[LEFT], held[RIGHT], is_joined))},
            {name: each for name, each in changes.items() if each.upserts.num_rows or each.deletes.num_rows},
            bounds,
            fates={ABSORBED: sum(arrivals[side].rows.num_rows for side in SIDES)},
        )

    def _ends(self, known: pa.Table, arrivals: Mapping[str, Arrivals]) -> tuple[Change, pa.Table | None]:
        """Return which inputs have ended in the epoch, and the end of the output where both have."""
        before = set(known.column(INPUT).to_pylist())
        ended = [side for side in SIDES if side not in before and has_end(arrivals[side].bounds)]
        table = self.tables[ENDED]
        change = Change(pa.table([ended], schema=table.schema), tables.empty(tables.key_schema(table)))
        has_ended = bool(ended) and before.union(ended) == {*SIDES}
        return change, tables.end_for_all(self.key) if has_ended else None

    def _came(self, side: str, rows: pa.Table, at: StepTime) -> tuple[pa.Table, Bools]:
        """Return the rows of an input with the columns of the state, and which of them say that one no longer holds."""
        column = self.retracted.get(side)
        is_gone = np.zeros(rows.num_rows, bool)
        if column is not None:
            is_gone = np.asarray(pc.fill_null(rows.column(column), False)).astype(bool)
        columns = [*rows.select(self.columns[side].names).columns, pa.repeat(pa.scalar(at.epoch), rows.num_rows)]
        entries = pa.Table.from_arrays([*columns, rows.column(PLACE)], schema=self.tables[side].schema)
        if self.how in _ALONE[side]:
            return entries, is_gone
        # A null equals nothing: such a row is in no pair.
        has_key = np.logical_and.reduce([np.asarray(pc.is_valid(rows.column(name))) for name in self.key.names])
        return (entries, is_gone) if has_key.all() else (entries.filter(pa.array(has_key)), is_gone[has_key])

    def _delta(self, left: InputDelta, right: InputDelta, is_joined: Bools) -> JoinDelta:
        """Return what comes and goes.

        Parameters
        ----------
        left, right : InputDelta
            The rows of the inputs.
        is_joined : array of bool
            For each key whether it has no null.
        """
        if self.how == "semi":
            return _by_partner(left, right, is_joined, wants_one=True)
        if self.how == "anti":
            return _by_partner(left, right, is_joined, wants_one=False)
        everything = np.arange(right.rows.num_rows)
        parts = [
            _pairs(left, left.that_change, right, everything, is_joined),
            _pairs(left, left.that_stay, right, right.that_change, is_joined),
        ]
        if self.how in _ALONE[LEFT]:
            parts.append(_by_partner(left, right, is_joined, wants_one=False))
        if self.how in _ALONE[RIGHT]:
            alone = _by_partner(right, left, is_joined, wants_one=False)
            parts.append(JoinDelta(alone.right, alone.left, alone.is_gone))
        return JoinDelta.of_all(parts)

    def _rows(self, left: InputDelta, right: InputDelta, found: JoinDelta) -> pa.Table:
        """Return the output: first what no longer holds, then what holds; each in the order in which its rows came."""
        came = [
            _at(side.rows.column(name), rows)
            for side, rows in ((right, found.right), (left, found.left))
            for name in (NUMBER, EPOCH)
        ]
        order = np.lexsort((*came, ~found.is_gone))
        schema = self.outputs["rows"]
        mine, theirs = (each.rows.select(self.columns[side].names) for side, each in ((LEFT, left), (RIGHT, right)))
        if self.is_of_pairs:
            columns = pair_columns(mine, theirs, self.key.names, found.left[order], found.right[order])
        else:
            columns = rows_at(mine, found.left[order]).columns
        return pa.Table.from_arrays([*columns, pa.array(found.is_gone[order])], schema=schema)


def _at(column: pa.ChunkedArray, rows: Ints) -> Ints:
    """Return numbers of some rows; -1 where there is no row."""
    return np.append(numbers(column), -1)[rows]


def _pairs(left: InputDelta, ours: Ints, right: InputDelta, theirs: Ints, is_joined: Bools) -> JoinDelta:
    """Return the pairs of some rows of both inputs that come or go."""
    ours, theirs = ours[is_joined[left.keys[ours]]], theirs[is_joined[right.keys[theirs]]]
    size = len(is_joined)
    counts = np.bincount(right.keys[theirs], minlength=size)
    starts = np.cumsum(counts) - counts
    partners = counts[left.keys[ours]]
    within = np.arange(partners.sum()) - np.repeat(np.cumsum(partners) - partners, partners)
    mine = np.repeat(ours, partners)
    other = theirs[by_code(right.keys[theirs], size)][starts[left.keys[mine]] + within]
    return JoinDelta.between(mine, other, left.was[mine] & right.was[other], left.now[mine] & right.now[other])


def _by_partner(mine: InputDelta, other: InputDelta, is_joined: Bools, *, wants_one: bool) -> JoinDelta:
    """Return the rows of an input that come or go, of those which have a partner, or of those which have none."""
    had, has = (is_joined & other.has_any(which, len(is_joined)) for which in (other.was, other.now))
    was, now = mine.was & (had == wants_one)[mine.keys], mine.now & (has == wants_one)[mine.keys]
    return JoinDelta.between(np.arange(len(was)), np.full(len(was), -1), was, now)
