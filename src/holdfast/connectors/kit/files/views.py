"""Files kept from being removed while they are read: linked into a directory of the sink's own, which readers skip.

Whoever has a view open holds a lock on that directory: one whose holder has died is removed by the next.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.connectors.kit.files.own_files import tag_of
from holdfast.errors import Unavailable
from holdfast.store import durable

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
