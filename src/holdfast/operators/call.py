"""``call``: asks a service about each row, asynchronously; answers are recorded before they are used (design/0051)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, added_twice, building, require_columns
from holdfast.graph.naming import callable_text
from holdfast.graph.nodes import Operator
from holdfast.graph.shape import Shape
from holdfast.health import CallStatus
from holdfast.operators.answered import RejectingCall, rejecting
from holdfast.operators.arguments import check_callable
from holdfast.operators.calling import Asking, Calls
from holdfast.types import units
from holdfast.types.casting import nullable_field
from holdfast.types.schema import to_arrow

CallOnFail = Literal["stop", "keep", "reject"]
"""What becomes of rows whose call has failed; ``stop``: of their epoch."""

_RIGHT = "async def fn(row): ... and hf.call(fn, schema, key=..., answers=..., name=...)"


@dataclass(frozen=True)
class ServiceCall:
    """Ask a service about each row, and add what it answers.

    Parameters
    ----------
    fn : Calls
        Asks about the rows of a batch.
    added : pa.Schema
        The columns that are added: those of the answer, then that of the error, where there is one.
    """

    fn: Calls
    added: pa.Schema
    kind: ClassVar[str] = "call"

    @property
    def setup(self) -> Callable[[], Any]:
        """What opens the answers and the client, once in each process."""
        return self.fn.open_service

    def status(self) -> CallStatus:
        """Return what it has cost so far."""
        return self.fn.status()

    def arguments(self) -> Mapping[str, Any]:
        """Return what an answer depends on: not how fast it is asked for, nor where it is recorded."""
        schema = [f"{field.name}: {field.type}" for field in self.added]
        setup = {} if self.fn.setup is None else {"setup": callable_text(self.fn.setup)}
        return {"fn": callable_text(self.fn.fn), "schema": schema, "key": list(self.fn.key), **setup}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of the stream, and those that are added."""
        (before,) = inputs
        require_columns(self.fn.key, before.columns, "key=")
        if before.columns is None:
            return before
        _check_new(self.added.names, before.columns)
        return replace(before, columns=(*before.columns, *self.added.names))

    def output(self, before: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that leave."""
        require_columns(self.fn.key, before.names, "key=")
        _check_new(self.added.names, before.names)
        return pa.schema([*before, *self.added])

    def offset(self, timestamp: str | None) -> None:
        """Return None: nothing has to be promised about timestamps, which stay as they are."""


def call(
    fn: Callable[..., Awaitable[Mapping[str, Any] | None]],
    schema: str | pa.Schema | Any,
    *,
    key: str | Sequence[str],
    answers: str | os.PathLike[str],
    name: str,
    max_concurrency: int = 16,
    timeout: str = "30 s",
    retry: int = 3,
    rate: str | None = None,
    on_fail: CallOnFail = "stop",
    error: str | None = None,
    setup: Callable[[], Any] | None = None,
) -> Operator | RejectingCall:
    """Ask a service about each row, and add what it answers; no answer is asked for again after a crash.

    Parameters
    ----------
    fn : async function of a row
        ``await fn(row)`` with the row as a dict; returns a dict with the columns of ``schema``, None for nulls, or an
        :class:`holdfast.Answer` with either and what it has cost.
        With ``setup`` it takes a second argument: what ``setup`` returned.
    schema : str, StructType or pyarrow.Schema
        Of the answer: the columns that are added to the row.
    key : str or sequence of str
        Columns that say what is asked: rows of one key get one answer.  ``"row_id"`` behind :func:`holdfast.row_id`
        asks about every row.
    answers : str or Path
        File in which answers are recorded, an SQLite database on a disk of the machine on which the workers are.
    name : str
        The node's name, under which answers are recorded.
    max_concurrency : int, default 16
        How many calls are in flight in each process that calls: asked, and not yet recorded.
    timeout : str, default "30 s"
        Of one attempt.
    retry : int, default 3
        How many more attempts follow one that raises or takes too long, each after twice the pause, from 0.1 s on.
    rate : str, optional
        How many attempts each process begins at most: ``"50/s"``, ``"100/min"``.
    on_fail : {"stop", "keep", "reject"}
        What becomes of a row whose call fails after all attempts.  ``stop``: its epoch fails, and is tried again.
        ``keep``: it goes on in its place, with nulls for an answer, and the reason.  ``reject``: it is in the side
        output ``.rejects`` of the stream, without the columns of the answer, and with the reason.
    error : str, default "error"
        The column with the reason: of all rows where failures are kept, null where a row has its answer; of the
        rejected rows otherwise.
    setup : function of nothing, optional
        Runs once in each process that calls, in the event loop, and may be asynchronous: the place for a client.

    Returns
    -------
    Operator or RejectingCall
        To be applied to a stream: ``stream | call(...)``.  With ``on_fail="reject"`` the stream that it returns has
        ``.rejects``.

    Raises
    ------
    InvalidPipeline
        If an argument is none of these; in a run, if an answer does not have the schema.
    Unavailable
        In a run, with ``on_fail="stop"``, if a call fails after all attempts, or its failure was recorded
        earlier, with ``keep`` or ``reject``.  What was answered is recorded.

    Notes
    -----
    Runs on executors, in Python workers: the functions are pickled by value.  Every answer is durable before its row
    leaves the operator.  A crash loses calls that are in flight: they are made again.  Holdfast removes no answer.

    Examples
    --------
    ::

        async def ask(row, client):
            answer = await client.get(f"/geocode?q={row['address']}")
            return answer.json()

        placed = orders | hf.row_id() | hf.call(
            ask, "lat DOUBLE, lon DOUBLE", key="address", answers="geocodes.sqlite", name="placed", setup=new_client
        )
    """
    with building(ServiceCall.kind, name) as built_at:
        if setup is None:
            check_callable(fn, "fn", ["row"], right=_RIGHT)
        else:
            check_callable(fn, "fn", ["row", "client"], right=_RIGHT.replace("(row)", "(row, client)"))
            check_callable(setup, "setup", [], right="setup=lambda: new_client()")
        if not isinstance(name, str) or not name:
            raise InvalidPipeline(
                f"name={name!r} names nothing.",
                why="answers are recorded under the name of the operator.",
                do='give it one: hf.call(..., name="placed")',
            )
        columns = (key,) if isinstance(key, str) else tuple(key)
        if not columns or not all(isinstance(column, str) and column for column in columns):
            raise InvalidPipeline(f"key={key!r} does not name columns.", do='write key="row_id", or key=["a", "b"].')
        _check_number(max_concurrency, "max_concurrency", least=1)
        _check_number(retry, "retry", least=0)
        asking = Asking(
            max_concurrency=max_concurrency,
            timeout_s=units.duration_us(timeout, argument="timeout") / 1e6,
            retries=retry,
            interval_s=0.0 if rate is None else _interval_s(rate),
        )
        reason = _reason(on_fail, error)
        answer = pa.schema([nullable_field(field) for field in to_arrow(schema)])
        added = answer if reason is None else answer.append(pa.field(reason, pa.string()))
        _check_new(added.names, ())
        path = os.path.abspath(os.fspath(answers))
        spec = ServiceCall(Calls(fn, setup, columns, answer, reason, path, name, asking), added)
        if on_fail != "reject" or reason is None:
            return Operator(spec, name, built_at)
        return rejecting(spec, answer.names, reason, name, built_at)


def _reason(on_fail: Any, error: Any) -> str | None:
    """Return the column that says why a row has no answer; None where its epoch fails."""
    if on_fail not in get_args(CallOnFail):
        raise InvalidPipeline(
            f"on_fail={on_fail!r} is none of {', '.join(get_args(CallOnFail))}.",
            why="it says what becomes of rows whose call fails.",
            do='write one of these, for instance on_fail="reject".',
        )
    if on_fail == "stop" and error is not None:
        raise InvalidPipeline(
            f'error={error!r} names a column, and with on_fail="stop" no row has it.',
            why="an epoch with a call that fails is tried again; its rows do not leave.",
            do=f'write on_fail="keep", error={error!r} for rows that go on with it, or on_fail="reject"; or leave '
            "error= out.",
        )
    if error is not None and (not isinstance(error, str) or not error):
        raise InvalidPipeline(f"error={error!r} names no column.", do='write for instance error="why".')
    return None if on_fail == "stop" else error or "error"


def _check_number(number: Any, argument: str, *, least: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise InvalidPipeline(
            f"{argument}={number!r} is not a number of {least} or more.",
            do=f"write for instance {argument}={least + 3}",
        )


_PERIODS_S = {"s": 1, "min": 60, "h": 3600}


def _interval_s(rate: Any) -> float:
    """Return the seconds between two attempts, from ``"50/s"``."""
    count, _, period = rate.partition("/") if isinstance(rate, str) else (a_type(rate), "", "")
    try:
        per_period = float(count)
        seconds = _PERIODS_S[period.strip()]
    except (ValueError, KeyError):
        per_period, seconds = 0.0, 0
    if not 0 < per_period < float("inf"):
        raise InvalidPipeline(
            f"rate={rate!r} is no number of calls for a time.", do='write for instance rate="50/s", or rate="100/min".'
        )
    return seconds / per_period


def _check_new(added: Sequence[str], before: Sequence[str]) -> None:
    if (taken := added_twice(added, before)) is not None:
        raise InvalidPipeline(
            f"the call adds a second column {taken!r}.",
            why="the stream, or another column of the answer, has one of this name.",
            do=f"give the column of the answer another name in schema=, or that of the reason in error=, for instance "
            f"answered_{taken}.",
        )
