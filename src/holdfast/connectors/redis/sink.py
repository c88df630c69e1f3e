"""A Redis target during a run, on the driver.

Invariants: rows and ledger move in one script, or, of an epoch that would block the server for long, chunk by chunk
after the ledger has noted all of them: then whoever comes next completes it.  A script is without effect unless the
ledger is as its caller has read it.

The durable writes of an epoch: 1. its chunks are staged (not those of a small epoch); 2. the script that writes them,
or that notes them; 3. and, where they were noted, one script for each chunk.  What a crash after each leaves:
design/0023.

Rows that are on the server and not visible: chunks in a hash for each task, found by its name.

Invariant: a chunk has a number, so one that is sent again is the same chunk; and whenever a hash is written, its name
is noted in the same step, so it can be swept.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kit import sql
from holdfast.connectors.kit.expected import rows_gone, unpublished
from holdfast.connectors.kit.explained import lacking, needed
from holdfast.connectors.redis import ledger
from holdfast.connectors.redis.form import CHUNK_BYTES, Form
from holdfast.connectors.redis.ledger import ABSENT, CHANGED, COMMIT, GONE, SHOW, WRONG_TYPE, RedisLedger, SinkKeys
from holdfast.connectors.redis.session import RedisSession
from holdfast.connectors.redis.targets import claim
from holdfast.errors import Diverged, HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import (
    Carried,
    Explanation,
    Guarantee,
    Held,
    Outcome,
    Publication,
    RunIdentity,
    Sink,
    Staged,
    Task,
)
from holdfast.types.casting import declared, fitted_table

ATOMIC_ROWS = 1_000
"""Of an epoch that becomes visible in one step; the server serves nobody else for that long: some 10 ms."""

ATOMIC_BYTES = 4 << 20
"""The same, in bytes; a staged chunk counts as a full one."""

_READS = 20
"""How often the ledger may move between reading and writing before that is an error: only takeovers move it."""


@dataclass(frozen=True)
class _Change:
    """What one script is to change."""

    set: Sequence[str]
    unset: Sequence[str] = ()
    explained: Sequence[Explanation] = ()
    staged: Sequence[tuple[str, int]] = ()
    pieces: Sequence[tuple[str, int]] = ()
    chunks: Sequence[bytes] = ()
    forgets: bool = False
    """Whether what is explained is removed: it explains positions that nobody holds any more."""


class RedisSink:
    """One Redis target during a run."""

    guarantee = Guarantee.EXACTLY_ONCE
    staging = "hashes on the server"

    def __init__(self, name: str, pipeline: str, session: RedisSession, form: Form, schema: pa.Schema) -> None:
        self.name = name
        self.is_idempotent = form.id is not None
        self._pipeline = pipeline
        self._session = session
        self._form = form
        self._schema = schema
        self._keys = SinkKeys(pipeline, name)
        self._node = f"sink {name!r}"
        self._generation = self._before = 0
        self._owner = secrets.token_hex(8)

    def prepare(self) -> None:
        """See that the server is one that can be written to, and that the key has the type that it must."""
        self._session.check_server()
        self._form.check_schema(self._node, self._schema)
        if self._form.type:
            found = self._session.ask(lambda client: client.type(self._form.key)).decode()
            if found not in ("none", self._form.type):
                raise self._wrong_type(found)

    def open(self, run: RunIdentity) -> Held:
        """Take the sink for this generation, and complete what was begun."""
        claim(self._session, self._keys, self._form, self._node)

        def move(found: RedisLedger) -> _Change | None:
            if found.row.generation == run.generation and found.owner == self._owner:
                return None  # the answer to the first try was lost
            if found.row.generation >= run.generation:
                raise sql.fenced(self._node, self._pipeline, run.generation, found.row.generation)
            self._before = found.row.generation
            first = ["epoch", "0", "positions", "{}"] if found is ABSENT else []
            fields = [*first, "generation", str(run.generation), "owner", self._owner]
            return _Change(fields, forgets=not found.row.epoch)

        try:
            self._commit(move)
            self._generation = run.generation
            found = self._complete(self._read())
        except InDoubt as doubt:  # asking is what an opening does first
            raise Unavailable(doubt.what, why=doubt.why, do="it is tried again.", participant=self.name) from doubt
        explained = ledger.explained(self._session, self._keys)
        return replace(found.held(), generation=self._before, explained=explained)

    def writer_factory(self) -> RedisWriterFactory:
        """Return the factory that executors call."""
        return RedisWriterFactory(self._session, self._keys, self._form, self._schema)

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Pack the rows: what can be packed the server takes."""
        for part in publication.parts:
            if isinstance(part, Carried):
                for _ in self._chunks(part):
                    pass
        return False

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Write the rows and move the ledger in one step; or stage them, note them, and show them chunk by chunk."""
        found = self._complete(self._owned())
        new = unpublished(self._node, self._pipeline, publications, found.row.held(), expected)
        if not new:
            return
        last = new[-1].record
        row_count = sum(publication.row_count for publication in new)
        if gone := self.expired([part for each in new for part in each.parts if isinstance(part, Staged)]):
            raise self._gone(gone)
        small = self._in_one_step(new) if row_count <= ATOMIC_ROWS else None
        change = self._in_steps(new) if small is None else small
        if needed(new):
            kept = ledger.explained(self._session, self._keys)
            change = replace(change, explained=lacking(new, kept, self._node))
        faults.reach("publish-uncommitted", last.epoch, self._pipeline)

        def move(now: RedisLedger) -> _Change:
            if now.guard != found.guard:  # somebody has taken over, or was ahead of us
                self._owned()
                unpublished(self._node, self._pipeline, publications, now.row.held(), expected)
                raise self._moved()
            return change

        self._commit(move)
        if small is None:
            faults.reach("publish-begun", last.epoch, self._pipeline)
            self._complete(self._owned())

    def outcome(self, epoch: int) -> Outcome:
        """Ask the ledger."""
        try:
            found = self._read()
        except Unavailable:
            return Outcome.UNKNOWN
        if epoch > found.row.epoch:
            return Outcome.ABSENT
        return Outcome.STAGED if epoch == found.row.epoch and found.in_progress else Outcome.PUBLISHED

    def inspect(self) -> tuple[Held, list[str]]:
        """Return what is held, and the names of what is staged."""
        found = self._read()
        decided = {key for key, _ in found.in_progress}
        names = [name for name in ledger.staged(self._session, self._keys) if name not in decided]
        tasks = [self._keys.task_of(name) for name in names]
        return found.held(), sorted({task.name for task in tasks if task is not None})

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        return ledger.explanations(self._session, self._keys) if self._read().row.epoch else []

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose chunks are not all on the server."""
        counts = [(part.name, *staged) for part in parts for staged in self._staged([part])]
        there = self._session.ask(lambda client: [client.hlen(key) for _, key, _ in counts])
        return [name for (name, _, count), found in zip(counts, there, strict=True) if found != count]

    def sweep(self, *, below_epoch: int) -> int:
        """Drop what lower generations staged, and this one below an epoch."""
        found = self._read()
        if found.row.generation != self._generation:
            return 0
        decided = {key for key, _ in found.in_progress}
        names = [name for name in ledger.staged(self._session, self._keys) if name not in decided]
        orphans = [
            name
            for name in names
            if (task := self._keys.task_of(name)) is not None
            and (task.generation, task.epoch) < (self._generation, below_epoch)
        ]
        return drop(self._session, self._keys, orphans)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    # --- the ledger -------------------------------------------------------------------------------------------------

    def _read(self) -> RedisLedger:
        return ledger.read(self._session, self._keys) or ABSENT

    def _owned(self) -> RedisLedger:
        """Return the ledger if this generation owns it."""
        found = ledger.read(self._session, self._keys)
        sql.check_generation(self._node, self._pipeline, self._generation, None if found is None else found.row)
        return found or ABSENT

    def _commit(self, move: Callable[[RedisLedger], _Change | None]) -> None:
        """Read the ledger, and change it if it is still so; ``move`` says how, and None where it is so already."""
        for _ in range(_READS):
            found = self._read()
            change = move(found)
            if change is None:
                return
            what = {
                "set": change.set,
                "unset": change.unset,
                "forgets": change.forgets,
                "explained": [(each.source, each.number, each.text) for each in change.explained],
                "staged": change.staged,
                "pieces": change.pieces,
            }
            answer = self._run(COMMIT, found, json.dumps(what), *change.chunks)
            if answer == GONE:  # between the question and now
                raise self._gone([key for key, _ in change.staged])
            if answer != CHANGED:
                return
        raise self._moved()

    def _run(self, script: str, found: RedisLedger, *arguments: Any) -> int:
        keys = self._keys.all_for(self._form.key)
        answer = self._session.run(script, keys, [*found.guard, self._form.instructions(self._schema), *arguments])
        if answer == WRONG_TYPE:
            raise self._wrong_type("something else now")
        return answer

    def _complete(self, found: RedisLedger) -> RedisLedger:
        """Show the chunks that the ledger notes, from where it has come to; return what it says then."""
        if not found.in_progress:
            return found
        chunks = [(key, n, n == count - 1) for key, count in found.in_progress for n in range(count)]
        for number, (key, n, is_last_of_key) in enumerate(chunks[found.next :], found.next):
            guard = (*found.guard[:3], str(number).encode())
            is_last = number == len(chunks) - 1
            answer = self._run(
                SHOW, replace(found, guard=guard), key, str(n), str(int(is_last_of_key)), str(int(is_last))
            )
            if answer == GONE:
                raise self._lost_while_shown(key, n)
            if answer == CHANGED:
                self._owned()
                raise self._moved()
        return self._owned()

    # --- rows -------------------------------------------------------------------------------------------------------

    def _chunks(self, part: Carried) -> Iterator[bytes]:
        for batch in fitted_table(part.rows, self._schema).to_batches():
            for _, chunk in self._form.chunks(self._node, batch):
                yield chunk

    def _in_one_step(self, new: Sequence[Publication]) -> _Change | None:
        """Return rows and ledger as one step; None where the chunks are too large for that."""
        staged: list[tuple[str, int]] = []
        pieces: list[tuple[str, int]] = []
        chunks: list[bytes] = []
        size = 0
        for part in (part for publication in new for part in publication.parts):
            if not isinstance(part, Carried):
                found = self._staged([part])
                size += sum(count for _, count in found) * CHUNK_BYTES
                staged += found
                pieces += found
                continue
            for chunk in self._chunks(part):
                size += len(chunk)
                chunks.append(chunk)
                pieces.append(("", _FIRST_CHUNK + len(chunks)))
                if size > ATOMIC_BYTES:
                    break
        if size > ATOMIC_BYTES:
            return None
        return _Change(ledger.moved_to(new[-1].record), (), (), staged, pieces, chunks)

    def _in_steps(self, new: Sequence[Publication]) -> _Change:
        """Stage what the driver carries; return the step that notes all chunks."""
        noted: list[tuple[str, int]] = []
        for publication in new:
            for index, part in enumerate(publication.parts):
                if not isinstance(part, Carried):
                    noted += self._staged([part])
                    continue
                task = Task(self._pipeline, self._generation, publication.record.epoch, index, 0)
                # Of another attempt, which may have had other rows, nothing may be left among these chunks.
                key = self._keys.staged_by(task, secrets.token_hex(4))
                try:
                    count = stage(self._session, self._keys, key, self._chunks(part))
                except HoldfastError:
                    with suppress(HoldfastError):
                        drop(self._session, self._keys, [key])
                    raise
                noted += [(key, count)] if count else []
        said = ["in_progress", json.dumps(noted), "next", "0"]
        return _Change([*ledger.moved_to(new[-1].record), *said], (), (), noted)

    def _staged(self, parts: Sequence[Any]) -> list[tuple[str, int]]:
        return [(part.reference["key"], int(part.reference["chunks"])) for part in parts if "key" in part.reference]

    def _gone(self, names: Sequence[str]) -> Diverged:
        why = "the server does not have all of their chunks: somebody removed them, or it went back."
        return rows_gone(self._node, ", ".join(names), why, pipeline=self._pipeline, participant=self.name)

    def _lost_while_shown(self, key: str, number: int) -> Diverged:
        return Diverged(
            f"{self._node}: chunk {number} of {key} is gone, of an epoch of which other chunks may be visible.",
            why="the ledger had noted it, and it is on the same server: somebody removed it.",
            do="restore the server and the checkpoint from the same moment; or start over with another name=.",
            pipeline=self._pipeline,
            participant=self.name,
        )

    # --- errors -----------------------------------------------------------------------------------------------------

    def _moved(self) -> Unavailable:
        return Unavailable(
            f"{self._node}: its ledger moved while an epoch was to be written; nothing was changed.",
            why="another run is taking the pipeline over, or this command was sent twice.",
            do="it is retried: the ledger is read again.",
            pipeline=self._pipeline,
            participant=self.name,
        )

    def _wrong_type(self, found: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"{self._node}: the key {self._form.key!r} holds {found}, not a {self._form.type}.",
            why=f'kind="{self._form.kind}" writes a {self._form.type} there.',
            do="choose another key, or remove what is there.",
            pipeline=self._pipeline,
            participant=self.name,
        )


