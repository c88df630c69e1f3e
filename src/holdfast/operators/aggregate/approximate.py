"""``approx_count_distinct``: an aggregate whose state has a fixed size."""

from __future__ import annotations

from holdfast.errors import InvalidPipeline
from holdfast.operators.aggregate.aggregates import Aggregate, of_column

_LEAST, _MOST = 0.003, 0.26
"""With 131,072 registers, and with 16."""


def approx_count_distinct(column: str, *, where: str | None = None, relative_error: float = 0.02) -> Aggregate:
    """Approximate number of different values, BIGINT: the state of a window has a fixed size, however many there are.

    Parameters
    ----------
    column : str
        The column.
    where : str, optional
        A condition on the row: see :func:`count`.
    relative_error : float
        Standard deviation of the result relative to the truth, from 0.003 to 0.26: two in three results are within it,
        997 in 1000 within three times as much.

    Raises
    ------
    InvalidPipeline
        If ``column`` names no column, ``where`` is no condition, or ``relative_error`` is out of its range.

    Notes
    -----
    A HyperLogLog of a byte for each of 2^p registers, with the smallest p for which 1.04 / 2^(p/2) is at most
    ``relative_error``: 4096 at 0.02, 512 at 0.05.  Up to an eighth as many different values are counted exactly, and
    take eight bytes each.  It merges exactly, so the result depends on the rows alone.

    References
    ----------
    Flajolet, Fusy, Gandouet, Meunier, "HyperLogLog", 2007; Ertl, "New cardinality estimation algorithms for HyperLogLog
    sketches", 2017.

    Examples
    --------
    >>> approx_count_distinct("tailnum").error
    0.02
    """
    is_number = isinstance(relative_error, int | float) and not isinstance(relative_error, bool)
    if not is_number or not _LEAST <= relative_error <= _MOST:
        raise InvalidPipeline(
            f"relative_error={relative_error!r} is not a relative error.",
            why=f"it is a share of the count, from {_LEAST} to {_MOST}.",
            do="write for instance relative_error=0.01 for one per cent; hf.distinct_count(...) is exact.",
        )
    return of_column("approx_count_distinct", column, where, error=float(relative_error))
