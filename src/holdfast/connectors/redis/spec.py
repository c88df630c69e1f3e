"""``write.redis``: rows in a Redis server, written exactly once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.connectors.control.columns import check_no_control
from holdfast.connectors.redis.form import KINDS, Form, Kind, is_within
from holdfast.connectors.redis.url import RedisUrl
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.graph.row_ids import AUTO, RowIds, check_id, id_column
from holdfast.ports import Guarantee, Reset, Sink, SinkLedger, SinkSpec
from holdfast.types import units

_OWN = "holdfast:"
"""What the keys of the ledgers begin with."""


def redis(
    url: str,
    *,
    key: str,
    kind: Kind = "stream",
    id: str | None = AUTO,
    max_length: int | None = None,
    expire_after: str | None = None,
    control: None = None,
    name: str | None = None,
    freshness: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Write rows to a Redis server, exactly once, and each row under its id.

    Parameters
    ----------
    url : str
        ``redis://[user:password@]host[:port][/database]``, ``rediss://`` for TLS, or ``unix://path``; ``${NAME}`` is an
        environment variable.
    key : str
        The stream, or the hash; of ``kind="hash"`` what the keys begin with.
    kind : {"stream", "hash", "fields"}
        ``"stream"``: each row is an entry of the stream ``key``, a field for each column.  ``"hash"``: each row is a
        hash ``key:<id>``, a field for each column.  ``"fields"``: each row is a field of the one hash ``key``, named by
        its id, its value the row as JSON.
    id : str, optional
        The column that identifies a row: ``"auto"``, the one that ``hf.row_id`` made, or a column of which you know
        that it is unique.  A row whose id is there is not added again (stream), or written over (the others).  None,
        for a stream only: rows need no id, and the ledger alone sees to it that none is there twice.
    max_length : int, optional
        Stream only: how many of the last entries are kept.
    expire_after : str, optional
        ``kind="hash"`` only: how long the hash of a row lives after it was written, for instance ``"7 days"``.
    control : None
        Other sinks have it (``docs/control-rows.md``): this one cannot carry out commands, and says so.
    name : str, optional
        The sink's name: its ledger is kept under it.
    freshness : str, optional
        How old the oldest row may be that the sink lacks (``"5 min"``), before the health of the run says so:
        ``docs/expectations.md``.
    backfill : bool
        Whether the sink, added to a pipeline that has run, gets everything from the beginning: ``docs/state.md``.

    Returns
    -------
    SinkNode
        To be used to the right of ``stream |``.

    Raises
    ------
    InvalidPipeline
        If the arguments contradict each other.

    Notes
    -----
    Needs Redis 6.2 or newer, not a cluster, and ``pip install 'holdfast[redis]'``.  How long rows survive the server is
    the server's setting: ``docs/sinks/redis.md``.
    """
    with building("sink", name):
        check_no_control("write.redis", control)
        expire_ms = None if expire_after is None else units.duration_us(expire_after, argument="expire_after") // 1_000
        spec = RedisSpec(url, key, kind, id, max_length, expire_ms)
    return nodes.sink(spec, name=name, backfill=backfill, freshness=freshness)


@dataclass(frozen=True)
class RedisSpec:
    """Declaration of a Redis target as a sink; parameters as in :func:`redis`."""

    url: str = field(repr=False)
    key: str
    kind_of: Kind = "stream"
    id: str | None = AUTO
    max_length: int | None = None
    expire_ms: int | None = None
    id_column: str | None = None

    @property
    def kind(self) -> str:
        """Kind of the sink."""
        return "redis"

    @property
    def guarantee(self) -> Guarantee:
        """What it promises for each row."""
        return Guarantee.EXACTLY_ONCE

    def __post_init__(self) -> None:
        RedisUrl(self.url).check()
        if self.kind_of not in KINDS:
            raise InvalidPipeline(
                f"write.redis: kind={self.kind_of!r} is not known.",
                why=f"rows are written as {', '.join(KINDS)}.",
                do='write for instance kind="stream".',
            )
        if not isinstance(self.key, str) or not self.key or f"{self.key}:".startswith(_OWN):
            raise InvalidPipeline(
                f"write.redis: key={self.key!r} cannot be written.",
                why=f"it must be a name, and what begins with {_OWN} is the sink's own.",
                do='write for instance key="departures".',
            )
        if self.id is not None:
            check_id(self.id)
        elif self.kind_of != "stream":
            raise InvalidPipeline(
                f'write.redis: kind="{self.kind_of}" without an id.',
                why="a row has its place by its id.",
                do='leave id at "auto", or name a unique column: id="order_id".',
            )
        self._check_limits()

    def _check_limits(self) -> None:
        is_count = isinstance(self.max_length, int) and not isinstance(self.max_length, bool) and self.max_length > 0
        if self.max_length is not None and (not is_count or self.kind_of != "stream"):
            raise InvalidPipeline(
                f'write.redis: max_length={self.max_length!r} has no meaning with kind="{self.kind_of}".',
                why="it is the number of entries that a stream keeps, at least 1.",
                do='write for instance kind="stream", max_length=1_000_000.',
            )
        if self.expire_ms is not None and (self.expire_ms < 1 or self.kind_of != "hash"):
            raise InvalidPipeline(
                f'write.redis: expire_after with kind="{self.kind_of}", or of less than a millisecond, has no meaning.',
                why="a key expires, and only of hashes has each row a key of its own.",
                do='write for instance kind="hash", expire_after="7 days"; a stream has max_length.',
            )

    @property
    def sends_secret(self) -> bool:
        """Whether a password travels to the executors, which stage rows by themselves."""
        return RedisUrl(self.url).expanded().has_password

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: of the address nothing secret."""
        limits = {"max_length": self.max_length, "expire_ms": self.expire_ms}
        said = {"url": str(RedisUrl(self.url)), "target": self.key, "as": self.kind_of, "id": self.id_column or self.id}
        return {**said, **{name: value for name, value in limits.items() if value is not None}}

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Any columns will do; the id is checked with the stream's ids."""

    def identified(self, columns: Collection[str] | None, ids: RowIds | None) -> RedisSpec:
        """Return the declaration for a stream: with the column that identifies its rows, if it needs one."""
        return self if self.id is None else replace(self, id_column=id_column(self.id, columns, ids))

    def overlap(self, other: SinkSpec) -> str:
        """Say whether a row's id could make its hash one of another sink's, whose key begins with ours."""
        if not isinstance(other, RedisSpec) or other.url != self.url:
            return ""
        if not is_within(self.kind_of, self.key, other.key):
            return ""
        return f"a row of key={self.key!r} with an id that begins with {other.key[len(self.key) + 1 :]!r} is there"

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Sink:
        """Connect, and check that the server can keep the rows."""
        with _driver(name):
            from holdfast.connectors.redis.session import RedisSession
            from holdfast.connectors.redis.sink import RedisSink
        form = Form(self.key, self.kind_of, self.id_column, self.max_length, self.expire_ms)
        session = RedisSession(RedisUrl(self.url).expanded(), f"sink {name!r}", f"holdfast-{pipeline}-{name}")
        sink = RedisSink(name, pipeline, session, form, schema)
        try:
            sink.prepare()
        except BaseException:
            sink.close()
            raise
        return sink

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the ledger on the server says."""
        with _driver(name):
            from holdfast.connectors.redis.ledger import SinkKeys, asked
        with self._session(name, pipeline) as session:
            return asked(session, SinkKeys(pipeline, name))

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove what the server keeps of the sink."""
        with _driver(name):
            from holdfast.connectors.redis.ledger import SinkKeys
            from holdfast.connectors.redis.reset import reset
        with self._session(name, pipeline) as session:
            keys, where = SinkKeys(pipeline, name), str(RedisUrl(self.url))
            return reset(session, keys, self.key, self.kind_of, where, rows=rows, is_dry_run=is_dry_run)

    @contextmanager
    def _session(self, name: str, pipeline: str) -> Iterator[Any]:
        """Yield a connection of its own, by declaration alone."""
        from holdfast.connectors.redis.session import RedisSession

        session = RedisSession(RedisUrl(self.url).expanded(), f"sink {name!r}", f"holdfast-{pipeline}-{name}")
        try:
            yield session
        finally:
            session.close()


@contextmanager
def _driver(name: str) -> Iterator[None]:
    """Import what needs the driver in the block."""
    try:
        yield
    except ImportError as error:
        raise InvalidPipeline(
            f"sink {name!r}: the Redis driver is not installed.",
            why=f"{error}.",
            do="pip install 'holdfast[redis]'",
        ) from error
