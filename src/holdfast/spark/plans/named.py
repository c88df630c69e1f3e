"""A user's Python UDF that says where it failed: the operator, the function, file and line, and the first row.

Spark calls the function in a worker, and tells of its failure with a trace of its own.  So the function in a plan is
replaced by one that calls it, and raises an error of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.errors import crossing
from holdfast.plan.batches import explained
from holdfast.spark.plans import catalyst

_ITERATORS = (catalyst.PANDAS_ITERATOR, catalyst.ARROW_ITERATOR)
_KINDS = (catalyst.BATCHED, catalyst.ARROW_BATCHED, catalyst.PANDAS, catalyst.ARROW, *_ITERATORS)


@dataclass(frozen=True)
class NamedUdf:
    """Called as the function is: row by row, or with Series or Arrow arrays.  Picklable.

    Parameters
    ----------
    function : callable
        The user's.
    title : str
        Kind, name and line of the operator that has it, for errors.
    operator : str
        Its name.
    """

    function: Callable[..., Any]
    title: str
    operator: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return what the function returns."""
        return self.called(*arguments, **named)

    def called(self, *arguments: Any, **named: Any) -> Any:
        """Call the function; raise an error of ours where it fails."""
        try:
            return self.function(*arguments, **named)
        except Exception as error:
            fail(error, self.function, self.title, self.operator, [*arguments, *named.values()])


@dataclass(frozen=True)
class NamedIteratorUdf(NamedUdf):
    """Called once for all batches of a task, with an iterator of them."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield what the function yields."""
        last: list[Any] = [()]

        def noted() -> Iterator[Any]:
            for batch in batches:
                last[0] = batch
                yield batch

        try:
            yield from self.function(noted())
        except Exception as error:
            fail(error, self.function, self.title, self.operator, last[0] if isinstance(last[0], tuple) else last)


def fail(error: Exception, function: Callable[..., Any], title: str, operator: str, arguments: Any) -> None:
    """Raise the error that stands for an exception of a UDF.

    Parameters
    ----------
    error : Exception
        What it raised.
    function : callable
        The user's.
    title, operator : str
        See :class:`NamedUdf`.
    arguments : sequence
        What it was called with: values, or batches of them.
    """
    name = getattr(function, "__name__", type(function).__name__)
    rows = ", ".join(_first(each) for each in arguments) or "it was given none"
    with crossing(), explained(f"the Python UDF {name} of {title}", function, operator, rows=rows):
        raise error


def _first(argument: Any) -> str:
    """Return the first value of an argument; of a single value, itself."""
    if isinstance(argument, pa.Array | pa.ChunkedArray):
        values = argument.slice(0, 1).to_pylist()
    elif type(argument).__module__.startswith("pandas."):  # which only a worker with such a function has loaded
        values = argument.head(1).to_dict("records") if argument.ndim > 1 else argument.head(1).tolist()
    else:
        values = [argument]
    return repr(values[0])[:200] if values else "no row"


def with_named_udfs(before: DataFrame, made: DataFrame, title: str, operator: str) -> DataFrame:
    """Return what an operator makes of a frame, with functions that say where they fail.

    Parameters
    ----------
    before, made : DataFrame
        The operator's input, and what it makes of it.
    title, operator : str
        See :class:`NamedUdf`.

    Notes
    -----
    Functions in projections and filters, which are all but those in a join with a static table.
    """
    session = made.sparkSession

    def rewrite(function: Any, eval_type: int, returned: Any) -> Any:
        del returned
        kind = NamedIteratorUdf if eval_type in _ITERATORS else NamedUdf
        return kind(function, title, operator) if eval_type in _KINDS else function

    return catalyst.rewritten(made, before, partial(catalyst.with_functions, session, rewrite=rewrite))
