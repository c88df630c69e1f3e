"""Which keys the sinks on a server write, whatever their pipelines: no row of one may be named as a row of another.

``holdfast:targets`` (a hash): ``<pipeline>/<sink>`` -> key and kind.  A sink writes its own before it looks at the
others a last time, so of two that open at once one at least sees the other.  Neither then writes a row.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.connectors.redis.form import Form, is_within
from holdfast.connectors.redis.ledger import SinkKeys
from holdfast.connectors.redis.session import RedisSession
from holdfast.errors import InvalidPipeline
from holdfast.shards.naming import user_pipeline

TARGETS = "holdfast:targets"


def claim(session: RedisSession, keys: SinkKeys, form: Form, node: str) -> None:
    """Note what a sink writes, unless a row of it could be one of another sink's, or the other way round.

    Durable write: the note.  A crash right after it leaves it, as if the sink had been opened; a reset removes it.

    Raises
    ------
    InvalidPipeline
        Naming the other sink.  Nothing is changed.
    """
    own, said = keys.name, json.dumps({"key": form.key, "kind": form.kind})
    before = _check(session, own, form, node).get(own)
    if before == said:
        return
    session.stage(lambda client: client.hset(TARGETS, own, said))
    try:
        _check(session, own, form, node)
    except InvalidPipeline:
        session.stage(lambda client: client.hdel(TARGETS, own) if before is None else client.hset(TARGETS, own, before))
        raise


def forget(client: Any, keys: SinkKeys) -> None:
    """Remove the note of a sink."""
    client.hdel(TARGETS, keys.name)


def _are_shards(name: str, other: str) -> bool:
    """Return whether two sinks are one of one pipeline, by shards or backfills of it.

    Each has the ids of its own rows, and a key that the pipeline gives up stays noted by shards that start later.

    Examples
    --------
    >>> _are_shards("trips/out", "trips-3/out"), _are_shards("trips/out", "trips-3/more"), _are_shards("a/out", "b/out")
    (True, False, False)
    """
    (pipeline, _, sink), (theirs, _, its) = name.partition("/"), other.partition("/")
    return sink == its and user_pipeline(pipeline) == user_pipeline(theirs)


def _check(session: RedisSession, own: str, form: Form, node: str) -> dict[str, str]:
    noted = session.ask(lambda client: client.hgetall(TARGETS))
    texts = {name.decode(): said.decode() for name, said in noted.items()}
    for name, said in texts.items():
        other = json.loads(said)
        key, kind = str(other["key"]), str(other["kind"])
        if not _are_shards(name, own) and (is_within(form.kind, form.key, key) or is_within(kind, key, form.key)):
            raise InvalidPipeline(
                f"{node}: key={form.key!r} and that of sink {name!r}, {key!r}, can name the same rows.",
                why=f"{max(form.key, key, key=len)!r} begins with the other and a colon, as the hash of a row does: a "
                "row would replace one of the other sink's.",
                do="give one of them another key=; if that sink is no longer used, holdfast reset removes it, or by "
                f"hand: HDEL {TARGETS} {name}",
                participant=node,
            )
    return texts
