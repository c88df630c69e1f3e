"""Checks of what users give to operators, made where the operator is built or attached."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.expressions import text as expressions
from holdfast.graph.checks import a_type, require_columns
from holdfast.graph.naming import callable_text


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
        do="compute each row by itself here, and aggregate where the rows are read (a view in the target).",
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


def condition_text(condition: str | Callable[..., Any]) -> str:
    """Return a condition for display and fingerprint."""
    return condition if isinstance(condition, str) else callable_text(condition)
