"""Objects under a prefix of a bucket: S3, Google Cloud Storage, Azure, through obstore (design/0039).

Invariants.  An object is whole or absent.  Of several writers of a new key exactly one wins: the server decides, by a
conditional put, and the winner's token in the object's metadata says who it was.  So a request that is repeated after
a lost reply is never taken for another writer's, and one that may have been done is never taken for one that failed.
Nothing here depends on a listing, which may lag.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.store.objects.client import open_client
from holdfast.store.objects.errors import (
    FailedRequest,
    Refusal,
    RequestLimits,
    Requests,
    StoreAnswer,
    failure_of,
    in_doubt,
    is_deleted,
    of_server,
)

_TOKEN = "holdfast"
"""Name of the attribute that says which call created an object; letters only, as Azure wants them."""


def open_objects(address: str, limits: RequestLimits | None = None) -> ObjectStore:
    """Open the objects at an address; nothing is asked of the server yet.

    Parameters
    ----------
    address : str
        ``s3://bucket/path``, ``gs://bucket/path`` or ``az://container/path``.
    limits : RequestLimits, optional
        How long it tries.

    Raises
    ------
    InvalidPipeline
        If the library is not installed, or the address or a variable is not understood.
    """
    store = ObjectStore(address, limits or RequestLimits())
    store.open()
    return store


_LISTED_AT_ONCE = 1000
"""Keys that the providers list with one request."""

_REMOVED_AT_ONCE = 1000
"""Keys that S3 removes with one request.  The library is never given more: an error would be that of one request among
several, and say nothing about the keys of the others."""


class ObjectStore:
    """A :class:`~holdfast.ports.Store` of objects.  Safe between threads, processes and machines; can be pickled.

    Parameters
    ----------
    address : str
        Where the objects are.
    limits : RequestLimits
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

    def __init__(self, address: str, limits: RequestLimits) -> None:
        self.address = address.rstrip("/")
        self._limits = limits
        self._requests = Requests(
            self.address,
            limits,
            lambda timeout_s: open_client(self.address, timeout_s=timeout_s),
            of_server,
            failure_of,
        )
        self._unsettled: dict[str, tuple[str, bool]] = {}
        """Tokens of calls that failed, and whether it is unknown what they did."""

    def __repr__(self) -> str:
        return f"ObjectStore({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, (self.address, self._limits)

    def open(self) -> Any:
        """Return the client of this process."""
        return self._requests.open()

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
        doing = f"writing {self.address}/{key}"
        self._requests.call(lambda client: _put(client, key, data), doing, is_write=True, size_bytes=len(data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists.  Exactly one of several callers wins.

        Raises
        ------
        Unavailable
            If it was surely not created.
        InDoubt
            If that is unknown.

        Notes
        -----
        After either, the same call of the same store, with the same data, finds out: it returns True if the object is
        this one's.
        """
        doing, call = f"writing {self.address}/{key}", f"{sha256(data).hexdigest()} {key}"
        # Taken out: of two threads one goes on with it.
        token, is_unknown = self._unsettled.pop(call, (uuid.uuid4().hex, False))

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
                    raise Refusal(
                        FailedRequest(StoreAnswer.NOT_DONE, f"{failure.why}, and no object is there")
                    ) from error
                return there[1] == token
            return True

        try:
            return self._requests.call(create, doing, size_bytes=len(data))
        except BaseException as error:
            # Kept where it was surely not created, too: who says so may be a proxy, and be wrong.
            self._unsettled[call] = token, is_unknown or not isinstance(error, HoldfastError)
            if is_unknown and isinstance(error, HoldfastError):
                raise in_doubt(error) from error
            raise

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
        for start in range(0, len(keys), _REMOVED_AT_ONCE):
            self._remove(list(keys[start : start + _REMOVED_AT_ONCE]))

    def _remove(self, keys: list[str]) -> None:
        doing = f"removing {self.address}/{keys[0]}" if len(keys) == 1 else f"removing {len(keys)} objects"
        self._requests.call(lambda client: _delete(client, keys), doing, is_write=True)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted; they may lag."""
        above = prefix.rpartition("/")[0] or None

        def found(client: Any) -> list[str]:
            return [str(meta["path"]) for several in client.list(above) for meta in several]

        return sorted(
            key for key in self._requests.call(found, f"listing {self.address}/{prefix}") if key.startswith(prefix)
        )

    def directories(self, prefix: str) -> list[str]:
        """Return the names right below a prefix that have objects below them, sorted; they may lag.

        One request for 1000 names, however many objects are below each.
        """

        def prefixes(client: Any) -> list[str]:
            return [str(each) for each in client.list_with_delimiter(prefix or None)["common_prefixes"]]

        names = self._requests.call(prefixes, f"listing {self.address}/{prefix}")
        return sorted(name.rstrip("/").rpartition("/")[2] for name in names)

    def first_keys(self, *, after: str | None = None) -> list[str]:
        """Return some of the keys, in order and behind one: those that one request lists."""

        def found(client: Any) -> list[str]:
            several: list[str] = []
            for some in client.list(None, offset=after):
                several += [str(meta["path"]) for meta in some]
                if len(several) >= _LISTED_AT_ONCE:
                    break
            return several

        return self._requests.call(found, f"listing {self.address}")

    def tail(self, key: str, size_bytes: int) -> bytes | None:
        """Return the last bytes of an object, all of them where it has fewer; None when it is absent."""

        def found(client: Any) -> bytes | None:
            try:
                return bytes(client.get(key, options={"range": {"suffix": size_bytes}}).bytes())
            except of_server() as error:
                if failure_of(error).answer is StoreAnswer.ABSENT:
                    return None
                raise

        return self._requests.call(found, f"reading {self.address}/{key}")

    def _read(self, key: str) -> tuple[bytes, str] | None:
        return self._requests.call(lambda client: self._found(client, key), f"reading {self.address}/{key}")

    def _found(self, client: Any, key: str) -> tuple[bytes, str] | None:
        """Return an object and the token of the call that created it."""
        try:
            reply = client.get(key)
            return bytes(reply.bytes()), str(reply.attributes.get(_TOKEN, ""))
        except of_server() as error:
            if failure_of(error).answer is StoreAnswer.ABSENT:
                return None
            raise


def _put(client: Any, key: str, data: bytes, **how: Any) -> None:
    client.put(key, data, use_multipart=False, **how)


def _delete(client: Any, keys: list[str]) -> None:
    try:
        client.delete(keys if len(keys) > 1 else keys[0])
    except of_server() as error:
        if is_deleted(error):
            return
        if failure_of(error).answer is not StoreAnswer.ABSENT:
            raise
        if len(keys) > 1:  # Google removes one with a request: the library stops at the first that is absent
            for key in keys:
                _delete(client, [key])
