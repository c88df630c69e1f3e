"""Which segments have the rows of which keys: claims of all shards of a pipeline (design/0048, section 7).

A *claim* says that the rows of a key are of one unit of segments.  Who reads rows of keys that nobody has claimed
claims them before it gives the rows, so whatever is made of them, by whoever reads them again, has the same verdict.

Invariants: a key is claimed once, and for ever; an increment holds no key of an increment before it.  Of two readers
that claim a key at once, the one whose increment has the lower number has it: the other is told that the number is
taken, and reads that increment before it tries again.  A claim of rows that never take effect does no harm.

A key is 128 bits of hash of the column's value (:mod:`holdfast.types.row_ids`); in memory it takes 20 bytes.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np

from holdfast.errors import Corrupt, InvalidPipeline, invariant
from holdfast.ports import Store
from holdfast.shards.key_runs import UNKNOWN, Codes, KeyRun, add, firsts, owners, together
from holdfast.store import sealed
from holdfast.store.increments import Increments
from holdfast.types.row_ids import U64, Lanes, key_of

HASHED = key_of("shard key")
"""What the hashes of keys begin with."""

KEYS = "shards/keys"
"""Where the claims lie below the checkpoint of a pipeline."""

TABLES_MAX = 4
"""So many tables a process keeps while nobody reads rows by them."""

_WHAT = "the keys of the shards"
_IDENTITY = "identity"


@dataclass(frozen=True)
class ShardKey:
    """By which column the rows of a pipeline are held to their segments, and where the claims are.  Picklable.

    Parameters
    ----------
    by : str
        The column: rows of one value of it are of one unit.
    directory : str
        Local, or in the scratch of an object store; the same for all shards.
    """

    by: str
    directory: str

    def begin(self) -> None:
        """Note what is claimed there, unless that is done.  One durable write, the first time.

        Raises
        ------
        InvalidPipeline
            If claims are of another column.
        """
        sealed.prepare(self.directory)
        if self._identity() is None:
            sealed.put_if_absent(self._path, json.dumps({"by": self.by, "token": uuid4().hex}).encode())
        found = self._identity() or {}
        if found.get("by") != self.by:
            raise InvalidPipeline(
                f"shard_by={self.by!r}, and rows are held to their segments by {found.get('by')!r}.",
                why=f"{self.directory} says which segment has which value of that column; of another one it is not "
                "known where its rows have been.",
                do=f"write shard_by={found.get('by')!r}; or begin anew: holdfast reset, and another checkpoint.",
            )

    def open(self) -> KeyTable:
        """Return the claims: one table for each process and directory.

        Raises
        ------
        InvalidPipeline
            If they are not there for this process.
        """
        found = self._identity()
        if found is None:
            raise InvalidPipeline(
                f"{self.directory} is not there for a process that reads rows.",
                why="it says which segment has the rows of which key, and every process that reads needs it; this one "
                "runs on a machine that does not see the checkpoint, or somebody has removed it.",
                do="put the checkpoint where all machines see it under one path, or run on one machine.",
            )
        with _OPENING:
            place = os.getpid(), self.directory, str(found["token"])
            table = _TABLES.pop(place, None) or KeyTable(self.directory)
            _TABLES[place] = table  # the last to go
            while len(_TABLES) > TABLES_MAX:
                del _TABLES[next(iter(_TABLES))]
            return table

    @property
    def _path(self) -> str:
        return os.path.join(self.directory, _IDENTITY)

    def _identity(self) -> Mapping[str, Any] | None:
        held = sealed.read_sealed(self._path)
        return None if held is None else dict(json.loads(held))


def copy_claims(of: Store, to: Store) -> None:
    """Copy the claims of one checkpoint to another one that is to have the same verdicts; safe to be repeated.

    Parameters
    ----------
    of, to : Store
        The checkpoints.  One that has begun claims of its own keeps them.
    """
    identity = f"{KEYS}/{_IDENTITY}"
    held, own = of.get(identity), to.get(identity)
    if held is None or own not in (None, held):
        return
    is_whole = False
    while not is_whole:  # what was merged away since it was listed is in what is listed next
        is_whole = True
        for key in of.keys(f"{KEYS}/"):
            if key == identity or key.count("/") > identity.count("/"):  # deeper lies what is being written
                continue
            data = of.get(key)
            is_whole = is_whole and data is not None
            if data is not None:
                to.put_if_absent(key, data)
    to.put_if_absent(identity, held)


@dataclass(eq=False)
class _Asked:
    """Keys that a reader wants for a unit."""

    first: U64
    second: U64
    code: int
    is_done: bool = False


class KeyTable:
    """The claims in one directory, to the extent that this process has read them.  Safe between threads.

    Parameters
    ----------
    directory : str
        Where they are.

    Notes
    -----
    Lives in whatever process reads rows.  A claim of new keys is one durable write, which several threads share where
    they claim at once; of keys that are known none.
    """

    def __init__(self, directory: str) -> None:
        self.units: list[str] = []
        """The units that have keys, by their codes."""
        self._codes: dict[str, int] = {}
        self._runs: list[KeyRun] = []
        self._increments = Increments(directory, _WHAT, is_told=False)
        self._reading = threading.Lock()
        """Of the runs and the waiting claims."""
        self._writing = threading.Lock()
        self._waiting: list[_Asked] = []
        self.refresh()

    @property
    def count(self) -> int:
        """How many keys are claimed."""
        return sum(len(run.first) for run in self._runs)

    def counts(self) -> list[int]:
        """Return how many keys each unit has, by the codes of units."""
        with self._reading:
            runs, size = list(self._runs), len(self.units)
        counted = sum((np.bincount(run.codes, minlength=size) for run in runs), np.zeros(size, np.int64))
        return [int(count) for count in counted]

    def refresh(self) -> None:
        """Read what others have claimed.

        Raises
        ------
        Corrupt
            If it cannot be read.
        """
        with self._writing:
            self._read_on()

    def code(self, unit: str) -> int:
        """Return the code of a unit in this process."""
        with self._reading:
            if unit not in self._codes:
                self._codes[unit] = len(self.units)
                self.units.append(unit)
            return self._codes[unit]

    def owners(self, keys: Lanes) -> Codes:
        """Return the codes of the units that have some keys, as far as this process knows; else UNKNOWN."""
        with self._reading:
            runs = list(self._runs)
        return owners(runs, keys)

    def claim(self, keys: Lanes, unit: str) -> Codes:
        """Claim keys that nobody has for a unit; return the codes of the units that have them then.

        Durable when it returns.

        Raises
        ------
        Unavailable
            If it cannot be written: nothing is claimed, or all of it for this very unit.
        """
        code = self.code(unit)
        found = self.owners(keys)
        new = found == UNKNOWN
        if not new.any():
            return found
        asked = _Asked(keys[0][new], keys[1][new], code)
        with self._reading:
            self._waiting.append(asked)
        with self._writing:  # who waited here finds its claim written by whoever was before it, mostly
            if not asked.is_done:
                self._write(self._take_waiting(asked))
        found[new] = self.owners((asked.first, asked.second))
        invariant(bool((found != UNKNOWN).all()), "a claim was written, and its keys have no unit.")
        return found

    # --- inside -----------------------------------------------------------------------------------------------------

    def _take_waiting(self, asked: _Asked) -> list[_Asked]:
        """Return all claims that wait, one of them first: of a write that failed it waits no more."""
        with self._reading:
            others, self._waiting = [one for one in self._waiting if one is not asked], []
        return [asked, *others]

    def _write(self, several: Sequence[_Asked]) -> None:
        """Claim what of several readers' keys is still nobody's.

        | crash | then |
        |---|---|
        | before 1 | nothing is claimed; no row was given |
        | after 1 | claimed, for the unit whose rows are read again |
        | within 2 | :meth:`Increments.merge` |
        """
        while (run := self._new_of(several)) is not None:
            # 1. the claim
            if self._increments.put(self._payload(run)):
                self._add(run)
                break
            self._read_on()  # another process was faster: some of the keys may be its own now
        for asked in several:
            asked.is_done = True
        # 2. hundreds become one
        self._increments.merge()

    def _new_of(self, several: Sequence[_Asked]) -> KeyRun | None:
        """Return the keys that nobody has; of two claims of one key the first counts."""
        several_keys = [KeyRun(one.first, one.second, np.full(len(one.first), one.code, np.int32)) for one in several]
        first, second, codes = (np.concatenate(lanes) for lanes in zip(*several_keys, strict=True))
        new = self.owners((first, second)) == UNKNOWN
        return firsts(first[new], second[new], codes[new]) if new.any() else None

    def _payload(self, run: KeyRun) -> bytes:
        """Return a run as it is written: units, how many keys each has, and these in the order of the units."""
        order = np.argsort(run.codes, kind="stable")
        codes, counts = np.unique(run.codes, return_counts=True)
        keys = np.stack([run.first[order], run.second[order]], 1).astype("<u8")
        said = {
            "units": [self.units[code] for code in codes],
            "counts": counts.tolist(),
            "keys": base64.b64encode(keys.tobytes()).decode(),
        }
        return json.dumps(said, separators=(",", ":")).encode()

    def _read_on(self) -> None:
        found: list[KeyRun] = []
        try:
            for number, payload in self._increments.read_on():
                found.append(self._run_of(number, payload))
        finally:  # what was read is not read again, also where a later one cannot be
            if found:
                self._add(together(found))

    def _run_of(self, number: int, payload: bytes) -> KeyRun:
        try:
            said = json.loads(payload)
            keys = np.frombuffer(base64.b64decode(said["keys"]), "<u8").reshape(-1, 2)
            codes = np.array([self.code(unit) for unit in said["units"]], np.int32).repeat(said["counts"])
            if len(codes) != len(keys):
                raise ValueError(f"it has {len(keys)} keys, and units of {len(codes)}")
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"increment {number} of {_WHAT} {self._increments.directory} cannot be read: {error}.",
                do="restore the directory from a backup.",
                participant=self._increments.directory,
            ) from error
        return KeyRun(keys[:, 0].astype(np.uint64), keys[:, 1].astype(np.uint64), codes)

    def _add(self, run: KeyRun) -> None:
        runs = add(self._runs, run)
        with self._reading:  # NB a reader has the old runs, or the new ones
            self._runs = runs


_OPENING = threading.Lock()
_TABLES: dict[tuple[int, str, str], KeyTable] = {}
"""Those that this process has read last.  A worker opens its sources anew for each task."""
