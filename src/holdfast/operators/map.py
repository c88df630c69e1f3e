"""``map``: any transformation of a DataFrame that processes one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.graph.checks import building
from holdfast.graph.naming import callable_text
from holdfast.graph.nodes import Operator, Shape
from holdfast.operators.arguments import check_callable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RIGHT = 'hf.map(lambda df: df.withColumn("late", df.dep_delay > 15))'


@dataclass(frozen=True)
class Map:
    """Apply ``fn`` to the stream's DataFrame."""

    fn: Callable[[DataFrame], DataFrame]
    kind: ClassVar[str] = "map"

    def arguments(self) -> Mapping[str, Any]:
        """Return the function's name and the hash of its code."""
        return {"fn": callable_text(self.fn)}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return that nothing is known: a function may do anything to the columns."""
        return Shape()

    def bounds_end(self, inputs: Sequence[Shape]) -> str:
        """Return why no bound holds downstream of it."""
        return "a function may do anything to the timestamp; select and sql show what they do to it"


def map(fn: Callable[[DataFrame], DataFrame], *, name: str | None = None) -> Operator:
    """Transform the stream as a Spark DataFrame.

    Parameters
    ----------
    fn : function of a DataFrame, giving a DataFrame
        Called on the driver while the run is being set up, once per run and not per row.  It must process one row at
        a time (columns, UDFs, ``explode``): no aggregation, join, order or limit, and no action such as ``count``.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If ``fn`` is not a function of one argument.

    Notes
    -----
    Columns downstream of ``map`` are not known before the run starts, so names in later operators are checked then, and
    the timestamp column is not known.

    Examples
    --------
    ::

        flights | hf.map(lambda df: df.withColumn("late", df.dep_delay > 15), name="with_late")
    """
    with building(Map.kind, name) as built_at:
        check_callable(fn, "fn", ["df"], right=_RIGHT)
        return Operator(Map(fn), name, built_at)
