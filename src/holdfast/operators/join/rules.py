"""What a step of ``join`` goes by: its inputs, which rows are pairs, and the tables and outputs that follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.operators.join.range import PairRange
from holdfast.operators.join.side import INPUT, INPUTS, SEQ, Rise, Side, Tables
from holdfast.state import keyed, tables
from holdfast.state.step import StateTable
from holdfast.state.timeline import Ints, Promise

SIDES = LEFT, RIGHT = "left", "right"


@dataclass(frozen=True)
class JoinRules:
    """The rows of two inputs in pairs.

    Parameters
    ----------
    key : pa.Schema
        Key columns.
    inputs : mapping of str to pa.Schema
        ``left`` and ``right``.
    times : mapping of str to str
        Input -> its timestamp column.
    within : PairRange
        Which times of right a left row's partners have.
    how : str
        ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``.
    promises : mapping of str to Promise
        What the rows of each input promise, whatever their keys.
    suffix : str
        What columns of the right input get that have the name of one of the left.
    timestamp : str
        The column with the time of a pair.
    max_waiting_rows : int, optional
        Number of rows that are not settled from which sources that run ahead are throttled.
    gives_unmatched : bool
        Whether the rows without a partner are a side output: they are sought only then.
    """

    key: pa.Schema
    inputs: Mapping[str, pa.Schema]
    times: Mapping[str, str]
    within: PairRange
    how: str
    promises: Mapping[str, Promise]
    suffix: str
    timestamp: str
    max_waiting_rows: int | None = None
    gives_unmatched: bool = False
    for_all_keys: ClassVar[Mapping[str, str]] = {"inputs": ""}

    @property
    def is_of_pairs(self) -> bool:
        """Whether its rows are pairs; else they are rows of the left input."""
        return self.how not in ("semi", "anti")

    @cached_property
    def sides(self) -> Mapping[str, Tables]:
        """The state tables of each input."""
        found = {}
        for name, schema in self.inputs.items():
            number = pa.field(SEQ, pa.int64())
            rows = StateTable(schema.append(number), (*self.key.names, SEQ))
            matched = StateTable(pa.schema([*tables.key_schema(rows)]), rows.key)
            found[name] = Tables(rows, rows, matched if self.is_of_pairs else None)
        return found

    @cached_property
    def tables(self) -> Mapping[str, StateTable]:
        """Rows of both inputs, settled and not, those of them with a partner, and the bounds of the inputs."""
        found: dict[str, StateTable] = {}
        for name, side in self.sides.items():
            found |= {name: side.kept, f"waiting_{name}": side.waiting}
            if side.matched is not None:
                found[f"matched_{name}"] = side.matched
        return found | {"inputs": StateTable(INPUTS, (INPUT,))}

    @cached_property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Pairs, or rows of the left input; late rows; and rows without a partner."""
        beside = keyed.late_schema(self.key, self.inputs[LEFT].field(self.times[LEFT]).type, self.inputs)
        rows = pair_schema(self) if self.is_of_pairs else self.inputs[LEFT]
        return {"rows": rows, "late": beside} | ({"unmatched": beside} if self.gives_unmatched else {})

    def last_of(self, name: str, rows: pa.Table, times: Ints) -> Ints:
        """Return the last time that a partner of each row of an input may have."""
        return self.within.limits(rows, times)[1] if name == LEFT else self.within.last_of_left(times)

    def time_of(self, name: str) -> str:
        """Return the timestamp column of an input."""
        return self.times[name]

    def released_at(self, left: Side, right: Side, pair: tuple[Ints, Ints], rises: Mapping[str, Rise]) -> Ints:
        """Return the place at which each pair has settled."""
        times = np.maximum(left.times[pair[0]], right.times[pair[1]])
        return np.maximum(rises[LEFT].passed(times), rises[RIGHT].passed(times))

    def alone_at(self, side: Side, name: str, rows: Ints, rises: Mapping[str, Rise]) -> Ints:
        """Return the place at which it was known that each row has no partner."""
        other = RIGHT if name == LEFT else LEFT
        return np.maximum(side.places_of(rows), rises[other].passed(side.last[rows]))


