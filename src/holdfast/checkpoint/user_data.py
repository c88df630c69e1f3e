"""User data: the value of ``on_checkpoint``, kept beside the snapshots and in them, and passed back after a start.

An object ``user-data/<generation, 8 digits>.json`` holds the latest value of a run: the epoch after which it was
asked for, the lineage (which of Spark's directories the run used, and the epoch that it began with), and the value.  A
run writes its own object only, so a fenced one does no harm; the newest generation counts.  A snapshot's
manifest has the latest value at that time.

Which value a start receives: the latest one of the lineage that it continues.  A lineage that is new, and takes its
state from a snapshot, has none yet: then it is the one in the snapshot's manifest, and without that the latest of all.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.ports import Clock, Store
from holdfast.store import sealed
from holdfast.store.paths import numbered

PREFIX = "user-data/"
SIZE_MAX = 1_000_000
"""Bytes of a value as it is stored: it is written within an epoch's time."""

Encoded = Mapping[str, Any]
"""``{"json": value}`` or ``{"base64": text}``."""


def encoded(value: Any, pipeline: str) -> Encoded:
    """Return a value as it is stored; what the caller does to it later does not change that.

    Raises
    ------
    InvalidPipeline
        If it is neither JSON nor bytes, or larger than 1 MB.  Says where in the value.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        stored: Encoded = {"base64": base64.b64encode(bytes(value)).decode()}
        size = len(bytes(value))
    else:
        _check_json(value, "", pipeline)
        text = json.dumps(value)
        # A copy: hooks return objects that they keep modifying, and a snapshot may take the value much later.
        stored = {"json": json.loads(text)}
        size = len(text)
    if size > SIZE_MAX:
        raise _refusal(f"it has {size} bytes, and at most {SIZE_MAX} are kept.", pipeline)
    return stored


def decoded(stored: Encoded) -> Any:
    """Return the value of :func:`encoded`."""
    return base64.b64decode(stored["base64"]) if "base64" in stored else stored["json"]


def _check_json(value: Any, place: str, pipeline: str) -> None:
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return
    if isinstance(value, list):
        for number, inner in enumerate(value):
            _check_json(inner, f"{place}[{number}]", pipeline)
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _refusal(f"the key {key!r} at value{place} is not a string.", pipeline)
            _check_json(inner, f"{place}[{key!r}]", pipeline)
        return
    raise _refusal(f"value{place} is a {type(value).__name__}: {value!r:.80}.", pipeline)


def _refusal(why: str, pipeline: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"on_checkpoint of pipeline {pipeline!r} returned a value that cannot be kept.",
        why=f"it is kept as JSON (None, bool, int, finite float, str, lists, dicts with string keys) or bytes; {why}",
        do="return such a value; of more than 1 MB keep only where to find it.",
        pipeline=pipeline,
        participant="on_checkpoint",
    )


@dataclass(frozen=True)
class Recovered:
    """The value for a start; ``found`` is False where there is none."""

    found: bool = False
    value: Any = None


def recovered(store: Store, lineage: str, of_seed: Encoded | None) -> Recovered:
    """Return the value that a start receives.

    Parameters
    ----------
    store : Store
        The checkpoint.
    lineage : str
        Spark's directory that the run uses, and the epoch that it began with.
    of_seed : mapping, optional
        What the snapshot says from which that directory took its state.

    Raises
    ------
    Corrupt
        If the newest object cannot be read.
    """
    newest = _newest(store)
    if newest is not None and newest["lineage"] == lineage:
        return Recovered(True, decoded(newest["value"]))
    if of_seed is not None:
        return Recovered(True, decoded(of_seed))
    return Recovered() if newest is None else Recovered(True, decoded(newest["value"]))


def _newest(store: Store) -> Any:
    keys = numbered(store, PREFIX)
    if not keys:
        return None
    key = keys[max(keys)]
    try:
        record = sealed.load(store.get(key) or b"")
        decoded(record["value"])
        return {"lineage": record["lineage"], "value": record["value"]}
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{key!r} in the checkpoint cannot be read.",
            why=f"{error}; it holds what on_checkpoint returned last.",
            do="restore it from a copy; or remove it: on_recover is then given an older value, or not called.",
            participant=key,
        ) from error


class UserData:
    """Asks for the value when it is due, and keeps it.  Called by the thread that runs epochs, after each.

    Parameters
    ----------
    pipeline, lineage : str
        Its name; Spark's directory that it uses, and the epoch that it began with.
    generation : int
        Of this run.
    store, clock : Store, Clock
        The checkpoint; for the interval.
    ask : callable
        Returns the value.
    every_us : int
        Microseconds between two; 0: never automatically.
    check_fenced : callable
        Raises ``Fenced`` if this run is no longer the owner.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        lineage: str,
        generation: int,
        store: Store,
        clock: Clock,
        ask: Callable[[], Any],
        every_us: int,
        check_fenced: Callable[[], None],
    ) -> None:
        self._pipeline = pipeline
        self._lineage = lineage
        self._generation = generation
        self._store = store
        self._clock = clock
        self._ask = ask
        self._every_us = every_us
        self._check_fenced = check_fenced
        self._asked_us: int | None = None
        self._epoch = 0
        self.latest: Encoded | None = None
        """The value that was kept last by this run."""

    def note(self, epoch: int) -> None:
        """Record the end of an epoch; asks if it is the first one, or time."""
        self._epoch = epoch
        now = self._clock.now_us()
        if self._every_us and (self._asked_us is None or now - self._asked_us >= self._every_us):
            self.keep()
            self._asked_us = now

    def end(self) -> None:
        """Ask a last time: the run has ended well."""
        if self._every_us:
            self.keep()

    def keep(self) -> None:
        """Ask, and keep the value; durable when it returns.

        Raises
        ------
        InvalidPipeline
            If the hook raised, or its value cannot be kept.
        """
        value = encoded(self._ask(), self._pipeline)
        self._check_fenced()
        record = {"epoch": self._epoch, "lineage": self._lineage, "value": value}
        self._store.put(self._key, sealed.dump(record))
        self.latest = value
        for generation, key in numbered(self._store, PREFIX).items():
            if generation < self._generation:
                self._store.delete(key)

    @property
    def _key(self) -> str:
        return f"{PREFIX}{self._generation:08d}.json"
