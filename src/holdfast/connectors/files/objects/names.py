"""The names of files in an object store: which sink, and which attempt of which task, has uploaded one.

An upload that is not completed has nothing but its key: so the key says all that is needed to find orphans.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.connectors.kit.files.own_files import tag_of
from holdfast.connectors.kit.files.rows import file_name
from holdfast.ports import Task

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
