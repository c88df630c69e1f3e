"""Checks of what users give to operators, made where the operator is built or attached."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.expressions import text as expressions
from holdfast.graph.building import a_type, check_choice, require_columns
from holdfast.graph.naming import callable_text
from holdfast.state import keyed
from holdfast.state.bucket_report import WAITING_ROWS_MAX
from holdfast.types import units


def check_text(text: Any, argument: str, *, right: str) -> str:
    """Return an expression's text.

    Raises
    ------
    InvalidPipeline
        If it is not a text, empty, or processes several rows together.
    """
    if not isinstance(text, str):
        raise InvalidPipeline(
            f"{argument}={text!r} is not a text.",
            why=f"a Spark SQL expression is expected, and {a_type(text)} was given.",
            do=f"write it as text: {right}",
        )
    if not text.strip():
        raise InvalidPipeline(f"{argument} is empty.", do=f"write for instance {right}")
    if (part := expressions.across_rows(text)) is not None:
        raise looks_across(argument, text, part)
    return text.strip()


def closed(text: str) -> str:
    """Return an expression's text so that text can follow it: a comment at its end swallows nothing."""
    return f"{text}\n" if "--" in text else text


def looks_across(argument: str, text: str, part: str) -> InvalidPipeline:
    """Return the error for a text that processes several rows together."""
    return InvalidPipeline(
        f"{argument}={text!r} looks at several rows together: {part}.",
        why="a stateless operator sees each row alone; together it would see only the rows that happen to be in one "
        "epoch, and epochs end elsewhere in a replay or with another trigger.",
        do="compute each row by itself here, and aggregate with hf.aggregate or hf.reduce, which keep state.",
    )


def check_reads(text: str, columns: tuple[str, ...] | None, argument: str) -> None:
    """Check that the columns which an expression reads exist, where both are known."""
    if columns is not None and (reads := expressions.columns_of(text)) is not None:
        require_columns(sorted(reads), columns, f"{argument}={text!r}")


def check_callable(function: Any, argument: str, takes: Sequence[str], *, right: str) -> None:
    """Check that a function can be called with these positional arguments.

    Raises
    ------
    InvalidPipeline
        If it is not a function, or takes others.
    """
    if not callable(function):
        raise InvalidPipeline(
            f"{argument}={function!r} is not a function.",
            why=f"{a_type(function)} was given.",
            do=f"write for instance {right}",
        )
    try:
        inspect.signature(function).bind(*takes)
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise InvalidPipeline(
            f"{argument}={name} cannot be called with ({', '.join(takes)}).",
            why=f"{error}.",
            do=f"write for instance {right}",
        ) from error
    except ValueError:  # a built-in without a signature: it shows when it is called
        return


def checked_limit(limit: Any) -> int | None:
    """Return ``max_waiting_rows``; None where it is not given."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InvalidPipeline(
            f"max_waiting_rows={limit!r} is not a number of rows.", do="write for instance max_waiting_rows=10_000"
        )
    return limit


def limit_of(limit: int | None) -> int:
    """Return how many rows may wait under one key: what is said, or the default."""
    return WAITING_ROWS_MAX if limit is None else limit


Limit = str | int | None
"""Of a range: how far from the left row's time, as a duration or ticks; or a column of left; or none."""


def limit_column(limit: Limit) -> str | None:
    """Return the column that a limit names; None for a duration, ticks or no limit.

    Examples
    --------
    >>> limit_column("expires"), limit_column("-1 h"), limit_column(None)
    ('expires', None, None)
    """
    return limit if isinstance(limit, str) and re.match(r"\s*[-+.\d]", limit) is None else None


def as_distance(limit: Limit, timestamp: str) -> Limit:
    """Return a limit, with 0 in place of left's own timestamp: both say the same.

    Examples
    --------
    >>> as_distance("T", "t"), as_distance("expires", "t")
    (0, 'expires')
    """
    name = limit_column(limit)
    return 0 if name is not None and name.lower() == timestamp.lower() else limit


def check_promise(timestamps: str, disorder: str | int | None) -> None:
    """Check what the rows of a key are said to promise.

    Raises
    ------
    InvalidPipeline
        If ``timestamps`` is no word for it, ``disorder`` no duration, or one contradicts the other.
    """
    check_choice("timestamps", timestamps, ("ascending", "strict"))
    if disorder is None:
        return
    keyed.check_duration(disorder, "disorder", least=0)
    if timestamps == "strict":
        raise InvalidPipeline(
            'timestamps="strict" and disorder= contradict each other.',
            why="strict rows never go back.",
            do="leave one of them out.",
        )


def check_offset(offset: Any, argument: str = "timestamp_offset") -> None:
    """Check a distance of event time that may be negative: text with a unit, or ticks.

    Raises
    ------
    InvalidPipeline
        If it is neither.
    """
    if isinstance(offset, str):
        units.duration_us(offset.strip().removeprefix("-"), argument=argument)
    elif offset is not None and (not isinstance(offset, int) or isinstance(offset, bool)):
        raise InvalidPipeline(
            f"{argument}={offset!r} is no distance in time.",
            why=f"{a_type(offset)} was given.",
            do=f'write {argument}=0 where timestamps stay as they are, or "-1 s" (ticks of a BIGINT).',
        )


def offset_ticks(offset: str | int, kind: pa.DataType) -> int:
    """Return an offset in the ticks of timestamps of a type.

    Raises
    ------
    InvalidPipeline
        If it has a unit and they have none, or the other way round; 0 is 0 in both.

    Examples
    --------
    >>> offset_ticks("-1 s", pa.timestamp("us")), offset_ticks(-7, pa.int64())
    (-1000000, -7)
    """
    is_ticks = kind == pa.int64()
    if offset and isinstance(offset, str) == is_ticks:
        right = "-1000" if is_ticks else '"-1 s"'
        raise InvalidPipeline(
            f"timestamp_offset={offset!r} does not fit timestamps of type {kind}.",
            why="the unit of a BIGINT is the user's own." if is_ticks else "a TIMESTAMP needs a unit.",
            do=f"write for instance timestamp_offset={right}",
        )
    if isinstance(offset, int):
        return offset
    text = offset.strip()
    distance = units.duration_us(text.removeprefix("-"), argument="timestamp_offset")
    return -distance if text.startswith("-") else distance


def condition_text(condition: str | Callable[..., Any]) -> str:
    """Return a condition for display and fingerprint."""
    return condition if isinstance(condition, str) else callable_text(condition)
