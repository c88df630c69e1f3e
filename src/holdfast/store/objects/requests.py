"""Requests to an object store: sent again with bounds until they are answered, whatever library sends them.

A library sends each request once.  Who repeats it must know what became of the first: what a failure tells is
:class:`~holdfast.store.objects.errors.StoreAnswer`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity

from holdfast.errors import HoldfastError, InDoubt
from holdfast.store.objects.errors import FailedRequest, StoreAnswer, as_error

T = TypeVar("T")

_AGAIN = {StoreAnswer.NOT_DONE, StoreAnswer.UNKNOWN, StoreAnswer.TAKEN, StoreAnswer.NO_CREDENTIALS}
"""A role may not answer for a moment, too; and a plain put may meet another request for its key."""
_RENEWED = {StoreAnswer.EXPIRED, StoreAnswer.FORBIDDEN, StoreAnswer.NO_CREDENTIALS}
"""Answers after which the credentials are looked up again, for each call once: they may have been replaced."""

SLOW_BYTES_S = 256 * 2**10
"""Bytes that a slow line takes in a second: an object has the time that it needs there."""


@dataclass(frozen=True)
class Perseverance:
    """How long the store itself tries; its callers try again for longer.

    Parameters
    ----------
    attempts : int
        Requests for one call, the first included, to a store that has not answered yet: its address may be wrong.
    patient_attempts : int
        As many to one that has.  Not every caller in a run tries again.
    first_s, cap_s : float
        Wait after the first, and the longest; doubled in between, each a random part of it.
    timeout_s : float
        For the answer to one request, and then for each further part of the answer.
    """

    attempts: int = 4
    patient_attempts: int = 12
    first_s: float = 0.2
    cap_s: float = 5.0
    timeout_s: float = 30.0

    def body_timeout_s(self, size_bytes: int) -> float:
        """Return the timeout for a request with a body, which counts from its first byte; in seconds.

        It is doubled until a slow line has sent the body: few sizes need a client of their own.
        """
        timeout_s = self.timeout_s
        while timeout_s * SLOW_BYTES_S < size_bytes:
            timeout_s *= 2
        return timeout_s


class Refusal(Exception):
    """A request that failed, with what it tells."""

    def __init__(self, failure: FailedRequest) -> None:
        super().__init__(failure.why)
        self.failure = failure


class Requests:
    """A library's clients of one address, opened in each process, and how often they are asked.

    Parameters
    ----------
    address : str
        Where the objects are.
    perseverance : Perseverance
        How long it tries.
    connect : callable
        Opens the library's client for a timeout in seconds, with the credentials of now.
    kinds : callable
        Returns the kinds of errors by which the library tells what became of a request; another kind is a defect here.
    failure_of : callable
        What such an error tells.
    """

    def __init__(
        self,
        address: str,
        perseverance: Perseverance,
        connect: Callable[[float], Any],
        kinds: Callable[[], tuple[type[Exception], ...]],
        failure_of: Callable[[Exception], FailedRequest],
    ) -> None:
        self.address = address
        self._perseverance = perseverance
        self._connect = connect
        self._kinds = kinds
        self._failure_of = failure_of
        self._clients: dict[float, Any] = {}
        """By their timeout."""
        self._owner = 0
        self._was_answered = False

    def open(self, *, size_bytes: int = 0, anew: bool = False) -> Any:
        """Return the client of this process for a body of a size; ``anew``: with the credentials of now."""
        timeout_s = self._perseverance.body_timeout_s(size_bytes)
        if anew or self._owner != os.getpid():
            self._clients, self._owner = {timeout_s: self._connect(timeout_s)}, os.getpid()
        clients = self._clients
        if timeout_s not in clients:
            clients[timeout_s] = self._connect(timeout_s)
        return clients[timeout_s]

    def call(self, request: Callable[[Any], T], doing: str, *, is_write: bool = False, size_bytes: int = 0) -> T:
        """Send a request until it is answered, with bounds; raise what the last answer asks for.

        ``size_bytes`` is what its body has, as far as that matters: a large one is given more time.
        """
        self.open(size_bytes=size_bytes)  # before its library is asked for kinds of errors
        is_renewed = is_unknown = False
        failed: tuple[type[Exception], ...] = (Refusal, *self._kinds())

        def once() -> T:
            nonlocal is_renewed, is_unknown
            try:
                try:
                    return request(self.open(size_bytes=size_bytes))
                except failed as error:
                    answer = self._failure(error).answer
                    if answer not in _RENEWED or (is_renewed and answer is not StoreAnswer.EXPIRED):
                        raise
                    is_renewed = True
                    return request(self.open(size_bytes=size_bytes, anew=True))
            except failed as error:
                failure = self._failure(error)
                is_unknown = is_unknown or failure.answer is StoreAnswer.UNKNOWN
                raise Refusal(failure) from error

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(
                self._perseverance.patient_attempts if self._was_answered else self._perseverance.attempts
            ),
            wait=tenacity.wait_random_exponential(self._perseverance.first_s, self._perseverance.cap_s),
            retry=tenacity.retry_if_exception(self._is_passing),
            reraise=True,
        )
        try:
            result = retrying(once)
        except Refusal as refusal:
            found = as_error(self._in_context(refusal.failure), doing, self.address)
            raise (in_doubt(found) if is_write and is_unknown else found) from refusal
        self._was_answered = True
        return result

    def _is_passing(self, error: BaseException) -> bool:
        """Return whether to ask again.  Who renews credentials that have expired in a run may take a moment, too."""
        passing = {*_AGAIN, StoreAnswer.EXPIRED} if self._was_answered else _AGAIN
        return isinstance(error, Refusal) and error.failure.answer in passing

    def _in_context(self, failure: FailedRequest) -> FailedRequest:
        """Take missing credentials for a failure that passes where there were some before: a role is away."""
        is_passing = failure.answer is StoreAnswer.NO_CREDENTIALS and self._was_answered
        return FailedRequest(StoreAnswer.NOT_DONE, failure.why) if is_passing else failure

    def _failure(self, error: Exception) -> FailedRequest:
        return error.failure if isinstance(error, Refusal) else self._failure_of(error)


def refused_answer(error: HoldfastError) -> StoreAnswer | None:
    """Return what the store answered to the request that an error tells of; None where it tells of none."""
    return error.__cause__.failure.answer if isinstance(error.__cause__, Refusal) else None


def in_doubt(error: HoldfastError) -> InDoubt:
    """Return the error of a request of which it is unknown whether it was done."""
    return InDoubt(
        error.what,
        why=f"whether it was done is unknown: {error.why}",
        do="check that the store answers, then start again: what is there is then read.",
        participant=error.participant,
    )
