"""The rows of simulated pipelines: numbered, so that an auditor can tell lost, doubled and reordered ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("segment", pa.string()), ("seq", pa.int64()), ("value", pa.float64())])
"""Columns of every simulated row.  ``value`` is random: another evaluation gives another one."""

SEGMENTS = 2
ROW_US = 1_000
"""Timestamp of row n: n times this, microseconds."""


def is_for(sink_index: int, row_id: int) -> bool:
    """Tell whether the row with this id goes to the sink with this index: all to the first, a share to the others."""
    return sink_index == 0 or row_id % (sink_index + 1) != 1


def rows_between(start: int, end: int, sink_index: int, luck: float) -> pa.Table:
    """Evaluate rows ``start`` to ``end`` (exclusive) for one sink; ``luck`` is the random part of their value.

    Examples
    --------
    >>> rows_between(2, 5, 0, 0.5)["id"].to_pylist()
    [2, 3, 4]
    """
    ids, fixed = _fixed_columns(start, end, sink_index)
    return pa.Table.from_arrays([*fixed, pa.array([row_id + luck for row_id in ids], pa.float64())], schema=SCHEMA)


@lru_cache(maxsize=4096)
def _fixed_columns(start: int, end: int, sink_index: int) -> tuple[list[int], list[pa.Array]]:
    # The same few ranges come again and again in 10 000 seeds.
    ids = [row_id for row_id in range(start, end) if is_for(sink_index, row_id)]
    columns = [ids, [f"segment{row_id % SEGMENTS}" for row_id in ids], [row_id // SEGMENTS for row_id in ids]]
    return ids, list(map(pa.array, columns, SCHEMA.types[:3]))


def audit_rows(
    sink_index: int, row_count: int, rows: Sequence[Sequence[object]], *, is_ordered: bool = True
) -> list[str]:
    """Compare what a sink shows with what it should hold; returns the problems in words.

    Examples
    --------
    >>> audit_rows(0, 2, [(0, "segment0", 0, 0.5), (0, "segment0", 0, 0.5)])
    ['lost: 1', 'doubled: 0']
    """
    problems = []
    wanted = {row_id for row_id in range(row_count) if is_for(sink_index, row_id)}
    ids = [row[0] for row in rows]
    seen: set[object] = set()
    doubled = sorted({str(i) for i in ids if i in seen or seen.add(i)})  # type: ignore[func-returns-value]
    lost, foreign = sorted(wanted - seen), sorted(map(str, seen - wanted))
    problems += [f"lost: {', '.join(map(str, lost))}"] if lost else []
    problems += [f"doubled: {', '.join(doubled)}"] if doubled else []
    problems += [f"foreign: {', '.join(foreign)}"] if foreign else []
    if is_ordered and not doubled:
        for segment in sorted({str(row[1]) for row in rows}):
            sequence = [int(str(row[2])) for row in rows if row[1] == segment]
            if sequence != sorted(sequence):
                problems.append(f"{segment} out of order: {sequence}")
    return problems


def audit_values(several: Sequence[Sequence[Sequence[object]]]) -> list[str]:
    """Check that a random value is the same in every sink that has the row."""
    first: dict[object, object] = {}
    problems = []
    for rows in several:
        for row in rows:
            if first.setdefault(row[0], row[3]) != row[3]:
                problems.append(f"row {row[0]} has two values: {first[row[0]]} and {row[3]}")
    return problems
