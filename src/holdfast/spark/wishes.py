"""Which rows somebody wants to see, as a task of Spark is told: by a local property of its job.

So the plan is the same in every epoch, and whoever reads, calls operators or closes chunks asks for it alike.
"""

from __future__ import annotations

import json

from pyspark import TaskContext

from holdfast.plan.levels.taps import NO_WISH, Taps, Wish, read_wish

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
