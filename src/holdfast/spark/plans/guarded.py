"""A user's Python UDF in a frame that several branches share: called for the rows of its own branch only.

Spark evaluates a Python UDF for every row of a frame, also where ``CASE WHEN`` leaves its value out.  So it gets one
more argument, which says whether the row is one of its branch, and gives null where it is not.

A user's Python UDF over iterators in a frame that several branches share: it sees the rows of its own branch only.

Spark pairs what comes out with rows by their order alone.  So the batches that the function is given lack the rows of
other branches, and what it gives, batches of any size, is put back between these.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from holdfast.errors import InvalidPipeline, crossing
from holdfast.plan.batches import explained
from holdfast.spark.plans import catalyst
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


Mask = npt.NDArray[np.bool_]
"""Which rows of a batch are the branch's."""


@dataclass(frozen=True)
class GuardedIteratorUdf:
    """Called with an iterator of batches, each the guard and the arguments.  Picklable.

    Parameters
    ----------
    function : callable
        The user's.
    title : str
        Kind, name and line of the operator that has it, for errors.
    operator : str
        Its name.
    is_arrow : bool
        Whether arguments are Arrow arrays, and not Series.
    columns : tuple of str, optional
        Of a struct that it gives; None where it gives single values.
    """

    function: Callable[[Iterator[Any]], Iterator[Any]]
    title: str
    operator: str
    is_arrow: bool
    columns: tuple[str, ...] | None = None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the values of each batch: none for the rows of other branches."""
        masks: deque[Mask] = deque()
        made: list[Any] = []
        name = getattr(self.function, "__name__", type(self.function).__name__)
        with crossing(), explained(f"the Python UDF {name} of {self.title}", self.function, self.operator):
            for values in self.function(self._own(batches, masks)):
                made.append(values)
                yield from self._complete(masks, made)
            for _ in self._own(batches, masks):
                raise ValueError("it has not taken all of its rows")
            yield from self._complete(masks, made)
            if masks or any(len(values) for values in made):
                raise ValueError("it has not given one value for each row")

    def _own(self, batches: Iterator[Any], masks: deque[Mask]) -> Iterator[Any]:
        for guard, *arguments in batches:
            mask = self._mask(guard)
            masks.append(mask)
            if mask.any():
                kept = [self._kept(each, mask) for each in arguments]
                yield kept[0] if len(kept) == 1 else tuple(kept)

    def _complete(self, masks: deque[Mask], made: list[Any]) -> Iterator[Any]:
        """Yield the values of batches whose rows have all been computed."""
        while masks and int(masks[0].sum()) <= sum(len(values) for values in made):
            mask = masks.popleft()
            count = int(mask.sum())
            if not made:
                yield self._nothing(len(mask))
                continue
            whole = self._joined(made)
            made[:] = [whole[count:]]
            yield self._spread(whole[:count], mask)

    def _mask(self, guard: Any) -> Mask:
        if self.is_arrow:
            return np.asarray(guard.fill_null(False))
        return guard.fillna(False).to_numpy(dtype=bool)  # type: ignore[no-any-return]

    def _kept(self, values: Any, mask: Mask) -> Any:
        return values.filter(pa.array(mask)) if self.is_arrow else values[mask].reset_index(drop=True)

    def _joined(self, made: list[Any]) -> Any:
        if len(made) == 1:
            return made[0]
        if self.is_arrow:
            return pa.concat_arrays(made)
        return _pandas().concat(made, ignore_index=True)

    def _spread(self, values: Any, mask: Mask) -> Any:
        if self.is_arrow:
            return values.take(pa.array(np.cumsum(mask) - 1, mask=~mask))
        if mask.all():
            return values
        # As objects: whole numbers would become floats where values are missing.
        return values.astype(object).set_axis(np.flatnonzero(mask), axis=0).reindex(range(len(mask)))

    def _nothing(self, count: int) -> Any:
        if self.is_arrow:
            return pa.nulls(count)
        if self.columns is None:
            return _pandas().Series([None] * count, dtype=object)
        return _pandas().DataFrame({name: [None] * count for name in self.columns}, dtype=object)


def _pandas() -> Any:
    """Return pandas, which a worker has where a UDF takes Series."""
    return importlib.import_module("pandas")
