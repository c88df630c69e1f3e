"""``map_batches`` on executors: a user's function over Arrow batches, with its set-up once per worker."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable, crossing
from holdfast.plan.lookup_operation import LookUpFunction
from holdfast.plan.routes import STEP
from holdfast.state.checks import first_rows
from holdfast.types import units
from holdfast.types.casting import fitted_column

_ready: dict[str, Any] = {}
"""What ``setup`` returned in this worker, by token: workers are reused from epoch to epoch."""

_setting_up = threading.RLock()
"""Held during a set-up: of several threads that read an epoch, one runs it."""


def forget(run: str) -> None:
    """Drop what the set-ups of a run returned in this process: for a process that outlives the run."""
    for token in [token for token in (*_ready,) if token.startswith(run)]:
        del _ready[token]


@dataclass(frozen=True)
class TimePromise:
    """What a function promises about timestamps: none is below the lowest of its batch by more than an offset.

    Parameters
    ----------
    column, output_column : str
        The timestamp column of its input, and of its output.
    offset : int
        Ticks; negative where it may go back.
    """

    column: str
    output_column: str
    offset: int

    def check(self, batch: pa.RecordBatch, result: pa.RecordBatch, operator: str) -> None:
        """Refuse rows that break it: downstream operators have received bounds that rely on it.

        Raises
        ------
        InvalidPipeline
            If there are any.
        """
        kinds = batch.column(self.column).type, result.column(self.output_column).type
        if pa.types.is_timestamp(kinds[0]) != pa.types.is_timestamp(kinds[1]):
            raise InvalidPipeline(
                f"map_batches {operator!r} takes {self.column!r} as {kinds[0]}, and returns {kinds[1]}.",
                why="with timestamp_offset= bounds are passed on, and these have no unit in common.",
                do="declare the type of the column that it takes, or leave timestamp_offset= out.",
                participant=operator,
            )
        lowest, found = _lowest(batch.column(self.column)), _lowest(result.column(self.output_column))
        if lowest is None or found is None or found >= lowest + self.offset:
            return
        has_unit = pa.types.is_timestamp(kinds[0])
        below = units.duration_text(lowest - found) if has_unit else lowest - found
        promised, right = (
            f'"{units.duration_text(ticks)}"' if has_unit else ticks for ticks in (self.offset, found - lowest)
        )
        raise InvalidPipeline(
            f"map_batches {operator!r} returned a row whose {self.output_column!r} is {below} below its batch.",
            why=f"it promises timestamp_offset={promised}, and downstream operators have received bounds "
            "that rely on it.",
            do=f"write timestamp_offset={right} or lower, or leave it out: "
            "then downstream operators receive no bound but the end.",
            participant=operator,
        )


def promise_of(node: Any) -> TimePromise | None:
    """Return what the function of a node promises about timestamps; None: nothing."""
    output_column = node.shape.timestamp
    offset = node.spec.offset(output_column)
    return None if offset is None else TimePromise(node.inputs[0].shape.timestamp, output_column, offset)


def _lowest(column: pa.Array) -> int | None:
    ticks: int | None = pc.min(column.cast(pa.int64())).as_py()
    return ticks


@dataclass(frozen=True)
class BatchFunction:
    """A user's function with its set-up and output schema.  Picklable; called by ``mapInArrow``.

    Parameters
    ----------
    fn : callable
        ``fn(batch)``, or ``fn(batch, ready)`` where there is a set-up; returns a RecordBatch, a Table or None.
    setup : callable, optional
        Called once per worker.
    schema : pa.Schema
        What ``fn`` must return.
    operator : str
        Name of the node, for errors.
    token : str
        Unique for the run: a worker that served an older run sets up again.
    promise : TimePromise, optional
        What its rows must keep.
    """

    fn: Callable[..., Any]
    setup: Callable[[], Any] | None
    schema: pa.Schema
    operator: str
    token: str
    promise: TimePromise | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the function's output for every batch that has rows."""
        with crossing():
            for batch in batches:
                if batch.num_rows:
                    yield from self.apply(batch)

    def apply(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the function's output for one batch, checked."""
        given = () if self.setup is None else (self._made_ready(self.setup),)
        with explained(f"map_batches {self.operator!r}", self.fn, self.operator, rows=batch):
            result = self.fn(batch, *given)
        if result is None:
            return
        for part in result.to_batches() if isinstance(result, pa.Table) else [result]:
            checked = self._checked(part)
            if self.promise is not None:
                self.promise.check(batch, checked, self.operator)
            yield checked

    def _made_ready(self, setup: Callable[[], Any]) -> Any:
        """Return what the set-up returned in this worker; the first that asks runs it."""
        with _setting_up:
            if self.token not in _ready:
                with explained(f"the setup of map_batches {self.operator!r}", setup, self.operator):
                    _ready[self.token] = setup()
            return _ready[self.token]

    def _checked(self, result: Any) -> pa.RecordBatch:
        if isinstance(result, pa.RecordBatch) and sorted(result.schema.names) == sorted(self.schema.names):
            try:
                columns = [fitted_column(result.column(field.name), field.type) for field in self.schema]
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
                pass
            else:
                self._require_values(columns)
                return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        got = result.schema.to_string() if isinstance(result, pa.RecordBatch) else type(result).__name__
        raise InvalidPipeline(
            f"map_batches {self.operator!r} returned rows that do not have its declared schema.",
            why=f"declared: {_one_line(self.schema.to_string())}; returned: {_one_line(got)}.",
            do="return a RecordBatch or Table with exactly these columns, or correct schema=.",
            participant=self.operator,
        )

    def _require_values(self, columns: list[pa.Array]) -> None:
        """Refuse a null in a column that is declared NOT NULL: Spark would take it for 0, or fail later."""
        for field, column in zip(self.schema, columns, strict=True):
            if not field.nullable and column.null_count:
                raise InvalidPipeline(
                    f"map_batches {self.operator!r} returned a row without {field.name!r}.",
                    why=f"the column is declared {field.type} NOT NULL, and {column.null_count} of "
                    f"{len(column)} rows have no value there.",
                    do="give each row a value, or declare the column without NOT NULL.",
                    participant=self.operator,
                )


@dataclass(frozen=True)
class BranchFunction:
    """:class:`BatchFunction` after a fan-out: only the rows of one branch go through it, the others pass unchanged.

    Parameters
    ----------
    function : BatchFunction or LookUpFunction
        What is done to the branch's rows.
    tag : int
        The branch.
    inputs : tuple of (str, str)
        Name of a column for the function, and in the wide frame.
    outputs : tuple of str
        Names, in the wide frame, of the function's output columns.
    schema : pa.Schema
        Schema of the wide frame with the outputs.
    """

    function: BatchFunction | LookUpFunction
    tag: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the other branches' rows as they are, and this branch's rows transformed."""
        with crossing():
            for batch in batches:
                yield from self._passed(batch)

    def _passed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        mine = pc.equal(batch.column(STEP), self.tag)
        others = batch.filter(pc.invert(mine))
        if others.num_rows:
            yield self._widened({name: others.column(name) for name in others.schema.names}, others.num_rows)
        rows = batch.filter(mine)
        if rows.num_rows:
            given = pa.RecordBatch.from_arrays(
                [rows.column(wide) for _, wide in self.inputs], names=[name for name, _ in self.inputs]
            )
            for result in self.function.apply(given):
                columns: dict[str, pa.Array] = dict(zip(self.outputs, result.columns, strict=True))
                columns[STEP] = pa.repeat(pa.scalar(self.tag, pa.int32()), result.num_rows)
                yield self._widened(columns, result.num_rows)

    def _widened(self, columns: dict[str, pa.Array], row_count: int) -> pa.RecordBatch:
        arrays = [
            fitted_column(columns[field.name], field.type) if field.name in columns else pa.nulls(row_count, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@contextmanager
def explained(
    what: str, function: Callable[..., Any], operator: str, *, rows: str | pa.RecordBatch | None = None
) -> Iterator[None]:
    """Name the operator, the exception, its line and the first row in whatever a user's function raises."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        # A system that did not answer may answer next time; anything else would fail again.
        kind = Unavailable if isinstance(error, ConnectionError | TimeoutError) else InvalidPipeline
        cure = (
            "make sure that the system answers"
            if kind is Unavailable
            else "fix the function, or leave such rows out by a filter before it"
        )
        raise kind(
            f"{what} raised {type(error).__name__}.",
            why=f"{' '.join(str(error).split()) or 'it has no message'} ({_place(error, function)})"
            f"{'' if rows is None else f'; the first row: {_first(rows)}'}.",
            do=f"{cure}, then start again: nothing of the epoch is visible.",
            participant=operator,
        ) from error


def _first(rows: str | pa.RecordBatch) -> str:
    """Return the first row on one line."""
    return rows if isinstance(rows, str) else first_rows(pa.Table.from_batches([rows]), 1)


def _place(error: Exception, function: Callable[..., Any]) -> str:
    """Return file and line of the last frame in the function's own file; else of the last frame."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    frame = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    return f"{frame.filename}:{frame.lineno}"


def _one_line(text: str) -> str:
    return ", ".join(text.split("\n"))
