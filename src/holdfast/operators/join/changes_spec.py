"""``join`` with ``delete=``: the rows that hold in two streams in pairs, as they come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import require_columns
from holdfast.graph.changes import RETRACTED, Changes, check_delete_column
from holdfast.graph.nodes import Stream
from holdfast.graph.shape import Shape
from holdfast.operators.join.changes_step import ChangesJoinStep
from holdfast.operators.join.rules import LEFT, RIGHT, SIDES, check_added, right_names, unlike
from holdfast.ports import SideRows
from holdfast.state import keyed


@dataclass(frozen=True)
class ChangesJoin:
    """Pair the rows that hold in two inputs.

    Parameters
    ----------
    on : tuple of str
        Key columns, of the same names in both inputs.
    how : str
        Which rows are given.
    suffix : str
        Of columns of the right input whose name is taken.
    delete : str
        The output's Boolean column that is true for rows that no longer hold.
    retracted : mapping of str to str
        Input -> its column that says so; the rows of one that is not there only come.
    """

    on: tuple[str, ...]
    how: str
    suffix: str
    delete: str
    retracted: Mapping[str, str]
    kind: ClassVar[str] = "join_changes"
    input_names: ClassVar[tuple[str, ...]] = SIDES
    side_outputs: ClassVar[Mapping[str, SideRows]] = {}
    time_columns: ClassVar[tuple[str | None, ...]] = (None, None)

    def arguments(self) -> Mapping[str, Any]:
        """Return all arguments."""
        return {
            "on": list(self.on),
            "how": self.how,
            "suffix": self.suffix,
            "delete": self.delete,
            RETRACTED: [self.retracted.get(side) for side in SIDES],
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of a pair, or those of the left input."""
        for side, shape in zip(SIDES, inputs, strict=True):
            require_columns(self.on, shape.columns, f"on= of input {side!r}")
        left, right = (shape.columns for shape in inputs)
        if left is None or (right is None and self.how not in ("semi", "anti")):
            return Shape()
        names = self.values(LEFT, left)
        if self.how not in ("semi", "anti") and right is not None:
            names = (*names, *right_names(names, self.values(RIGHT, right), self.on, self.suffix).values())
        check_added(names, self.delete, "delete")
        return Shape((*names, self.delete))

    def changes(self, inputs: Sequence[Shape]) -> Changes:
        """Return the changes that it emits; after checking that both inputs go with them."""
        for side, shape in zip(SIDES, inputs, strict=True):
            column = self.retracted.get(side)
            if column is not None and column.lower() in {name.lower() for name in self.on}:
                raise InvalidPipeline(
                    f"on= names {column!r}.",
                    why="it says which rows no longer hold: a row and the one that retracts it would have two keys.",
                    do="leave it out of on=.",
                )
            if shape.changes is None and side in self.retracted:
                raise InvalidPipeline(f"rows of {side} only come.", do="build the join with hf.join.")
        key = self._key_of_output(inputs)
        is_scattered = key is not None and not {name.lower() for name in self.on} <= {name.lower() for name in key}
        return Changes(self.delete, key, is_scattered)

    def step(self, inputs: Mapping[str, pa.Schema]) -> ChangesJoinStep:
        """Return the step for inputs of these schemas."""
        key, theirs = (keyed.key_schema(inputs[side], self.on) for side in SIDES)
        for one, same in zip(key, theirs, strict=True):
            if one.name != same.name or one.type != same.type:
                raise unlike(f"the key {same.name!r} of right is {same.type}, of left {one.name!r} is {one.type}")
        retracted = {side: keyed.field_of(inputs[side], name, RETRACTED).name for side, name in self.retracted.items()}
        key = pa.schema([field.with_nullable(True) for field in key])
        step = ChangesJoinStep(
            key, {side: inputs[side] for side in SIDES}, self.how, self.suffix, self.delete, retracted
        )
        for side, schema in step.columns.items():
            _check_compared(side, schema)
        _ = step.outputs  # says now which names clash
        return step

    def values(self, side: str, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of an input without the one that says which of its rows no longer hold."""
        gone = self.retracted.get(side, "").lower()
        return tuple(name for name in columns if name.lower() != gone)

    def _key_of_output(self, inputs: Sequence[Shape]) -> tuple[str, ...] | None:
        """Return columns that identify the rows that hold, if they are known."""
        left, right = (None if shape.changes is None else shape.changes.key for shape in inputs)
        if self.how in ("semi", "anti"):
            return left
        mine, other = (shape.columns for shape in inputs)
        if left is None or right is None or mine is None or other is None:
            return None
        on = {name.lower(): name for name in self.on}
        if self.how in ("inner", "left") and {name.lower() for name in right} <= on.keys():
            return left  # a row of left has one partner at most
        names = right_names(self.values(LEFT, mine), self.values(RIGHT, other), self.on, self.suffix)
        in_pairs = {**{name.lower(): chosen for name, chosen in names.items()}, **on}
        theirs = tuple(in_pairs[name.lower()] for name in right)
        if self.how in ("inner", "right") and {name.lower() for name in left} <= on.keys():
            return theirs
        return (*left, *(name for name in theirs if name not in left))


def _check_compared(side: str, schema: pa.Schema) -> None:
    nested = next((field for field in schema if pa.types.is_nested(field.type)), None)
    if nested is not None:
        raise InvalidPipeline(
            f"column {nested.name!r} of {side} is of type {nested.type}, and rows may be retracted.",
            why="the row that one retracts is found by its values, and values of this type are not compared.",
            do=f'leave it out before: {side} | hf.select("* except ({nested.name})")',
        )


def check_without_delete(left: Stream, right: Stream) -> None:
    """Refuse a stream of changes to a join that does not say which of its rows no longer hold.

    Raises
    ------
    InvalidPipeline
        If rows of a stream may be retracted.
    """
    for side, stream in ((LEFT, left), (RIGHT, right)):
        if (changes := stream.shape.changes) is not None:
            raise InvalidPipeline(
                "it does not say which of its rows no longer hold.",
                why=f"rows of {side} may be retracted, and so may their pairs: {changes.column!r} is true for them.",
                do=f'write hf.join(..., delete="is_deleted"), without within=; or {changes.as_rows}.',
            )


def delete_of(delete: str, by_time: Mapping[str, object]) -> str:
    """Return ``delete=``, after checking that nothing is said that needs event time.

    Parameters
    ----------
    delete : str
        The argument.
    by_time : mapping of str to object
        Those that go by event time; None: it is not given.

    Raises
    ------
    InvalidPipeline
        If it is no column, or one of these is given.
    """
    check_delete_column(delete)
    given = next((name for name, value in by_time.items() if value is not None), None)
    if given is not None:
        raise InvalidPipeline(
            f"{given}={by_time[given]!r} does not go with delete=.",
            why="with delete= a pair is emitted when its second row comes, and retracted when one of them no longer "
            "holds, whatever their times.",
            do=f"leave {given}= out; or leave delete= out, for pairs that are final.",
        )
    return delete


def changes_join(left: Stream, right: Stream, on: Sequence[str], how: str, suffix: str, delete: str) -> ChangesJoin:
    """Return the join of what holds in two streams."""
    of_inputs = {side: stream.shape.changes for side, stream in ((LEFT, left), (RIGHT, right))}
    retracted = {side: changes.column for side, changes in of_inputs.items() if changes is not None}
    return ChangesJoin(tuple(on), how, suffix, delete, retracted)
