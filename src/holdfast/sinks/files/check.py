"""What a files sink checks before a run starts: that its columns fit the existing files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import InvalidPipeline
from holdfast.sinks.files import partition
from holdfast.store import durable

FILES_CHECKED = 16
"""Newest names first.  A directory of a million files must not delay a start; the newest show what is written now."""

_FORMATS = ("parquet", "json")


def check_partition_columns(sink: str, partition_by: Sequence[str]) -> None:
    """Raise :class:`InvalidPipeline` if readers would not see the directories of a column."""
    hidden = [column for column in partition_by if column.startswith(("_", "."))]
    if hidden:
        raise InvalidPipeline(
            f"{sink} cannot be partitioned by column {hidden[0]!r}.",
            why=f"readers of a directory skip names that begin with '_' or '.': {hidden[0]}=... is one.",
            do=f"rename the column before the sink, for instance to {hidden[0].lstrip('_.') or 'part'!r}.",
        )


def check_renames(sink: str, path: str) -> None:
    """Raise :class:`InvalidPipeline` if files of an address cannot become visible by a rename."""
    if durable.local_path(path) is None:
        raise InvalidPipeline(
            f"{sink} cannot write to {path.partition('://')[0]}:// addresses.",
            why="an epoch becomes visible by renaming its files; object stores copy instead, which is not atomic.",
            do="choose a mounted path (a local disk, NFS, EFS), or load the files into the store afterwards.",
        )


def check_partition_types(sink: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise :class:`InvalidPipeline` if a partition column is absent or of a type that names no directory."""
    for column in partition_by:
        if column not in schema.names:
            raise InvalidPipeline(
                f"Sink {sink!r} is partitioned by column {column!r}, which its rows do not have.",
                why=f"they have {', '.join(schema.names)}.",
                do="correct partition_by, or add the column before the sink.",
                participant=sink,
            )
        kind = schema.field(column).type
        if not partition.is_partition_type(kind):
            raise InvalidPipeline(
                f"Sink {sink!r} cannot be partitioned by column {column!r} of type {kind}.",
                why="a value becomes a directory's name and must be the same value when it is read back.",
                do="partition by a column of integers, text, booleans, decimals, dates or timestamps.",
                participant=sink,
            )
    if len(set(partition_by)) == len(schema.names):
        raise InvalidPipeline(
            f"Sink {sink!r} is partitioned by all of its columns: its files would have none.",
            do="leave at least one column out of partition_by.",
            participant=sink,
        )


def check_existing(
    sink: str, directory: str, schema: pa.Schema, *, format_name: str, partition_by: Sequence[str]
) -> None:
    """Check the newest files of a directory against what the sink is about to write.

    Raises
    ------
    InvalidPipeline
        If a column differs (names it and both types), or the partition columns, or the format.
    """
    for path in islice(_files(directory), FILES_CHECKED):
        found = path.rpartition(".")[2]
        if found not in _FORMATS:
            continue
        if found != format_name:
            raise _differs(sink, path, f"the files there are {found}, the sink writes {format_name}")
        _check_partitions(sink, directory, path, partition_by)
        if found == "parquet":
            _check_columns(sink, path, pa.schema([field for field in schema if field.name not in partition_by]))


def _files(directory: str) -> Iterator[str]:
    """Yield what a reader of the directory would read, newest name first."""
    for above, directories, names in os.walk(directory):
        directories[:] = sorted((name for name in directories if name[0] not in "_."), reverse=True)
        yield from (os.path.join(above, name) for name in sorted(names, reverse=True) if name[0] not in "_.")


def _check_partitions(sink: str, directory: str, path: str, partition_by: Sequence[str]) -> None:
    above = os.path.relpath(os.path.dirname(path), directory)
    found = [part.partition("=")[0] for part in above.split(os.sep) if "=" in part]
    wanted = [partition.partition_name(column, None).partition("=")[0] for column in partition_by]
    if found != wanted:
        raise _differs(
            sink,
            path,
            f"the files there are partitioned by {', '.join(found) or 'nothing'}, "
            f"the sink by {', '.join(wanted) or 'nothing'}",
        )


def _check_columns(sink: str, path: str, schema: pa.Schema) -> None:
    try:
        existing = pq.read_schema(path)
    except FileNotFoundError:
        return  # removed meanwhile: retention runs concurrently
    except (OSError, pa.ArrowException) as error:
        raise _differs(sink, path, f"{os.path.basename(path)} is not a Parquet file ({error})") from error
    for field in schema:
        if field.name not in existing.names:
            raise _differs(sink, path, f"column {field.name!r} is {field.type} in the sink and absent in the files")
        found = existing.field(field.name).type
        if _plain(found) != _plain(field.type):
            raise _differs(sink, path, f"column {field.name!r} is {field.type} in the sink and {found} in the files")
    for name in existing.names:
        if name not in schema.names:
            raise _differs(
                sink, path, f"column {name!r} is absent in the sink and {existing.field(name).type} in the files"
            )


def _differs(sink: str, path: str, difference: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"The rows of sink {sink!r} do not fit the files that are already there: {difference}.",
        why=f"a reader treats all files of a directory as one table; {path} was compared.",
        do="write to another directory, or cast or rename the column before the sink.",
        participant=sink,
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without what one table may mix: width of offsets, dictionaries, names inside lists."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind
