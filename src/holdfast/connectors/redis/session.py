"""The connection to a Redis server: what its errors mean, and what a server must be.

Invariant: ``Unavailable`` only where nothing was sent that could change anything, or the server has said that it did
nothing; what was sent and not answered is ``InDoubt``.  Nothing is sent again here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.connectors.redis.url import RedisUrl
from holdfast.errors import HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.masking import masked

log = logging.getLogger("holdfast.connectors.redis")

TIMEOUT_S = 30.0
"""How long an answer is waited for."""

VERSION_MIN = (6, 2)

_REFUSED = (redis.exceptions.NoPermissionError, redis.exceptions.AuthenticationError)
_NOT_NOW = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.TryAgainError,
)
_NOT_NOW_WORDS = re.compile(r"(?:^|-)(?:BUSY|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY) ")
"""In the answers of a server that did nothing, and may do it later; a script quotes them behind a hyphen."""


class RedisSession:
    """A connection, opened when it is first needed.

    Parameters
    ----------
    url : RedisUrl
        Where the server is, with its variables filled in.
    node, name : str
        ``sink 'name'``, for errors, and the name that the server shows of the connection.
    """

    def __init__(self, url: RedisUrl, node: str, name: str) -> None:
        self._url = url
        self._node = node
        self._name = name
        self._client: redis.Redis | None = None
        self._scripts: dict[str, Any] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (RedisSession, (self._url, self._node, self._name))

    def another(self) -> RedisSession:
        """Return a session of the same kind, with a connection of its own."""
        return RedisSession(self._url, self._node, self._name)

    @property
    def client(self) -> redis.Redis:
        """The client; each command goes to the server once."""
        if self._client is None:
            self._client = redis.Redis.from_url(
                self._url.text,
                client_name=self._name,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
            )
        return self._client

    def ask(self, question: Callable[[redis.Redis], Any]) -> Any:
        """Return an answer of the server; what is asked changes nothing."""
        with self._explained(is_in_doubt=False):
            return question(self.client)

    def stage(self, commands: Callable[[redis.Redis], Any]) -> Any:
        """Write what is invisible, and the same when it is written again."""
        with self._explained(is_in_doubt=False):
            return commands(self.client)

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> int:
        """Run a script; return its answer."""
        with self._explained(is_in_doubt=True):
            if script not in self._scripts:
                self._scripts[script] = self.client.register_script(script)
            return int(self._scripts[script](keys=keys, args=arguments, client=self.client))

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            with suppress(redis.RedisError, OSError):
                self._client.close()
            self._client = None
            self._scripts = {}

    def check_server(self) -> None:
        """Raise :class:`InvalidPipeline` if the server cannot keep what it is given in one step; warn of what it loses.

        What a user may not ask (``INFO``) is not checked.
        """
        try:
            said = self.ask(lambda client: client.info())
        except InvalidPipeline:
            self.ask(lambda client: client.ping())
            log.info("%s: the server does not say what it is: its version and settings are not checked", self._node)
            return
        version = str(said.get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < VERSION_MIN:
            self._refuse(
                f"the server has version {version}.",
                f"needed is {'.'.join(map(str, VERSION_MIN))} or newer.",
                "upgrade the server.",
            )
        if said.get("cluster_enabled"):
            self._refuse(
                "the server is part of a Redis Cluster.",
                "rows and ledger are in keys of several nodes there, and no step changes these together.",
                "write to a server outside of a cluster.",
            )
        if str(said.get("maxmemory_policy", "")).startswith("allkeys") and said.get("maxmemory"):
            self._refuse(
                f"the server evicts any key when its memory is full (maxmemory-policy {said['maxmemory_policy']}).",
                "rows that were written would go, and the ledger with them: then they would be written again.",
                "set maxmemory-policy to noeviction, or to one of volatile-*.",
            )
        if not said.get("aof_enabled"):
            log.warning(
                "%s: the server has no append-only file (appendonly no): when it ends abruptly it loses what was "
                "written since its last snapshot, the ledger with the rows; the next start writes that again",
                self._node,
            )

    def _refuse(self, what: str, why: str, do: str) -> NoReturn:
        raise InvalidPipeline(f"{self._node}: {what}", why=why, do=do, participant=self._node)

    @contextmanager
    def _explained(self, *, is_in_doubt: bool) -> Iterator[None]:
        try:
            yield
        except (redis.RedisError, OSError) as error:
            failure = self._translated(error, is_in_doubt)
            if isinstance(failure, Unavailable | InDoubt):
                self.close()
            raise failure from error

    def _translated(self, error: Exception, is_in_doubt: bool) -> HoldfastError:
        said = masked(str(error))[:300]
        word = said.split(" ", 1)[0]
        if isinstance(error, _REFUSED) or word in ("NOAUTH", "WRONGPASS", "NOPERM"):
            return InvalidPipeline(
                f"{self._node}: the Redis server {self._url} refuses this user.",
                why=f"it said: {said}.",
                do="correct user and password in the address; the user needs +eval, +evalsha, +info, +multi and the "
                "commands of hashes, lists, sets and streams on the target and on holdfast:*.",
                participant=self._node,
            )
        if isinstance(error, _NOT_NOW) or _NOT_NOW_WORDS.search(said):
            return Unavailable(
                f"{self._node}: the Redis server {self._url} did not take it; nothing was changed.",
                why=f"it said: {said}.",
                do="it is retried; look at the server: memory, disk, and whether it is still the primary.",
                participant=self._node,
            )
        if isinstance(error, redis.exceptions.ResponseError):
            return InvalidPipeline(
                f"{self._node}: the Redis server {self._url} refused a command.",
                why=f"it said: {said}.",
                do="check the version of the server, and that nobody has changed the keys holdfast:*.",
                participant=self._node,
            )
        if is_in_doubt:
            return InDoubt(
                f"{self._node}: it is unknown whether the Redis server {self._url} has done what it was told.",
                why=f"{said}.",
                do="nothing by hand: the sink is asked next.",
                participant=self._node,
            )
        return Unavailable(
            f"{self._node}: the Redis server {self._url} does not answer.",
            why=f"{said}.",
            do="it is retried; if the problem persists, check the server and the way to it.",
            participant=self._node,
        )
