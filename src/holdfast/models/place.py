"""Where processes of models are found: a directory of this user alone, with a socket, a lock and a log of each.

The path is the same for all processes of a user on a host, whatever their temporary directory is: else a model is held
by several of them.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import InvalidPipeline

VARIABLE = "HOLDFAST_MODELS"
SOCKET_SUFFIX = ".sock"
PATH_LENGTH_MAX = 103
"""Of a socket, by the kernel of macOS; Linux has 107."""


@dataclass(frozen=True)
class ModelPlace:
    """The files of one model's process.

    Parameters
    ----------
    directory : Path
        That of all models of this user.
    stem : str
        Their common name.
    """

    directory: Path
    stem: str

    @property
    def socket(self) -> Path:
        """Where the process listens."""
        return self.directory / f"{self.stem}{SOCKET_SUFFIX}"

    @property
    def lock(self) -> Path:
        """Locked as long as the process lives.  Holds how many have started since one ended by itself, and its id."""
        return self.directory / f"{self.stem}.lock"

    @property
    def log(self) -> Path:
        """What the process prints."""
        return self.directory / f"{self.stem}.log"

    @property
    def log_before(self) -> Path:
        """What the process before it has printed: why it died."""
        return self.directory / f"{self.stem}.log.before"

    def last_process(self) -> int:
        """Return the id of the process that was started last; 0 where it ended by itself."""
        try:
            _, _, number = self.lock.read_text().partition(" ")
        except FileNotFoundError:
            return 0
        return int(number or 0)

    def is_listening(self) -> bool:
        """Return whether a process accepts connections."""
        with socket.socket(socket.AF_UNIX) as tried:
            try:
                tried.connect(os.fspath(self.socket))
            except OSError:
                return False
        return True


def place_of(name: str, identity: str) -> ModelPlace:
    """Return the place of a model; its directory is there.

    Parameters
    ----------
    name : str
        The model's, for people.
    identity : str
        Hexadecimal; what is declared alike has the same.

    Raises
    ------
    InvalidPipeline
        If others may enter the directory, or its path is too long for a socket.
    """
    directory = Path(os.environ.get(VARIABLE) or f"/tmp/holdfast-{os.getuid()}")
    place = ModelPlace(directory, f"{re.sub(r'[^A-Za-z0-9_-]+', '-', name)[:20]}-{identity[:16]}")
    if len(os.fsencode(place.socket)) > PATH_LENGTH_MAX:
        raise InvalidPipeline(
            f"Model {name!r} cannot have its socket in {directory}.",
            why=f"the path of a socket has {PATH_LENGTH_MAX} characters at most, and {place.socket} has more.",
            do=f"set {VARIABLE} to the path of a directory with a shorter name.",
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InvalidPipeline(
            f"{directory} is not private, so no model can be shared there.",
            why="another user can read, enter or replace it, and what arrives there is computed.",
            do=f"remove it, or chmod 700 it, or set {VARIABLE} to a directory of your own.",
        )
    return place
