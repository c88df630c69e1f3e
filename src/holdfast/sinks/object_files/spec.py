"""The declaration of ``write.files`` where its address is in S3."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.ports import Guarantee, PublishedEpoch, SinkLedger
from holdfast.sinks.files import check
from holdfast.sinks.files.rows import RowsForm
from holdfast.sinks.object_files.dataset import ObjectFilesDataset, check_existing
from holdfast.sinks.object_files.explanations import ObjectExplanations
from holdfast.sinks.object_files.log import ObjectLog, UploadsEntry
from holdfast.sinks.object_files.place import BucketPlace
from holdfast.sinks.object_files.sink import ObjectFilesSink
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

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check that the partition columns are there, where the columns are known."""
        check.check_partitioned("write.files", self.partition_by, columns)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> ObjectFilesSink:
        """Check the columns against files that are there, return the sink."""
        check.check_partition_types(name, schema, self.partition_by)
        form = RowsForm(schema, self.format, self.partition_by, self.compression)
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
        explanations = ObjectExplanations(self.place.positions(pipeline, name), f"sink {name!r}")
        return SinkLedger(last.held(), tuple(explanations.all(last.explained, last.explanations)))
