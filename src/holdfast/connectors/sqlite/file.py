"""The file under a path and our connection to it: the same file, or nothing is written.

A file that is renamed, removed or replaced stays open in a connection: what is committed then goes into a file that
is no longer at the path.

Invariant: of this process no two connections are to different files under one path.  They would share one log, as
SQLite finds it by its name: to empty it into the former file would remove what was committed to the new one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from contextlib import suppress
from pathlib import Path

from holdfast.errors import Unavailable

BUSY_TIMEOUT_S = 30.0
"""How long a transaction waits for another process that writes the same file."""

_LEAVE_TIMEOUT_MS = 1000
"""How long to wait for readers of a file that is no longer at the path."""

_TRIES = 3
"""How often a file that is replaced while it is opened is opened again."""

Identity = tuple[int, int]
"""Device and inode."""

_lock = threading.RLock()
_all: weakref.WeakSet[DatabaseFile] = weakref.WeakSet()
"""Those of this process: several sinks may write one file, and each has a second connection for trials."""


class DatabaseFile:
    """A SQLite file during a run.

    Parameters
    ----------
    path : str
        Its path.  Created by the first :meth:`connection`, and by no other: a file that is being put back must not
        find an empty one in its place.
    node : str
        ``sink 'name'``, for errors.
    creates : bool
        Whether the first connection may.
    """

    def __init__(self, path: str, node: str, *, creates: bool = True) -> None:
        self.path = path
        self._node = node
        self._creates = creates
        self._connection: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        with _lock:  # a run that starts beside this one may be going through them
            _all.add(self)

    def connection(self) -> sqlite3.Connection:
        """Return a connection to the file that is now at the path.

        Raises
        ------
        Unavailable
            If there is none any more, or another connection of this process is still at work in the former one.
        """
        with _lock:
            self._leave_former()
            if self._connection is None:
                self._let_others_leave()
                self._connection = self._opened()
            return self._connection

    def again(self) -> sqlite3.Connection:
        """Return a fresh connection: after a failed COMMIT only that shows what the file holds.

        Raises
        ------
        Unavailable
            As :meth:`connection`; the one to the former file is kept then, to empty its log later.
        """
        with _lock:
            self._leave_former()
            self._disconnect()
            return self.connection()

    def _leave_former(self) -> None:
        """Close the connection to a file that is no longer at the path."""
        if self._connection is not None and not self.is_ours():
            self._empty_log(self._connection)
            self._disconnect()

    def _let_others_leave(self) -> None:
        for other in [other for other in _all if other.path == self.path and not other.is_ours()]:
            if other._connection is not None and other._connection.in_transaction:  # of another thread: it fails
                raise Unavailable(
                    f"{self._node}: {self.path} was replaced, and a transaction in the former file has not ended yet.",
                    why="its log (-wal) is next to the new file, and would be mistaken for the new file's.",
                    do="it is tried again.",
                    participant=self._node,
                )
            other._leave_former()

    def is_ours(self) -> bool:
        """Return whether the file that the connection writes to is still at the path."""
        return self._identity is not None and _identity(self.path) == self._identity

    def check(self) -> None:
        """Raise ``Unavailable`` unless :meth:`is_ours`; the next :meth:`connection` is to the file there then."""
        if not self.is_ours():
            raise Unavailable(
                f"{self._node}: another file, or none, is at {self.path} now; nothing was changed in it.",
                why="it was renamed, removed or replaced during the run.",
                do="put the file back, with its -wal beside it; it is checked again.",
                participant=self._node,
            )

    def close(self) -> None:
        """Close the connection, also where the log of a former file cannot be emptied: it is not used again."""
        with suppress(sqlite3.Error, Unavailable):
            if self._connection is not None and not self.is_ours():
                self._empty_log(self._connection)
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _empty_log(self, connection: sqlite3.Connection) -> None:
        """Write the log of a file that is no longer here into that file, and leave the log empty.

        SQLite finds a log by its name alone: the former file's ``-wal``, left behind, would be mistaken for that of the
        new one, whose pages it would overwrite.
        """
        connection.execute(f"PRAGMA busy_timeout = {_LEAVE_TIMEOUT_MS}")
        (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise Unavailable(
                f"{self._node}: {self.path} was replaced, and the former file is still being read.",
                why="its log (-wal) is next to the new file, and would be mistaken for the new file's.",
                do="end the other connections (lsof); it is checked again.",
                participant=self._node,
            )

    def _opened(self) -> sqlite3.Connection:
        for _ in range(_TRIES):
            before = _identity(self.path)
            if before is None and not self._creates:
                break
            connection = sqlite3.connect(
                f"{Path(self.path).as_uri()}?mode={'rwc' if before is None else 'rw'}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
            except BaseException:
                connection.close()
                raise
            after = _identity(self.path)
            if after is not None and before in (None, after):
                self._identity, self._creates = after, False
                return connection
            connection.close()
        raise Unavailable(
            f"{self._node}: there is no file {self.path} any more.",
            why="it was renamed, removed or replaced during the run.",
            do="put the file back, with its -wal beside it; it is checked again.",
            participant=self._node,
        )


def _identity(path: str) -> Identity | None:
    """Return which file is at a path; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
