"""Checks of directories: who may write, what locks hold, how much there is room for."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast.setup.finding import Finding, of_amount, size

DISK_FAIL, DISK_WARN = 200 << 20, 2 << 30
TEMPORARY_WARN = 1 << 30
FILES_LEFT_MIN = 10_000
SHARED = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.rclone",
    "lustre",
)
"""File systems whose locks and renames are a server's, or nobody's."""

_TAKES_LOCK = (
    "import fcntl, sys\n"
    "with open(sys.argv[1]) as file:\n"
    "    try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    "    except OSError: sys.exit(7)\n"
)


def existing(directory: Path) -> Path:
    """Return a directory, or the nearest one above it that is there."""
    return next(place for place in (directory.absolute(), *directory.absolute().parents) if place.exists())


@contextmanager
def file_beside(directory: Path) -> Iterator[Path]:
    """Make a hidden file in a directory, or where it would be made; remove it behind the block."""
    descriptor, name = tempfile.mkstemp(prefix=".holdfast-doctor-", dir=existing(directory))
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def permissions(directory: Path) -> Finding:
    """Whether files can be written there, made durable and renamed."""
    place = existing(directory)
    cure = f"let it be yours (chown {os.environ.get('USER', '$USER')} {place}), or name another: --checkpoint DIR"
    try:
        with file_beside(directory) as file:
            with file.open("wb") as content:
                content.write(b"x")
                content.flush()
                os.fsync(content.fileno())
            renamed = file.with_suffix(".renamed")
            file.rename(renamed)
            renamed.unlink()
    except OSError as error:
        return Finding("permissions", "fail", f"{place} cannot be written: {error.strerror or error}", cure)
    owner = place.stat().st_uid
    if owner != os.getuid() and os.getuid() != 0:
        return Finding("permissions", "warn", f"{place} belongs to user {owner}, who can change what runs", cure)
    return Finding("permissions", "ok", f"{place} can be written")


def locks(directory: Path) -> Finding:
    """Whether a lock that one process holds keeps others out, and SQLite's do."""
    place = existing(directory)
    cure = "put the checkpoint on a disk of this machine, or into an object store (docs/object-stores.md)."
    try:
        with file_beside(directory) as file:
            if not _keeps_others_out(file):
                return Finding("locks", "fail", f"two processes get one lock in {place}", cure)
            if not _locks_databases(file.with_suffix(".db")):
                return Finding("locks", "fail", f"two connections of SQLite write one database in {place}", cure)
    except (OSError, sqlite3.Error) as error:
        return Finding("locks", "fail", f"no lock can be taken in {place}: {error}", cure)
    if (kind := file_system(place)) in SHARED:
        return Finding("locks", "warn", f"{place} is of the network ({kind}): its locks are the server's", cure)
    return Finding("locks", "ok", f"{place} keeps others out" + (f" ({kind})" if kind else ""))


def disk(directory: Path) -> Finding:
    """Whether there is room for a checkpoint."""
    place = existing(directory)
    cure = "remove something, or name another directory: --checkpoint DIR"
    numbers = os.statvfs(place)
    if numbers.f_files and numbers.f_favail < FILES_LEFT_MIN:
        return Finding("disk", "warn", f"{numbers.f_favail:,} more files fit into {place}", cure)
    free = shutil.disk_usage(place).free
    return of_amount("disk", free, fail=DISK_FAIL, warn=DISK_WARN, found=f"{size(free)} free in {place}", cure=cure)


def temporary() -> Finding:
    """Whether there is room for what Spark and its workers write and remove."""
    cure = "remove something, or name another directory: export TMPDIR=DIR"
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding("temporary", "fail", f"no temporary file can be made: {error}", "export TMPDIR=DIR")
    free = shutil.disk_usage(place).free
    found = f"{size(free)} free in {place}"
    return of_amount("temporary", free, fail=DISK_FAIL, warn=TEMPORARY_WARN, found=found, cure=cure)


def file_system(place: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the kind of file system of a directory; empty where the system does not say."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    above = {str(place.resolve()), *map(str, place.resolve().parents)}
    found = [(len(mounted), kind) for _, mounted, kind, *_ in lines if mounted.replace("\\040", " ") in above]
    return max(found, default=(0, ""), key=lambda one: one[0])[1]


def _keeps_others_out(file: Path) -> bool:
    with file.open() as ours:
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = subprocess.run([sys.executable, "-S", "-E", "-c", _TAKES_LOCK, str(file)], timeout=60, check=False)
    return other.returncode == 7


def _locks_databases(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(file)) as one, closing(sqlite3.connect(file, timeout=0)) as other:
            one.execute("PRAGMA journal_mode = WAL")
            one.execute("BEGIN IMMEDIATE")
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            return False
    finally:
        for path in file.parent.glob(f"{file.name}*"):
            path.unlink(missing_ok=True)
