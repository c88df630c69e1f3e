"""Where a files sink in an object store keeps what: its files, and below ``_holdfast/`` what is its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from holdfast.connectors.files.objects.names import OWN
from holdfast.store.objects.multipart import MultipartUploads
from holdfast.store.objects.requests import Perseverance
from holdfast.store.objects.store import ObjectStore, open_objects


@dataclass(frozen=True)
class BucketPlace:
    """The directory of files sinks; picklable.

    Parameters
    ----------
    address : str
        ``s3://bucket/path``.
    perseverance : Perseverance
        How long requests are repeated here; the run tries again for longer.
    """

    address: str
    perseverance: Perseverance = field(default_factory=Perseverance)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", self.address.rstrip("/"))

    @cached_property
    def files(self) -> ObjectStore:
        """Everything in it."""
        return self.objects()

    @cached_property
    def uploads(self) -> MultipartUploads:
        """The uploads of its files that are not completed."""
        return MultipartUploads(self.address, self.perseverance)

    def log(self, pipeline: str, sink: str) -> ObjectStore:
        """The entries of a sink's log."""
        return self.objects(OWN, pipeline, sink, "log")

    def positions(self, pipeline: str, sink: str) -> ObjectStore:
        """What the positions of a sink mean."""
        return self.objects(OWN, pipeline, sink, "positions")

    def objects(self, *below: str) -> ObjectStore:
        """The objects of the directory, or below it."""
        return open_objects("/".join([self.address, *below]), self.perseverance)
