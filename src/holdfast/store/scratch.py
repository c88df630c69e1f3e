"""A checkpoint in an object store, and the directory beside it where this machine keeps what it can do without.

Our records are objects, and have the last word.  What only serves speed, or what processes of Spark read by path, is in
a local directory, the *scratch*: Spark's own directory and the journals of state below ``spark/``, the logs of sources,
copies of a few objects.  Losing it costs a replay and never a row.

Invariants.  The scratch says of which checkpoint it is, and which generation used it last.  It is believed only if that
generation is the newest of the checkpoint; else another machine has gone on since, and it is emptied.  It counts as of
a new generation only once that generation is taken, so a crash in between leaves one that is not expected.

The scratches of shards lie in that of their pipeline, which has what all of them share: :meth:`ScratchedStore.serve`
(design/0048, section 16).
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from holdfast.errors import Fenced, InvalidPipeline
from holdfast.ports import Store
from holdfast.store import durable
from holdfast.store.local import LocalStore

BASE_VARIABLE = "HOLDFAST_SPARK_CHECKPOINT"
NOTE = ".of-checkpoint.json"
_LOCK = ".taking-over"
GENERATIONS = "generations/"
_DELETED_AT_A_TIME = 100
_FENCES = "fences/"
_LOCAL = ("spark/", "steer/")
"""What is in the scratch alone: no object."""
SCHEMES = ("s3", "gs", "az")
"""Kinds of addresses of object stores."""
_LOGS = "sources/"
"""Of what sources keep, sinks know the logs (design/0018): those are in the scratch alone."""
_COPIED = (
    *("held/", "named/floor.json", "snapshots/floor.json", "targets", "lookups/", "sources/", "poison/"),
    "shards/keys/",
)
"""Objects of which the scratch has copies: processes of Spark read them by path."""
_BY_PATH = (_LOGS, "shards/keys/")
"""What such processes write by path, too."""
_OF_SHARD = re.compile(r"([a-z0-9]+://[^/].*)/shards/([1-9][0-9]*)")
"""Address of the checkpoint of a shard: that of the pipeline, and its number (``shards/naming.py``)."""


def scratch_of(address: str, base: str | None = None) -> Path:
    """Return the scratch of a checkpoint, created if it is not there: that of a shard is in that of its pipeline.

    Parameters
    ----------
    address : str
        ``s3://bucket/path``, ``gs://...`` or ``az://...``.
    base : str, optional
        Directory below which it lies; default: the variable ``HOLDFAST_SPARK_CHECKPOINT``, else the user's cache.

    Raises
    ------
    InvalidPipeline
        If it cannot be written.
    """
    address = address.rstrip("/")
    if shard := _OF_SHARD.fullmatch(address):
        return scratch_of(shard[1], base) / "shards" / shard[2]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", address.partition("://")[2]).strip("-")[-40:]
    directory = _base(base) / f"{name}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"
    if address_in(directory) != address:
        aside = str(directory / ".writing")
        durable.prepare(str(directory), aside=aside)
        durable.replace(str(directory / NOTE), json.dumps({"address": address}).encode(), aside=aside)
    return directory


def view_of(address: str) -> Path:
    """Return a scratch for who only looks, or decides: the machine's own where it is expected, else an empty one.

    The machine's own is not changed: a run that is starting here may be about to use it.  The empty one goes with this
    process.
    """
    directory = scratch_of(address)
    places = [place for place in (_around(directory), directory) if place is not None and address_in(place) is not None]
    if all(ScratchedStore(objects_of(address_of(place)), place).is_believed() for place in places):
        return directory
    return view_of_elsewhere(address.rstrip("/"))


@cache
def view_of_elsewhere(address: str) -> Path:
    """Return a scratch with copies alone, of this process."""
    if shard := _OF_SHARD.fullmatch(address):
        directory = view_of_elsewhere(shard[1]) / "shards" / shard[2]
    else:
        base = tempfile.mkdtemp(prefix="holdfast-")
        atexit.register(shutil.rmtree, base, ignore_errors=True)
        directory = scratch_of(address, base)
    ScratchedStore(objects_of(address), directory).prepare()
    return directory


def object_of(path: str) -> tuple[Store, str] | None:
    """Return the store and the key of what is kept under a path by who reads; None where that is in no scratch."""
    directory, name = os.path.split(path)
    scratch = _scratch_above(directory)
    if scratch is None:
        return None
    key, address = f"{os.path.relpath(directory, scratch)}/{name}", address_in(scratch)
    if address is None or not key.startswith(_BY_PATH):
        return None  # of a trial, or of a shadow that is computed beside
    return objects_of(address), key


@cache
def _scratch_above(directory: str) -> str | None:
    for above in Path(directory).parents:
        if address_in(above) is not None:
            return str(above)
    return None


@cache
def objects_of(address: str) -> Store:
    """Return the store at an address, one for the process: its connections are kept."""
    from holdfast.store.objects.store import open_objects  # not above: most checkpoints are directories

    return open_objects(address)


def is_address(location: str) -> bool:
    """Return whether a location is in an object store.

    Raises
    ------
    InvalidPipeline
        If there are credentials in it: it is noted, and shown.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme not in SCHEMES:
        return False
    if "@" in rest.partition("/")[0]:
        raise InvalidPipeline(
            f"The {scheme}:// address of a checkpoint contains credentials.",
            why="addresses are written down, and shown in messages.",
            do=f"write {scheme}://bucket/path, and give the credentials as the provider's tools want them (AWS_*, "
            "GOOGLE_*, AZURE_*).",
        )
    return True


