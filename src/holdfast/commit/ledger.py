"""What the checkpoint durably knows of epochs: its owner, each takeover, and every decision.

Objects, all through the ``Store`` port::

    identity.json                        {"pipeline": name, "format": 1}
    generations/<generation>.json        put-if-absent: who took over, when
    fences/<generation>.json             {"accepts": [[epoch, generation], ...]}
    ledger/<epoch>-<generation>          a decision; shrinks to "done"; the last ``keep`` of those stay

Invariants.  Generations only grow.  A decision is written once, by its own generation, and replaced once, by "done";
between the two, a takeover that was asked to may take rows out of it that a sink refuses.
Epochs are forgotten in ascending order: whatever is older than the newest "done" is done.  Of the decisions on one
epoch at most one is open and counts.

**Which decisions count.**  A takeover writes its *fence*: the open decisions it found, and accepts.  An open decision
counts if its generation wrote the newest fence, or if the newest fence accepts it.  Both sides *write, then look*: a
decision is returned to the engine only if no higher generation exists *after* it was written; a fence is acted upon
only if none exists after *it* was written.  So a decision that a stale driver writes after the takeover has read the
ledger is void (its staged rows may be swept), and that driver learns it in the same call, before Spark's commit log can
hear of it.  This is Dekker's pattern: it needs neither locks nor compare-and-swap, and generations never contend for an
object.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from holdfast.commit.owner import GENERATIONS, this_process
from holdfast.commit.records import Decided, Done, decode, encode
from holdfast.errors import Corrupt, Fenced, InvalidPipeline, invariant
from holdfast.ports import EpochRecord, Store
from holdfast.store import sealed
from holdfast.store.paths import numbered

log = logging.getLogger("holdfast.commit")

FORMAT = 1
GENERATIONS_KEPT = 100
"""Takeovers are few; these are for people (``inspect``), only the newest is needed."""


@dataclass(frozen=True, order=True)
class Key:
    """Name of one decision."""

    epoch: int
    generation: int

    @property
    def path(self) -> str:
        """Key in the store."""
        return f"ledger/{self.epoch:012d}-{self.generation:08d}"


class Standing(Enum):
    """The status of a decision, in words."""

    OPEN = "decided, not yet published everywhere"
    DONE = "published everywhere"
    VOID = "decided by a generation that had been fenced already: ignored"
    DAMAGED = "cannot be read"


@dataclass(frozen=True)
class LedgerEntry:
    """One decision as :func:`survey` shows it; ``content`` is None where it cannot be read."""

    key: Key
    standing: Standing
    content: Decided | Done | None


@dataclass(frozen=True)
class Takeover:
    """What a new generation finds: decisions that are open, oldest first; the newest that is done; void ones."""

    open: tuple[Key, ...]
    done: Done | None
    void: tuple[Key, ...] = ()


class Ledger:
    """The checkpoint's part of the ledger, for one generation.  Runs on the driver.

    Parameters
    ----------
    store : Store
        The checkpoint directory.
    pipeline : str
        Its name; a checkpoint belongs to one pipeline.
    keep : int
        How many finished decisions stay readable.
    """

    def __init__(self, store: Store, pipeline: str, *, keep: int = 100) -> None:
        self._store = store
        self._pipeline = pipeline
        self._keep = keep
        self._done: deque[Key] = deque()
        self._generation = 0
        self._fenced_with = 0
        self._newest_key: Key | None = None
        self._has_looked = False
        self.newest_done: Done | None = None
        """The newest epoch that is done, of any run."""

    def identify(self) -> None:
        """Claim an empty checkpoint, or check that it is this pipeline's.

        Raises
        ------
        InvalidPipeline
            If it belongs to another pipeline, or to another format.
        Corrupt
            If the identity cannot be read.
        """
        mine = {"pipeline": self._pipeline, "format": FORMAT}
        data = self._store.get("identity.json")
        if data is None:  # no run was here, or it died before this first write
            if self._store.put_if_absent("identity.json", sealed.dump(mine)):
                return
            data = self._store.get("identity.json") or b""
        found = _json(data, "identity.json")
        if found.get("pipeline") != self._pipeline:
            raise InvalidPipeline(
                f"the checkpoint belongs to pipeline {found.get('pipeline')!r}, not to {self._pipeline!r}.",
                why="positions and decisions of one pipeline mean nothing to another.",
                do="give this pipeline a checkpoint directory of its own.",
                pipeline=self._pipeline,
            )
        if found.get("format") != FORMAT:
            raise InvalidPipeline(
                f"the checkpoint has format {found.get('format')!r}; this version of Holdfast reads format {FORMAT}.",
                do="run it with the version of Holdfast that wrote it.",
                pipeline=self._pipeline,
            )

    def take_generation(self, floor: int, at_us: int) -> int:
        """Take the next generation above ``floor`` and above all in the checkpoint; exactly one driver gets each.

        The generation counts from now on: lower ones find it when they look.
        """
        who = this_process(at_us)
        taken = _generations(self._store)
        generation = max(taken[-1] if taken else 0, floor) + 1
        while not self._store.put_if_absent(_generation_path(generation), who):
            generation += 1
        invariant(
            generation > self._generation,
            f"generation {generation} of pipeline {self._pipeline!r} is taken after generation {self._generation}.",
            why="generations only grow.",
            pipeline=self._pipeline,
            generation=generation,
        )
        self._generation = generation
        return generation

    def highest_generation(self) -> int:
        """Return the highest generation that the checkpoint knows; 0 when none."""
        return max(_generations(self._store), default=0)

    def check_fenced(self) -> None:
        """Raise ``Fenced`` if a higher generation has taken over."""
        highest = self.highest_generation()
        if highest > self._generation:
            raise Fenced(
                f"generation {self._generation} of pipeline {self._pipeline!r} is fenced: generation {highest} has "
                "taken over.",
                why="another run was started on the same checkpoint.",
                do="nothing, if that was meant; else stop the other run and start this one again.",
                pipeline=self._pipeline,
                generation=highest,
            )

    def check_since_decision(self) -> None:
        """As :meth:`check_fenced`, but for once not after a decision, which has looked when it was written.

        For the start of an epoch: who is fenced learns it there before the work, and from its decision, or from the
        sink, in any case.  A look is a request where the checkpoint is in an object store.
        """
        if not self._has_looked:
            self.check_fenced()
        self._has_looked = False

    def fence(self, held: Collection[int] = ()) -> Takeover:
        """Find the open decisions, accept them, and make every later one of lower generations void.

        Parameters
        ----------
        held : collection of int
            The last epoch that each sink holds.  Where these differ, a decision in between is asked for by its name: a
            listing may lack it (design/0039), and a second evaluation may differ from what one sink has already.

        Raises
        ------
        Fenced
            If a higher generation has taken over meanwhile.
        Corrupt
            If the newest fence cannot be read, or is gone though there are decisions.
        """
        invariant(
            self._generation > self._fenced_with,
            f"generation {self._generation} of pipeline {self._pipeline!r} is to fence after {self._fenced_with}.",
            why="a takeover takes its generation first, and fences once.",
            pipeline=self._pipeline,
            generation=self._generation,
        )
        keys = _keys(self._store)  # before the fence: a decision's own fence is older than the decision
        rules = _newest_fence(self._store)
        found = self._look(keys, rules)
        if unlisted := self._not_listed(keys, rules, found.done, held):
            keys = sorted({*keys, *unlisted})
            found = self._look(keys, rules)
        newest = {key.epoch: key for key in keys}
        # A driver that was fenced, and lived on, may have decided an epoch that its successor decided too.
        # Of two decisions on one epoch the higher generation's was made because the other one did not count.
        void = {*found.void, *(key for key in keys if key != newest[key.epoch])}
        accepts = [[key.epoch, key.generation] for key in found.open]
        self._store.put(_fence_path(self._generation), sealed.dump({"accepts": accepts}))
        self.check_fenced()
        # From here on no lower generation can decide or publish anything: tidying up is safe.
        for key in sorted(void):
            log.info("decision %s is void: its generation was fenced before it decided", key.path)
            self._store.delete(key.path)
        unfinished = {*found.open, *void}
        self._done = deque(key for key in keys if key not in unfinished)
        self._prune()
        self.newest_done = found.done
        self._newest_key = None if found.done is None else _key_of(found.done.record)
        self._fenced_with = self._generation
        for generation in _generations(self._store)[:-GENERATIONS_KEPT]:
            self._store.delete(_generation_path(generation))
            self._store.delete(_fence_path(generation))
        return found

    def _not_listed(self, listed: Sequence[Key], rules: _Fence, done: Done | None, held: Collection[int]) -> list[Key]:
        """Return decisions that count, of epochs that some sinks hold and others lack, which no listing has shown."""
        is_done = 0 if done is None else done.record.epoch
        first, last = max(min(held, default=0), is_done) + 1, max(held, default=0)
        wanted = {Key(epoch, rules.generation) for epoch in range(max(first, last - self._keep + 1), last + 1)}
        wanted |= {key for key in rules.accepts if key.epoch > is_done}
        return [key for key in sorted(wanted - {*listed}) if self._store.get(key.path) is not None]

    def _look(self, keys: Sequence[Key], rules: _Fence) -> Takeover:
        """Read from the newest backwards to the first that is done: all older ones are done too."""
        still_open: list[Key] = []
        void: list[Key] = []
        counted: set[int] = set()
        for key in reversed(keys):
            counts = rules.counts(key)
            try:
                content = self.read(key)
            except Corrupt:  # a power cut, or a disk, has damaged it
                if counts:
                    still_open.append(key)  # whether it is needed depends on what the sinks hold: see the coordinator
                continue
            if isinstance(content, Done):
                return Takeover(tuple(sorted(still_open)), content, tuple(void))
            invariant(
                not counts or key.epoch not in counted,
                f"two decisions on epoch {key.epoch} of pipeline {self._pipeline!r} count.",
                why=f"{key.path!r} is one, and a higher generation made the other.",
                pipeline=self._pipeline,
                epoch=key.epoch,
                generation=key.generation,
            )
            # Not counting: its driver was fenced, and decided before it looked whether it was.
            (still_open if counts else void).append(key)
            counted |= {key.epoch} if counts else set()
        return Takeover(tuple(sorted(still_open)), None, tuple(void))

    def read(self, key: Key) -> Decided | Done:
        """Read one decision, or what is left of it."""
        data = self._store.get(key.path)
        # Absent though it was listed: a power cut has lost it, or a fenced run has pruned it just now.
        return decode(data if data is not None else b"", key.path)

    def decide(self, decided: Decided) -> Key:
        """Make an epoch's decision durable, then look whether it counts.

        Raises
        ------
        Fenced
            If a higher generation has taken over.  Its takeover alone knows whether it saw this decision: the parts
            must be left alone.
        """
        key = Key(decided.record.epoch, self._generation)
        self._demand(
            _key_of(decided.record) == key and self._fenced_with == self._generation,
            key,
            "a decision is written by its own generation, after its fence",
        )
        is_new = self._store.put_if_absent(key.path, encode(decided))
        self._demand(is_new, key, f"it has decided epoch {key.epoch} already")
        self.check_fenced()
        self._has_looked = True
        return key

    def amend(self, key: Key, decided: Decided) -> None:
        """Replace an open decision by one without some rows.

        Raises
        ------
        Fenced
            If a higher generation has taken over.  Where it has published the whole epoch meanwhile, what is written
            here is a decision that every sink holds: it is forgotten again.
        """
        self._demand(_key_of(decided.record) == key, key, f"{_key_of(decided.record).path!r} is to take its place")
        self.check_fenced()
        self._store.put(key.path, encode(decided))
        self.check_fenced()

    def forget(self, key: Key, done: Done) -> None:
        """Replace a decision by "done", and drop the oldest finished ones."""
        newest = self._newest_key
        self._demand(newest is None or newest < key, key, f"epochs are forgotten in ascending order, {newest} was last")
        self._store.put(key.path, encode(done))
        self._done.append(key)
        self._newest_key, self.newest_done = key, done
        self._prune()

    def newest_done_of(self, sink: str) -> Done | None:
        """Return the newest epoch that is done and that a sink took part in; None where none is readable any more."""
        for key in reversed(self._done):
            try:
                content = self.read(key)
            except Corrupt:  # a power cut, or a disk, has damaged it
                continue
            if isinstance(content, Done) and sink in content.sinks:
                return content
        return None

    def settle_damaged(self, key: Key) -> None:
        """Count a decision that cannot be read as finished: every sink holds its epoch."""
        log.warning("%s cannot be read; it is not needed: every sink holds epoch %d", key.path, key.epoch)
        self._done.append(key)

    def _demand(self, condition: object, key: Key, why: str) -> None:
        invariant(
            condition,
            f"generation {self._generation} of pipeline {self._pipeline!r} cannot write {key.path!r}.",
            why=f"{why}.",
            pipeline=self._pipeline,
            epoch=key.epoch,
            generation=self._generation,
        )

    def _prune(self) -> None:
        while len(self._done) > self._keep:
            self._store.delete(self._done.popleft().path)


def survey(store: Store, epochs: Collection[int] | None = None) -> list[LedgerEntry]:
    """Return the decisions in a checkpoint, oldest first.  Only reads; may run while the pipeline does.

    ``epochs`` are those that are asked for; None: all.
    """
    keys, entries = [key for key in _keys(store) if epochs is None or key.epoch in epochs], []
    rules = _newest_fence(store)
    for key in keys:
        data = store.get(key.path)
        if data is None:
            continue  # pruned between listing and reading
        try:
            content = decode(data, key.path)
        except Corrupt:
            entries.append(LedgerEntry(key, Standing.DAMAGED, None))
            continue
        standing = Standing.OPEN if rules.counts(key) else Standing.VOID
        entries.append(LedgerEntry(key, Standing.DONE if isinstance(content, Done) else standing, content))
    return entries


@dataclass(frozen=True)
class _Fence:
    """The newest fence: which decisions count."""

    generation: int
    accepts: frozenset[Key]

    def counts(self, key: Key) -> bool:
        if key.generation > self.generation:
            # Its generation writes a fence before its first decision: that fence is gone, or not of this checkpoint.
            raise Corrupt(
                f"{_fence_path(key.generation)!r} is missing in the checkpoint.",
                why=f"{key.path!r} is there, and its generation wrote the fence before it.",
                do="restore the whole checkpoint from one backup, or from the same moment; delete nothing.",
                participant=_fence_path(key.generation),
                epoch=key.epoch,
                generation=key.generation,
            )
        return key.generation == self.generation or key in self.accepts


def _newest_fence(store: Store) -> _Fence:
    fences = numbered(store, "fences/")
    if not fences:
        return _Fence(0, frozenset())
    newest = max(fences)
    found = _json(store.get(fences[newest]) or b"", fences[newest])
    return _Fence(newest, frozenset(Key(*pair) for pair in found["accepts"]))


def _keys(store: Store) -> list[Key]:
    names = (path.rpartition("/")[2].split("-") for path in store.keys("ledger/"))
    return sorted(Key(int(name[0]), int(name[1])) for name in names if len(name) == 2 and all(map(str.isdigit, name)))


def _key_of(record: EpochRecord) -> Key:
    return Key(record.epoch, record.generation)


def _generations(store: Store) -> list[int]:
    return list(numbered(store, GENERATIONS))


def _generation_path(generation: int) -> str:
    return f"{GENERATIONS}{generation:08d}.json"


def _fence_path(generation: int) -> str:
    return f"fences/{generation:08d}.json"


def _json(data: bytes, key: str) -> dict[str, Any]:
    try:
        return sealed.load(data)
    except ValueError as error:
        raise Corrupt(
            f"{key!r} in the checkpoint cannot be read.",
            why="it is not the JSON object that was written there: it was truncated or changed.",
            do=f"restore {key!r} from a backup of the checkpoint.",
            participant=key,
        ) from error
