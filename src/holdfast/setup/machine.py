"""Checks of the machine: Python, Java, memory, clock, its name, its ports."""

from __future__ import annotations

import os
import platform
import queue
import socket
import sys
import threading
import time
import zoneinfo
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from holdfast.errors import InvalidPipeline
from holdfast.setup.finding import Finding, of_amount, size
from holdfast.setup.places import file_beside
from holdfast.spark.launch.class_archive import available_bytes
from holdfast.spark.launch.java import require_java

PYTHON_TESTED = (3, 14)
MEMORY_FAIL, MEMORY_WARN = 1 << 30, 2 << 30
MEMORY_UNKNOWN = 1 << 61
RELEASE = datetime(2026, 1, 1, tzinfo=UTC)
"""No clock that is right shows an earlier time."""
SKEW_MAX_S = 2.0
ANSWER_MAX_S = 2.0
"""How long a look-up of the host's name may take."""


def python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """Whether this Python is one of those that are tested."""
    found = f"{platform.python_version()}, {sys.executable}"
    if version > PYTHON_TESTED:
        newest = ".".join(map(str, PYTHON_TESTED))
        return Finding("python", "warn", found, f"nothing, if it works; Holdfast is tested up to {newest}.")
    return Finding("python", "ok", found)


def java(environ: Mapping[str, str] | None = None) -> Finding:
    """Whether there is a Java that Spark runs on."""
    try:
        found = require_java(dict(os.environ if environ is None else environ))
    except InvalidPipeline as error:
        return Finding("java", "fail", f"{error.what} {error.why}", " ".join((error.do or "").split()))
    return Finding("java", "ok", f"{found.version} from {found.origin}: {found.home}")


def memory(available: int | None = None) -> Finding:
    """Whether a JVM, its Python workers and this process have room."""
    free = available_bytes() if available is None else available
    if free > MEMORY_UNKNOWN:
        return Finding("memory", "ok", "the system does not say how much is free")
    return of_amount(
        "memory",
        free,
        fail=MEMORY_FAIL,
        warn=MEMORY_WARN,
        found=f"{size(free)} free",
        cure="end other programs, or give the machine or container more: a run takes 1 to 2 GB.",
    )


def clock(directory: Path, now: Callable[[], float] = time.time) -> Finding:
    """Whether the time is plausible, file servers agree with it, and names of time zones are known."""
    shown = datetime.fromtimestamp(now(), UTC)
    cure = "set the clock, and let it be kept: timedatectl set-ntp true."
    if shown < RELEASE:
        return Finding("clock", "fail", f"it shows {shown:%Y-%m-%d}, before this version was made", cure)
    try:
        with file_beside(directory) as file:
            skew_s = file.stat().st_mtime - now()
    except OSError:
        skew_s = 0.0  # the check of permissions says so
    if abs(skew_s) > SKEW_MAX_S:
        found = f"files in {directory} are dated {abs(skew_s):.0f} s {'later' if skew_s > 0 else 'earlier'}"
        return Finding("clock", "warn", found, f"let the file server keep its clock too; here: {cure}")
    try:
        zoneinfo.ZoneInfo("Europe/Berlin")
    except (zoneinfo.ZoneInfoNotFoundError, OSError):
        return Finding("clock", "warn", "names of time zones are not known here", "pip install tzdata")
    return Finding("clock", "ok", f"{shown:%Y-%m-%dT%H:%M:%SZ}")


def host(
    name: str | None = None,
    resolve: Callable[[str], str] = socket.gethostbyname,
    environ: Mapping[str, str] | None = None,
) -> Finding:
    """Whether the machine's own name has an address: Spark asks for it."""
    environ = os.environ if environ is None else environ
    if fixed := environ.get("SPARK_LOCAL_IP") or environ.get("SPARK_LOCAL_HOSTNAME"):
        return Finding("host", "ok", f"Spark is told to use {fixed}")
    name = socket.gethostname() if name is None else name
    answers: queue.Queue[str | OSError] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(resolve(name))
        except (OSError, UnicodeError) as error:
            answers.put(OSError(str(error)))

    threading.Thread(target=ask, daemon=True).start()
    cure = f"add a line to /etc/hosts: 127.0.0.1 {name}; or export SPARK_LOCAL_HOSTNAME=localhost"
    try:
        answer = answers.get(timeout=ANSWER_MAX_S)
    except queue.Empty:
        return Finding("host", "warn", f"the address of {name} is not known after {ANSWER_MAX_S:.0f} s", cure)
    if isinstance(answer, OSError):
        return Finding("host", "warn", f"{name} has no address: {answer}", cure)
    return Finding("host", "ok", f"{name} is {answer}")


def ports(address: str = "127.0.0.1") -> Finding:
    """Whether processes of this machine reach each other: Python and the JVM do, by ports of loopback."""
    try:
        with socket.create_server((address, 0)) as server:
            server.settimeout(ANSWER_MAX_S)
            with socket.create_connection(server.getsockname(), timeout=ANSWER_MAX_S):
                server.accept()[0].close()
            port = server.getsockname()[1]
    except OSError as error:
        cure = "bring loopback up (ip link set lo up), and let no firewall close it."
        return Finding("ports", "fail", f"{address} takes no connection: {error}", cure)
    return Finding("ports", "ok", f"{address} takes connections (tried port {port})")
