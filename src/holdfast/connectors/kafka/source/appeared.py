"""Where partitions begin that appeared after the start: recorded at the first look, before anything of them is read.

So a replay reads the same messages, or says which are gone; and never takes for the beginning what retention has left.
"""

from __future__ import annotations

import hashlib
import os

from holdfast.connectors.reading.recorded import Recorded


def begin(workspace: str, name: str, segment: str) -> int | None:
    """Return the offset where a partition begins; None where nothing is recorded.

    Parameters
    ----------
    workspace, name : str
        Of the source.
    segment : str
        The partition.
    """
    return _recorded(workspace, name, segment).start.get(segment)


def record(workspace: str, name: str, segment: str, offset: int) -> None:
    """Record it, unless another process has."""
    _recorded(workspace, name, segment).put_start({segment: offset})


def _recorded(workspace: str, name: str, segment: str) -> Recorded:
    short = hashlib.sha256(segment.encode()).hexdigest()[:24]
    return Recorded(os.path.join(workspace, "found", short), name)
