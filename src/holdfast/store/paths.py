"""The place of a directory that a user has named: not that of a file, or the error would speak of permissions."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import InvalidPipeline
from holdfast.store.local import directory_of


def checkpoint_directory(location: str) -> Path:
    """Return the directory of a checkpoint, there or not.

    Raises
    ------
    InvalidPipeline
        If it is a file, or the location is of a kind that is not supported.
    """
    return checked_place(directory_of(location), "a checkpoint")


def checked_place(directory: Path, of: str) -> Path:
    """Return a directory, there or not.

    Raises
    ------
    InvalidPipeline
        If it is a file, or would be below one.
    """
    for path in (directory, *directory.parents):
        if os.path.isdir(path):
            break
        if os.path.exists(path):
            raise InvalidPipeline(
                f"{directory} cannot be the directory of {of}.",
                why="it is a file." if path == directory else f"{path} is a file.",
                do="name a directory; a missing one is created.",
            )
    return directory
