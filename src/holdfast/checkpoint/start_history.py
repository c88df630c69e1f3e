"""The last starts of a pipeline, for people: which row of the table decided each.  Nothing depends on them.

Objects ``starts/<generation>.json``, put when a run has begun; the last :data:`KEPT` stay.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.ports import Store
from holdfast.store import records
from holdfast.store.paths import numbered

log = logging.getLogger("holdfast.checkpoint")

PREFIX = "starts/"
KEPT = 100


@dataclass(frozen=True)
class StartLine:
    """One start.

    Parameters
    ----------
    generation : int
        Of its run.
    at_us : int
        When it had begun, microseconds of Unix time.
    row, way : str
        The letter of the row, and what was done.
    keeps, reads, gives : str
        What became of state, sources and sinks.
    why : str
        Which crash or change leads there.
    """

    generation: int
    at_us: int
    row: str
    way: str
    keeps: str = ""
    reads: str = ""
    gives: str = ""
    why: str = ""


def note_start(store: Store, line: StartLine) -> None:
    """Note a start whose run has begun; if that cannot be, log why."""
    try:
        store.put(f"{PREFIX}{line.generation:08d}.json", json.dumps(records.plain(line)).encode())
        for key in [*numbered(store, PREFIX).values()][:-KEPT]:
            store.delete(key)
    except HoldfastError as error:
        log.warning("the start is not noted, and the run goes on: %s", error.what)


def noted_starts(store: Store) -> Sequence[StartLine]:
    """Return the last starts, the newest first; what cannot be read is left out."""
    found = []
    for key in reversed(numbered(store, PREFIX).values()):
        try:
            found.append(records.read(StartLine, json.loads(store.get(key) or b"")))
        except ValueError:
            continue
    return found
