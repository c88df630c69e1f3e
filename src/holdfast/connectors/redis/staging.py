"""Rows that are on the server and not visible: chunks in a hash for each task, found by its name.

Invariant: a chunk has a number, so one that is sent again is the same chunk; and whenever a hash is written, its name
is noted in the same step, so it can be swept.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.redis.form import Form
from holdfast.connectors.redis.ledger import SinkKeys
from holdfast.connectors.redis.session import RedisSession
from holdfast.errors import HoldfastError
from holdfast.ports import Staged, Task
from holdfast.types.casting import declared


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
        faults.reach("stage-write", self._task.epoch)

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
