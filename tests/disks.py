"""Disks that are full, and users whom permissions bind, for tests."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534
_SIZE_BYTES = 2**20


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """Yield a place that holds a megabyte: a file system of its own where we may mount one, else a limit on files."""
    directory.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES}", "holdfast-test", os.fspath(directory)]
    if os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            yield directory
        finally:
            subprocess.run(["umount", "-l", os.fspath(directory)], check=True)
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_SIZE_BYTES, limits[1]))
    try:
        yield directory
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Run the block as a user whom permissions bind."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
