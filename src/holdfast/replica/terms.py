"""What a checkpoint knows of the terms of its pipeline: whether the run before was on it too (design/0028).

Each holder notes its term in its checkpoint before it starts.  Where the term before is not noted there, another
checkpoint has led since: what this one says of positions is old.  A graph without state needs nothing of it, since the
sinks say where they are and what their positions mean; it is set aside.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from holdfast.ports import Store

NOTE = "lease.json"
"""Key, in the checkpoint, of the last term whose holder ran on it."""
ASIDE = "set-aside"
"""Directory in the checkpoint: what was in it before another checkpoint led."""
_FIRST, _LAST = "sources", "spark"
"""A start that finds one without the other is refused; one that finds neither asks the sinks."""


def noted_term(store: Store) -> int:
    """Return the last term whose holder ran on a checkpoint; 0 where none has."""
    data = store.get(NOTE)
    return 0 if data is None else int(json.loads(data)["term"])


def note_term(store: Store, term: int) -> None:
    """Note that the holder of a term runs on a checkpoint."""
    store.put(NOTE, json.dumps({"term": term}).encode())


def set_aside(directory: Path, kept: Collection[str]) -> bool:
    """Move what is in a checkpoint into a directory of it, instead of what was moved before; False: there is nothing.

    Parameters
    ----------
    directory : Path
        The checkpoint.  Nobody runs on it.
    kept : collection of str
        Names whose files stay: what they begin with.

    Notes
    -----
    A crash in here is followed by another one of the same: the term is noted after it.
    """
    stays = (".", ASIDE, NOTE, *kept)
    names = sorted(path.name for path in directory.glob("*") if not path.name.startswith(stays))
    if not names:
        return False
    if _FIRST in names:  # else a crash has moved it already: what is there belongs to the rest
        shutil.rmtree(directory / ASIDE, ignore_errors=True)
    (directory / ASIDE).mkdir(exist_ok=True)
    for name in sorted(names, key=lambda name: (name == _LAST, name != _FIRST)):
        os.replace(directory / name, directory / ASIDE / name)
    return True
