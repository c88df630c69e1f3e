"""The declaration of ``write.files`` where its address is in S3."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from holdfast.connectors.files.objects.dataset import ObjectFilesDataset, check_existing
from holdfast.connectors.files.objects.log import ObjectLog, UploadsEntry
from holdfast.connectors.files.objects.place import OWN, BucketPlace, parsed, tag_at
from holdfast.connectors.files.objects.sink import ObjectFilesSink
from holdfast.connectors.files.objects.staging import room_below
from holdfast.connectors.kit.files import existing as check
from holdfast.connectors.kit.files.rows import RowsForm
from holdfast.connectors.kit.kept_explanations import KeptExplanations
from holdfast.connectors.kit.rewinds import WRITTEN_AGAIN, counted
from holdfast.errors import InvalidPipeline
from holdfast.ports import Guarantee, PublishedEpoch, Reset, SinkLedger, Withdrawal
from holdfast.store.objects.client import check_address


@dataclass(frozen=True)
class ObjectFilesSpec:
    """Declaration of a files sink in an object store; parameters as :func:`holdfast.write.files`."""

    path: str
    format: Literal["parquet", "json"] = "parquet"
    partition_by: tuple[str, ...] = ()
    compression: str | None = "zstd"
    compact: bool | str = False

    kind = "files"
    guarantee = Guarantee.EXACTLY_ONCE

    def __post_init__(self) -> None:
        check.check_form("write.files", self.format, self.partition_by)
        scheme = self.path.partition("://")[0]
        if scheme in ("gs", "az"):
            raise InvalidPipeline(
                f"write.files cannot write to {scheme}:// addresses.",
                why="tasks upload their files, and the driver makes them visible when the epoch is decided: that takes "
                "uploads that one process begins and another completes, which the library for this store does not "
                "have.",
                do="choose an s3:// address, or a mounted path; or write the rows with write.foreach_batch, which is "
                "at-least-once.",
            )
        if scheme != "s3":
            check.check_renames("write.files", self.path)
        check_address(self.path)
        if self.compact is not False:
            raise InvalidPipeline(
                f"write.files: compact={self.compact!r} cannot be had in an object store.",
                why="joined files take the place of small ones by renames.",
                do='leave it out; commit_every="1 min" makes fewer and larger files.',
            )

    @property
    def place(self) -> BucketPlace:
        """Where it is."""
        return BucketPlace(self.path)

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments for display and fingerprint."""
        return {
            "path": self.path,
            "format": self.format,
            "partition_by": list(self.partition_by),
            "compression": self.compression,
        }

    def withdrawal(self) -> Withdrawal:
        """Return what its sink withdraws in a rewind, as far as this declaration says."""
        return Withdrawal()

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check that the partition columns are there, where the columns are known."""
        check.check_partitioned("write.files", self.partition_by, columns)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> ObjectFilesSink:
        """Check the columns against files that are there, return the sink."""
        check.check_partition_types(name, schema, self.partition_by)
        room_bytes = room_below(self.place.address)
        form = RowsForm(schema, self.format, self.partition_by, self.compression, room_bytes)
        check_existing(name, self.place, form)
        return ObjectFilesSink(name, pipeline, self.place, form)

    def history(self, name: str, pipeline: str) -> Sequence[PublishedEpoch]:
        """Return the last epochs, of the entries of the log."""
        found, last = [], 0
        for entry in ObjectLog(self.place.log(pipeline, name)).entries():
            if entry.epoch > last:
                found.append(PublishedEpoch(entry.epoch, entry.generation, entry.positions, entry.at_us))
            last = entry.epoch
        return found

    def find(self, name: str, where: str | tuple[str, str], *, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return rows of the directory."""
        return ObjectFilesDataset(self.path).find(name, where, limit)

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the sink's log says."""
        last = ObjectLog(self.place.log(pipeline, name)).last()
        if last == UploadsEntry():
            return None
        explanations = KeptExplanations(self.place.positions(pipeline, name), f"sink {name!r}", may_lag=True)
        return SinkLedger(last.held(), tuple(explanations.all(last.explained, last.explanations)))

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove the sink's log, its uploads that are not completed, and its files: their keys say whose they are.

        The durable writes: 1. the log, its last entry last: from then on the sink holds nothing; 2. the uploads; 3. the
        files.  After a crash the same call removes the rest.
        """
        place, tag = self.place, tag_at(self.place.address, pipeline, name)
        files = [key for key in place.files.keys("") if (of := parsed(key)) is not None and of.tag == tag]
        uploads = [(key, upload) for key, upload in place.uploads.all() if (of := parsed(key)) and of.tag == tag]
        own = [(store, store.keys("")) for store in (place.log(pipeline, name), place.positions(pipeline, name))]
        objects = sum(len(keys) for _, keys in own)
        removed = [f"{counted(objects, 'object')} of the log below {place.address}/{OWN}"] if objects else []
        removed += [f"{counted(len(uploads), 'upload')} that are not completed"] if uploads else []
        removed += [f"{counted(len(files), 'file')} in {place.address}"] if rows and files else []
        stays = [f"{counted(len(files), 'file')} in {place.address}: {WRITTEN_AGAIN}"] if files and not rows else []
        if not is_dry_run:
            for store, keys in own:
                for key in sorted(keys):
                    store.delete(key)
            for key, upload in uploads:
                place.uploads.abort(key, upload)
            place.files.delete_several(files if rows else [])
        return Reset(tuple(removed), tuple(stays))
