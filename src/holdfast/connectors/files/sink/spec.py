"""Files: a directory of Parquet or JSON lines that any reader sees as an ordinary one; exactly-once.

Invariants.  Rows are staged under ``_holdfast/<pipeline>/<sink>/staging/``, which readers skip.  The commit is one
put-if-absent of a log entry that names every rename of the epoch; the renames follow, and are repeated by the run that
opens the sink next until none is left.  Generations and epochs in the log only grow.

What a crash leaves: before the entry, orphans, swept by name; after it, an epoch of which a reader sees some files
and not the others until the next :meth:`FilesSink.open` (design/0005).

A lease in a directory: one sealed object for each beat, named by its number, created put-if-absent.

There is no clock that all machines share: who watches measures on its own how long no beat has come.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from holdfast.connectors.control.columns import check_no_control
from holdfast.connectors.files.sink import dataset
from holdfast.connectors.files.sink.compaction import TARGET
from holdfast.connectors.files.sink.log import FilesLog
from holdfast.connectors.files.sink.sink import OWN_DIRECTORY, FilesSink
from holdfast.connectors.kit.files import existing as check
from holdfast.connectors.kit.files.explanations import explanations_in
from holdfast.connectors.kit.files.own_files import own_files, tag_of
from holdfast.connectors.kit.lease_text import dumped, loaded
from holdfast.connectors.kit.rewinds import of_directory
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building, names_of
from holdfast.graph.trigger import pace
from holdfast.ports import Guarantee, Lease, PublishedEpoch, Reset, SeenLease, SinkLedger, Withdrawal
from holdfast.store import durable, sealed
from holdfast.types.units import size_bytes

if TYPE_CHECKING:
    from holdfast.connectors.files.objects.spec import ObjectFilesSpec


def files(
    path: str | os.PathLike[str],
    *,
    format: Literal["parquet", "json"] = "parquet",
    partition_by: str | Sequence[str] = (),
    commit_every: str | int | None = None,
    compact: bool | str = False,
    control: None = None,
    name: str | None = None,
    freshness: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Write rows as files of a directory, each epoch exactly once.

    Parameters
    ----------
    path : str or path
        The directory, on a local disk or a mounted file system that driver and executors share.  Created when absent.
        Several pipelines may write to one directory; streams of one pipeline are united first
        (``hf.union``).  Or the address of one in S3, ``s3://bucket/path``:
        tasks upload the files there, and the driver makes them visible.
    format : {"parquet", "json"}
        Parquet (zstd), or JSON lines.
    partition_by : str or sequence of str
        Columns that become hive-style directories, ``column=value/``, outermost first.
    commit_every : str or int, optional
        Commit less often than the other sinks: after a duration (``"30 s"``) or a number of epochs, in one transaction.
        What it lacks until then is in the checkpoint: ``docs/sinks/README.md``.  Default: every epoch.
    compact : bool or str
        Whether small files are joined, in the background: to this size, or to 128 MB.  Of epochs that no rewind can
        withdraw any more, which are all but the last hundred.  Who follows the directory as a stream takes a joined
        file for a new one: leave it out then.
    control : None
        Other sinks have it (``docs/control-rows.md``): this one cannot carry out commands, and says so.
    name : str, optional
        The node's name; the sink's log is kept under it.
    freshness : str, optional
        How old the oldest row may be that the sink lacks (``"5 min"``), before the health of the run says so:
        ``docs/expectations.md``.
    backfill : bool
        Whether the sink, added to a pipeline that has run, gets everything from the beginning: ``docs/state.md``.

    Returns
    -------
    SinkNode
        To be used to the right of ``stream |``.

    Raises
    ------
    InvalidPipeline
        If the path has another scheme, or an argument is wrong.

    Notes
    -----
    Each task writes one file per epoch and partition, an epoch without rows none.  Between the first and the last
    rename of an epoch (in S3: the first and the last completed upload) a reader sees a part of it: microseconds, or,
    when the process dies just then, until the next start.  The same between the renames of joined files and the removal
    of what they replace: then some rows are seen twice.  ``holdfast.files.open`` never sees either.

    Examples
    --------
    >>> import holdfast as hf
    >>> hf.write.files("out/flights", partition_by=["origin"], compact="64 MB").spec.target_bytes
    64000000
    """
    with building("sink", name):
        check_no_control("write.files", control)
        columns = names_of(partition_by)
        place = os.fspath(path)
        spec = _kind(place)(place, format, columns, "zstd" if format == "parquet" else None, compact)
        own_pace = pace(commit_every, node="write.files")
    return nodes.sink(spec, name=name, backfill=backfill, pace=own_pace, freshness=freshness)


def _kind(place: str) -> type[FilesSinkSpec | ObjectFilesSpec]:
    if durable.local_path(place) is not None:
        return FilesSinkSpec
    from holdfast.connectors.files.objects.spec import ObjectFilesSpec  # not above: disks need none of it

    return ObjectFilesSpec


