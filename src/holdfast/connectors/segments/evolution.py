"""Columns that change between runs while segments grow: what is taken, and what the file of such a segment has.

A column may be added, left out, or widened.  The file of a segment has the columns of the run that seals it, and behind
them those that only earlier rows have; what a row lacks is null.  Files sealed before keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.types.partition import partition_name
from holdfast.types.schema import unite_schemas


def check_change(
    sink: str, before: pa.Schema, after: pa.Schema, partition_by: Sequence[str], partitions: Iterable[str]
) -> None:
    """Raise :class:`InvalidPipeline` if rows that grow, and new ones, cannot be in one file or in one layout."""
    wanted = [partition_name(column, None).partition("=")[0] for column in partition_by]
    for partition in partitions:
        found = [part.partition("=")[0] for part in partition.split("/")] if partition else []
        if found != wanted:
            raise InvalidPipeline(
                f"Sink {sink!r} is partitioned by {', '.join(wanted) or 'nothing'}, and its directory by "
                f"{', '.join(found) or 'nothing'}.",
                why=f"a reader treats all files of a directory as one table; {partition or 'the directory'} has rows.",
                do="write to another directory.",
                participant=sink,
            )
    for field in after:
        place = before.get_field_index(field.name)
        if place < 0:
            continue
        old = before.field(place)
        try:
            unite_schemas([pa.schema([old]), pa.schema([field])])
        except pa.ArrowException as error:
            raise InvalidPipeline(
                f"Column {field.name!r} of sink {sink!r} is {field.type}, and was {old.type}.",
                why="rows of both types cannot be in one file; types may be widened, and columns added or left out.",
                do="write to another directory, or cast or rename the column before the sink.",
                participant=sink,
            ) from error
