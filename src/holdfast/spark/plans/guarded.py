"""A user's Python UDF in a frame that several branches share: called for the rows of its own branch only.

Spark evaluates a Python UDF for every row of a frame, also where ``CASE WHEN`` leaves its value out.  So it gets one
more argument, which says whether the row is one of its branch, and gives null where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from holdfast.errors import InvalidPipeline
from holdfast.spark.plans import catalyst
from holdfast.spark.plans.guarded_iterator import GuardedIteratorUdf
from holdfast.spark.plans.named import NamedUdf


class GuardedUdf(NamedUdf):
    """Called row by row."""

    def __call__(self, is_mine: bool, *arguments: Any, **named: Any) -> Any:
        """Return the value of a row, or none."""
        return self.called(*arguments, **named) if is_mine else None


class GuardedPandasUdf(GuardedUdf):
    """Called with Series, or with frames for structs."""

    def __call__(self, is_mine: Any, *arguments: Any, **named: Any) -> Any:
        """Return the values of the rows of the branch, and none for the others."""
        mask = is_mine.fillna(False).to_numpy(dtype=bool)
        mine = [each[mask].reset_index(drop=True) for each in arguments]
        others = {name: each[mask].reset_index(drop=True) for name, each in named.items()}
        found = self.called(*mine, **others)
        if mask.all():
            return found
        places = np.flatnonzero(mask)
        # As objects: whole numbers would become floats where values are missing.
        return found.astype(object).set_axis(places, axis=0).reindex(range(len(mask)))


class GuardedArrowUdf(GuardedUdf):
    """Called with Arrow arrays."""

    def __call__(self, is_mine: Any, *arguments: Any, **named: Any) -> Any:
        """Return the values of the rows of the branch, and none for the others."""
        mask = np.asarray(is_mine.fill_null(False))
        kept = pa.array(mask)
        mine = [each.filter(kept) for each in arguments]
        others = {name: each.filter(kept) for name, each in named.items()}
        found = self.called(*mine, **others)
        return found.take(pa.array(np.cumsum(mask) - 1, mask=~mask))


_WAYS = {
    catalyst.BATCHED: GuardedUdf,
    catalyst.ARROW_BATCHED: GuardedUdf,
    catalyst.PANDAS: GuardedPandasUdf,
    catalyst.ARROW: GuardedArrowUdf,
}


def guarded_udf(
    function: Callable[..., Any], eval_type: int, returned: Any, title: str, operator: str
) -> GuardedUdf | GuardedIteratorUdf:
    """Return the function with one more argument in front: whether a row is its own.

    Parameters
    ----------
    function : callable
        The user's.
    eval_type : int
        How it is called.
    returned : DataType
        Of what it gives.
    title, operator : str
        See :class:`GuardedUdf`.

    Raises
    ------
    InvalidPipeline
        If it is called in a way that is not known here.
    """
    if eval_type in (catalyst.PANDAS_ITERATOR, catalyst.ARROW_ITERATOR):
        columns = tuple(returned.names) if isinstance(returned, StructType) else None
        return GuardedIteratorUdf(function, title, operator, eval_type == catalyst.ARROW_ITERATOR, columns)
    if eval_type not in _WAYS:
        raise InvalidPipeline(
            f"{title} has a Python UDF of the kind {eval_type}, where rows of other branches go through the same plan.",
            why="what it makes of a part of the rows could not be told from what it makes of all.",
            do="write it as map_batches, with setup= for what is done once.",
            participant=operator,
        )
    return _WAYS[eval_type](function, title, operator)
