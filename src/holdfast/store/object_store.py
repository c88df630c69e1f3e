"""Objects under a prefix of a bucket: S3, Google Cloud Storage, Azure, through obstore (design/0039).

Invariants.  An object is whole or absent.  Of several writers of a new key exactly one wins: the server decides, by a
conditional put, and the winner's token in the object's metadata says who it was.  So a request that is repeated after
a lost reply is never taken for another writer's, and one that may have been done is never taken for one that failed.
Nothing here depends on a listing, which may lag.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

import tenacity

from holdfast.errors import HoldfastError, InDoubt
from holdfast.store.object_client import open_client
from holdfast.store.object_errors import FailedRequest, StoreAnswer, as_error, failure_of, of_server

T = TypeVar("T")

_TOKEN = "holdfast"
"""Name of the attribute that says which call created an object; letters only, as Azure wants them."""

_AGAIN = {StoreAnswer.NOT_DONE, StoreAnswer.UNKNOWN, StoreAnswer.TAKEN, StoreAnswer.NO_CREDENTIALS}
"""A role may not answer for a moment, too; and a plain put may meet another request for its key."""
_RENEWED = {StoreAnswer.EXPIRED, StoreAnswer.FORBIDDEN, StoreAnswer.NO_CREDENTIALS}
"""Answers after which the credentials are looked up again, for each call once: they may have been replaced."""


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
        For one request.
    """

    attempts: int = 4
    patient_attempts: int = 12
    first_s: float = 0.2
    cap_s: float = 5.0
    timeout_s: float = 30.0


def open_objects(address: str, perseverance: Perseverance | None = None) -> ObjectStore:
    """Open the objects at an address; nothing is asked of the server yet.

    Parameters
    ----------
    address : str
        ``s3://bucket/path``, ``gs://bucket/path`` or ``az://container/path``.
    perseverance : Perseverance, optional
        How long it tries.

    Raises
    ------
    InvalidPipeline
        If the library is not installed, or the address or a variable is not understood.
    """
    store = ObjectStore(address, perseverance or Perseverance())
    store.open()
    return store


class _Refusal(Exception):
    """A request that failed, with what it tells."""

    def __init__(self, failure: FailedRequest) -> None:
        super().__init__(failure.why)
        self.failure = failure


