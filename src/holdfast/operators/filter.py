"""``filter``: the rows for which a condition is true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.graph.building import building
from holdfast.graph.changes import Changes
from holdfast.graph.nodes import Operator
from holdfast.graph.shape import Shape
from holdfast.operators import changes_of_rows
from holdfast.operators.arguments import check_callable, check_reads, check_text, condition_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RIGHT = 'hf.filter("dep_delay > 15") or hf.filter(lambda df: df.dep_delay > 15)'


@dataclass(frozen=True)
class Filter:
    """Keep the rows for which the condition is true; false and null drop a row."""

    condition: str | Callable[[DataFrame], Column]
    kind: ClassVar[str] = "filter"

    def arguments(self) -> Mapping[str, Any]:
        """Return the condition."""
        return {"condition": condition_text(self.condition)}

    @property
    def is_of_frames(self) -> bool:
        """Whether it is written on a DataFrame, so that Spark alone evaluates it."""
        return callable(self.condition)

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the input's shape, after checking the columns that the condition reads."""
        if isinstance(self.condition, str):
            check_reads(self.condition, inputs[0].columns, "condition")
        return inputs[0]

    def changes(self, inputs: Sequence[Shape]) -> Changes | None:
        """Return the input's changes: a row that was let through is retracted, and no other."""
        return changes_of_rows.changes_where(self.condition, inputs[0].changes, "condition")


def filter(condition: str | Callable[[DataFrame], Column], *, name: str | None = None) -> Operator:
    """Keep the rows for which a condition is true.

    Parameters
    ----------
    condition : str or function of a DataFrame, giving a Column
        A Spark SQL expression, or ``lambda df: df.a > 1``.  A row for which it is false or null is dropped.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If the condition names an unknown column (when attached), or processes several rows together.

    Examples
    --------
    ::

        flights | hf.filter("dep_delay > 15", name="late")
    """
    with building(Filter.kind, name) as built_at:
        if callable(condition):
            check_callable(condition, "condition", ["df"], right=_RIGHT)
        else:
            condition = check_text(condition, "condition", right=_RIGHT)
        return Operator(Filter(condition), name, built_at)
