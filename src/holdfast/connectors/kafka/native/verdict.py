"""Whether the native functions are trusted on this machine: tried in a child process, once for each exact library.

Invariant: but for this module and ``clients`` nothing of this package is loaded without a verdict in its favour, except
in the child: a wrong constant ends that one, and neither a driver nor an executor.

What they lean on are layouts in memory.  So only versions that were tried with all tests have a verdict at all; one of
these is tried again on each machine (another build, another Python), in about half a second, and what came of it is
kept in the user's cache directory.  Where that cannot be written each process tries for itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import numpy as np
import pyarrow as pa
from confluent_kafka import cimpl

from holdfast.connectors.kafka.brokers import NATIVE
from holdfast.errors import HoldfastError
from holdfast.store import durable
from holdfast.store.paths import user_cache

log = logging.getLogger("holdfast.connectors.kafka")

TRIED = {
    *(("2.11.0", "2.11.0"), ("2.11.1", "2.11.1"), ("2.12.0", "2.12.0"), ("2.12.1", "2.12.1"), ("2.12.2", "2.12.1")),
    *(("2.13.0", "2.13.0"), ("2.13.2", "2.13.2"), ("2.14.0", "2.14.0"), ("2.14.2", "2.14.2"), ("2.15.0", "2.15.0")),
    *(("2.15.1", "2.15.1"), ("2.16.0", "2.16.0"), ("2.16.1", "2.16.0")),
}
"""Versions of confluent-kafka, and of the librdkafka in it.  A new one: see CONTRIBUTING."""

TIMEOUT_S = 60.0
"""A trial takes half a second; beside much other work some."""

AGREES = "agrees"
"""What the child says where it has found no difference."""

COMMAND = (sys.executable, "-P", "-m", "holdfast.connectors.kafka.native.trial")

_OF_LIBRARY = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"}
"""What a wrong layout leads to.  Other signals come from others (memory is short, a terminal is closed): a trial that
they end says nothing, and is repeated by the next process."""

_OVERWRITTEN = {"MALLOC_PERTURB_": "165"}
"""Memory that is let go is overwritten (glibc): what is read from there is seen to be wrong."""

_lock = threading.Lock()
_level = logging.DEBUG
"""How loudly a verdict against the native functions is said: by a driver, and not once more by each of its workers."""


class TrialResult(NamedTuple):
    """What came of a trial.

    Parameters
    ----------
    why : str
        Why the native functions are not trusted; empty: they are.
    is_kept : bool
        Whether it holds for other processes, too.
    """

    why: str
    is_kept: bool = True


def is_trusted() -> bool:
    """Return whether native functions may be used; the first process of a machine to ask has them tried, and waits."""
    with _lock:
        return not _verdict().why


def prepare() -> None:
    """Ask in the background, on a driver: it waits less later, and says in its log what is against the functions."""
    global _level
    _level = logging.WARNING
    threading.Thread(target=is_trusted, name="kafka-native", daemon=True).start()


@cache
def _verdict() -> TrialResult:
    """Return the verdict, and say why where it is against the native functions."""
    versions = _versions()
    if versions not in TRIED:
        newest = max(TRIED, key=lambda each: [*map(int, each[0].split("."))])[0]
        why = "confluent-kafka {} with librdkafka {} is none of the versions that were tried".format(*versions)
        return _say(TrialResult(why), f"install one that was: pip install confluent-kafka=={newest}", _level)
    path = _path(versions)
    known = None if path is None else _read(path)
    found = known or _try()
    if path is not None and known is None and found.is_kept:
        with suppress(HoldfastError, OSError):
            _write(path, found)
    again = f", or remove {path} to have it tried again" if found.is_kept and path is not None else ""
    return _say(found, f"report it, with the versions{again}", _level if known else logging.WARNING)


def _versions() -> tuple[str, str]:
    """Return the versions of confluent-kafka and of its librdkafka."""
    library: str | tuple[str, int] = confluent_kafka.libversion()
    return confluent_kafka.__version__, library if isinstance(library, str) else library[0]


def _say(verdict: TrialResult, cure: str, level: int) -> TrialResult:
    if verdict.why:
        log.log(
            level,
            "Kafka messages are read and written by confluent-kafka's own functions, with the same result, but slower: "
            "%s.  Do: %s; %s=off says that it is meant so.",
            verdict.why,
            cure,
            NATIVE,
        )
    return verdict


def _path(versions: tuple[str, str]) -> Path | None:
    """Return where the verdict on exactly this library, this Python and these modules is kept; None for nowhere."""
    here = (platform.python_implementation(), platform.python_version(), sys.platform, platform.machine())
    digest = hashlib.sha256(repr((versions, here, platform.libc_ver(), np.__version__, pa.__version__)).encode())
    try:
        for file in (Path(cimpl.__file__), *sorted(Path(__file__).parent.glob("*.py"))):
            found = file.stat()
            digest.update(f"{file} {found.st_size} {found.st_mtime_ns}".encode())
        return user_cache() / f"kafka-native-{'-'.join(versions)}-{digest.hexdigest()[:16]}.json"
    except (OSError, RuntimeError):  # a package within an archive; no home
        return None


def _read(path: Path) -> TrialResult | None:
    try:
        return TrialResult(str(json.loads(path.read_bytes())["why"]))
    except (OSError, ValueError, TypeError, KeyError):  # none, or not one of ours
        return None


def _write(path: Path, verdict: TrialResult) -> None:
    """Keep a verdict for other processes: the file is whole, or absent."""
    directory = str(path.parent)
    durable.make_directory(directory)
    durable.replace(str(path), json.dumps({"why": verdict.why}).encode(), aside=directory)


def _try() -> TrialResult:
    """Try the native functions in a child process."""
    roots = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    try:
        child = subprocess.Popen(
            COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **_OVERWRITTEN, "PYTHONPATH": roots},
            start_new_session=True,  # a key that ends the run says nothing about the library
        )
    except OSError as error:
        return TrialResult(f"no process could be started to try the native ones: {error}", is_kept=False)
    try:
        said, complained = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return TrialResult(f"the native ones, tried in a process of their own, had not ended after {TIMEOUT_S:g} s")
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        why = f"the native ones, tried in a process of their own, ended it ({name})"
        return TrialResult(why, is_kept=name in _OF_LIBRARY)
    last = (complained if child.returncode else said).decode(errors="replace").strip().rpartition("\n")[2]
    if child.returncode or not last:
        return TrialResult(f"the native ones could not be tried ({last or 'the process said nothing'})", is_kept=False)
    return TrialResult("" if last == AGREES else f"the native ones, tried in a process of their own, differ: {last}")