def right_names(left: Sequence[str], right: Sequence[str], key: Sequence[str], suffix: str) -> dict[str, str]:
    """Return the columns of the right input besides the key, each with its name in the pairs.

    Raises
    ------
    InvalidPipeline
        If two columns of the pairs would have one name.
    """
    keys, taken = {name.lower() for name in key}, {name.lower() for name in left}
    found: dict[str, str] = {}
    for name in right:
        if name.lower() in keys:
            continue
        chosen = name + suffix if name.lower() in taken else name
        if chosen.lower() in taken | {other.lower() for other in found.values()}:
            raise InvalidPipeline(
                f"both streams have a column {name!r}, and {chosen!r} is taken, too.",
                why="a column of the right stream that has the name of one of the left gets the suffix.",
                do='give another one: suffix="_2"; or leave the column out before: right | hf.select(...)',
            )
        found[name] = chosen
    return found


def unlike(why: str) -> InvalidPipeline:
    """Return the error of two streams whose key columns or timestamps are not of one type."""
    return InvalidPipeline(
        "the streams do not fit each other.",
        why=f"{why}.",
        do='bring them to one type before: right | hf.select("* except (id)", id="CAST(id AS BIGINT)")',
    )


def check_added(columns: Iterable[str], added: str, argument: str) -> None:
    """Check that no column of the pairs has the name of the one that the join adds.

    Parameters
    ----------
    columns : iterable of str
        Those of the pairs that come from the inputs.
    added : str
        The other one.
    argument : str
        What names it.

    Raises
    ------
    InvalidPipeline
        If one has.
    """
    if added.lower() in {name.lower() for name in columns}:
        what, why, other = _ADDED[argument]
        raise InvalidPipeline(
            f"a stream has a column {added!r}, which is the name of the column {what}.",
            why=why,
            do=f'give that column another name: {argument}="{other}"',
        )


_ADDED = {
    "timestamp": (
        "with the time of a pair", "a pair has the later of its two times, in a column of its own.", "pair_time"
    ),
    "delete": (
        "of delete=", "it is true for rows that no longer hold, and is no column of the two streams.", "is_gone"
    ),
}  # fmt: skip


def pair_fields(
    left: pa.Schema, right: pa.Schema, names: Mapping[str, str], key: Sequence[str], how: str
) -> list[pa.Field]:
    """Return the columns of a pair that come from the inputs: those of left, those of right without the key.

    Parameters
    ----------
    left, right : pa.Schema
        The inputs.
    names : mapping of str to str
        Column of right -> its name in the pairs.
    key : sequence of str
        Key columns.
    how : str
        Which rows are given: the columns of an input that a row may lack may be null.
    """
    has_left, has_right = how in ("inner", "left"), how in ("inner", "right")
    fields = [
        column.with_nullable(
            column.nullable or not (has_left or (column.name in key and not right.field(column.name).nullable))
        )
        for column in left
    ]
    for name, chosen in names.items():
        column = right.field(name)
        fields.append(column.with_name(chosen).with_nullable(column.nullable or not has_right))
    return fields


def pair_schema(step: JoinRules) -> pa.Schema:
    """Return the columns of a pair: those of the left input, those of the right without the key, and the time."""
    left, right = step.inputs[LEFT], step.inputs[RIGHT]
    names = right_names(left.names, right.names, step.key.names, step.suffix)
    check_added([*left.names, *names.values()], step.timestamp, "timestamp")
    fields = pair_fields(left, right, names, step.key.names, step.how)
    return pa.schema([*fields, pa.field(step.timestamp, left.field(step.times[LEFT]).type)])
