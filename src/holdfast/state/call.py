"""Calling a step: what it returns is checked, what it raises names operator, bucket, epoch and the first rows."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

import pyarrow as pa

from holdfast.errors import BadRow, HoldfastError, InvalidPipeline, Unavailable
from holdfast.state.checks import check_result, first_rows
from holdfast.state.step import Arrivals, Result, Step, StepTime


class StepFailed(Exception):
    """What a user's function inside a step raised, with the rows that it received.

    A step that calls functions of the user wraps their errors in it, so that the rows shown are those of the call and
    not the first of the bucket.

    Parameters
    ----------
    rows : pa.Table
        What the function received.
    of : str
        What was called, for instance ``"fn for key 'JFK'"``.
    is_of_timer : bool
        Whether a timer called it, and no row.
    """

    def __init__(self, rows: pa.Table, of: str, *, is_of_timer: bool = False) -> None:
        super().__init__(of)
        self.rows = rows
        self.of = of
        self.is_of_timer = is_of_timer


def call(
    step: Step,
    state: Mapping[str, pa.Table],
    arrivals: Mapping[str, Arrivals],
    at: StepTime,
    *,
    operator: str,
    bucket: int = 0,
) -> Result:
    """Return what a step makes of one epoch in one bucket: what every host of steps calls.

    Parameters
    ----------
    step : Step
        What to call.
    state, arrivals, at
        Its arguments.
    operator : str
        The node's name.
    bucket : int
        Number of the bucket.

    Returns
    -------
    Result
        Complete and under the declared schemas.

    Raises
    ------
    BadRow
        If a row has no key or timestamp; names the operator, the input and the first such rows.
    Unavailable
        If a user's function raised ConnectionError or TimeoutError: the next attempt may succeed.
    InvalidPipeline
        If the step raised anything else, or returned what it does not declare.
    """
    try:
        result = step.apply(state, arrivals, at)
    except HoldfastError as error:
        raise _named(error, operator, bucket, at) from error
    except StepFailed as failure:
        cause = failure.__cause__ if isinstance(failure.__cause__, Exception) else failure
        named = _failed(cause, failure.rows, f", {failure.of},", operator, bucket, at)
        named.is_of_timer = failure.is_of_timer
        raise named from cause
    except Exception as error:
        every = (rows for given in arrivals.values() for rows in (given.rows, given.partials))
        rows = next((rows for rows in every if rows is not None and rows.num_rows), None)
        raise _failed(error, rows, "", operator, bucket, at) from error
    return check_result(operator, step, result)


def _named(error: HoldfastError, operator: str, bucket: int, at: StepTime) -> HoldfastError:
    where = f"operator {operator!r}, bucket {bucket}, epoch {at.epoch}: "
    kind = type(error) if isinstance(error, BadRow | InvalidPipeline | Unavailable) else InvalidPipeline
    named = kind(where + error.what, why=error.why, do=error.do, participant=operator, epoch=at.epoch)
    named.errno = error.errno
    return named


def _failed(
    error: Exception, rows: pa.Table | None, of: str, operator: str, bucket: int, at: StepTime
) -> HoldfastError:
    kind = Unavailable if isinstance(error, ConnectionError | TimeoutError) else InvalidPipeline
    said = " ".join(str(error).split()) or "it has no message"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    shown = "the epoch has no rows" if rows is None else f"the first rows: {first_rows(rows)}"
    cure = (
        "check that the system answers"
        if kind is Unavailable
        else "fix the step, or leave such rows out by a filter before it"
    )
    return kind(
        f"operator {operator!r}{of} raised {type(error).__name__} in bucket {bucket} of epoch {at.epoch}.",
        why=f"{said}{place}; {shown}.",
        do=f"{cure}, then start again: nothing of the epoch is visible.",
        participant=operator,
        epoch=at.epoch,
    )
