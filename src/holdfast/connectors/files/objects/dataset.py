"""Reads a directory of files sinks in an object store outside of a pipeline: whole epochs only, each row once.

The log of a sink decides what its entries name; what no entry since the listing began has named has not changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.files.objects.log import ObjectLog, UploadsEntry
from holdfast.connectors.files.objects.place import OWN, BucketPlace, each, is_visible
from holdfast.connectors.files.sink import dataset
from holdfast.connectors.files.sink.dataset import ATTEMPTS, FilesTable, changing, schema_of
from holdfast.connectors.kit.files import existing as check
from holdfast.connectors.kit.files.rows import RowsForm
from holdfast.errors import InvalidPipeline
from holdfast.store.objects.client import arrow_file_system
from holdfast.store.objects.multipart import UploadState
from holdfast.store.objects.store import ObjectStore

_FORMATS = ("parquet", "json")
_FOOTER_BYTES = 2**16


@dataclass(frozen=True)
class ObjectFilesDataset:
    """The content of a directory that ``hf.write.files`` writes in S3; each reading is of the newest version.

    Parameters
    ----------
    path : str
        Its address.
    """

    path: str

    def paths(self) -> list[str]:
        """Return the addresses of the files that have every row of the published epochs once, in order.

        One that you, or a rewind, remove is gone then: ask again.
        """
        return [f"{self.path.rstrip('/')}/{key}" for key in self._version()[0]]

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows, as they were written, partition columns included."""
        return schema_of(self.path, self._version()[1])

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows.

        Parameters
        ----------
        columns : sequence of str, optional
            Only these.
        """
        for _ in range(ATTEMPTS):
            try:
                return self.table().to_table(columns)
            except FileNotFoundError:
                continue  # withdrawn since
        raise changing(self.path)

    def to_pandas(self, *, columns: Sequence[str] | None = None) -> Any:
        """Return the rows as a DataFrame of pandas; parameters as :meth:`to_arrow`."""
        return self.to_arrow(columns=columns).to_pandas()

    def find(self, name: str, where: str | tuple[str, str], limit: int) -> list[dict[str, Any]]:
        """Return rows of the directory: parameters as of :class:`~holdfast.ports.LineageSpec`."""
        return dataset.found(self.table(), name, where, limit)

    def table(self) -> FilesTable:
        """Return the files of one moment as a table."""
        keys, noted = self._version()
        file_system, base = arrow_file_system(self.path)
        return FilesTable(tuple(f"{base}/{key}" for key in keys), base, schema_of(self.path, noted), file_system)

    def _version(self) -> tuple[list[str], list[str]]:
        """Return the keys of one moment, in order, and the columns that the logs note."""
        place = BucketPlace(self.path)
        below = [key.split("/") for key in place.files.keys(f"{OWN}/")]
        sinks = sorted({(parts[1], parts[2]) for parts in below if len(parts) > 3})
        if not sinks:
            raise InvalidPipeline(
                f"No files sink has written to {self.path}.",
                why=f"there is no log below {place.address}/{OWN}.",
                do="name the directory that hf.write.files has; other directories are read by any reader of files.",
                participant=self.path,
            )
        for _ in range(ATTEMPTS):
            listed = _list(place, sinks)
            if listed is not None:
                found, entries = listed
                keys = sorted(found, key=lambda key: key.rpartition("/")[::2])
                return keys, [entry.schema for entry in entries]
        raise changing(self.path)


def _list(place: BucketPlace, sinks: Sequence[tuple[str, str]]) -> tuple[set[str], list[UploadsEntry]] | None:
    """Return the keys of one moment, and the last entries; None where it passed too quickly."""
    logs = [ObjectLog(place.log(pipeline, sink)) for pipeline, sink in sinks]
    before = [log.last() for log in logs]
    # One that was carried out before the listing is in it, but for what readers have taken away.
    were_done = [log.is_done(entry.number) for log, entry in zip(logs, before, strict=True)]
    found = set(_files_of(place.files.keys("")))
    entries = []
    for log, first, was_done in zip(logs, before, were_done, strict=True):
        last = log.follow(first)
        entries.append(last)
        is_last_done = log.is_done(last.number)
        later = range(max(1, first.number + was_done), last.number + 1)
        for entry in list(each(log.read, later)):
            if entry is None:
                return None
            _carry_out(place, entry, found, is_done=entry.number < last.number or is_last_done)
    return found, entries


def _carry_out(place: BucketPlace, entry: UploadsEntry, found: set[str], *, is_done: bool) -> None:
    """Put into a listing what an entry says: all of an epoch or nothing, and nothing that is withdrawn."""
    keys = [file.upload.key for file in entry.files]
    states = list(each(lambda file: place.uploads.state(file.upload), entry.files))
    are_there = {key for key, state in zip(keys, states, strict=True) if state is UploadState.DONE}
    found.difference_update(keys)
    found.difference_update(entry.removals)
    if is_done or len(are_there) == len(keys):
        found.update(are_there)


def check_existing(sink: str, place: BucketPlace, form: RowsForm) -> None:
    """Check some files of a directory against what the sink is about to write.

    Raises
    ------
    InvalidPipeline
        If a column differs (names it and both types), or the partition columns, or the format.
    """
    files, path = place.files, place.address
    keys = _files_of(files.first_keys()) or _files_of(files.first_keys(after=f"{OWN}0"))  # behind all that is our own
    keys = sorted(keys, key=lambda key: key.rpartition("/")[2])[-check.FILES_CHECKED :]
    if not keys:
        return
    for key in keys:
        check.check_place(sink, key, f"{path}/{key}", form.format, form.partition_by)
    if form.format == "parquet":
        schema = pa.schema([field for field in form.schema if field.name not in form.partition_by])
        for key, end in zip(keys, each(partial(_footer, files), keys), strict=True):
            if end is not None:  # else it was removed meanwhile: retention runs concurrently
                check.check_columns(sink, f"{path}/{key}", schema, partial(_schema, end))


def _files_of(keys: Iterable[str]) -> list[str]:
    return [key for key in keys if is_visible(key) and key.endswith(_FORMATS)]


def _footer(files: ObjectStore, key: str) -> bytes | None:
    """Return the end of a Parquet file, with its footer."""
    end = files.tail(key, _FOOTER_BYTES)
    if end is not None and (size := int.from_bytes(end[-8:-4], "little") + 8) > len(end):
        return files.tail(key, size)
    return end


def _schema(end: bytes) -> pa.Schema:
    return pq.read_schema(pa.BufferReader(end))
