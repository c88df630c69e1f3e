"""The epochs that wait for sinks with a pace of their own, which every other sink has got (design/0019).

Invariants.  An epoch that waits has a decision: the driver may die while it does, and the next start publishes it.  For
each sink epochs leave in ascending order, all that wait for it together.  What waits is bounded: in bytes that the
driver holds, in rows, in epochs.

What waits for an upsert, without the rows that a later row of the same key replaces: fewer writes, the same table.

Only rows that the driver holds are left out; a later one of the same key is in the same transaction behind them, so
the table is the same at its end.  Columns of which Arrow and a database may disagree on what is equal are no key here:
then every row is written, as it would be epoch by epoch.

Requests that sinks with a pace of their own commit now: objects in the checkpoint, which the run alive obeys.

Each is an object of its own, so that none replaces another, and then a note says which is the newest.  A run looks at
the note alone, which is one request where the checkpoint is in an object store, and lists when it has changed.

No row depends on them: one that is lost, or obeyed twice, changes only when rows become visible.

The positions that every sink with a pace of its own holds: sources keep what lies above them.

What such a sink lacks is in the decisions.  If those are lost with the checkpoint, it is read again: so it must be
there.  The floor is moved after such a sink has committed; one that is too low keeps more than is needed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commit.group import Underway
from holdfast.errors import invariant
from holdfast.graph.trigger import SinkPace
from holdfast.ports import Carried, Held, Part, Store
from holdfast.positions import Positions, least
from holdfast.store import sealed

WAITING_EPOCHS_MAX = 1000
"""A sink commits at the latest when it lacks so many: each is an object in the ledger, and a start reads them all."""

WAITING_ROWS_MAX = 10_000_000
"""And so many rows: of those that executors have staged the bytes are not known.  Large for a transaction, not huge."""


@dataclass(frozen=True)
class SinkBacklog:
    """What waits for one sink.

    Parameters
    ----------
    epochs, rows, size_bytes : int
        How much; the bytes are those of rows that the driver holds.
    since_us : int
        Since when the oldest of them has waited, microseconds of Unix time; 0 when nothing does.
    """

    epochs: int = 0
    rows: int = 0
    size_bytes: int = 0
    since_us: int = 0


@dataclass
class _Queue:
    pace: SinkPace
    entries: list[Underway] = field(default_factory=list)
    waiting: SinkBacklog = SinkBacklog()
    is_new: bool = False

    def is_due(self, now_us: int) -> bool:
        waiting, pace = self.waiting, self.pace
        return bool(waiting.epochs) and (
            self.is_new
            or (pace.every_us is not None and now_us - waiting.since_us >= pace.every_us)
            or (pace.every_epochs is not None and waiting.epochs >= pace.every_epochs)
            or waiting.epochs >= WAITING_EPOCHS_MAX
            or waiting.rows >= WAITING_ROWS_MAX
        )


class HeldBack:
    """What waits, for each sink that has a pace.  Without such sinks every epoch passes through.

    Parameters
    ----------
    paces : mapping of str to SinkPace
        The sinks that have one.
    limit_bytes : int
        When the driver holds so many bytes of what waits, the sink that most of them wait for commits.
    now_us : callable
        The clock.
    """

    def __init__(self, paces: Mapping[str, SinkPace], limit_bytes: int, now_us: Callable[[], int]) -> None:
        self._queues = {name: _Queue(pace) for name, pace in paces.items()}
        self._limit_bytes = limit_bytes
        self._now_us = now_us
        self._hurried: frozenset[str] = frozenset()
        self.took_staged = True
        """Whether the driver held no row of what was taken last."""
        self.took_first = False
        """Whether some of what was taken last is the first that a sink gets."""

    @property
    def sinks(self) -> frozenset[str]:
        """The sinks that have a pace."""
        return frozenset(self._queues)

    @property
    def waiting(self) -> dict[str, SinkBacklog]:
        """What waits for each sink that has a pace.  May be asked from any thread."""
        return {name: queue.waiting for name, queue in self._queues.items()}

    def begin(self, new: Collection[str]) -> None:
        """Let the first epoch of sinks that hold nothing pass at once.

        Without the checkpoint a sink that holds nothing is taken for one that was added, and begins where others are:
        what it has waited for would be lost to it.
        """
        for name, queue in self._queues.items():
            queue.is_new = name in new

    def add(self, group: Sequence[Underway]) -> None:
        """Take epochs that all other sinks get now."""
        for entry in group:
            number = entry.record.epoch
            held = entry.narrowed([name for name in self._queues if name in entry.decided.parts])
            invariant(
                entry.key is not None or not held.decided.parts,
                f"epoch {number} is to wait for {sorted(held.decided.parts)} without a decision.",
                epoch=number,
            )
            for name in held.decided.parts:
                self._put(self._queues[name], name, held)

    def _put(self, queue: _Queue, name: str, held: Underway) -> None:
        before = queue.waiting
        queue.entries.append(held)
        queue.waiting = SinkBacklog(
            before.epochs + 1,
            before.rows + held.row_counts[name],
            before.size_bytes + held.decided.carried_bytes_of(name),
            before.since_us or self._now_us(),
        )

    def hurry(self, sinks: Collection[str]) -> None:
        """Let these be due, the next time that anything is taken."""
        self._hurried = self._hurried.union(sinks)

    @property
    def is_due(self) -> bool:
        """Whether a sink is to commit now."""
        return bool(self._due())

    def _due(self) -> list[str]:
        now = self._now_us()
        due = [name for name, of in self._queues.items() if of.entries and (name in self._hurried or of.is_due(now))]
        rest = {name: of.waiting.size_bytes for name, of in self._queues.items() if name not in due}
        while sum(rest.values()) >= self._limit_bytes and (most := max(rest, key=rest.__getitem__, default=None)):
            if not rest.pop(most):
                break
            due.append(most)
        return due

    def take(self) -> dict[str, list[Underway]]:
        """Return what sinks commit now, each in one transaction; of rows with one key only the last."""
        taken = {}
        due = self._due()
        self.took_staged = not any(self._queues[name].waiting.size_bytes for name in due)
        self.took_first = any(self._queues[name].is_new for name in due)
        for name in due:
            queue = self._queues[name]
            entries, queue.entries, queue.waiting = queue.entries, [], SinkBacklog()
            queue.is_new = False
            taken[name] = folded(name, entries, queue.pace.key)
        self._hurried = frozenset()
        return taken


_ROW = "__holdfast_row"


def folded(sink: str, entries: Sequence[Underway], key: Sequence[str]) -> list[Underway]:
    """Return epochs of one sink without carried rows that a later carried row of their key replaces.

    Parameters
    ----------
    sink : str
        Whose rows.
    entries : sequence of Underway
        Ascending.
    key : sequence of str
        Columns that identify a row; empty: every row stays.
    """
    tables = [part.rows for entry in entries for part in entry.decided.parts[sink] if isinstance(part, Carried)]
    if not key or len(tables) < 2:
        return list(entries)
    keeps = _last_of_each_key(tables, key)
    if keeps is None:
        return list(entries)
    ends = np.cumsum([table.num_rows for table in tables])
    masks = iter(np.split(keeps, ends[:-1]))

    def left(part: Part) -> Part:
        return Carried(part.rows.filter(pa.array(next(masks)))) if isinstance(part, Carried) else part

    return [
        replace(entry, decided=replace(entry.decided, parts={sink: tuple(map(left, entry.decided.parts[sink]))}))
        for entry in entries
    ]


def _last_of_each_key(tables: Sequence[pa.Table], key: Sequence[str]) -> np.ndarray | None:
    """Return for each row of all tables whether it is the last of its key; None where that is not for us to say."""
    if any(column not in table.column_names for table in tables for column in key):
        return None
    keys = pa.concat_tables([table.select(list(key)) for table in tables], promote_options="none")
    if not all(_is_plain(field.type) for field in keys.schema):
        return None
    if any(keys[column].null_count for column in key):
        return None  # the sink says which epoch has them
    numbered = keys.append_column(_ROW, pa.array(np.arange(keys.num_rows)))
    last = numbered.group_by(list(key)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    keeps = np.zeros(keys.num_rows, dtype=bool)
    keeps[pc.cast(last, pa.int64()).to_numpy()] = True
    return keeps


def _is_plain(of: pa.DataType) -> bool:
    is_text = pa.types.is_string(of) or pa.types.is_large_string(of)
    is_number = pa.types.is_integer(of) or pa.types.is_boolean(of)
    return bool(is_text or is_number or pa.types.is_date(of) or pa.types.is_timestamp(of))


_PREFIX = "flush/"
_NOTE = f"{_PREFIX}newest"


def ask_to_commit(store: Store, sinks: Sequence[str]) -> None:
    """Ask the run that works on a checkpoint to let some sinks commit what waits for them; returns at once."""
    key = f"{_PREFIX}{uuid.uuid4().hex}.json"
    store.put(key, sealed.dump({"sinks": list(sinks)}))
    store.put(_NOTE, key.encode())


@dataclass(frozen=True)
class CommitRequests:
    """What was asked for, and not done yet.

    Parameters
    ----------
    sinks : frozenset of str
        Which are to commit.
    keys : tuple of str
        The requests.
    """

    sinks: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()


class RequestReader:
    """Finds what is asked of the sinks of a run, which looks often.

    Parameters
    ----------
    store : Store
        The checkpoint.
    sinks : collection of str
        Those that have a pace.
    """

    def __init__(self, store: Store, sinks: Collection[str]) -> None:
        self._store = store
        self._sinks = sinks
        self._has_listed = False
        self._newest: bytes | None = None

    def pending(self) -> CommitRequests:
        """Return what is asked, with every request: what cannot be read is one to all sinks."""
        newest = self._store.get(_NOTE)
        if self._has_listed and newest == self._newest:
            return CommitRequests()
        keys = {key for key in self._store.keys(_PREFIX) if key != _NOTE}
        if newest is not None:
            keys.add(newest.decode())  # a listing may lag
        found = {key: data for key in sorted(keys) if (data := self._store.get(key)) is not None}
        wanted: set[str] = set()
        for data in found.values():
            try:
                wanted.update(sealed.load(data)["sinks"])
            except (ValueError, KeyError, TypeError):
                wanted.update(self._sinks)
        self._has_listed, self._newest = True, newest
        return CommitRequests(frozenset(wanted).intersection(self._sinks), tuple(found))

    def forget(self, done: CommitRequests) -> None:
        """Remove requests: what they wanted is done."""
        for key in done.keys:
            self._store.delete(key)


HELD_KEY = "held/floor.json"


class HeldFloor:
    """The floor of one run.

    Parameters
    ----------
    store : Store
        The checkpoint.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written: Positions | None = None

    def move(self, held: Iterable[Held]) -> None:
        """Move it to what all of these sinks hold; one durable write, or none where it is there."""
        floor = reduce(least, [each.positions for each in held])
        if floor != self._written:
            self._store.put(HELD_KEY, sealed.dump(floor))
            self._written = floor
