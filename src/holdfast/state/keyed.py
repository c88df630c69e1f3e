"""What operators with keys and times share: their arguments, ticks, durations, and the form of late rows.

Reasons for which rows leave an operator beside its rows, or not at all, as they are counted.

The reason in a row says everything (the timestamp, the bound); these are few, so that they can be added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline, invariant, present
from holdfast.graph.building import a_type, no_such_column
from holdfast.graph.event_time import no_timestamp
from holdfast.graph.nodes import Stream
from holdfast.state.timeline import CLOSED
from holdfast.types import units
from holdfast.values import SIDE_COLUMNS, side_column, side_names

Ticks = npt.NDArray[np.int64]


def key_names(by: Any, argument: str = "by") -> tuple[str, ...]:
    """Return key columns, given as one name or several.

    Raises
    ------
    InvalidPipeline
        If one is not a text, or is there twice.
    """
    names = [by] if isinstance(by, str) else list(by) if isinstance(by, Sequence) else [by]
    odd = next((name for name in names if not isinstance(name, str) or not name), None)
    if odd is not None or not names:
        raise InvalidPipeline(
            f"{argument}={by!r} does not name columns.",
            why="a column's name or a list of names is expected.",
            do=f'write for instance {argument}="origin" or {argument}=["origin", "dest"].',
        )
    if len({name.lower() for name in names}) < len(names):
        raise InvalidPipeline(f"{argument}={by!r} names a column twice.", do="name each column once.")
    return tuple(names)


def timestamp_of(stream: Stream, given: str | None, *, here: str | None = None) -> str:
    """Return the timestamp column of a stream.

    Parameters
    ----------
    stream : Stream
        The stream.
    given : str, optional
        The column, where the user has named it.
    here : str, optional
        The operator with the argument that names it; None where it has none.

    Raises
    ------
    InvalidPipeline
        If the stream declares none and none is given.
    """
    if (column := given or stream.timestamp) is None:
        raise no_timestamp(f"stream {stream.name!r}", stream.node, here=here)
    return column


def field_of(schema: pa.Schema, name: str, argument: str) -> pa.Field:
    """Return a column of a schema, found without regard to case, as Spark does."""
    found = next((field for field in schema if field.name.lower() == name.lower()), None)
    if found is None:
        raise no_such_column(name, schema.names, argument)
    return found


def key_schema(schema: pa.Schema, by: Sequence[str]) -> pa.Schema:
    """Return the key columns of a schema.

    Raises
    ------
    InvalidPipeline
        If one is missing, or of a type whose values cannot be compared for equality (struct, array, map).
    """
    fields = [field_of(schema, name, "by=") for name in by]
    for field in fields:
        if pa.types.is_nested(field.type):
            raise InvalidPipeline(
                f"by= names the column {field.name!r}, which is of type {field.type}.",
                why="a key is a plain value.",
                do=f'select a part of it: stream | hf.select("*", key="{field.name}.part")',
            )
    return pa.schema(fields)


def time_field(schema: pa.Schema, name: str) -> pa.Field:
    """Return the timestamp column of a schema.

    Raises
    ------
    InvalidPipeline
        If it is missing, or neither TIMESTAMP nor BIGINT.
    """
    field = field_of(schema, name, "timestamp=")
    if field.type not in (pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        raise InvalidPipeline(
            f"timestamp= names the column {field.name!r}, which is of type {field.type}.",
            why="event time is a TIMESTAMP, or a BIGINT of ticks.",
            do=f'read it as one: schema="... {field.name} TIMESTAMP ..."',
        )
    return field


def ticks(column: pa.ChunkedArray | pa.Array) -> Ticks:
    """Return a timestamp column without nulls as int64: microseconds of a TIMESTAMP, the numbers of a BIGINT."""
    return np.asarray(pc.cast(column, pa.int64())).astype(np.int64, copy=False)


def check_duration(value: Any, argument: str, *, least: int = 1) -> str | int:
    """Return a duration, checked: text with a unit, or a number of ticks."""
    amount = units.duration_us(value, argument=argument) if isinstance(value, str) else value
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise InvalidPipeline(
            f"{argument}={value!r} is not a duration.",
            why=f"{a_type(value)} was given.",
            do=f'write text with a unit, {argument}="5 s", or ticks for a BIGINT timestamp, {argument}=100.',
        )
    if amount < least:
        raise InvalidPipeline(f"{argument}={value!r} is too small.", do=f"give {least} tick(s) or more.")
    return value  # type: ignore[no-any-return]


def duration_ticks(value: str | int, time: pa.Field, argument: str) -> int:
    """Return a duration in the ticks of a timestamp column; a zero may be written as 0 for either kind.

    Raises
    ------
    InvalidPipeline
        If a text is given for a BIGINT, whose unit only the user knows, or a bare number for a TIMESTAMP.
    """
    if isinstance(value, str) and time.type != pa.int64():
        return units.duration_us(value, argument=argument)
    if isinstance(value, int) and (time.type == pa.int64() or value == 0):
        return value
    right = f"{argument}=5000000" if isinstance(value, str) else f'{argument}="5 s"'
    kind = "BIGINT ticks of your own unit" if isinstance(value, str) else "a TIMESTAMP"
    raise InvalidPipeline(
        f"{argument}={value!r} does not fit the timestamp column {time.name!r}.",
        why=f"that column holds {kind}.",
        do=f"write for instance {right}.",
    )


def late_schema(key: pa.Schema, time: pa.DataType, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the schema of late rows: key, timestamp, input, reason, and a struct column per input.

    What is not of the key has a prefix where a name is taken (:func:`holdfast.values.side_names`).
    """
    ours, of_inputs = side_names(key.names, list(inputs))
    kinds = [time, pa.string(), pa.string(), *(pa.struct(list(schema)) for schema in inputs.values())]
    return pa.schema([*key, *map(pa.field, (*ours, *of_inputs), kinds)])


