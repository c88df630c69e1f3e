"""Where a files sink in an object store keeps what: its files, and below ``_holdfast/`` what is its own.

The names of files in an object store: which sink, and which attempt of which task, has uploaded one.

An upload that is not completed has nothing but its key: so the key says all that is needed to find orphans.

Several requests at a time: what a store takes for each is mostly waiting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from holdfast.connectors.kit.files.own_files import tag_of
from holdfast.connectors.kit.files.rows import file_name
from holdfast.ports import Task
from holdfast.store.objects.errors import RequestLimits
from holdfast.store.objects.multipart import MultipartUploads
from holdfast.store.objects.store import ObjectStore, open_objects


@dataclass(frozen=True)
class BucketPlace:
    """The directory of files sinks; picklable.

    Parameters
    ----------
    address : str
        ``s3://bucket/path``.
    limits : RequestLimits
        How long requests are repeated here; the run tries again for longer.
    """

    address: str
    limits: RequestLimits = field(default_factory=RequestLimits)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", self.address.rstrip("/"))

    @cached_property
    def files(self) -> ObjectStore:
        """Everything in it."""
        return self.objects()

    @cached_property
    def uploads(self) -> MultipartUploads:
        """The uploads of its files that are not completed."""
        return MultipartUploads(self.address, self.limits)

    def log(self, pipeline: str, sink: str) -> ObjectStore:
        """The entries of a sink's log."""
        return self.objects(OWN, pipeline, sink, "log")

    def positions(self, pipeline: str, sink: str) -> ObjectStore:
        """What the positions of a sink mean."""
        return self.objects(OWN, pipeline, sink, "positions")

    def objects(self, *below: str) -> ObjectStore:
        """The objects of the directory, or below it."""
        return open_objects("/".join([self.address, *below]), self.limits)


OWN = "_holdfast"
"""Below it is everything that is no file of the user's.  Readers skip names that begin with an underscore."""

_NAME = re.compile(r"part-(\d{12})-(\d+)-([0-9a-f]{8})-g(\d+)-a(\d+)-([0-9a-f]{12})-\d+\.(?:parquet|json)")


@dataclass(frozen=True)
class FileName:
    """What the key of a file says.

    Parameters
    ----------
    tag : str
        Of pipeline, sink and address.
    task : Task
        Who has uploaded it; without the name of the pipeline.
    token : str
        Drawn by the attempt: no two have the same.
    """

    tag: str
    task: Task
    token: str


def tag_at(address: str, pipeline: str, sink: str) -> str:
    """Return the tag of a sink at an address: uploads are listed with all that is below it, other directories too.

    Examples
    --------
    >>> tag_at("s3://data/rides", "rides", "files") == tag_at("s3://data/rides/test", "rides", "files")
    False
    """
    return tag_of(pipeline, f"{sink}/{address}")


def named(partition: str, task: Task, tag: str, token: str, number: int, format_name: str) -> str:
    """Return the key of a file, relative to the sink's address.

    Examples
    --------
    >>> named("day=mo", Task("trips", 7, 41, 1, 0), "3f2a9c51", "d02f61c79a3e", 0, "parquet")
    'day=mo/part-000000000041-00001-3f2a9c51-g7-a0-d02f61c79a3e-000.parquet'
    """
    marks = [tag, f"g{task.generation}", f"a{task.attempt}", token, f"{number:03}"]
    name = file_name(task.epoch, task.task, marks, format_name)
    return f"{partition}/{name}" if partition else name


def parsed(key: str) -> FileName | None:
    """Return what a key says; None for an object of others.

    Examples
    --------
    >>> parsed("day=mo/part-000000000041-00001-3f2a9c51-g7-a0-d02f61c79a3e-000.parquet").task
    Task(pipeline='', generation=7, epoch=41, task=1, attempt=0)
    """
    match = _NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    epoch, task, tag, generation, attempt, token = match.groups()
    return FileName(tag, Task("", int(generation), int(epoch), int(task), int(attempt)), token)


def is_visible(key: str) -> bool:
    """Return whether readers of a directory would read an object.

    Examples
    --------
    >>> is_visible("day=mo/part-1.parquet"), is_visible("_holdfast/trips/files/log/000000000001")
    (True, False)
    """
    return not any(part[:1] in ("_", ".") for part in key.split("/"))


T = TypeVar("T")
R = TypeVar("R")

REQUESTS_AT_ONCE = 8


def each(ask: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the answers, in the order of the items; an error comes in its place, when the others have ended.

    Examples
    --------
    >>> list(each(len, ["a", "bcd"]))
    [1, 3]
    """
    several = list(items)
    if len(several) == 1:
        yield ask(several[0])
        return
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "holdfast-objects") as pool:
        yield from pool.map(ask, several)
