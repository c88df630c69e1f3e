"""Rows as payloads, and payloads as rows: at the edge of a flowgraph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import BadRow, InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.queues import Payload
from holdfast.flow.run import Run
from holdfast.flow.timestamps import DONE, MAX, MIN
from holdfast.state import checks, keyed
from holdfast.state.step import CLOSED, UNBOUNDED


@dataclass(frozen=True)
class Port:
    """How rows of a stream become payloads.

    Parameters
    ----------
    name : str
        Graph input.
    column : str, optional
        The column whose value is the payload; None: the row, as a dict.
    key : tuple of str
        Key columns, which a row as payload lacks.
    """

    name: str
    column: str | None
    key: tuple[str, ...]

    def payloads(self, rows: pa.Table) -> list[Payload]:
        """Return the payload of each row."""
        if self.column is not None:
            return list(rows.column(self.column).to_pylist())
        return list(rows.drop_columns(list(self.key)).to_pylist())


def table(
    keys: pa.Table,
    places: Sequence[int],
    times: Sequence[int],
    values: Iterable[Payload],
    schema: pa.Schema,
    output: str,
) -> pa.Table:
    """Return what left by an output as rows.

    Parameters
    ----------
    keys : pa.Table
        Keys.
    places : sequence of int
        For each row its key, as a row of ``keys``.
    times : sequence of int
        For each row its timestamp, in ticks.
    values : iterable
        Payloads.
    schema : pa.Schema
        Of the rows: key columns, timestamp, and the columns of payloads.
    output : str
        Graph output, for errors.

    Raises
    ------
    InvalidPipeline
        If a payload has other columns, or a value does not fit its type.
    """
    time, *columns = list(schema)[keys.num_columns :]
    if len(columns) == 1:
        made = [_column([_single(value, columns[0].name) for value in values], columns[0], output)]
    else:
        given = [_mapping(value, columns, output) for value in values]
        made = [_column([each.get(column.name) for each in given], column, output) for column in columns]
    of_keys = keys.take(pa.array(places, pa.int64())).columns if keys.num_columns else []
    stamps = pa.array(times, pa.int64()).cast(time.type)
    return pa.Table.from_arrays([*of_keys, stamps, *made], schema=schema)


def _single(value: Payload, name: str) -> Any:
    value = _fields_of(value)
    return value[name] if isinstance(value, Mapping) and set(value) == {name} else value


def _mapping(value: Payload, columns: Sequence[pa.Field], output: str) -> Mapping[str, Payload]:
    value = _fields_of(value)
    names = [column.name for column in columns]
    if not isinstance(value, Mapping) or not set(value) <= set(names):
        shown = f"{type(value).__name__} {value!r}"[:200]
        raise InvalidPipeline(
            f"output {output!r} of the graph gave {shown}.",
            why=f"its rows have the columns {', '.join(names)}: a payload is a mapping of these, or a dataclass.",
            do="give that, or declare other columns.",
        )
    return value


def _fields_of(value: Payload) -> Any:
    """Return a dataclass as a mapping of its fields, and another value as it is."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _column(values: list[Payload], column: pa.Field, output: str) -> pa.Array:
    try:
        return pa.array(values, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise InvalidPipeline(
            f"output {output!r} of the graph gave a value that is no {column.type}, for column {column.name!r}.",
            why=str(error),
            do="give a value of the declared type, or declare another one.",
        ) from error


def require_times(rows: pa.Table, column: str, name: str) -> None:
    """Check that packets can have the timestamps of rows: the lowest and highest numbers mean something else.

    Raises
    ------
    BadRow
        Naming the input and the first such rows.
    """
    times = keyed.ticks(rows.column(column))
    bad = rows.filter(pa.array((times < MIN) | (times > MAX)))
    if bad.num_rows:
        raise BadRow(
            f"{bad.num_rows} row(s) of input {name!r} have a {column!r} that no packet may have.",
            why=f"the first three and the last three numbers of 64 bits are special times; the first: "
            f"{checks.first_rows(bad)}.",
            do=f'drop such rows before: stream | hf.filter("{column} BETWEEN {MIN} AND {MAX}"); or give them a time.',
        )


def row_time(t: int, output: str) -> int:
    """Return the time of a packet that leaves, as that of a row.

    Raises
    ------
    InvalidPipeline
        If it is a special one.
    """
    if not MIN <= t <= MAX:
        raise InvalidPipeline(
            f"A packet leaves the graph by output {output!r} at {timestamps.text(t)}.",
            why="what leaves becomes a row, and a row has a time.",
            do="give it one: context.emit(output, value, at=time).",
        )
    return t


def promise(run: Run, bounds: Mapping[str, int]) -> None:
    """Tell a graph the bounds of its inputs."""
    for name, bound in bounds.items():
        current = run.stream_bound(name)
        if bound == CLOSED and current != DONE:
            run.close(name)
        elif UNBOUNDED < bound < CLOSED and bound > current:
            run.raise_bound(name, max(bound, MIN))


def ticks_of(bound: int) -> int:
    """Return a bound of a graph as one of rows."""
    if bound <= MIN:
        return UNBOUNDED
    return CLOSED if bound > MAX else bound