@dataclass(frozen=True)
class FilesSinkSpec:
    """Declaration of a files sink; parameters as :func:`files`."""

    path: str
    format: Literal["parquet", "json"] = "parquet"
    partition_by: tuple[str, ...] = ()
    compression: str | None = "zstd"
    compact: bool | str = False

    kind = "files"
    guarantee = Guarantee.EXACTLY_ONCE

    def __post_init__(self) -> None:
        check.check_form("write.files", self.format, self.partition_by)
        check.check_renames("write.files", self.path)
        if self.target_bytes is not None and self.target_bytes < 1:
            raise InvalidPipeline(
                f"write.files: compact={self.compact!r} is no size.", do='give one, such as compact="128 MB", or True.'
            )

    @property
    def target_bytes(self) -> int | None:
        """Size to which small files are joined; None: they are not."""
        if self.compact is False:
            return None
        return size_bytes(TARGET if self.compact is True else self.compact, argument="compact")

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments for display and fingerprint."""
        values = {
            "path": self.path,
            "format": self.format,
            "partition_by": list(self.partition_by),
            "compression": self.compression,
        }
        return values if self.compact is False else {**values, "compact": self.compact}

    def withdrawal(self) -> Withdrawal:
        """Return what its sink withdraws in a rewind, as far as this declaration says."""
        return Withdrawal()

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check that the partition columns are there, where the columns are known."""
        check.check_partitioned("write.files", self.partition_by, columns)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> FilesSink:
        """Check the columns against the files that are there, create the directory, return the sink."""
        return self.connected(name, pipeline, schema)

    def connected(self, name: str, pipeline: str, schema: pa.Schema, *, is_tended: bool = True) -> FilesSink:
        """Return the sink, with or without the thread that joins small files."""
        # Absolute: executors have working directories of their own.
        directory = os.path.abspath(durable.local_path(self.path) or "")
        check.check_partition_types(name, schema, self.partition_by)
        check.check_existing(name, directory, schema, format_name=self.format, partition_by=self.partition_by)
        return FilesSink(
            name,
            pipeline,
            schema,
            directory,
            format=self.format,
            partition_by=self.partition_by,
            compression=self.compression,
            target_bytes=self.target_bytes,
            is_tended=is_tended,
        )

    def lease(self, name: str, pipeline: str) -> DirectoryLease:
        """Return the lease beside the sink's log."""
        root = os.path.abspath(durable.local_path(self.path) or "")
        return DirectoryLease(os.path.join(root, OWN_DIRECTORY, pipeline, name, "lease"))

    def history(self, name: str, pipeline: str) -> Sequence[PublishedEpoch]:
        """Return the last epochs, of the entries of the log."""
        root = os.path.abspath(durable.local_path(self.path) or "")
        return dataset.history(os.path.join(root, OWN_DIRECTORY, pipeline, name, "log"))

    def find(self, name: str, where: str | tuple[str, str], *, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return rows of the directory."""
        return dataset.find(os.path.abspath(durable.local_path(self.path) or ""), name, where, limit)

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the sink's log says."""
        own = os.path.join(os.path.abspath(durable.local_path(self.path) or ""), OWN_DIRECTORY, pipeline, name)
        with durable.explained(f"reading the log of sink {name!r}"):
            last = FilesLog(os.path.join(own, "log"), aside="").last()
        if last is None:
            return None
        kept = explanations_in(os.path.join(own, "positions"), f"sink {name!r}")
        return SinkLedger(last.held(), tuple(kept.all(kept.count(last.held()), last.explanations)))

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove the sink's log, and its files: their names say whose they are."""
        root = os.path.abspath(durable.local_path(self.path) or "")
        tag, own = tag_of(pipeline, name), os.path.join(root, OWN_DIRECTORY, pipeline, name)

        def files() -> list[str]:
            return [os.path.join(root, file.path) for file in own_files(root, tag)]

        return of_directory(own, files, root, rows=rows, is_dry_run=is_dry_run)


KEPT = 3
"""Objects that stay: a reader that has listed the directory still finds one of them."""
_READ_TRIES = 20


class DirectoryLease:
    """The lease in one directory, which belongs to it alone.

    Parameters
    ----------
    directory : str
        Local or mounted; created when the lease is first written.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._is_prepared = False

    def read(self) -> SeenLease | None:
        """Return the newest beat."""
        for _ in range(_READ_TRIES):
            beats = self._beats()
            if not beats:
                return None
            text = sealed.read_sealed(self._path(beats[-1]))
            if text is not None:  # else newer ones have come meanwhile, and it was removed
                return SeenLease(beats[-1], loaded(text.decode()))
        return None

    def write(self, seen: SeenLease | None, lease: Lease) -> bool:
        """Create the next beat; only one that saw the newest can."""
        if not self._is_prepared:
            sealed.prepare(self._directory)
            self._is_prepared = True
        before = 0 if seen is None else seen.beat
        if self._beats()[-1:] != ([before] if before else []):
            return False  # a number that was removed is free again, and must not be created
        if not sealed.put_if_absent(self._path(before + 1), dumped(lease).encode()):
            return False
        if self._beats()[-1] > before + KEPT:  # we were stopped between the look and the write
            with suppress(FileNotFoundError):
                os.unlink(self._path(before + 1))
            return False
        for number in [number for number in self._beats() if number <= before + 1 - KEPT]:
            with suppress(FileNotFoundError):
                os.unlink(self._path(number))
        return True

    def close(self) -> None:
        """Nothing is held open."""

    def _beats(self) -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{number:012d}.json")
