"""Who took a pipeline over: recorded with each generation, for inspection and so that no live run is fenced by mistake.

A process of this host is alive or it is not; of one on another host nothing is known.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from holdfast.ports import Store
from holdfast.store import records
from holdfast.store.paths import numbered

GENERATIONS = "generations/"
"""Prefix of the records, one for each generation."""


@dataclass(frozen=True)
class Owner:
    """Who took the pipeline over last.

    Parameters
    ----------
    generation : int
        Generation of that run; 0 when none has.
    at_us : int
        When it took over, microseconds of Unix time.
    host, pid
        Where it ran.
    is_alive : bool, optional
        Whether that process runs on this host; None when it is another host.
    is_of_this_machine : bool
        Whether it ran where we run, not only under the same name: since the same boot, in the same container.
    """

    generation: int = 0
    at_us: int = 0
    host: str = ""
    pid: int = 0
    is_alive: bool | None = None
    is_of_this_machine: bool = False

    @property
    def is_this_process(self) -> bool:
        """Whether it is the process that asks."""
        return (self.host, self.pid) == (socket.gethostname(), os.getpid())


@dataclass(frozen=True)
class _Process:
    at_us: int = 0
    host: str = ""
    pid: int = 0
    run: str = ""
    machine: str = ""
    began: str = ""


def noted_owner(store: Store) -> Owner:
    """Return who took the pipeline of a checkpoint over last.  Reads only.

    Raises
    ------
    Corrupt
        If the record cannot be read.
    """
    newest = max(numbered(store, GENERATIONS).items(), default=None)
    if newest is None:
        return Owner()
    generation, key = newest
    data = store.get(key)  # None: pruned since it was listed
    do = f"restore {key!r} from a copy of the checkpoint; delete nothing."
    says = "it says which process took the pipeline over"
    who = _Process() if data is None else records.load(_Process, data, key=key, says=says, do=do)
    is_here = who.machine != "" and who.machine == _machine()
    is_alive = _is_alive(who.host, who.pid, who.began if is_here else "")
    return Owner(generation, who.at_us, who.host, who.pid, is_alive, is_here)


def this_process(at_us: int) -> bytes:
    """Return the record of this process, which takes over now."""
    # host, pid: for inspection.  machine, began: to know whether that process is alive, in containers too, where hosts
    # have equal names and processes get numbers again.  run: distinguishes our own object from another's when the reply
    # to the put was lost.
    pid = os.getpid()
    who = _Process(at_us, socket.gethostname(), pid, secrets.token_hex(8), _machine(), _began(pid))
    return json.dumps(records.plain(who)).encode()


def _is_alive(host: str, pid: int, began: str) -> bool | None:
    """Return whether a process that began then runs on this host; None when it is another host."""
    if host != socket.gethostname() or pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if _stat(pid)[:1] == ["Z"]:  # it has ended, and who started it has not asked yet
        return False
    return not began or _began(pid) in ("", began)  # else the number is another process's


def _machine() -> str:
    """Return an identity of this boot of this machine, and of this container on it; empty: unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Return when a process began, in the kernel's ticks since the boot; empty: unknown."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _stat(pid: int) -> list[str]:
    """Return what the kernel says of a process, from its state on; empty: nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
