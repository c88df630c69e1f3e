"""Where a live run can be told something: a note in its checkpoint, which names a socket of this user alone.

The socket is in a directory of the run's process, mode 0700, and not in the checkpoint: its path must be short, a copy
of a checkpoint must not fail by it, and it goes with its process.  The newest run has the note: it is replaced by each
one that takes over.  On another machine the socket is not there.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import InvalidPipeline
from holdfast.ports import Store

_NOTE = "steer/run.json"
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of who is at the other end of a socket, as Linux tells them."""


@dataclass(frozen=True)
class SteerPlace:
    """Where a run listens.

    Parameters
    ----------
    socket : str
        Path of its socket.
    generation : int
        Of the run.
    host, pid
        Where it runs.
    directory : int
        Number of the checkpoint's directory in its file system (inode), 0 where it is not known: a copy has another.
    """

    socket: str
    generation: int
    host: str
    pid: int
    directory: int = 0

    @property
    def process(self) -> str:
        """The process, for people."""
        return f"process {self.pid} on {self.host}"


def write_place(store: Store, directory: Path, path: str, generation: int) -> None:
    """Note where a run of a checkpoint listens.

    Parameters
    ----------
    store : Store
        The checkpoint; of one in an object store it is in the scratch of this machine alone.
    directory : Path
        The same.
    path : str
        The socket.
    generation : int
        Of the run.
    """
    place = SteerPlace(path, generation, socket.gethostname(), os.getpid(), os.stat(directory).st_ino)
    store.put(_NOTE, json.dumps(asdict(place)).encode())


def read_place(directory: Path) -> SteerPlace | None:
    """Return where the last run of a checkpoint listens, or did; None where there was none.

    A copy of a checkpoint has the note of the original, whose run is not its own.

    Raises
    ------
    InvalidPipeline
        If this user may not read it.
    """
    try:
        said = json.loads((directory / _NOTE).read_bytes())
        number = int(said.get("directory", 0))
        if number and number != os.stat(directory).st_ino:
            return None
        return SteerPlace(str(said["socket"]), int(said["generation"]), str(said["host"]), int(said["pid"]), number)
    except PermissionError:
        raise of_another_user(f"checkpoint {str(directory)!r}") from None
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def of_another_user(what: str) -> InvalidPipeline:
    """Return the error for a run of another user."""
    return InvalidPipeline(
        f"{what} is another user's.",
        why="a run hears its own user alone, and root; and what is told to somebody else's would be heard by them.",
        do="run this as the user of the run.",
    )


def is_own(connection: socket.socket, user: int | None = None) -> bool:
    """Return whether who is at the other end is of this user, or root; true where the system does not tell.

    Parameters
    ----------
    connection : socket.socket
        A Unix socket that is connected.
    user : int, optional
        Another user than that of this process.
    """
    if sys.platform != "linux":
        return True  # the directory of the socket is closed to others
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, other, _ = _CREDENTIALS.unpack(found)
    return other in (0, os.getuid() if user is None else user)
