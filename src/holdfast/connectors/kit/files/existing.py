"""What a files sink checks before a run starts: that its columns fit the existing files.

Files kept from being removed while they are read: linked into a directory of the sink's own, which readers skip.

Whoever has a view open holds a lock on that directory: one whose holder has died is removed by the next.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.kit.files.own_files import tag_of
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.store import durable
from holdfast.types import partition

FILES_CHECKED = 16
"""Newest names first.  A directory of a million files must not delay a start; the newest show what is written now."""

_FORMATS = ("parquet", "json")


def check_form(sink: str, format_name: str, partition_by: Sequence[str]) -> None:
    """Raise :class:`InvalidPipeline` if there is no such format, or partition columns are named twice or hidden."""
    if format_name not in _FORMATS:
        raise InvalidPipeline(f"{sink}: format={format_name!r} is not known.", do='choose "parquet" or "json" (lines).')
    if len(set(partition_by)) < len(partition_by):
        raise InvalidPipeline(f"{sink}: partition_by={list(partition_by)} names a column twice.", do="name each once.")
    check_partition_columns(sink, partition_by)


def check_partitioned(sink: str, partition_by: Sequence[str], columns: Collection[str] | None) -> None:
    """Raise :class:`InvalidPipeline` if a partition column is not there, where the columns are known."""
    missing = [column for column in partition_by if columns is not None and column not in columns]
    if missing:
        raise InvalidPipeline(
            f"{sink} is partitioned by column {missing[0]!r}, which its rows do not have.",
            why=f"they have {', '.join(columns or ())}.",
            do="correct partition_by, or add the column before the sink.",
        )


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
            do="choose a mounted path (a local disk, NFS, EFS), or load the files into the store afterwards; "
            "write.files takes s3:// addresses, too.",
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
    for path in newest_files(directory):
        check_file(sink, directory, path, schema, format_name=format_name, partition_by=partition_by)


def check_file(
    sink: str, directory: str, path: str, schema: pa.Schema, *, format_name: str, partition_by: Sequence[str]
) -> None:
    """Check one of them; see :func:`check_existing`."""
    check_place(sink, os.path.relpath(path, directory), path, format_name, partition_by)
    if format_name == "parquet":
        plain = pa.schema([field for field in schema if field.name not in partition_by])
        check_columns(sink, path, plain, partial(pq.read_schema, path))


def newest_files(directory: str) -> Iterator[str]:
    """Yield some of the files of rows that a reader of the directory would read, newest name first."""
    return (path for path in islice(_files(directory), FILES_CHECKED) if path.rpartition(".")[2] in _FORMATS)


def _files(directory: str) -> Iterator[str]:
    """Yield what a reader of the directory would read, newest name first."""
    for above, directories, names in os.walk(directory):
        directories[:] = sorted((name for name in directories if name[0] not in "_."), reverse=True)
        yield from (os.path.join(above, name) for name in sorted(names, reverse=True) if name[0] not in "_.")


def check_place(sink: str, relative: str, path: str, format_name: str, partition_by: Sequence[str]) -> None:
    """Raise :class:`InvalidPipeline` if the path of a file, relative to its directory, is not as the sink's would be.

    Parameters
    ----------
    sink : str
        Its name.
    relative, path : str
        Of the file; for messages.
    format_name, partition_by
        Of the sink.
    """
    kind = path.rpartition(".")[2]
    if kind != format_name:
        raise _differs(sink, path, f"the files there are {kind}, the sink writes {format_name}")
    found = [part.partition("=")[0] for part in relative.split("/")[:-1] if "=" in part]
    wanted = [partition.partition_name(column, None).partition("=")[0] for column in partition_by]
    if found != wanted:
        raise _differs(
            sink,
            path,
            f"the files there are partitioned by {', '.join(found) or 'nothing'}, "
            f"the sink by {', '.join(wanted) or 'nothing'}",
        )


def check_columns(sink: str, path: str, schema: pa.Schema, read_schema: Callable[[], pa.Schema]) -> None:
    """Raise :class:`InvalidPipeline` if the columns of a Parquet file are not those that the sink writes.

    Parameters
    ----------
    sink, path : str
        For messages.
    schema : pyarrow.Schema
        Of the files that the sink writes.
    read_schema : callable
        Reads that of the file.
    """
    try:
        existing = read_schema()
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


_VIEWS = "views"
_NAME = re.compile(r"(?:part|segment)-\d{12}-\d+-([0-9a-f]{8})-[0-9a-f]{12}(?:-\d+)?\.(?:parquet|json)")

ATTEMPTS = 100


def sweep_views(own: str) -> None:
    """Remove the views that nobody has open."""
    for place in glob.glob(os.path.join(glob.escape(own), _VIEWS, "*")):
        with suppress(OSError):
            held = os.open(place, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(held)


@contextmanager
def view_directory(own: str) -> Iterator[str]:
    """Make a directory for links, below a sink's own; remove it in the end."""
    sweep_views(own)
    above = os.path.join(own, _VIEWS)
    while True:
        place = os.path.join(above, uuid.uuid4().hex)
        with durable.explained(f"opening {place}"):
            os.makedirs(place, 0o700)
            held = os.open(place, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        if os.path.exists(place):  # else it was taken for one of a dead process before it was locked
            break
        os.close(held)
    try:
        yield place
    finally:
        try:
            shutil.rmtree(place, ignore_errors=True)
        finally:
            os.close(held)
        with suppress(OSError):
            os.rmdir(above)


def linked(source: str, place: str) -> str:
    """Link a file into a view; return where it is read.

    It is read where it is if the system does not let us: another user's, or a file system without links.

    Raises
    ------
    FileNotFoundError
        If it is gone.
    """
    link = os.path.join(place, uuid.uuid4().hex)
    try:
        os.link(source, link)
    except FileNotFoundError:
        raise
    except OSError:
        return source
    return link


def tag_in(path: str) -> str | None:
    """Return what the name of a sink's file has, to distinguish pipelines and sinks; None where it is of none."""
    match = _NAME.fullmatch(os.path.basename(path))
    return None if match is None else match[1]


def other_tags(directory: str, own: str) -> set[str]:
    """Return what the names of other sinks' files have."""
    found = set()
    for place in glob.glob(os.path.join(glob.escape(directory), "_holdfast", "*", "*")):
        if os.path.realpath(place) != os.path.realpath(own):
            found.add(tag_of(os.path.basename(os.path.dirname(place)), os.path.basename(place)))
    return found


def changing(directory: str) -> Unavailable:
    """Return the error of files that are gone before they can be linked."""
    return Unavailable(
        f"The files of {directory} change faster than they can be listed.",
        why=f"files were joined or removed while they were listed, {ATTEMPTS} times in a row.",
        do="try again.",
        participant=directory,
    )
