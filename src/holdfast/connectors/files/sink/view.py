"""The files of a directory at one entry of a sink's log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.connectors.files.sink.dataset import carried_out
from holdfast.connectors.files.sink.log import FilesLog, LogEntry
from holdfast.connectors.kit.files.existing import ATTEMPTS, changing, linked, other_tags, tag_in, view_directory
from holdfast.connectors.kit.files.own_files import visible_paths
from holdfast.store import durable


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
    with view_directory(own) as place:
        for _ in range(ATTEMPTS):
            found = _link(directory, own, place, log)
            if found is not None:
                yield found
                return
        raise changing(directory)


def _link(directory: str, own: str, place: str, log: FilesLog) -> FilesView | None:
    with durable.explained(f"reading {directory}"):
        others = other_tags(directory, own)
        first = max(log.numbers(), default=0)
        found = {path: path for path in visible_paths(directory) if path.endswith(".parquet")}
        entry = carried_out(log, first, found, directory)
        if entry is None:
            return None
        try:
            paths = {
                path: linked(os.path.join(directory, found[path]), place)
                for path in sorted(found)
                if tag_in(path) not in others
            }
        except FileNotFoundError:
            return None
        return FilesView(entry, paths)
