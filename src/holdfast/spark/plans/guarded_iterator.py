"""A user's Python UDF over iterators in a frame that several branches share: it sees the rows of its own branch only.

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

from holdfast.errors import crossing
from holdfast.plan.batches import explained

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
