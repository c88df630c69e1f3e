"""The commit log of a files sink: a put-if-absent sequence of entries whose last one says everything.

Invariants: numbers grow by one; an entry is never changed; of several writers exactly one creates a number,
so a writer that was overtaken learns it from the very write that would have committed.  The entry that
commits an epoch names all its renames: the next run that opens the log can finish them.  That entries grow, and follow
finished renames only, is asserted by who appends them (:mod:`holdfast.connectors.files.sink.sink`).

Carries out a log entry: staged files become visible by renames, withdrawn ones are removed.

The next run that opens the sink does what a crash has left; each rename is done once, in whatever process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast import faults
from holdfast.connectors.kit.expected import went_back
from holdfast.errors import Diverged, InDoubt
from holdfast.ports import Explanation, Held
from holdfast.positions import Positions
from holdfast.store import durable
from holdfast.store.entry_log import EntryLog
from holdfast.store.records import without_step_time


@dataclass(frozen=True)
class LogEntry:
    """What a sink holds after one append.

    Parameters
    ----------
    number : int
        Place in the sequence, from 1; 0 stands for an empty log.
    generation : int
        Generation that appended it: no lower one may append after it.
    epoch : int
        Highest epoch held.
    after_epoch : int
        The renames belong to the epochs above this one.
    positions, pts, recent_ends
        Of ``epoch``, as in :class:`~holdfast.ports.Held`.
    renames : tuple of (str, str)
        Staged file -> final file, both relative to the sink's directory.  Empty for an entry that only fences.
    removals : tuple of str
        Files that a rewind withdraws, or that joined files replace, relative to the sink's directory.
    back_to : int, optional
        The entry is a rewind: the entries above this epoch, and before this one, do not count any more.
    is_repair : bool
        The entry is a repair: what the entries before it name may have been replaced.
    explained : mapping of str to int
        Source -> how many explanations of its positions are kept, those of this entry among them.
    explanations : tuple of Explanation
        Those that come with this entry; they are copied after it.
    schema : str
        Columns of the rows, partition columns included, by :func:`~holdfast.types.schema.encode_schema`.
    """

    number: int = 0
    generation: int = 0
    epoch: int = 0
    after_epoch: int = 0
    positions: Positions = field(default_factory=dict)
    pts: int | None = None
    renames: tuple[tuple[str, str], ...] = ()
    removals: tuple[str, ...] = ()
    back_to: int | None = None
    recent_ends: str = ""
    is_repair: bool = False
    explained: Mapping[str, int] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    schema: str = ""

    @property
    def is_compaction(self) -> bool:
        """Whether its renames belong to no new epoch: they take the place of the removals.  A repair's do, too."""
        return bool(self.renames) and self.after_epoch == self.epoch

    @property
    def is_idle(self) -> bool:
        """Whether it is an epoch, and no fence, that neither brought nor took away a file."""
        is_epoch = self.epoch > self.after_epoch and self.back_to is None
        return is_epoch and not (self.renames or self.removals)

    def replaced(self, is_there: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the removals that may be done: what joined files replace, only where these are."""
        if not self.is_compaction:
            return self.removals
        gone = {os.path.dirname(final) for _, final in self.renames if not is_there(final)}
        return tuple(path for path in self.removals if os.path.dirname(path) not in gone)

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        known = dict(self.explained)
        return Held(
            self.epoch, self.generation, self.positions, self.pts, recent_ends=self.recent_ends, explained=known
        )


class FilesLog(EntryLog[LogEntry]):
    """The log in one directory; parameters as those of :class:`~holdfast.store.entry_log.EntryLog`."""

    def __init__(self, directory: str, *, aside: str) -> None:
        super().__init__(directory, aside=aside, encode=_encode, decode=_decode, gap=_gap)


@dataclass(frozen=True)
class FilesBehind:
    """What follows some positions: the last epoch before them, and what was published after it."""

    epoch: int
    epoch_count: int
    files: tuple[str, ...]


def since_repair(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """Return the entries from the last repair on: what is named before it may have been replaced."""
    return entries[max((place for place, entry in enumerate(entries) if entry.is_repair), default=0) :]


def files_behind(entries: Sequence[LogEntry], to: Positions) -> FilesBehind | None:
    """Return what was published after some positions; None where no entry since the last repair ended there."""
    entries = since_repair(entries)
    at = max((place for place, entry in enumerate(entries) if entry.epoch and entry.positions == to), default=None)
    if at is None:
        return None
    later = [entry for entry in entries[at + 1 :] if entry.renames and not entry.is_compaction]
    files = tuple(final for entry in later for _, final in entry.renames)
    return FilesBehind(entries[at].epoch, len(later), files)


def _gap(path: str, entry: LogEntry) -> Diverged:
    return went_back(
        f"the log entry before {path} is gone; nothing was published.",
        participant=path,
        epoch=entry.epoch,
        generation=entry.generation,
    )


def _encode(entry: LogEntry) -> bytes:
    body = asdict(entry)
    for name in ("recent_ends", "is_repair", "explained", "explanations"):
        if not body[name]:
            del body[name]
    return (json.dumps({"format": 1, "entry": body, "sha256": _checksum(body)}) + "\n").encode()


def _decode(data: bytes, number: int) -> LogEntry:
    document = json.loads(data)
    body: Mapping[str, Any] = document["entry"]
    if document["sha256"] != _checksum(body):
        raise ValueError("its checksum does not match")
    renames = tuple((staged, final) for staged, final in body["renames"])
    removals = tuple(body.get("removals", ()))
    told = tuple(Explanation(**one) for one in body.get("explanations", ()))
    plain = {"renames": renames, "removals": removals, "explanations": told}
    entry = LogEntry(**{**without_step_time(body), **plain})
    if entry.number != number:
        raise ValueError(f"it carries the number {entry.number}")
    return entry


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


log = logging.getLogger("holdfast.connectors.files")


class Renames:
    """The renames and removals of one sink's log entries.

    Parameters
    ----------
    directory : str
        The sink's directory.
    entries : FilesLog
        Its log.
    pipeline, sink : str
        For errors.
    """

    def __init__(self, directory: str, entries: FilesLog, pipeline: str, sink: str) -> None:
        self._directory = directory
        self._log = entries
        self._pipeline = pipeline
        self._sink = sink
        self._note = os.path.join(directory, "_holdfast", pipeline, sink, "renamed")
        self._finished = 0
        """Number of the log entry whose renames are known to be done."""

    def finish(self, entry: LogEntry, *, is_synced: bool = False) -> None:
        """Do the renames of an entry that are not done yet.  Idempotent; several processes may do it concurrently.

        Raises
        ------
        InDoubt
            If a file could not be renamed: the epoch is committed, and not all of it is visible.
        Diverged
            If a file is gone that was not visible yet.
        """
        if self.are_finished(entry):  # else a run may have died, or failed, among its renames
            return
        try:
            if (entry.renames or entry.removals) and not is_synced:
                self._log.sync()  # its writer may have died before: no row may outlive the entry that names it
            waiting = {staged for staged, _ in entry.renames if os.path.lexists(self._path(staged))}
            gone = []
            for staged, final in entry.renames:
                if not self._rename(staged, final):
                    gone.append((staged, final))
                faults.reach("publish-begun", entry.epoch, self._pipeline)
            self._check_gone(entry, waiting, gone)
            self._note_done(entry)
            for path in self._removals(entry):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._directory, path))
                faults.reach("publish-begun", entry.epoch, self._pipeline)
            touched = [*(final for _, final in entry.renames), *entry.removals]
            for directory in sorted({os.path.dirname(path) for path in touched}):
                with suppress(FileNotFoundError):  # removed meanwhile, with our file in it
                    durable.sync_directory(os.path.join(self._directory, directory))
        except OSError as error:
            raise InDoubt(
                f"Epoch {entry.epoch} is committed in sink {self._sink!r}, but not all of its files are visible.",
                why=f"{error.filename or self._directory}: {error.strerror}.",
                do="repair the file system and start again: opening the sink finishes it.",
                pipeline=self._pipeline,
                participant=self._sink,
                epoch=entry.epoch,
                generation=entry.generation,
            ) from error
        for above in sorted({above for above, _ in _staged_directories(entry)}):
            shutil.rmtree(os.path.join(self._directory, above), ignore_errors=True)
        self._finished = entry.number

    def are_finished(self, entry: LogEntry) -> bool:
        """Return whether an entry is the last one that was finished here."""
        return entry.number == self._finished

    def _removals(self, entry: LogEntry) -> tuple[str, ...]:
        """Return what an entry removes: what joined files replace, only where these are in their place."""
        removals = entry.replaced(lambda final: os.path.lexists(os.path.join(self._directory, final)))
        if len(removals) < len(entry.removals):
            log.warning("%s is gone: files that it replaces stay where they are", entry.renames[0][1])
        return removals

    def _rename(self, staged: str, final: str) -> bool:
        """Do one rename; False if the file is in neither place."""
        source, target = self._path(staged), self._path(final)
        try:
            os.rename(source, target)
        except FileNotFoundError:  # done already: before a crash, or by who opens the sink at the same time
            if os.path.lexists(source):  # it is not: the target's directory is gone
                durable.make_directory(os.path.dirname(target), is_published=True)
                os.rename(source, target)
            else:
                return os.path.lexists(target)
        return True

    def _check_gone(self, entry: LogEntry, waiting: Collection[str], gone: Sequence[tuple[str, str]]) -> None:
        """Tell files that somebody removed before they were visible from those that a reader has taken away since.

        Renames are done in order: what comes behind one that was still to be done was not visible.  Where none was, all
        were done if that is noted.

        Raises
        ------
        Diverged
            If rows of the entry will never be visible: it is committed, and readers may have others of it.
        """
        order = [staged for staged, _ in entry.renames]
        first = next((place for place, staged in enumerate(order) if staged in waiting), None)
        noted = self._noted()
        if first is None:
            lost = list(gone) if noted is not None and noted < entry.number and not entry.is_compaction else []
        else:
            lost = [pair for pair in gone if order.index(pair[0]) >= first]
        for _, final in gone:
            if not lost:
                log.warning("%s was published and has been removed", self._path(final))
        if lost:
            raise Diverged(
                f"Epoch {entry.epoch} is committed in sink {self._sink!r}, and {len(lost)} of its {len(order)} files "
                f"are gone: {', '.join(final for _, final in lost[:5])}{', ...' if len(lost) > 5 else ''}.",
                why="somebody removed them after the log entry that names them, before they were visible; the others "
                f"of the epoch are, or were. They were staged as {lost[0][0]}.",
                do="bring the staged files back, or put files with these names, and the rows of the epoch that are "
                "missing, in their place, and start again. If readers have taken them away, and nobody removed what "
                f"was staged: write {entry.number} into {self._note}.",
                pipeline=self._pipeline,
                participant=self._sink,
                epoch=entry.epoch,
                generation=entry.generation,
            )

    def _noted(self) -> int | None:
        """Return the number of the last entry whose renames are done; None where an older version noted none."""
        with suppress(FileNotFoundError, ValueError), open(self._note, encoding="ascii") as file:
            return int(file.read())
        return None

    def _note_done(self, entry: LogEntry) -> None:
        """Note that the renames of an entry are done: not synced, since after a power cut it only says too little."""
        aside = os.path.join(os.path.dirname(self._note), "writing", f"renamed-{entry.generation}")
        with suppress(FileNotFoundError):  # who connects to the sink meanwhile removes what lies there
            with open(aside, "w", encoding="ascii", opener=durable.private_opener) as file:
                file.write(str(entry.number))
            os.rename(aside, self._note)

    def _path(self, relative: str) -> str:
        return os.path.join(self._directory, relative)

    def is_unfinished(self, entry: LogEntry) -> bool:
        """Return whether a rename or a removal of an entry is still pending."""
        waiting = [*(staged for staged, _ in entry.renames), *entry.removals]
        return not self.are_finished(entry) and any(
            os.path.lexists(os.path.join(self._directory, path)) for path in waiting
        )


def directories(entry: LogEntry) -> frozenset[str]:
    """Return the staged directories of tasks that an entry names."""
    return frozenset(name for above, name in _staged_directories(entry) if above.split(os.sep)[3] == "staging")


def _staged_directories(entry: LogEntry) -> frozenset[tuple[str, str]]:
    """Return path and name of each directory from which an entry takes files."""
    # _holdfast/<pipeline>/<sink>/<staging or joining>/<directory>/...
    parts = (staged.split(os.sep)[:5] for staged, _ in entry.renames)
    return frozenset((os.sep.join(each), each[4]) for each in parts)
