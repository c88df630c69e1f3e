"""Reaching the process of a model: who gets the lock starts one, and leaves the lock to it.

Invariant: the lock is held exactly as long as a process lives, or is being started by one that lives.  The kernel frees
it however that ends, so nobody judges by time whether a process is dead.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import holdfast
from holdfast.errors import Unavailable, from_text
from holdfast.models.declaration import Declaration
from holdfast.models.place import ModelPlace
from holdfast.models.wire import LISTENS

LOOK_S = 0.02
"""How often is looked whether a process that another one starts listens."""

OF_WORKERS = ("OMP_NUM_THREADS",)
"""Variables that Spark sets for its workers: a process that one of them starts is no worker."""

LOG_SHOWN = 300
"""Characters of the log's end in a message."""


def reach(declared: Declaration, place: ModelPlace, end_s: float) -> None:
    """Return when the process of a model listens; start it where none lives.

    Parameters
    ----------
    declared : Declaration
        The model.
    place : ModelPlace
        Its place.
    end_s : float
        When to give up, by ``time.monotonic``.

    Raises
    ------
    InvalidPipeline
        If the model cannot be loaded.
    Unavailable
        If its process dies before it listens, or takes too long.
    """
    while not place.is_listening():
        lock = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end_s:
                raise _too_long(declared, place) from None
            time.sleep(LOOK_S)
        else:
            _start(declared, place, lock, end_s)
        finally:
            os.close(lock)


def _start(declared: Declaration, place: ModelPlace, lock: int, end_s: float) -> None:
    from holdfast.spark import private  # imports pyspark, for its cloudpickle: only where a process is started

    died = int((os.pread(lock, 40, 0).split() or [b"0"])[0])
    told = (sys.path, private.pickled(declared), lock, died)
    with suppress(FileNotFoundError):
        place.log.rename(place.log_before)
    with os.fdopen(os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.models.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
            env=_environment(),
        )
    with process:
        try:
            answer, _ = process.communicate(pickle.dumps(told), timeout=max(LOOK_S, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise _too_long(declared, place) from None
    if answer == LISTENS:
        return
    told_error = from_text(answer.decode(errors="replace"))
    if told_error is not None:
        raise told_error
    text = answer.decode(errors="replace") or place.log.read_text(errors="replace")[-LOG_SHOWN:].strip()
    raise Unavailable(
        f"The process of model {declared.name!r} ended before it could be called.",
        why=f"the last that it said: {text or 'nothing'}.",
        do=f"look into {place.log}, and at the memory of this host; then start again.",
        participant=declared.name,
    )


def _too_long(declared: Declaration, place: ModelPlace) -> Unavailable:
    return Unavailable(
        f"Model {declared.name!r} is still being loaded after {declared.timeout_s:g} s.",
        why="its process lives, and does not listen yet.",
        do=f'look into {place.log}; a model that takes longer needs a longer timeout="30 min".',
        participant=declared.name,
    )


def _environment() -> dict[str, str]:
    root = str(Path(holdfast.__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {name: value for name, value in os.environ.items() if name not in OF_WORKERS} | {"PYTHONPATH": path}
