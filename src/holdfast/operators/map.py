"""``map``: any transformation of a DataFrame that processes one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import building
from holdfast.graph.naming import callable_text
from holdfast.graph.nodes import Operator
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import check_callable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RIGHT = 'hf.map(lambda df: df.withColumn("late", df.dep_delay > 15))'


@dataclass(frozen=True)
class Map:
    """Apply ``fn`` to the stream's DataFrame; ``timestamp`` names a column of what it gives."""

    fn: Callable[[DataFrame], DataFrame]
    timestamp: str | None = None
    kind: ClassVar[str] = "map"
    is_of_frames: ClassVar[bool] = True

    def arguments(self) -> Mapping[str, Any]:
        """Return the function's name and the hash of its code, and the timestamp where it is named."""
        timestamp = {} if self.timestamp is None else {"timestamp": self.timestamp}
        return {"fn": callable_text(self.fn), **timestamp}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return only the timestamp that is named: a function may do anything to the columns."""
        return Shape(timestamp=self.timestamp)

    def bounds_decided(self, inputs: Sequence[Shape]) -> bool:
        """Return that it is not known before the start whether bounds hold downstream of it."""
        return False


def map(fn: Callable[[DataFrame], DataFrame], *, timestamp: str | None = None, name: str | None = None) -> Operator:
    """Transform the stream as a Spark DataFrame.

    Parameters
    ----------
    fn : function of a DataFrame, giving a DataFrame
        Called on the driver while the run is being set up, once per run and not per row.  It must process one row at
        a time (columns, UDFs, ``explode``): no aggregation, join, order or limit, and no action such as ``count``.
    timestamp : str, optional
        The column of what ``fn`` returns that holds event time: operators by event time can be downstream of it.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If ``fn`` is not a function of one argument; at the start, if there is no column ``timestamp``.

    Notes
    -----
    Columns downstream of ``map`` are not known before the run starts, so names in later operators are checked then.
    Bounds hold downstream of it where, in Spark's plan of ``fn``, the timestamp column of the input is passed on as it
    is or under another name; where it is computed, only the end of the stream does.  ``holdfast plan`` and the log of a
    start say where bounds end, and why.

    Examples
    --------
    ::

        flights | hf.map(lambda df: df.withColumn("late", df.dep_delay > 15), name="with_late")
    """
    with building(Map.kind, name) as built_at:
        check_callable(fn, "fn", ["df"], right=_RIGHT)
        if timestamp is not None and (not isinstance(timestamp, str) or not timestamp):
            raise InvalidPipeline(
                f"timestamp={timestamp!r} is no name of a column.",
                do='name the column of what fn returns that holds event time: timestamp="time_hour".',
            )
        return Operator(Map(fn, timestamp), name, built_at)
