"""The ledger of a Redis sink: a hash beside the target, moved by the script that writes the rows.

Keys, most of them below ``holdfast:<pipeline>/<sink>``: ``:ledger`` (a hash), ``:sources`` (a set) and
``:sources:<source>`` (lists: what its positions mean), ``:staged`` (a set: names of hashes) and
``:staged:<generation>.<epoch>.<task>.<attempt>.<token>`` (hashes: number -> chunk).  And ``holdfast:ids:<stream>`` (a
set): the ids of the entries of a stream, whoever wrote them.  :mod:`holdfast.connectors.redis.targets` has what all
sinks
of a server write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.connectors.kit.sql import LedgerRow, positions_text
from holdfast.connectors.redis.scripts import GUARDED
from holdfast.connectors.redis.session import RedisSession
from holdfast.errors import Corrupt
from holdfast.ports import EpochRecord, Explanation, Held, SinkLedger, Task


@dataclass(frozen=True)
class SinkKeys:
    """Names of what a sink keeps for itself."""

    pipeline: str
    sink: str

    @property
    def name(self) -> str:
        """Of the sink, among those of all pipelines."""
        return f"{self.pipeline}/{self.sink}"

    @property
    def base(self) -> str:
        """What they all begin with."""
        return f"holdfast:{self.name}"

    @property
    def ledger(self) -> str:
        """The ledger."""
        return f"{self.base}:ledger"

    @property
    def sources(self) -> str:
        """Sources whose positions are explained."""
        return f"{self.base}:sources"

    @property
    def staged(self) -> str:
        """Names of everything staged."""
        return f"{self.base}:staged"

    def all_for(self, target: str) -> list[str]:
        """Return the keys of a script, in their order."""
        return [self.ledger, target, f"holdfast:ids:{target}", self.sources, self.staged]

    def staged_by(self, task: Task, token: str) -> str:
        """Return the name under which a task stages."""
        return f"{self.staged}:{task.generation}.{task.epoch}.{task.task}.{task.attempt}.{token}"

    def task_of(self, staged: str) -> Task | None:
        """Return whose rows are staged under a name; None where it is no such name."""
        parts = staged.removeprefix(f"{self.staged}:").split(".")
        if len(parts) != 5 or not all(part.isdecimal() for part in parts[:4]):
            return None
        generation, epoch, task, attempt = map(int, parts[:4])
        return Task(self.pipeline, generation, epoch, task, attempt)


@dataclass(frozen=True)
class RedisLedger:
    """What the ledger says, and as which bytes: a script compares these.

    Parameters
    ----------
    row : LedgerRow
        What it says.
    guard : tuple of bytes
        The fields of ``GUARDED``, as they are stored.
    recent_ends : str
        As in :class:`~holdfast.ports.EpochRecord`, of the epoch.
    in_progress : tuple of (str, int)
        Keys whose chunks become visible, and how many each has; empty where nothing is in progress.
    next : int
        How many of these chunks are visible.
    owner : str
        Drawn by the runtime that opened the sink last.
    """

    row: LedgerRow
    guard: tuple[bytes, ...]
    recent_ends: str = ""
    in_progress: tuple[tuple[str, int], ...] = ()
    next: int = 0
    owner: str = ""

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        return replace(self.row.held(), recent_ends=self.recent_ends)


ABSENT = RedisLedger(LedgerRow(0, 0, "{}", None), (b"",) * len(GUARDED))
"""Where there is no ledger yet."""


def read(session: RedisSession, keys: SinkKeys) -> RedisLedger | None:
    """Return what the ledger says; None where there is none."""
    found: Mapping[bytes, bytes] = session.ask(lambda client: client.hgetall(keys.ledger))
    if not found:
        return None
    guard = tuple(found.get(name.encode(), b"") for name in GUARDED)
    try:
        said = {name.decode(): value.decode() for name, value in found.items()}
        pts = said.get("pts", "")
        parts = json.loads(said["in_progress"]) if "in_progress" in said else []
        row = LedgerRow(int(said["epoch"]), int(said["generation"]), said["positions"], int(pts) if pts else None)
        row.held()
        return RedisLedger(
            row,
            guard,
            said.get("recent_ends", ""),
            tuple((key, count) for key, count in parts),
            int(said.get("next", 0)),
            said.get("owner", ""),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise Corrupt(
            f"sink {keys.sink!r}: its ledger {keys.ledger} cannot be read.",
            why=f"{type(error).__name__}: {error}.",
            do="restore the server from a backup; or start over with another name= and an empty target.",
            participant=keys.sink,
        ) from error


def moved_to(record: EpochRecord) -> list[str]:
    """Return fields and values of an epoch that is held."""
    pts = "" if record.pts is None else str(record.pts)
    values = {
        "epoch": str(record.epoch),
        "positions": positions_text(record.positions),
        "pts": pts,
        "recent_ends": record.recent_ends,
    }
    return [text for pair in values.items() for text in pair]


def explained(session: RedisSession, keys: SinkKeys) -> dict[str, int]:
    """Return source -> how many explanations are kept."""

    def asked(client: Any) -> dict[str, int]:
        sources = sorted(source.decode() for source in client.smembers(keys.sources))
        return {source: int(client.llen(f"{keys.sources}:{source}")) for source in sources}

    return dict(session.ask(asked))


def explanations(session: RedisSession, keys: SinkKeys) -> list[Explanation]:
    """Return all of them, for each source in order."""

    def asked(client: Any) -> list[Explanation]:
        sources = sorted(source.decode() for source in client.smembers(keys.sources))
        return [
            Explanation(source, number, text.decode())
            for source in sources
            for number, text in enumerate(client.lrange(f"{keys.sources}:{source}", 0, -1), 1)
        ]

    return list(session.ask(asked))


def staged(session: RedisSession, keys: SinkKeys) -> list[str]:
    """Return the name of everything staged."""
    found: Sequence[bytes] = session.ask(lambda client: list(client.smembers(keys.staged)))
    return sorted(name.decode() for name in found)


def asked(session: RedisSession, keys: SinkKeys) -> SinkLedger | None:
    """Return what the ledger says of a sink; None where there is none."""
    found = read(session, keys)
    if found is None:
        return None
    told = explanations(session, keys) if found.row.epoch else []
    return SinkLedger(found.held(), tuple(told))