def is_where_chosen(directory: Path) -> bool:
    """Return whether somebody has said where a scratch is to lie; else it is in the cache of the user."""
    return bool(os.environ.get(BASE_VARIABLE)) or (_around(directory) or directory).parent != _of_user()


def address_in(directory: str | Path) -> str | None:
    """Return the address of the checkpoint whose scratch a directory is; None where it is no scratch."""
    noted: str | None = _noted(directory).get("address")
    around = _around(directory) if noted is None else None
    of_pipeline = None if around is None else address_in(around)
    return noted if of_pipeline is None else f"{of_pipeline}/shards/{os.path.basename(directory)}"


def address_of(directory: str | Path) -> str:
    """Return where the checkpoint in a directory can be opened from any machine: its address, or the directory."""
    return address_in(directory) or str(directory)


def _around(directory: str | Path) -> Path | None:
    """Return where the scratch of the pipeline is, if a directory is in the place of that of one of its shards."""
    path = Path(directory)
    return path.parents[1] if path.parent.name == "shards" and path.name.isdigit() else None


def _base(given: str | None) -> Path:
    chosen = given or os.environ.get(BASE_VARIABLE, "")
    return Path(chosen).expanduser().absolute() if chosen else _of_user()


def _of_user() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "checkpoints"


def _noted(directory: str | Path) -> dict[str, Any]:
    try:
        with open(os.path.join(directory, NOTE), "rb") as file:
            found: dict[str, Any] = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found


def _generation_key(number: int) -> str:
    return f"{GENERATIONS}{number:08d}.json"


def _number_of(key: str, prefix: str) -> int:
    name = key.removeprefix(prefix).removesuffix(".json")
    return int(name) if name.isdigit() else 0


@runtime_checkable
class _DeletingSeveral(Protocol):
    def delete_several(self, keys: Sequence[str]) -> None: ...


