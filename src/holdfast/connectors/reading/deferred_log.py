"""The log of a source of whole entries (lists, pushes) that was read up to a time: what is read, and what is owed.

Rows stand in an entry in any order, so no position divides them by time.  From the first run on that has an end, a
position is therefore an ordinal in a log of *pieces*: some entries, and of which time their rows are read.  An entry of
which rows are left is logged again by a later run, for those (design/0021).  These ordinals begin at :data:`FIRST`,
above every entry; a source that never was read up to a time has no log, and its own positions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.errors import Corrupt, Diverged
from holdfast.ports import Explanation
from holdfast.positions import SourcePositions
from holdfast.store import sealed
from holdfast.store.increments import Increments
from holdfast.store.time_ranges import TimeRange

FIRST = 1 << 40
"""The first ordinal of a log of pieces."""

_WHAT = "the log of what was read up to a time"


class LoggedPiece(NamedTuple):
    """Entries of which the rows of one time are read: so many from one on; None: all that come."""

    ordinal: int
    entry: int
    size: int | None
    since: int | None
    before: int | None

    def is_behind(self, ordinal: int) -> bool:
        """Return whether some of it is at an ordinal, or after it."""
        return self.size is None or self.ordinal + self.size > ordinal

    def entry_at(self, ordinal: int) -> int:
        """Return the entry at an ordinal."""
        return self.entry + ordinal - self.ordinal


class Owed(NamedTuple):
    """What is left of an entry: its rows from ``since`` on (None: all), and where its timestamps are."""

    entry: int
    since: int | None
    times: TimeRange | None

    @property
    def low(self) -> int | None:
        """The lowest timestamp that it can have; None where nothing is known."""
        return max((t for t in (self.since, self.times and self.times.low) if t is not None), default=None)


class OwingLog:
    """The pieces of one source, as far as this process has read them.

    Parameters
    ----------
    workspace : str
        The source's directory; the log is a directory in it, created by the first piece.
    """

    def __init__(self, workspace: str) -> None:
        self.directory = os.path.join(workspace, "until")
        self.pieces: list[LoggedPiece] = []
        self.owed: dict[int, Owed] = {}
        self.base: int | None = None
        """The entry before the first piece: those below it were read by their own positions."""
        self.next = 0
        """The first entry that is in no piece."""
        self.end = 0
        """Ordinals in use, an open piece apart."""
        self.reached: int | None = None
        """The highest time that the source is known to have reached."""
        self.owed_by = ""
        """By which timestamp rows are owed."""
        self._increments: Increments | None = None
        self._is_prepared = False
        self.refresh()

    @property
    def is_new(self) -> bool:
        """Whether the source was never read up to a time."""
        return self.base is None

    @property
    def open_piece(self) -> LoggedPiece | None:
        """The last piece, if it has no end."""
        return self.pieces[-1] if self.pieces and self.pieces[-1].size is None else None

    def refresh(self) -> None:
        """Read what others have added."""
        if self._increments is None and os.path.isdir(self.directory):
            self._increments = Increments(self.directory, _WHAT, is_read_only=True)
        for number, payload in self._increments.read_on() if self._increments is not None else ():
            try:
                self._apply(json.loads(payload))
            except (ValueError, KeyError, TypeError) as error:
                raise Corrupt(
                    f"increment {number} of {_WHAT} {self.directory} cannot be read: {error}.",
                    do="restore the directory from a backup.",
                    participant=self.directory,
                ) from error

    def append(
        self,
        base: int,
        *,
        closed_at: int,
        pieces: Sequence[LoggedPiece],
        owed: Sequence[Owed],
        following: int,
        reached: int | None,
        by: str,
    ) -> None:
        """Add pieces, or read what another planner was faster to add.  Durable when it returns.

        Parameters
        ----------
        base : int
            Where the source is read, if these are the first pieces.
        closed_at : int
            The ordinal where they begin; an open piece ends there.
        pieces : sequence of LoggedPiece
            Their own ordinals are not used.
        owed : sequence of Owed
            What is left of their entries, and other entries that are owed.
        following : int
            The first entry that is in none of them, and not owed.
        reached : int, optional
            The time that they show the source to have reached.
        by : str
            By which timestamp rows are owed.
        """
        if not self._is_prepared:  # also of a log that is there: who restored it may have left out what is empty
            sealed.prepare(self.directory)
            self._is_prepared = True
        if self._increments is None:
            self._increments = Increments(self.directory, _WHAT, is_read_only=True)
        entry = {
            "base": base,
            "first": closed_at,
            "pieces": [piece[1:] for piece in pieces],
            "owed": owed,
            "next": following,
            "reached": reached,
            "by": by,
        }
        if self._increments.put(json.dumps(entry, separators=(",", ":")).encode()):
            self._apply(json.loads(json.dumps(entry)))
        else:
            self.refresh()

    def pieces_between(self, start: int, end: int) -> Iterator[LoggedPiece]:
        """Yield what is between two ordinals, cut to them."""
        for piece in self.pieces:
            first = max(start, piece.ordinal)
            last = end if piece.size is None else min(end, piece.ordinal + piece.size)
            if first < last:
                yield piece._replace(ordinal=first, entry=piece.entry_at(first), size=last - first)

    def needed(self, ordinal: int) -> int:
        """Return the lowest entry that is read at an ordinal, or later."""
        to_come = [piece.entry_at(max(ordinal, piece.ordinal)) for piece in self.pieces if piece.is_behind(ordinal)]
        fresh = [self.next] if self.open_piece is None else []
        return min([*to_come, *self.owed, *fresh])

    def fresh_at(self, ordinal: int) -> int:
        """Return the entry that follows all pieces, for whoever has read up to an ordinal."""
        last = self.open_piece
        return self.next if last is None else last.entry_at(ordinal)

    def ordinal_of(self, entry: int) -> int:
        """Return the ordinal that an entry has, if all up to there is read after the pieces that are logged."""
        last = self.open_piece
        return self.end + entry - self.next if last is None else last.ordinal + entry - last.entry

    def _apply(self, increment: Mapping[str, Any]) -> None:
        if self.base is None:
            self.base = increment["base"]
        if (last := self.open_piece) is not None:
            self.pieces[-1] = last._replace(size=increment["first"] - last.ordinal)
        self.end, self.next, self.owed_by = increment["first"], increment["next"], increment["by"]
        for entry, size, since, before in increment["pieces"]:
            self.pieces.append(LoggedPiece(self.end, entry, size, since, before))
            for one in range(entry, entry + (size or 0)):
                self.owed.pop(one, None)
            self.end += size or 0
        for entry, since, times in increment["owed"]:
            self.owed[entry] = Owed(entry, since, None if times is None else TimeRange(*times))
        self.reached = max((t for t in (self.reached, increment["reached"]) if t is not None), default=None)


def entries_of(workspace: str, positions: SourcePositions, segment: str) -> tuple[int, int]:
    """Return the lowest entry that is needed from positions on, and the one that is read next of new ones."""
    at = int(positions.get(segment, 0))
    if at < FIRST:
        return at, at
    log = OwingLog(workspace)
    return log.needed(at - FIRST), log.fresh_at(at - FIRST)


class EntryRead(NamedTuple):
    """An entry at a position, and of which time its rows are read there."""

    position: int
    entry: int
    since: int | None
    before: int | None


def entries_before(workspace: str, positions: SourcePositions, segment: str) -> Iterator[EntryRead]:
    """Yield the entries that are read before some positions, each as often as it is."""
    at = int(positions.get(segment, 0))
    log = OwingLog(workspace) if at >= FIRST else None
    for entry in range(at if log is None else log.base or 0):
        yield EntryRead(entry, entry, None, None)
    for piece in () if log is None else log.pieces_between(0, at - FIRST):
        for number in range(piece.size or 0):
            yield EntryRead(FIRST + piece.ordinal + number, piece.entry + number, piece.since, piece.before)


def obstacle(workspace: str, positions: SourcePositions, segment: str) -> str:
    """Return whether the log is lost that says what positions mean; empty when it is not."""
    wanted = int(positions.get(segment, 0)) - FIRST
    if wanted < 0:
        return ""
    log = OwingLog(workspace)
    if not log.is_new and (log.open_piece is not None or wanted <= log.end):
        return ""
    return f"{_WHAT}, {log.directory!r}, ends at {log.end}, and {wanted} is wanted."


def reached(workspace: str, segment: str, entries: int) -> SourcePositions:
    """Return the position behind so many entries."""
    log = OwingLog(workspace)
    return {segment: entries if log.is_new else FIRST + log.ordinal_of(entries)}


def explanations(workspace: str, name: str, after: int) -> list[Explanation]:
    """Return the increments: they are what positions from :data:`FIRST` on mean."""
    directory = os.path.join(workspace, "until")
    if not os.path.isdir(directory):
        return []
    increments = Increments(directory, _WHAT, is_read_only=True, read_up_to=after)
    return [Explanation(name, number, payload.decode()) for number, payload in increments.read_on()]


def restore(workspace: str, name: str, several: Sequence[Explanation]) -> None:
    """Write the increments again, as far as they are not there.

    Raises
    ------
    Diverged
        If one that is there is another one.
    """
    directory = os.path.join(sealed.local_directory(workspace, participant=name), "until")
    increments = Increments(directory, _WHAT)
    there = dict(increments.read_on())
    for each in several:
        payload = each.text.encode()
        if there.get(each.number, payload) != payload or (each.number not in there and not increments.put(payload)):
            raise Diverged(
                f"increment {each.number} of {_WHAT} {directory} is not the one that the sinks hold.",
                why="another run has begun this checkpoint anew at the same time.",
                do="stop that run, remove the checkpoint, and start again: it is restored from the sinks.",
                participant=name,
            )
