"""Answers of services, recorded in an SQLite database by what was asked.

Invariants: the first answer that is recorded of a key counts, and is never changed; a transaction is on the disk
before :meth:`Answers.record` returns.  What answers have cost is added up beside them, by call: it is for people.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import Unavailable

_TABLE = """CREATE TABLE IF NOT EXISTS answers (
    call TEXT NOT NULL, key TEXT NOT NULL, answer BLOB NOT NULL, error TEXT,
    attempts INTEGER NOT NULL, seconds REAL NOT NULL, recorded_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (call, key)
) WITHOUT ROWID"""

_COSTS = """CREATE TABLE IF NOT EXISTS costs (
    call TEXT NOT NULL, name TEXT NOT NULL, amount REAL NOT NULL, PRIMARY KEY (call, name)
) WITHOUT ROWID"""

_SPEND = (
    "INSERT INTO costs (call, name, amount) VALUES (?, ?, ?) "
    "ON CONFLICT (call, name) DO UPDATE SET amount = amount + excluded.amount"
)

_KEYS_MAX = 500
"""Of one query: SQLite before 3.32 takes 999 variables."""


class RecordedAnswer(NamedTuple):
    """What a service has answered.

    Parameters
    ----------
    row : bytes
        The columns of the answer, as one row of Arrow without its schema.
    error : str, optional
        Why there is none.
    attempts : int
        How many there were.
    seconds : float
        How long they took, with pauses.
    """

    row: bytes
    error: str | None
    attempts: int
    seconds: float


class Answers:
    """The answers of one call.  Used by one thread at a time; any number of processes may have the same file open.

    Parameters
    ----------
    path : str
        The file; it is made where there is none.
    call : str
        The operator, and what the schema of its answers is.
    """

    def __init__(self, path: str, call: str) -> None:
        self._path = path
        self._call = call
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._open = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
            self._open.execute("PRAGMA journal_mode=WAL")
            self._open.execute("PRAGMA synchronous=FULL")
            self._open.execute(_TABLE)
            self._open.execute(_COSTS)
        except (OSError, sqlite3.Error) as error:
            raise self._unavailable(error) from error

    def find(self, keys: Sequence[str]) -> dict[str, RecordedAnswer]:
        """Return what is recorded of keys."""
        found: dict[str, RecordedAnswer] = {}
        try:
            for start in range(0, len(keys), _KEYS_MAX):
                some = keys[start : start + _KEYS_MAX]
                marks = ",".join("?" * len(some))
                query = f"SELECT key, answer, error, attempts, seconds FROM answers WHERE call = ? AND key IN ({marks})"
                with closing(self._open.execute(query, (self._call, *some))) as rows:
                    found.update({key: RecordedAnswer(*answer) for key, *answer in rows})
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        return found

    def record(self, answers: Mapping[str, RecordedAnswer], costs: Mapping[str, float]) -> dict[str, RecordedAnswer]:
        """Record answers, and what they have cost; return what counts of their keys: another process may be first.

        Parameters
        ----------
        answers : mapping of str to RecordedAnswer
            Key -> its answer.
        costs : mapping of str to float
            What is added to the costs of the call.
        """
        rows = [(self._call, key, *answer) for key, answer in answers.items()]
        try:
            self._open.execute("BEGIN IMMEDIATE")
            try:
                self._open.executemany(
                    "INSERT OR IGNORE INTO answers (call, key, answer, error, attempts, seconds) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    rows,
                )
                self._open.executemany(_SPEND, [(self._call, name, amount) for name, amount in costs.items()])
                counting = self.find(list(answers))
            except BaseException:
                self._open.execute("ROLLBACK")
                raise
            # 1. The answers.  A crash before leaves nothing of them: they are asked for again; after it, none is.
            self._open.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        return counting

    def spend(self, costs: Mapping[str, float]) -> None:
        """Add costs without an answer: those of calls that failed, and of answers that were used again."""
        try:
            self._open.execute("PRAGMA synchronous=NORMAL")  # the disk need not be waited for
            self._open.executemany(_SPEND, [(self._call, name, amount) for name, amount in costs.items()])
            self._open.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        """Close the file."""
        self._open.close()

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(
            f"answers cannot be recorded in {self._path}.",
            why=f"{type(error).__name__}: {error}.",
            do="make the file writable for the workers, on a disk of this machine that has room; then start again.",
        )


def costs_of_answers(answers: Collection[RecordedAnswer]) -> dict[str, float]:
    """Return what answers have cost that were asked for now."""
    calls = sum(answer.attempts for answer in answers)
    return {
        "calls": calls,
        "retries": calls - len(answers),
        "failed": sum(answer.error is not None for answer in answers),
        "seconds": sum(answer.seconds for answer in answers),
    }


def costs_recorded(path: str, call: str) -> Mapping[str, float]:
    """Return what a call has cost so far, whoever made it; nothing where there is no file that can be read.

    Parameters
    ----------
    path : str
        The file.
    call : str
        As for :class:`Answers`.
    """
    try:
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True, timeout=1)) as opened:
            found = opened.execute("SELECT name, amount FROM costs WHERE call = ?", (call,)).fetchall()
    except sqlite3.Error:
        return {}
    return dict(found)
