"""Which rows somebody wants to see, as who reads and evaluates is told.

A task of Spark is told by a local property of its job: so the plan is the same in every epoch, and whoever reads, calls
operators or closes chunks asks for it alike.  The planning processes of a run, which read small epochs ahead, are told
by a file beside its stop file.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from pyspark import TaskContext

from holdfast.plan.levels.taps import NO_WISH, Taps, Wish

WISH_PROPERTY = "holdfast.wish"
"""Local property of an epoch's job."""


def wish_of_task() -> Wish:
    """Return which rows are wanted of the task that calls; none outside of a task."""
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(WISH_PROPERTY)
    return json.loads(found) if found else NO_WISH


def taps_here(stop_file: str) -> Taps:
    """Return what takes rows of a source where it is read: in a task, or in the planning process of a run."""
    return Taps(read_wish(stop_file) if TaskContext.get() is None else wish_of_task())


def read_wish(stop_file: str) -> Wish:
    """Return what is wanted of the run with a stop file, for its planning processes."""
    try:
        found: Wish = json.loads(Path(_wish_file(stop_file)).read_bytes())
    except FileNotFoundError:
        return NO_WISH
    return found


def write_wish(stop_file: str, wish: Wish) -> None:
    """Tell its planning processes what is wanted."""
    path = Path(_wish_file(stop_file))
    with suppress(FileNotFoundError):  # the run has ended, and its directory is gone
        if wish:
            path.with_suffix(".new").write_text(json.dumps(wish))
            path.with_suffix(".new").replace(path)
        else:
            path.unlink()


def _wish_file(stop_file: str) -> str:
    return os.path.join(os.path.dirname(stop_file), "wish.json")
