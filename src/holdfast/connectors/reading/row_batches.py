"""Rows of Python as Arrow batches of a declared schema.

Reasons of rejected rows, as they are counted: without values, so that they are few and can be added up.

The reason in a row says everything; where the value begins, it ends here.  What names a number (of fields) loses it.
Each is two substitutions in a syntax that Arrow and Spark share, as either may count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.types.conversion import check_range
from holdfast.types.units import time_us

Row = Mapping[str, Any]


def to_batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows given as dicts as an Arrow batch of a schema.

    Raises
    ------
    InvalidPipeline
        If a row has a key that is not a column, lacks one that is NOT NULL, or has a value that does not fit.
    """
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidPipeline(f"row {number} is a {type(row).__name__}.", do='write each row as {"column": value}.')
        if unknown := [key for key in row if key not in schema.names]:
            raise InvalidPipeline(
                f"row {number} has the key {unknown[0]!r}, which is no column.",
                do=f"use the columns of the schema: {', '.join(map(repr, schema.names))}.",
            )
    columns = []
    for column in schema:
        values = [row.get(column.name) for row in rows]
        try:
            if pa.types.is_timestamp(column.type):
                values = [_moment(each, column.name) if isinstance(each, str) else each for each in values]
            array = pa.array(values, column.type)
            check_range(array)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InvalidPipeline(
                f"column {column.name!r} cannot be made of the rows: {error}.",
                why=f"it is declared {column.type}.",
                do="correct the values or the schema.",
            ) from error
        if not column.nullable and array.null_count:
            raise InvalidPipeline(
                f"row {values.index(None)} lacks column {column.name!r}.",
                why="the schema declares it NOT NULL.",
                do="give it a value.",
            )
        columns.append(array)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _moment(text: str, column: str) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us(text, argument=column))


SUBSTITUTIONS = ((r"(?s)(?: and holds | \(|:).*", ""), (r"\b[0-9][0-9,.]*\b", "N"))
"""Pattern and what replaces it, one after the other."""

KINDS_MAX = 20
"""So many reasons of a source are counted each by itself."""

OTHERS = "other reasons"
"""What the rows of all further reasons are counted under."""


def counted(reasons: pa.Array) -> dict[str, int]:
    """Return how many rows there are for each reason; nulls are none.

    Examples
    --------
    >>> counted(pa.array(["it has 3 fields where 2 are expected", "'v' is declared int64 and holds [7]", None]))
    {'it has N fields where N are expected': 1, "'v' is declared int64": 1}
    """
    kinds = reasons.drop_null()
    for pattern, instead in SUBSTITUTIONS:
        kinds = pc.replace_substring_regex(kinds, pattern, instead)
    found = kinds.value_counts()
    return limited(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))


OTHER_MEMBERS = "other members"
"""The same of the names of members that are no column."""


def limited(counts: Iterable[tuple[str, int]], others: str = OTHERS) -> dict[str, int]:
    """Return the sums of counts by reason, of the first reasons; the others together, under a name for them.

    Examples
    --------
    >>> limited([("a", 1), ("b", 2), ("a", 3)])
    {'a': 4, 'b': 2}
    >>> limited((str(number), 1) for number in range(22))[OTHERS]
    2
    """
    found: dict[str, int] = {}
    for reason, count in counts:
        name = reason if reason in found or len(found) < KINDS_MAX else others
        found[name] = found.get(name, 0) + count
    return found


def added(one: Mapping[str, int], other: Mapping[str, int], others: str = OTHERS) -> dict[str, int]:
    """Return the sums of two counts by reason."""
    return limited([*one.items(), *other.items()], others)
