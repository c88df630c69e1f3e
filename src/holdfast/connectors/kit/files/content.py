"""The rows of Parquet files at one moment, read file by file and hashed as Arrow columns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.kit.compared_columns import FoundRows
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.ports import Held
from holdfast.types import canonical
from holdfast.types.canonical import Digests, is_wanted
from holdfast.types.partition import partition_values
from holdfast.types.plain import flat_type
from holdfast.values import NO_LOSSES, Loss, Losses, LossKind

BATCH_ROWS = 65_536
"""Rows that are read at once."""

FILES_AT_ONCE = 2
"""Files that are read and hashed beside each other: most of that is done without the interpreter's lock."""

T = TypeVar("T")


@dataclass(frozen=True)
class FileFormat:
    """How the rows of a sink lie in files.

    Parameters
    ----------
    node : str
        ``sink 'name'``, for errors.
    schema : pa.Schema
        Columns of the rows, partition columns included.
    partition_by : tuple of str
        Those that are in the names of directories.
    """

    node: str
    schema: pa.Schema
    partition_by: tuple[str, ...]

    @property
    def losses(self) -> Losses:
        """What files do not keep: the name of a directory does not tell an empty text from null."""
        kinds = [(name, flat_type(self.schema.field(name).type)) for name in self.partition_by]
        return frozenset(Loss(name, LossKind.EMPTY) for name, kind in kinds if canonical.is_text(kind))

    def constants(self, path: str) -> dict[str, pa.Scalar | None]:
        """Return the values that the path of a file says; None for what is no value of its column's type."""
        columns = pa.schema([self.schema.field(name) for name in self.partition_by])
        found: dict[str, pa.Scalar | None] = {name: pa.scalar(None, columns.field(name).type) for name in columns.names}
        for part in os.path.dirname(path).split("/"):
            try:
                found |= partition_values(part, columns)
            except (pa.ArrowException, ValueError):
                found |= dict.fromkeys(name for name in columns.names if partition_column(part) == name)
        return found

    def read(self, path: str, place: str) -> Iterator[FoundRows]:
        """Yield the rows of a file that lies somewhere, in their order.

        Raises
        ------
        Corrupt
            If it is no Parquet file, or is damaged.
        """
        constants = self.constants(path)
        try:
            with pq.ParquetFile(place) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    yield FoundRows.of(batch, self.schema, constants)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise Corrupt(
                f"{self.node}: {path} cannot be read.",
                why=f"{error}.",
                do="move it out of the directory: its rows are missing then, and a repair writes them again.",
                participant=self.node,
            ) from error


def partition_column(name: str) -> str:
    """Return the column that the name of a directory is of."""
    return unquote(name.partition("=")[0])


class FilesContent:
    """See :class:`holdfast.ports.Content`.

    Parameters
    ----------
    format : FileFormat
        How rows lie in the files.
    paths : mapping of str to str
        The files, and where they are read.
    held : Held
        What the log says of the same moment.
    read : callable, optional
        What reads a file, by path and place, where it is not the format.
    """

    key: tuple[str, ...] = ()

    def __init__(
        self,
        format: FileFormat,
        paths: Mapping[str, str],
        held: Held,
        read: Callable[[str, str], Iterator[FoundRows]] | None = None,
    ) -> None:
        canonical.check(format.schema)
        self.held = held
        self.schema = format.schema
        self.losses = format.losses
        self._read = read or format.read
        self._paths = paths

    def row_count(self) -> int:
        """Ask the footers; rows of a journal are not counted."""
        return sum(self._footer_rows(path, place) for path, place in self._paths.items() if path.endswith(".parquet"))

    def _footer_rows(self, path: str, place: str) -> int:
        try:
            return int(pq.read_metadata(place).num_rows)
        except (pa.ArrowException, OSError):
            return 0  # whoever reads it says why

    def digests(self, bits: int, losses: Losses = NO_LOSSES, by: Collection[str] = ()) -> Digests:
        """Read every file once."""
        found = Digests.empty(bits)
        adding = threading.Lock()

        def read(path: str, place: str) -> None:
            for rows in self._read(path, place):
                whole, divided = rows.hashes(losses | self.losses, by)
                buckets = canonical.buckets(divided, bits)
                with adding:
                    found.add(buckets, whole)

        for _ in self._of_files(read):
            pass
        return found

    def rows(
        self, bits: int, buckets: Collection[int], losses: Losses = NO_LOSSES, by: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Read every file once more, and yield the rows of these buckets.  The place is the file, and the number of
        the row in it.
        """
        if not buckets:
            return
        wanted = is_wanted(buckets, bits)

        def read(path: str, place: str) -> list[pa.RecordBatch]:
            found, first = [], 0
            for rows in self._read(path, place):
                chosen = rows.within(wanted, bits, losses | self.losses, by)
                if len(chosen):
                    places = [place_of(path, first + at) for at in chosen.tolist()]
                    found.append(rows.taken(chosen).rows(losses | self.losses, places))
                first += rows.row_count
            return found

        for found in self._of_files(read):
            yield from found

    def _of_files(self, read: Callable[[str, str], T]) -> Iterator[T]:
        """Yield what is read of each file, in their order."""
        with ThreadPoolExecutor(FILES_AT_ONCE, "holdfast-hash") as pool:
            yield from pool.map(read, self._paths, self._paths.values())


def place_of(path: str, number: int) -> bytes:
    """Return the place of a row."""
    return os.fsencode(path) + b"\0%d" % number


def parsed_place(place: bytes) -> tuple[str, int]:
    """Return file and number of a row."""
    path, _, number = place.rpartition(b"\0")
    return os.fsdecode(path), int(number)


def check_format(node: str, format_name: str) -> None:
    """Raise :class:`InvalidPipeline` if files of a format cannot be compared."""
    if format_name != "parquet":
        raise InvalidPipeline(
            f"{node} writes {format_name}, and cannot be compared.",
            why="JSON lines do not tell a null from a NaN, a text from a time, or a decimal from a float.",
            do='write Parquet (format="parquet") where what is written shall be compared.',
            participant=node,
        )