class ScratchedStore:
    """The store of a checkpoint whose records are objects.  Safe between threads and between processes.

    Parameters
    ----------
    objects : Store
        Where the records are.
    directory : Path
        The scratch.

    Notes
    -----
    In the steady state of a run nothing is listed: generations are looked up by number, because each takeover leaves no
    number free below its own.  Finished decisions are deleted a hundred at a time.
    """

    def __init__(self, objects: Store, directory: Path) -> None:
        self.directory = str(directory)
        self._objects = objects
        self._scratch = LocalStore(str(directory))
        self._generations: list[int] | None = None
        self._is_checked = False
        self._deleted: dict[str, None] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"ScratchedStore({self._objects!r}, {self.directory!r})"

    def prepare(self) -> None:
        """Prove that the scratch can be written, and empty it if another machine has gone on since.

        One that serves the shards of a pipeline is not emptied under those that run.

        Raises
        ------
        Fenced
            If it would have to be.
        """
        if self._is_whole:
            self._scratch.prepare()
            self.check_serves()
            self._is_checked = True
        else:
            self.refresh()

    def refresh(self) -> None:
        """Prove that the scratch can be written; empty it unless the run that used it last is the newest.

        What is read by path is copied then.  Not while a run of this process uses it, or a shard of its pipeline.
        """
        self._scratch.prepare()
        with self._locked():
            if not self.is_believed():
                self._empty()
                self._note(generation=max(self._known_generations(), default=0), whole=False)
        self._is_checked = True

    def is_believed(self) -> bool:
        """Return whether nobody has taken over since a run used the scratch."""
        return bool(_noted(self.directory).get("generation", 0) == max(self._known_generations(), default=0))

    # --- of a pipeline in shards ----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Note that shards may read over this scratch: its logs are what the sinks of all of them know, and more."""
        with self._locked():
            self._note(whole=True)

    def serves(self) -> bool:
        """Return whether shards may read over this scratch: its logs are whole, and no other one's are by now."""
        with self._locked():
            return self._is_whole and self.is_believed()

    def check_serves(self) -> None:
        """Raise where shards may not read over this scratch any more.

        Raises
        ------
        Fenced
            If another start has taken the pipeline over: the logs of sources are in its scratch.
        """
        if not self.serves():
            raise Fenced(
                f"the scratch {self.directory} does not serve the shards of its pipeline any more.",
                why="shard 0 has been taken over without it, or it was removed: the logs of what its sources have read "
                "are elsewhere, or lost.",
                do="nothing, if another host is to run the pipeline; else start all shards again: that restores them "
                "from the sinks.",
            )

    @property
    def _is_whole(self) -> bool:
        return bool(_noted(self.directory).get("whole", False))

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""
        if key.startswith(_LOCAL):
            return self._scratch.get(key)
        with self._lock:
            if key in self._deleted:
                return None
        if key.startswith(_LOGS) and (data := self._scratch.get(key)) is not None:
            return data
        return self._objects.get(key)

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object."""
        if key.startswith(_LOCAL):
            self._scratch.put(key, data)
            return
        with self._lock:
            self._deleted.pop(key, None)
        self._objects.put(key, data)
        self._copy(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists.  Exactly one of several callers wins."""
        if key.startswith(_LOCAL):
            return self._scratch.put_if_absent(key, data)
        self._delete_now(key)
        if key.startswith(GENERATIONS):
            return self._take(key, data)
        is_new = self._objects.put_if_absent(key, data)
        if is_new:
            self._copy(key, data)
        return is_new

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""
        if key.startswith(_LOCAL):
            self._scratch.delete(key)
        elif key.startswith(GENERATIONS):
            pass  # each says that the number below is fenced: see _known_generations
        elif key.startswith("ledger/"):
            # Of a decision that is finished.  One that a death leaves is removed by the next takeover.
            with self._lock:
                self._deleted[key] = None
            if len(self._deleted) >= _DELETED_AT_A_TIME:
                self._delete_now()
        else:
            self._objects.delete(key)
            if key.startswith(_COPIED):
                self._scratch.delete(key)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        if prefix.startswith(_LOCAL):
            return self._scratch.keys(prefix)
        if prefix == GENERATIONS:
            return [_generation_key(number) for number in self._known_generations()]
        found = {key for key in self._objects.keys(prefix) if key not in self._deleted}
        if prefix == _FENCES:
            found.update(self._newest_fence(found))
        if not prefix:
            found.update(key for local in _LOCAL for key in self._scratch.keys(local))
        if not prefix or prefix.startswith(_LOGS):
            found.update(self._scratch.keys(prefix or _LOGS))
        return sorted(found)

    # --- generations ----------------------------------------------------------------------------------------------

    def _known_generations(self) -> list[int]:
        """Return the generations that were taken: listed once, then looked up by the number after the newest."""
        with self._lock:
            known = self._generations
            if known is None:
                numbers = (_number_of(key, GENERATIONS) for key in self._objects.keys(GENERATIONS))
                known = sorted(number for number in numbers if number)
            # NB also after the listing, which may lag: what it lacks is found by number.
            number = known[-1] if known else 0
            while self._objects.get(_generation_key(number + 1)) is not None:
                number += 1
                known.append(number)
            self._generations = known
            return list(known)

    def _newest_fence(self, listed: set[str]) -> Iterator[str]:
        """Yield the newest fence, if a listing, which may lag, has not shown it: by it decisions count, or are void."""
        newest = max((_number_of(key, _FENCES) for key in listed), default=0)
        for number in reversed(self._known_generations()):
            key = f"{_FENCES}{number:08d}.json"
            if number <= newest:
                return
            if self._objects.get(key) is not None:
                yield key
                return

    def _take(self, key: str, data: bytes) -> bool:
        number = _number_of(key, GENERATIONS)
        # NB lower ones alone: this very number is known where our own put of it had been done, and its reply was lost.
        before = max((known for known in self._known_generations() if known < number), default=0)
        # No number below stays free, for the run of that number looks for the one after its own.
        for free in range(before + 1, number) if before else ():
            self._objects.put_if_absent(_generation_key(free), data)
        with self._locked():
            is_believed = _noted(self.directory).get("generation", 0) == before
            if not self._objects.put_if_absent(key, data):
                return False
            if is_believed:
                self._note(generation=number)
        if not is_believed and self._is_checked:
            raise Fenced(
                f"another run has taken generation {before} while this one was starting.",
                why=f"what this machine keeps in {self.directory} is older than what that run has done.",
                do="nothing, if that was meant; else stop the other run and start this one again.",
                generation=before,
            )
        return True

    # --- the scratch ----------------------------------------------------------------------------------------------

    def _empty(self) -> None:
        for name in (*_LOCAL, *_COPIED):
            path = Path(self.directory, name.partition("/")[0])
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for prefix in _COPIED:
            for key in self._objects.keys(prefix):
                data = self._objects.get(key)
                if data is not None:
                    self._scratch.put(key, data)

    def _copy(self, key: str, data: bytes) -> None:
        if key.startswith(_COPIED):
            self._scratch.put(key, data)

    def _note(self, **changes: object) -> None:
        note = {**_noted(self.directory), **changes}
        self._scratch.prepare()  # that of a shard may not be there before its first takeover
        aside = os.path.join(self.directory, ".writing")
        durable.replace(os.path.join(self.directory, NOTE), json.dumps(note).encode(), aside=aside)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes of this machine from emptying the scratch between a takeover and its note."""
        os.makedirs(self.directory, exist_ok=True)
        descriptor = os.open(os.path.join(self.directory, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _delete_now(self, only: str = "") -> None:
        with self._lock:
            keys = [key for key in self._deleted if only in ("", key)]
            if isinstance(self._objects, _DeletingSeveral):
                if keys:
                    self._objects.delete_several(keys)
            else:
                for each in keys:
                    self._objects.delete(each)
            for key in keys:
                del self._deleted[key]
