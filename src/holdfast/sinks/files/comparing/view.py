"""The files of a directory at one entry of a sink's log, kept from being removed while they are read.

Each is linked into a directory of the sink's own, which readers skip.  Whoever has the view open holds a lock on that
directory: one whose holder has died is removed by the next.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from holdfast.errors import Unavailable
from holdfast.sinks.files.dataset import carried_out
from holdfast.sinks.files.log import FilesLog, LogEntry
from holdfast.sinks.files.own_files import tag_in, tag_of, visible_paths
from holdfast.store import durable

_ATTEMPTS = 100


@dataclass(frozen=True)
class FilesView:
    """The files that readers of a directory see, but for those of other sinks.

    Parameters
    ----------
    entry : LogEntry
        What the log says of the same moment.
    paths : mapping of str to str
        Path of each file, relative to the sink's directory, and where it is read; in the order of their names.
    """

    entry: LogEntry
    paths: Mapping[str, str]


@contextmanager
def viewed(directory: str, own: str, log: FilesLog) -> Iterator[FilesView]:
    """Open a view.

    Parameters
    ----------
    directory : str
        The sink's.
    own : str
        What is the sink's own, absolute.
    log : FilesLog
        Its log.

    Raises
    ------
    Unavailable
        If files are removed or joined faster than they can be linked.
    """
    above = os.path.join(own, "views")
    sweep_views(own)
    with _locked(above) as place:
        for _ in range(_ATTEMPTS):
            found = _linked(directory, place, log)
            if found is not None:
                yield found
                return
        raise Unavailable(
            f"The files of {directory} change faster than they can be listed.",
            why=f"files were joined or removed while they were listed, {_ATTEMPTS} times in a row.",
            do="try again.",
            participant=directory,
        )


def sweep_views(own: str) -> None:
    """Remove the views that nobody has open."""
    for place in glob.glob(os.path.join(glob.escape(own), "views", "*")):
        with suppress(OSError):
            held = os.open(place, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(held)


@contextmanager
def _locked(above: str) -> Iterator[str]:
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
        shutil.rmtree(place, ignore_errors=True)
        os.close(held)
        with suppress(OSError):
            os.rmdir(above)


def _linked(directory: str, place: str, log: FilesLog) -> FilesView | None:
    with durable.explained(f"reading {directory}"):
        others = _other_tags(directory, os.path.dirname(os.path.dirname(place)))
        first = max(log.numbers(), default=0)
        found = {path: path for path in visible_paths(directory) if path.endswith(".parquet")}
        entry = carried_out(log, first, found, directory)
        if entry is None:
            return None
        paths: dict[str, str] = {}
        for number, path in enumerate(sorted(found)):
            if tag_in(path) in others:
                continue
            link = os.path.join(place, f"{uuid.uuid4().hex}-{number}")
            try:
                source = os.path.join(directory, found[path])
                paths[path] = link if _is_linked(source, link) else source
            except FileNotFoundError:
                return None
        return FilesView(entry, paths)


def _is_linked(source: str, link: str) -> bool:
    """Link a file; False where the system does not let us: another user's, or a file system without links."""
    try:
        os.link(source, link)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _other_tags(directory: str, own: str) -> set[str]:
    """Return what the names of other sinks' files have."""
    found = set()
    for place in glob.glob(os.path.join(glob.escape(directory), "_holdfast", "*", "*", "log")):
        above = os.path.dirname(place)
        if os.path.realpath(above) != os.path.realpath(own):
            found.add(tag_of(os.path.basename(os.path.dirname(above)), os.path.basename(above)))
    return found