_FIRST_CHUNK = 6
"""Arguments of the script before the first chunk."""


@dataclass(frozen=True)
class RedisWriterFactory:
    """Picklable factory of :class:`RedisWriter`.

    Parameters
    ----------
    session : RedisSession
        Of which each writer makes one of its own.
    keys : SinkKeys
        Names.
    form : Form
        How rows are packed.
    schema : pyarrow.Schema
        Columns of the rows.
    """

    session: RedisSession
    keys: SinkKeys
    form: Form
    schema: pa.Schema

    def __call__(self, task: Task) -> RedisWriter:
        """Open a writer for one attempt of one task.  Nothing is sent before the first row."""
        return RedisWriter(self, task)


class RedisWriter:
    """Writes one task's rows; see :class:`holdfast.ports.Writer`."""

    def __init__(self, factory: RedisWriterFactory, task: Task) -> None:
        self._session = factory.session.another()
        self._factory = factory
        self._task = task
        self._key = factory.keys.staged_by(task, secrets.token_hex(4))
        self._row_count = 0
        self._chunk_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows, chunk by chunk."""
        if not batch.num_rows:
            return
        rows = declared(batch, self._factory.schema)
        chunks = [packed for _, packed in self._factory.form.chunks(f"sink {self._factory.keys.sink!r}", rows)]
        self._chunk_count = stage(self._session, self._factory.keys, self._key, chunks, self._chunk_count)
        self._row_count += batch.num_rows
        faults.reach("stage-write", self._task.epoch, self._task.pipeline)

    def stage(self) -> Staged:
        """Return the handle; whether the chunks survive a death of the server is a setting of the server."""
        self._session.close()
        if not self._row_count:
            return Staged(self._task.name, 0)
        reference = {"key": self._key, "chunks": str(self._chunk_count)}
        return Staged(self._task.name, self._row_count, reference)

    def abort(self) -> None:
        """Drop everything written."""
        if self._chunk_count:
            with suppress(HoldfastError):
                drop(self._session, self._factory.keys, [self._key])
        self._session.close()


def stage(session: RedisSession, keys: SinkKeys, key: str, chunks: Iterable[bytes], first: int = 0) -> int:
    """Write chunks under a name, numbered from ``first``; return the number after the last."""
    for number, chunk in enumerate(chunks, first):

        def send(client: object, number: int = number, chunk: bytes = chunk) -> None:
            pipe = client.pipeline(transaction=True)  # type: ignore[attr-defined]
            pipe.sadd(keys.staged, key).hset(key, str(number), chunk).execute()

        session.stage(send)
        first = number + 1
    return first


def drop(session: RedisSession, keys: SinkKeys, names: Iterable[str]) -> int:
    """Drop what is staged under some names; return how many were there."""
    count = 0
    for name in names:

        def send(client: object, name: str = name) -> int:
            pipe = client.pipeline(transaction=True)  # type: ignore[attr-defined]
            return int(pipe.unlink(name).srem(keys.staged, name).execute()[1])

        count += session.stage(send)
    return count
