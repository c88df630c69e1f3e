"""What the driver asks of transactions that other processes have opened: their state, their end, and their names.

Whoever knows name, producer id and epoch of a transaction may end it: so workers write and leave it open, and the
driver commits it.  Client libraries offer no such call; the requests are those of kafka-python.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

from holdfast.connectors.kafka.sink.session import TIMEOUT_S, KafkaSession
from holdfast.errors import InvalidPipeline, Unavailable

ONGOING = "Ongoing"
COMMITTED = frozenset({"PrepareCommit", "CompleteCommit"})
ENDING = frozenset({"PrepareCommit", "PrepareAbort"})
FORGOTTEN = "forgotten"
"""States; the last one is ours: the coordinator knows no transaction of that name."""

_NO_TIME_MS = 1_000
"""The timeout of a transaction that nobody will begin: below what any cluster allows."""

_USES_AT_MOST = 20_000
"""So often a client is asked before another takes its place: it keeps a note of each name for as long as it lives."""

_DONE, _NOT_COORDINATOR = 0, frozenset({14, 15, 16})
_BUSY = 51
_ENDED = frozenset({47, 48, 49, 90})
"""Codes: of a transaction that has timed out, was fenced, or ended the other way."""


@dataclass(frozen=True)
class Producing:
    """The producer of a transaction, as its coordinator knows it."""

    state: str
    producer_id: int = -1
    epoch: int = -1
    started_ms: int = -1
    timeout_ms: int = 0


class Transactions:
    """Transactions of other processes."""

    def __init__(self, session: KafkaSession) -> None:
        self._session = session
        self._client: Any = None
        self._uses = 0

    def describe(self, names: Iterable[str]) -> dict[str, Producing]:
        """Return the state of each."""
        return {name: self._described(name) for name in names}

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> bool:
        """Commit or abort one; again, it does nothing.  False if it has ended the other way."""

        async def request(manager: Any, node: int) -> int:
            asked = EndTxnRequest(
                transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=commit, max_version=4
            )
            return int((await manager.send(asked, node_id=node)).error_code)

        return self._settled(name, request)

    def abort(self, name: str) -> None:
        """End whatever is open under a name, whose producer can write no more."""

        async def request(manager: Any, node: int) -> int:
            asked = InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=_NO_TIME_MS, producer_id=-1, producer_epoch=-1
            )
            return int((await manager.send(asked, node_id=node)).error_code)

        self._settled(name, request)

    def open_names(self, prefix: str, states: Iterable[str] = (ONGOING,)) -> list[str]:
        """Return the names of those that are open and begin so, sorted."""
        found = self._answer(lambda admin: admin.list_transactions(state_filters=[*states]))
        names = (each.transactional_id for listed in found.values() for each in listed)
        return sorted(name for name in names if name.startswith(prefix))

    def close(self) -> None:
        """Let the connections go."""
        if self._client is not None:
            with suppress(Exception):
                self._client.close()
            self._client, self._uses = None, 0

    def _described(self, name: str) -> Producing:
        try:
            found = self._answer(lambda admin: admin.describe_transactions([name])[name])
        except _Unknown:
            return Producing(FORGOTTEN)
        times = (found.transaction_start_time_ms, found.transaction_timeout_ms)
        return Producing(found.state.value, found.producer_id, found.producer_epoch, *times)

    def _answer(self, ask: Callable[[Any], Any]) -> Any:
        """Ask until no coordinator is loading, or moves."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                with self._explained():
                    return ask(self._admin())
            except _Again:
                if time.monotonic() > end:
                    raise self._unavailable("a coordinator is away") from None
                time.sleep(0.02)

    def _settled(self, name: str, request: Callable[[Any, int], Awaitable[int]]) -> bool:
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                with self._explained():
                    admin = self._admin()
                    node = admin._manager.run(admin._find_coordinator_id, name, CoordinatorType.TRANSACTION)
                    code = admin._manager.run(request, admin._manager, node)
            except _Again:
                code = min(_NOT_COORDINATOR)
            if code == _DONE or code in _ENDED:
                return bool(code == _DONE)
            if code in _NOT_COORDINATOR:
                self.close()  # it remembers where the coordinator was
            elif code != _BUSY:
                with self._explained():
                    raise kafka_errors.for_code(code)(name)
            if time.monotonic() > end:
                raise self._unavailable(f"its coordinator answers with code {code}")
            time.sleep(0.002)

    def _admin(self) -> Any:
        if self._uses >= _USES_AT_MOST:
            self.close()
        self._uses += 1
        if self._client is None:
            settings = self._session.brokers.admin(
                client_id=self._session.client_id,
                request_timeout_ms=int(TIMEOUT_S * 1000),
                bootstrap_timeout_ms=int(TIMEOUT_S * 1000),
                metadata_max_age_ms=30_000,  # a broker that came back is asked again
                retry_backoff_ms=20,
                reconnect_backoff_max_ms=500,
            )
            self._client = _Admin(**settings)
        return self._client

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except kafka_errors.TransactionalIdNotFoundError as error:
            raise _Unknown from error
        except (
            kafka_errors.NotCoordinatorError,
            kafka_errors.CoordinatorNotAvailableError,
            kafka_errors.CoordinatorLoadInProgressError,
        ) as error:
            self.close()
            raise _Again from error
        except (kafka_errors.AuthorizationError, kafka_errors.SaslAuthenticationFailedError) as error:
            self.close()  # it would say the same for ever
            raise InvalidPipeline(
                f"{self._session.node}: the Kafka cluster {self._session.brokers} lets this user not end transactions.",
                why=f"it said: {self._said(error)}.",
                do="let the user have Write and Describe on transactional ids that begin with holdfast/, or write "
                'stage="driver".',
                participant=self._session.node,
            ) from error
        except (kafka_errors.KafkaError, OSError) as error:
            self.close()
            raise self._unavailable(self._said(error)) from error

    def _said(self, error: BaseException) -> str:
        return self._session.brokers.shown(f"{type(error).__name__}: {error}")

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self._session.node}: the Kafka cluster {self._session.brokers} does not answer about a transaction.",
            why=f"{why}.",
            do="it is retried; if the problem persists, check the brokers and the way to them.",
            participant=self._session.node,
        )


class _Admin(KafkaAdminClient):  # type: ignore[misc]  # the library says nothing of types
    """A client that leaves no thread and no socket behind where no broker answers."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except BaseException:
            self._closed = False
            with suppress(Exception):
                self.close()
            raise


class _Again(Exception):
    """The coordinator of a transaction has moved, or is loading."""


class _Unknown(Exception):
    """The coordinator knows no transaction of that name."""