def late_rows(schema: pa.Schema, source: str, rows: pa.Table, time: str, bound: Ticks, why: str | pa.Array) -> pa.Table:
    """Return late rows of one input.

    Parameters
    ----------
    schema : pa.Schema
        Of :func:`late_schema`.
    source : str
        The input.
    rows : pa.Table
        Its late rows; columns that are not the input's are dropped.
    time : str
        Its timestamp column.
    bound : numpy array of int64
        For each row, the bound that it is below.
    why : str or pa.Array
        What the bound follows from, for the reason; one for all rows, or one for each.
    """
    kind = schema.field(side_time(schema)).type
    stamps = pc.cast(rows.column(time), kind)
    texts = pc.cast(stamps, pa.string())
    bounds = pc.cast(pa.array(bound, pa.int64()).cast(kind), pa.string())
    reasons = pc.if_else(
        pa.array(bound == CLOSED),
        pc.binary_join_element_wise("timestamp ", texts, ": the input has ended", ""),
        pc.binary_join_element_wise("timestamp", texts, "is below the bound", bounds, why, " "),
    )
    return side_rows(schema, source, rows, time, reasons)


def side_rows(schema: pa.Schema, source: str, rows: pa.Table, time: str, reasons: pa.Array) -> pa.Table:
    """Return rows of one input with the reasons why they leave beside the others.

    Parameters
    ----------
    schema, source, rows, time
        As of :func:`late_rows`.
    reasons : pa.Array
        One for each row.
    """
    count, (stamp, of_input, reason, whole) = rows.num_rows, _side_columns(schema, source)
    made: dict[str, Any] = {
        stamp: pc.cast(rows.column(time), schema.field(stamp).type),
        of_input: pa.repeat(pa.scalar(source), count),
        reason: reasons,
        whole: structs(rows, schema.field(whole).type),
    }
    columns = [
        made[field.name] if field.name in made
        else pa.nulls(count, field.type) if pa.types.is_struct(field.type)
        else rows.column(field.name)
        for field in schema
    ]  # fmt: skip
    return pa.Table.from_arrays(columns, schema=schema)


def _side_columns(schema: pa.Schema, source: str) -> list[str]:
    """Return the columns of a side output that hold the time, the input, the reason and the rows of an input."""
    ours = [_side_column(schema, name) for name in SIDE_COLUMNS]
    keys = [field.name for field in schema if not pa.types.is_struct(field.type) and field.name not in ours]
    (whole,) = side_names(keys, [source])[1]
    invariant(whole in schema.names, f"rows of {source!r} have no column in {schema.names}.")
    return [*ours, whole]


def side_time(schema: pa.Schema) -> str:
    """Return the column of a side output that holds the time."""
    return _side_column(schema, SIDE_COLUMNS[0])


def _side_column(schema: pa.Schema, name: str) -> str:
    plain = (field.name for field in schema if not pa.types.is_struct(field.type))
    return present(side_column(plain, name), f"a side output has no column {name!r}: {schema.names}.")


def structs(rows: pa.Table, kind: pa.StructType, present: npt.NDArray[np.bool_] | None = None) -> pa.StructArray:
    """Return rows as one column of structs, null where ``present`` is false."""
    whole = rows.combine_chunks()
    parts = [_one(whole.column(field.name)) for field in kind]
    mask = None if present is None else pa.array(~present)
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


BELOW = "below the bound"
ENDED = "the input has ended"
REPEATED = "a repeated timestamp"
ALONE = "no row of another input"
FORGOTTEN = "its key was forgotten"
DUPLICATE = "a duplicate"

_MARK = ": "


def counted(what: str, of: Mapping[str, int]) -> dict[str, int]:
    """Return counts of a step: how many there are, and how many for each reason that there is.

    Examples
    --------
    >>> counted("late", {BELOW: 2, ENDED: 0})
    {'late': 2, 'late: below the bound': 2}
    """
    return {what: sum(of.values())} | {f"{what}{_MARK}{reason}": count for reason, count in of.items() if count}


def late_counts(bounds: npt.NDArray[np.int64]) -> dict[str, int]:
    """Return the counts of late rows, given the bound that each of them is below."""
    ended = int((bounds == CLOSED).sum())
    return counted("late", {BELOW: len(bounds) - ended, ENDED: ended})


def parted(counts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Return counts without those by reason, and these: what -> reason -> count.

    Examples
    --------
    >>> parted({"late": 2, "late: below the bound": 2, "sets": 5})
    ({'late': 2, 'sets': 5}, {'late': {'below the bound': 2}})
    """
    whole, by_reason = dict[str, int](), dict[str, dict[str, int]]()
    for name, count in counts.items():
        what, mark, reason = name.partition(_MARK)
        if mark:
            by_reason.setdefault(what, {})[reason] = count
        else:
            whole[what] = count
    return whole, by_reason
