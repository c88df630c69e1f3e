"""Dead letters: rows that fail in whatever epoch they are, with the error and their position; kept, and left out.

One object says both: what a pipeline leaves out, and what happened to it.  ``dead-letters/<generation, 8 digits>.json``
holds all letters; a start copies the newest under its own generation, after it has taken over, and adds to its copy
(where no run has ever isolated rows there is none, and none is made).
So what a fenced run adds late is in an object that is no longer read: it can neither publish the epoch nor
have its row left out.  A row is a letter from the put on, and from then on it is never read: it is in the sinks or
among the letters, whatever is killed between.

A letter that is sent again has a number among those of its source, in the order in which that was asked for: it is read
between the positions *k* and *k* + 1 of the segment ``letters`` (:mod:`holdfast.quarantine.mask`).

A letter that a sink has refused is kept before its row is removed from the decision.  A crash in between leaves
the decision whole, and a table that is corrected gets the row after all.  So the ledger is authoritative for these
letters, and a start that finds it there records it: finished epochs are eventually removed from the ledger.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, cast

import pyarrow as pa

from holdfast.commit.ledger import Standing, survey
from holdfast.commit.records import Decided, Done
from holdfast.errors import InvalidPipeline, invariant
from holdfast.graph.nodes import Node
from holdfast.ports import SourceSpec, Store
from holdfast.positions import Positions
from holdfast.quarantine.mask import ADDED, LETTERS, OUTLET, Address, Mask, Passing, digest_of
from holdfast.quarantine.refit import refitted
from holdfast.store import records, sealed
from holdfast.store.paths import numbered
from holdfast.store.records import Base64
from holdfast.types.from_text import Unfit

log = logging.getLogger("holdfast.poison")

PREFIX = "dead-letters/"

REJECTED = "rejected"
"""Segment of letters that a sink has refused of a decided epoch: rows of the sink, whose name they bear, and not of a
source.  They are output of the graph, so nothing is left out of a source for them, and they cannot be sent through
it."""


@dataclass(frozen=True)
class Letter:
    """One row.

    Parameters
    ----------
    source : str
        Its source; the sink, if one has refused it; the operator with state that gave it, if that is where it is left
        out.
    address : Address
        Its position there.
    row : bytes
        The row, an Arrow IPC stream.
    epoch : int
        The epoch that it kept from being published.
    error : mapping of str to str
        ``kind``, ``what`` and ``why`` of the error.
    at_us : int
        When it was found, microseconds of Unix time.
    again : int, optional
        Its number among the rows of its source that are sent again; None: that was not asked for.
    is_published : bool
        Of one that a sink has refused: whether it was published after all.
    """

    source: str
    address: Address
    row: Base64
    epoch: int
    error: Mapping[str, str]
    at_us: int
    again: int | None = None
    is_published: bool = False

    @property
    def name(self) -> str:
        """``source/segment/position/ordinal``."""
        return "/".join([self.source, *map(str, self.address)])

    @property
    def is_rejected(self) -> bool:
        """Whether a sink has refused it, of an epoch that was decided."""
        return self.address.segment == REJECTED

    @property
    def is_added(self) -> bool:
        """Whether somebody has added it: nothing is left out of its source for it."""
        return self.address.segment.startswith(ADDED)

    @property
    def is_behind_state(self) -> bool:
        """Whether an operator with state gave it, and something behind could not process it."""
        return self.address.segment.startswith(OUTLET)

    @property
    def table(self) -> pa.Table:
        """The row, as a table."""
        return pa.ipc.open_stream(self.row).read_all()

    def described(self) -> dict[str, Any]:
        """Return it as a JSON value for people: its row as they read it."""
        row = self.table
        return {
            "name": self.name,
            "source": self.source,
            "address": self.address._asdict(),
            "epoch": self.epoch,
            "at_us": self.at_us,
            "error": dict(self.error),
            "row": {name: _show(values) for name, values in zip(row.column_names, row.columns, strict=True)},
        }


@dataclass(frozen=True)
class _Record:
    letters: tuple[Letter, ...]


class Rejection(Enum):
    """The status of a row that a sink has refused of a decided epoch, in words."""

    MADE = "rejected by its sink"
    OPEN = "refused by its sink, its epoch is not published yet"
    UNDONE = "refused by its sink, and published there after all"


def rejection(letter: Letter, ledger: Mapping[int, Decided | Done]) -> Rejection:
    """Return the status of a row, by what the ledger has of some epochs; of an epoch no longer in it, as recorded."""
    if letter.is_published:
        return Rejection.UNDONE
    content = ledger.get(letter.epoch)
    if content is None or content.rejected is None:
        return Rejection.MADE
    if letter.address.ordinal in content.rejected.get(letter.source, ()):  # else the command died after the letter
        return Rejection.MADE
    return Rejection.UNDONE if isinstance(content, Done) else Rejection.OPEN


def ledger_of(store: Store, letters: Iterable[Letter]) -> dict[int, Decided | Done]:
    """Return what the ledger has of the epochs of letters that a sink has refused."""
    epochs = {letter.epoch for letter in letters if letter.is_rejected and not letter.is_published}
    found = survey(store, epochs) if epochs else []
    return {
        each.key.epoch: each.content
        for each in found
        if each.content is not None and each.standing is not Standing.VOID
    }


def read_letters(store: Store) -> tuple[Letter, ...]:
    """Return all letters, in the order in which they were found.

    Raises
    ------
    Corrupt
        If they cannot be read: without them rows that were left out would be read again.
    """
    newest = _newest(store)
    return _read(store, newest) if newest else ()


class DeadLetters:
    """The letters of one run.

    Parameters
    ----------
    store : Store
        The checkpoint.
    generation : int
        Of this run, which has taken over.
    isolates : bool
        Whether this run may add to them.  One that does not, and finds no object, writes none: a run that isolates has
        written its own before, or finds itself fenced when it looks before it adds.
    """

    def __init__(self, store: Store, generation: int, *, isolates: bool) -> None:
        self._store = store
        self._key = f"{PREFIX}{generation:08d}.json"
        self._fitted: dict[str, bytes] = {}
        keys = numbered(store, PREFIX)
        self.letters = read_letters(store)
        if not keys and not isolates:
            return
        ledger = ledger_of(store, self.letters)
        self.letters = tuple(_noted(letter, ledger) for letter in self.letters)
        # 1. the copy.  A crash after it leaves both: the newer one counts.  2. removal of older ones.
        self._put(self.letters)
        for other, key in keys.items():
            if other < generation:  # also what a start left that died between its copy and the removal
                store.delete(key)

    def add(self, letter: Letter, check_fenced: Callable[[], None]) -> None:
        """Make a row a letter; nothing where it is one.  Durable when it returns.

        Parameters
        ----------
        letter : Letter
            The row.
        check_fenced : callable
            Raises ``Fenced`` if another run has taken over.
        """
        check_fenced()
        known = {(one.source, one.address) for one in self.letters}
        if (letter.source, letter.address) not in known:  # else the run that found it before died after its put
            self._put((*self.letters, letter))

    def fit(self, sources: Iterable[Node], begins: Positions) -> None:
        """Convert the rows that this run reads again to the present schemas of their sources.

        Parameters
        ----------
        sources : iterable of Node
            Those of the pipeline.
        begins : Positions
            Where the run reads on: rows before are not read, and stay as they are.

        Raises
        ------
        InvalidPipeline
            If one does not fit: before it is part of an epoch that fails at every start.
        """
        for node in sources:
            first = int(begins.get(node.name, {}).get(LETTERS, 0))
            for letter in self._read_again(node.name, first):
                try:
                    row = refitted(letter.row, cast("SourceSpec", node.spec), letter.name)
                except Unfit as error:
                    raise _unfit(letter, str(error)) from error
                if row != letter.row:
                    log.info("dead letter %s is read with the columns that its source has now", letter.name)
                self._fitted[letter.name] = row

    def counts(self) -> dict[str, int]:
        """Return how many letters each source, operator or sink has that were neither sent again nor published."""
        return Counter(one.source for one in self.letters if one.again is None and not one.is_published)

    def masks(self) -> dict[str, Mask]:
        """Return what is left out of each source, and what is sent again."""
        return masks_of([replace(one, row=self._fitted.get(one.name, one.row)) for one in self.letters])

    def passing(self, epoch: int) -> Passing:
        """Return what passes behind operators with state in an epoch, by its number as steps know it."""
        left_out: dict[str, dict[int, str]] = {}
        for letter in self.letters:
            if letter.is_behind_state and letter.address.position == epoch:
                outlet = f"{letter.source}/{letter.address.segment}"
                left_out.setdefault(outlet, {})[letter.address.ordinal] = digest_of(letter.row)
        return Passing(left_out)

    def _read_again(self, source: str, first: int) -> list[Letter]:
        """Return the letters of a source that are sent again from a number on, without those that failed again."""
        mine = [letter for letter in self.letters if letter.source == source]
        failed = {letter.address.position for letter in mine if letter.address.segment == LETTERS}
        return [one for one in mine if one.again is not None and one.again >= first and one.again not in failed]

    def _put(self, letters: Sequence[Letter]) -> None:
        before, now = ({(one.source, one.address) for one in several} for several in (self.letters, letters))
        invariant(
            before <= now and len(now) == len(letters),
            f"{len(before)} dead letters are to become {len(letters)}, of {len(now)} rows.",
            why="a row is a letter from its put on, and one.",
            participant=self._key,
        )
        self._store.put(self._key, _encode(letters))
        self.letters = tuple(letters)


def copy_letters(store: Store, to: Store) -> None:
    """Let a shadow leave out what a pipeline leaves out: its checkpoint, of which no run is alive, gets the letters.

    Parameters
    ----------
    store, to : Store
        The pipeline's checkpoint, and the shadow's.
    """
    for key in numbered(to, PREFIX).values():
        to.delete(key)
    letters = read_letters(store)
    if letters:  # below every generation, so that the shadow's start takes them over
        to.put(f"{PREFIX}{0:08d}.json", _encode(letters))


def masks_of(letters: Sequence[Letter]) -> dict[str, Mask]:
    """Return the mask of each source that has letters."""
    masks = {}
    letters = [letter for letter in letters if not letter.is_rejected and not letter.is_behind_state]
    for source in {letter.source for letter in letters}:
        mine = [letter for letter in letters if letter.source == source]
        again = {letter.again: letter.row for letter in mine if letter.again is not None}
        invariant(
            len(again) == sum(letter.again is not None for letter in mine),
            f"two dead letters of source {source!r} are to be read again at one position.",
            why="each has a number of its own among those of its source.",
            participant=source,
        )
        rows = tuple(again.get(number, b"") for number in range(max(again, default=-1) + 1))
        masks[source] = Mask(frozenset(one.address for one in mine if not one.is_added), rows)
    return masks


def send_again(store: Store, wanted: Collection[str], finished: Positions) -> list[Letter]:
    """Record that letters must be sent through the graph again by the next start; return them.

    Parameters
    ----------
    store : Store
        The checkpoint, of which no run is alive.
    wanted : collection of str
        Names of letters; empty: all that were not sent again yet.
    finished : Positions
        Up to where epochs are finished.  A fork may be behind letters of its original pipeline.

    Notes
    -----
    One put.  It goes into the newest object: if a run takes over meanwhile, either it has read the note, or the note is
    in an object that is not read.
    """
    newest = _newest(store)
    letters = list(_read(store, newest)) if newest else []
    counts = {letter.source: int(finished.get(letter.source, {}).get(LETTERS, 0)) for letter in letters}
    for letter in letters:
        if letter.again is not None:
            counts[letter.source] = max(counts[letter.source], letter.again + 1)
    sent = []
    for number, letter in enumerate(letters):
        is_of_source = not letter.is_rejected and not letter.is_behind_state
        if letter.again is None and is_of_source and (not wanted or letter.name in wanted):
            letters[number] = replace(letter, again=counts[letter.source])
            counts[letter.source] += 1
            sent.append(letters[number])
    if newest and sent:
        store.put(newest, _encode(letters))
    return sent


def add_letters(store: Store, letters: Sequence[Letter]) -> list[Letter]:
    """Keep rows that somebody adds; return those that were not kept before.

    Parameters
    ----------
    store : Store
        The checkpoint, of which no run is alive.
    letters : sequence of Letter
        The rows.

    Notes
    -----
    One put, into the newest object as :func:`send_again` does.  Where there is none it is made as of no generation: the
    next start copies it under its own.
    """
    known = list(read_letters(store))
    have = {(one.source, one.address) for one in known}
    new = [letter for letter in letters if (letter.source, letter.address) not in have]
    if new:
        store.put(_newest(store) or f"{PREFIX}{0:08d}.json", _encode([*known, *new]))
    return new


def _show(values: pa.ChunkedArray) -> Any:
    try:
        value = values[0].as_py()
    except (ValueError, OverflowError):  # no UTF-8, a time that Python has not: it may be what the row failed of
        return " ".join(values.chunk(0).to_string().split())
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _noted(letter: Letter, ledger: Mapping[int, Decided | Done]) -> Letter:
    if not letter.is_rejected or letter.is_published or rejection(letter, ledger) is not Rejection.UNDONE:
        return letter
    log.info("dead letter %s was published after all: its sink takes it now", letter.name)
    return replace(letter, is_published=True)


def _newest(store: Store) -> str | None:
    keys = numbered(store, PREFIX)
    return keys[max(keys)] if keys else None


def _unfit(letter: Letter, why: str) -> InvalidPipeline:
    columns = ", ".join(f"{field.name} {field.type}" for field in letter.table.schema)
    return InvalidPipeline(
        f"dead letter {letter.name!r} is to be read again, and does not fit source {letter.source!r} as it is declared "
        "now.",
        why=f"{why}. The row was kept with {columns}.",
        do="declare that column as it was (nullable, if the row lacks it) and start; once holdfast dead-letters list "
        "says that the row is replayed, the column may change.",
        participant=letter.source,
    )


def _encode(letters: Sequence[Letter]) -> bytes:
    described = map(records.plain, letters)
    # Older versions know nothing of what was published after all: a letter that was not is written as they write it.
    return sealed.dump({"letters": [{n: v for n, v in one.items() if v is not False} for one in described]})


def _read(store: Store, key: str) -> tuple[Letter, ...]:
    says = "it says which rows are left out of the input, and holds them"
    do = "restore it from a copy of the checkpoint; without it these rows would be read again."
    return records.load(_Record, store.get(key), key=key, says=says, do=do).letters
