"""A Redis sink begins as if it had never been: its own keys go in one step, then the rows."""

from __future__ import annotations

from typing import Any

from holdfast.connectors.kit.rewinds import WRITTEN_AGAIN, counted
from holdfast.connectors.redis import ledger, sink, targets
from holdfast.connectors.redis.form import Kind
from holdfast.connectors.redis.ledger import SinkKeys
from holdfast.connectors.redis.session import RedisSession
from holdfast.ports import Reset

_AT_ONCE = 1_000


def reset(
    session: RedisSession, keys: SinkKeys, key: str, kind: Kind, where: str, *, rows: bool, is_dry_run: bool
) -> Reset:
    """Do it; parameters as of :class:`~holdfast.ports.ResettableSpec`, and the target of the sink.

    The durable writes: 1. what is staged, name by name; 2. the ledger and its explanations, in one step: from then on
    the sink holds nothing; 3. the rows, and the note of which they are.  After a crash the same call removes the rest.
    """
    own = session.ask(lambda client: [key for key in (keys.ledger, keys.sources) if client.exists(key)])
    explained = [f"{keys.sources}:{source}" for source in ledger.explained(session, keys)]
    staged = ledger.staged(session, keys)
    there = session.ask(lambda client: _targets(client, key, kind))
    removed = [f"{', '.join(own)} at {where}"] if own else []
    removed += [f"{counted(len(staged), 'staged task')} at {where}"] if staged else []
    what = f"{counted(len(there), 'key')} of the rows ({key}{':*' if kind == 'hash' else ''}) at {where}"
    if rows and there:
        removed.append(what)
    stays = (f"{what}: {WRITTEN_AGAIN}",) if there and not rows else ()
    if not is_dry_run:
        sink.drop(session, keys, staged)
        session.stage(lambda client: client.unlink(keys.ledger, keys.sources, keys.staged, *explained))
        if rows:
            for first in range(0, len(there), _AT_ONCE):
                several = there[first : first + _AT_ONCE]
                session.stage(lambda client, several=several: client.unlink(*several))  # type: ignore[misc]
            session.stage(lambda client: client.unlink(f"holdfast:ids:{key}"))
            session.stage(lambda client: targets.forget(client, keys))
    return Reset(tuple(removed), stays)


def _targets(client: Any, key: str, kind: Kind) -> list[bytes]:
    """Return the keys of the rows."""
    if kind != "hash":
        return [key.encode()] if client.exists(key) else []
    pattern = "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in key) + ":*"
    return list(client.scan_iter(match=pattern, count=_AT_ONCE, _type="hash"))
