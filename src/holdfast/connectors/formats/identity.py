"""What distinguishes a file from another one under its name: logged when it is taken, compared when it is read.

Size and time of change, and in an object store its tag: not the inode, which a restored copy never keeps (`cp -a`,
`rsync -a`, `tar`, a move to another disk), while its time is kept, by some with digits missing.  The inode only helps
to say what happened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

_GRAINS_NS = (100, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
"""To what times are cut by copying programs and file systems: Windows' tick, `rsync` and `tar` of old, FAT."""


class FileIdentity(NamedTuple):
    """A file as it was found; each part is None where the file system does not report it.

    Parameters
    ----------
    changed_ns : int, optional
        Time of last change, nanoseconds.
    inode : int, optional
        Number in its file system.
    tag : str, optional
        What an object store assigns to each version of an object (ETag, generation).
    """

    changed_ns: int | None = None
    inode: int | None = None
    tag: str | None = None

    def is_of(self, now: FileIdentity) -> bool:
        """Return whether what is there now can be the file that was found; sizes are compared by the caller.

        Examples
        --------
        >>> FileIdentity(1_700_000_000_123_456_789, 7).is_of(FileIdentity(1_700_000_000_000_000_000, 8))
        True
        >>> FileIdentity(1_700_000_000_123_456_789, 7).is_of(FileIdentity(1_700_000_001_000_000_000, 7))
        False
        """
        if self.tag is not None and now.tag is not None:
            return self.tag == now.tag
        if self.changed_ns is None or now.changed_ns is None:
            return True
        return _is_cut(now.changed_ns, self.changed_ns) or _is_cut(self.changed_ns, now.changed_ns)

    def __str__(self) -> str:
        said = []
        if self.changed_ns is not None:
            moment = datetime.fromtimestamp(self.changed_ns // 10**9).astimezone()
            said.append(f"changed {moment:%Y-%m-%d %H:%M:%S}.{self.changed_ns % 10**9:09d} {moment:%z}")
        if self.inode is not None:
            said.append(f"inode {self.inode}")
        if self.tag is not None:
            said.append(f"version {self.tag}")
        return ", ".join(said)


def of_status(status: os.stat_result) -> FileIdentity:
    """Return the identity of a local file."""
    return FileIdentity(status.st_mtime_ns, status.st_ino)


def of_facts(facts: Mapping[str, Any]) -> FileIdentity:
    """Return the identity of a file by what its fsspec file system says of it.

    Examples
    --------
    >>> of_facts({"ETag": '"5d41"', "LastModified": 1.5})
    FileIdentity(changed_ns=1500000000, inode=None, tag='5d41')
    """
    tag = next((str(facts[key]) for key in ("generation", "ETag", "etag") if facts.get(key)), None)
    changed_us = changed_us_of(facts)
    return FileIdentity(changed_us * 1000 or None, None, None if tag is None else tag.strip('"'))


def changed_us_of(facts: Mapping[str, Any]) -> int:
    """Return the time of change, under whichever name a file system keeps it; 0 when it keeps none."""
    for key in ("LastModified", "last_modified", "mtime", "updated", "modified", "created"):
        match facts.get(key):
            case datetime() as moment:
                return round(moment.timestamp() * 1e6)
            case int() | float() as seconds:
                return round(seconds * 1e6)
            case str() as text:
                return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1e6)
    return 0


def _is_cut(cut_ns: int, whole_ns: int) -> bool:
    """Return whether a time equals another one except for missing digits."""
    return cut_ns == whole_ns or any(cut_ns == whole_ns // grain * grain for grain in _GRAINS_NS)
