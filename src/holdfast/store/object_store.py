"""Objects under a prefix of a bucket: S3, Google Cloud Storage, Azure, through obstore.

Invariants.  An object is whole or absent.  Of several writers of a new key exactly one wins: the server decides, by a
conditional put.  A request whose reply was lost is never taken for one that failed: the server is asked.

Credentials and endpoints are those of the providers' own tools: ``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, a role of
the machine, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME`` and so on.  Those that expire are
fetched again by obstore.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, InDoubt, InvalidPipeline, Unavailable

T = TypeVar("T")

_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")
_FORBIDDEN = ("PermissionDeniedError", "UnauthenticatedError")
_ABSENT = ("NotFoundError", "FileNotFoundError")


def open_objects(address: str) -> ObjectStore:
    """Open the objects at an address; nothing is asked of the server yet.

    Parameters
    ----------
    address : str
        ``s3://bucket/path``, ``gs://bucket/path`` or ``az://container/path``.

    Raises
    ------
    InvalidPipeline
        If the library is not installed, or the address or a variable is not understood.
    """
    try:
        from obstore import store
    except ImportError as error:
        raise InvalidPipeline(
            f"{address} cannot be opened.",
            why="obstore is not installed.",
            do="pip install 'holdfast[object-store]'.",
            participant=address,
        ) from error
    is_plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
    options: dict[str, Any] = {"client_options": {"allow_http": True, "timeout": "30s"} if is_plain else {}}
    retried: dict[str, Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
    from_url: Any = store.from_url
    try:
        patient = from_url(address, retry_config=retried, **options)
        once = from_url(address, retry_config={**retried, "max_retries": 0}, **options)
    except Exception as error:  # obstore's own kinds, ValueError: the text says which part of the address or variable
        raise InvalidPipeline(
            f"{address} cannot be opened.",
            why=_reason(error),
            do="write s3://bucket/path, gs://bucket/path or az://container/path, and look at the variables of the "
            "provider (AWS_*, GOOGLE_*, AZURE_*).",
            participant=address,
        ) from error
    return ObjectStore(patient, once, address)


class ObjectStore:
    """A :class:`~holdfast.ports.Store` of objects.  Safe between threads, processes and machines.

    Parameters
    ----------
    patient, once : obstore store
        The same place: one whose requests are repeated, and one whose requests are not, for conditional puts.
    address : str
        For messages.
    """

    def __init__(self, patient: Any, once: Any, address: str) -> None:
        self._patient = patient
        self._once = once
        self.address = address.rstrip("/")

    def __repr__(self) -> str:
        return f"ObjectStore({self.address!r})"

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""
        import obstore

        with self._explained(f"reading {self.address}/{key}"):
            return _unless_absent(lambda: bytes(obstore.get(self._patient, key).bytes()))

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object."""
        import obstore

        with self._explained(f"writing {self.address}/{key}", in_doubt=True):
            obstore.put(self._patient, key, data, use_multipart=False)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists.  Exactly one of several callers wins.

        Notes
        -----
        Sent once: repeated, the first one's success would look like another writer's.
        """
        import obstore

        with self._explained(f"writing {self.address}/{key}", in_doubt=True):
            try:
                obstore.put(self._once, key, data, mode="create", use_multipart=False)
            except Exception as error:
                if type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
                    return False
                raise
            return True

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""
        self.delete_several([key])

    def delete_several(self, keys: Sequence[str]) -> None:
        """Remove objects, as many with a request as the server allows; absent is fine."""
        import obstore

        with self._explained(f"removing {len(keys)} objects of {self.address}", in_doubt=True):
            _unless_absent(lambda: obstore.delete(self._patient, list(keys)))

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        import obstore

        above = prefix.rpartition("/")[0]
        with self._explained(f"listing {self.address}/{prefix}"):
            found = [meta["path"] for several in obstore.list(self._patient, above or None) for meta in several]
        return sorted(key for key in found if key.startswith(prefix))

    @contextmanager
    def _explained(self, doing: str, *, in_doubt: bool = False) -> Iterator[None]:
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:  # obstore's kinds have no base that says what it is
            raise self._error(error, doing, in_doubt=in_doubt) from error

    def _error(self, error: Exception, doing: str, *, in_doubt: bool) -> HoldfastError:
        what, why = f"{doing[:1].upper()}{doing[1:]} failed.", _reason(error)
        if type(error).__name__ in _FORBIDDEN:
            do = "give these credentials permission to read, write, list and delete there, then start again: nothing "
            return InvalidPipeline(what, why=why, do=f"{do}was lost.", participant=self.address)
        do = (
            "check that the object store answers, and the bucket's name and region, then start again: nothing was lost."
        )
        kind = InDoubt if in_doubt else Unavailable
        return kind(what, why=why, do=do, participant=self.address)


def _unless_absent(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except Exception as error:
        if type(error).__name__ in _ABSENT:
            return None
        raise


def _reason(error: Exception) -> str:
    """Return the first line of what obstore says; what follows shows its own structures."""
    return f"{str(error).strip().partition(chr(10))[0][:300]}."
