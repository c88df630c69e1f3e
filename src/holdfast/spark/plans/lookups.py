"""A join of a stream with a static table, in a frame that several branches share: each row looks up its own matches.

The table is sent to every task, whole, and each row stays where it is: Spark's broadcast joins take the rows of the
stream in their order, so that what becomes of a row follows it directly.  A join that has to move rows is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.spark import private
from holdfast.spark.plans import catalyst


@dataclass(frozen=True)
class Lookup:
    """A join whose other side is static.

    Parameters
    ----------
    table : object
        The plan of that side.
    condition : object, optional
        The expression; None where every row matches.
    way : str
        What happens to rows: ``"inner"``, ``"left"`` or ``"anti"``.
    """

    table: Any
    condition: Any
    way: str

    def joined(self, frame: DataFrame, is_mine: Column, condition: Column | None, name: str) -> DataFrame:
        """Return a frame in which the rows of one branch have looked up theirs; all others stay as they are.

        Parameters
        ----------
        frame : DataFrame
            Of several branches.
        is_mine : Column
            Whether a row is one of the branch.
        condition : Column, optional
            The condition, in this frame.
        name : str
            Of a column that is added.
        """
        table = F.broadcast(catalyst.frame_of(frame.sparkSession, self.table).select("*", F.lit(True).alias(name)))
        on = is_mine if condition is None else is_mine & condition
        if self.way == "anti":  # a row of another branch matches nothing
            return frame.join(table, on, "left_anti")
        found = frame.join(table, on, "left_outer")
        return found if self.way == "left" else found.filter(~is_mine | F.col(name).isNotNull())


_WAYS = {
    ("Inner", 0): "inner",
    ("Inner", 1): "inner",
    ("Cross", 0): "inner",
    ("Cross", 1): "inner",
    ("LeftOuter", 0): "left",
    ("RightOuter", 1): "left",
    ("LeftAnti", 0): "anti",
}
"""Kind of a join, and which side the stream is -> what happens to its rows."""


def lookup_of(join: Any, base: Any) -> tuple[Any, Lookup] | None:
    """Return the side of a join on which a plan stands, and what it looks up; None where it does more than that.

    Parameters
    ----------
    join : object
        A node of the kind ``Join``.
    base : object
        The plan of the stream.

    Notes
    -----
    Seen in 4.3: ``Join.joinType`` and its text, ``Join.condition``.
    """
    sides = private.children_of(join)
    mine = [number for number, side in enumerate(sides) if catalyst.contains(side, base)]
    if len(mine) != 1 or private.is_streaming(sides[1 - mine[0]]):
        return None
    way = _WAYS.get((str(join.joinType().toString()), mine[0]))
    if way is None:
        return None
    condition = join.condition()
    return sides[mine[0]], Lookup(sides[1 - mine[0]], condition.get() if condition.isDefined() else None, way)