class ObjectStore:
    """A :class:`~holdfast.ports.Store` of objects.  Safe between threads, processes and machines; can be pickled.

    Parameters
    ----------
    address : str
        Where the objects are.
    perseverance : Perseverance
        How long it tries.

    Notes
    -----
    Requests: ``get``, ``put``, ``put_if_absent`` and ``delete`` one each, ``keys`` one for 1000 objects,
    ``delete_several`` one for 1000.  More only after failures, and one more for a ``put_if_absent`` that lost.

    What callers may rely on: after a write has returned, every ``get`` and ``put_if_absent`` anywhere sees it (S3, GCS
    and Azure promise that).  ``keys`` may lack what was written a moment ago, and may still show what was deleted: no
    caller may decide by it who owns something, or that a number is free.  It may find candidates, which are then read,
    and what can be removed.
    """

    def __init__(self, address: str, perseverance: Perseverance) -> None:
        self.address = address.rstrip("/")
        self._perseverance = perseverance
        self._client: Any = None
        self._owner = 0
        self._was_answered = False
        self._unsettled: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"ObjectStore({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, (self.address, self._perseverance)

    def open(self, *, anew: bool = False) -> Any:
        """Return the client of this process; ``anew``: with the credentials of now."""
        if anew or self._client is None or self._owner != os.getpid():
            self._client = open_client(self.address, timeout_s=self._perseverance.timeout_s)
            self._owner = os.getpid()
        return self._client

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""
        found = self._read(key)
        return None if found is None else found[0]

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object.

        Raises
        ------
        InDoubt
            If it is unknown whether it was written: writing it again is safe.
        """
        self._call(lambda client: _put(client, key, data), f"writing {self.address}/{key}", is_write=True)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists.  Exactly one of several callers wins.

        Raises
        ------
        Unavailable
            If it was surely not created.
        InDoubt
            If that is unknown.  The same call of the same store, with the same data, finds out: it returns True if the
            object is this one's.
        """
        doing, call = f"writing {self.address}/{key}", f"{sha256(data).hexdigest()} {key}"
        before = self._unsettled.pop(call, None)  # taken out: of two threads one goes on with it
        token, is_unknown = before or uuid.uuid4().hex, before is not None

        def create(client: Any) -> bool:
            nonlocal is_unknown
            try:
                _put(client, key, data, mode="create", attributes={_TOKEN: token})
            except of_server() as error:
                failure = failure_of(error)
                is_unknown = is_unknown or failure.answer is StoreAnswer.UNKNOWN
                if failure.answer is not StoreAnswer.TAKEN:
                    raise
                # 409 and 412 are one kind to obstore: someone's object, ours from a request whose reply was lost, or
                # (409) none yet, where another request for the key is under way.  The object itself tells.
                there = self._found(client, key)
                if there is None:
                    raise _Refusal(
                        FailedRequest(StoreAnswer.NOT_DONE, f"{failure.why}, and no object is there")
                    ) from error
                return there[1] == token
            return True

        try:
            return self._call(create, doing)
        except HoldfastError as error:
            if not is_unknown:
                raise
            self._unsettled[call] = token
            raise _in_doubt(error) from error

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""
        self.delete_several([key])

    def delete_several(self, keys: Sequence[str]) -> None:
        """Remove objects, a thousand with a request; absent is fine.

        Raises
        ------
        InDoubt
            If it is unknown whether they were removed: removing them again is safe.
        """
        doing = f"removing {self.address}/{keys[0]}" if len(keys) == 1 else f"removing {len(keys)} objects"

        def remove(client: Any) -> None:
            try:
                client.delete(list(keys) if len(keys) > 1 else keys[0])
            except of_server() as error:
                if failure_of(error).answer is not StoreAnswer.ABSENT:
                    raise

        self._call(remove, doing, is_write=True)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted; they may lag."""
        above = prefix.rpartition("/")[0] or None

        def found(client: Any) -> list[str]:
            return [str(meta["path"]) for several in client.list(above) for meta in several]

        return sorted(key for key in self._call(found, f"listing {self.address}/{prefix}") if key.startswith(prefix))

    def _read(self, key: str) -> tuple[bytes, str] | None:
        return self._call(lambda client: self._found(client, key), f"reading {self.address}/{key}")

    def _found(self, client: Any, key: str) -> tuple[bytes, str] | None:
        """Return an object and the token of the call that created it."""
        try:
            reply = client.get(key)
            return bytes(reply.bytes()), str(reply.attributes.get(_TOKEN, ""))
        except of_server() as error:
            if failure_of(error).answer is StoreAnswer.ABSENT:
                return None
            raise

    def _call(self, request: Callable[[Any], T], doing: str, *, is_write: bool = False) -> T:
        """Send a request until it is answered, with bounds; raise what the last answer asks for."""
        self.open()  # before its library is asked for kinds of errors
        is_renewed = is_unknown = False
        failed: tuple[type[Exception], ...] = (_Refusal, *of_server())

        def once() -> T:
            nonlocal is_renewed, is_unknown
            try:
                try:
                    return request(self.open())
                except failed as error:
                    answer = _failure(error).answer
                    if answer not in _RENEWED or (is_renewed and answer is not StoreAnswer.EXPIRED):
                        raise
                    is_renewed = True
                    return request(self.open(anew=True))
            except failed as error:
                failure = _failure(error)
                is_unknown = is_unknown or failure.answer is StoreAnswer.UNKNOWN
                raise _Refusal(failure) from error

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
        except _Refusal as refusal:
            found = as_error(self._in_context(refusal.failure), doing, self.address)
            raise (_in_doubt(found) if is_write and is_unknown else found) from refusal
        self._was_answered = True
        return result

    def _is_passing(self, error: BaseException) -> bool:
        """Return whether to ask again.  Who renews credentials that have expired in a run may take a moment, too."""
        passing = {*_AGAIN, StoreAnswer.EXPIRED} if self._was_answered else _AGAIN
        return isinstance(error, _Refusal) and error.failure.answer in passing

    def _in_context(self, failure: FailedRequest) -> FailedRequest:
        """Take missing credentials for a failure that passes where there were some before: a role is away."""
        is_passing = failure.answer is StoreAnswer.NO_CREDENTIALS and self._was_answered
        return FailedRequest(StoreAnswer.NOT_DONE, failure.why) if is_passing else failure


def _put(client: Any, key: str, data: bytes, **how: Any) -> None:
    client.put(key, data, use_multipart=False, **how)


def _failure(error: Exception) -> FailedRequest:
    return error.failure if isinstance(error, _Refusal) else failure_of(error)


def _in_doubt(error: HoldfastError) -> InDoubt:
    return InDoubt(
        error.what,
        why=f"whether it was done is unknown: {error.why}",
        do="check that the store answers, then start again: what is there is then read.",
        participant=error.participant,
    )
