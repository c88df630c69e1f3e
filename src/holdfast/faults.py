"""Named points at which a process can be killed: real crashes for tests and for users.

``HOLDFAST_FAULT=<point>[:epoch][@shard]`` kills the process with SIGKILL the first time it reaches the point (of that
epoch, in that shard).
With ``HOLDFAST_FAULT_MARK=<path>`` only the first process dies, which creates that file: a worker that takes over from
a killed one has the same variables.  Without the variable a point costs one dictionary look-up.  ``POINTS`` lists them
all: a test walks the list, so a point that is not listed is refused.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

POINTS: dict[str, str] = {
    "before-stage": "the epoch's positions are fixed, no row of it is durable",
    "stage-write": "an executor has written some rows and staged none (kills the worker process only)",
    "before-state": "an epoch is evaluated, and nothing of what it changed of state counts",
    "after-stage": "every handle is with the driver, nothing is decided",
    "after-decide": "the decision is durable, no sink is published",
    "before-publish": "before a sink's publish",
    "publish-begun": "inside a sink's publish: its own record of intent is durable, its rows are not all visible",
    "publish-uncommitted": "inside a sink's publish: everything is written, its COMMIT is not sent",
    "after-publish": "one sink has published, the next has not",
    "before-forget": "every sink has published, the decision still holds the handles",
    "after-forget": "the epoch is done, Spark's commit log does not know it",
    "snapshot-files": "the files of a snapshot are there, its manifest is not",
    "snapshot-manifest": "the snapshot counts, older ones are not pruned",
    "rejected-kept": "rows that `resolve --reject-rows` rejects are dead letters, the decision still has them",
    "rejected-decided": "the decision is without the rows that `resolve --reject-rows` rejects, not yet published",
    "repair-uncommitted": "inside the repair of a sink: everything is written, its COMMIT is not sent",
    "repaired": "a start has compared a sink and repaired it, and the run has not gone on",
    "columns-uncommitted": "columns are added to a sink's table, its COMMIT is not sent",
    "schema-file-longer": "a run has met members that are no column, its schema file has them, it has not ended",
    "recovery-resolved": "recovery has published or discarded what was in doubt, the query has not started",
}

SNAPSHOT_POINTS = ("before-state", "snapshot-files", "snapshot-manifest")
"""Those that only a pipeline with state reaches."""

RESOLVE_POINTS = ("rejected-kept", "rejected-decided")
"""Those that only ``holdfast resolve --reject-rows`` reaches."""

REPAIR_POINTS = ("repair-uncommitted", "repaired")
"""Those that only the repair of a sink reaches."""

COLUMN_POINTS = ("columns-uncommitted", "schema-file-longer")
"""Those that only a start with columns that a table lacks reaches, or a run with rows that have more than columns."""

Hook = Callable[[str, int], None]
_hook: Hook | None = None
_hook_shard: int | None = None


def install(hook: Hook | None, *, shard: int | None = None) -> None:
    """Install a hook called at every point with ``(point, epoch)``: simulation raises from it.  None removes it.

    With ``shard`` it is called only at points that this shard reaches.
    """
    global _hook, _hook_shard
    _hook, _hook_shard = hook, shard


def reach(point: str, epoch: int, pipeline: str = "") -> None:
    """Die here if ``HOLDFAST_FAULT`` names this point (and epoch, and shard, when it gives them).

    Parameters
    ----------
    point : str
        A key of ``POINTS``.
    epoch : int
        The epoch at work.
    pipeline : str
        Its pipeline, or the shard of one.

    Notes
    -----
    Runs on the driver and, for ``stage-write``, on executors.
    """
    if point not in POINTS:
        raise ValueError(f"{point!r} is not listed in faults.POINTS")
    if _hook is not None and _hook_shard in (None, _shard_of(pipeline)):
        _hook(point, epoch)
    wanted = os.environ.get("HOLDFAST_FAULT")
    if wanted and _matches(wanted, point, epoch, _shard_of(pipeline)) and _is_first():
        os.kill(os.getpid(), signal.SIGKILL)


def obstacle(wanted: str) -> str:
    """Return why a value of ``HOLDFAST_FAULT`` has no effect; empty where it names a point, and perhaps more.

    Examples
    --------
    >>> obstacle("after-decide:5@2"), obstacle("after-decide:five")
    ('', "'five' is not an epoch: write for instance after-decide:3")
    """
    wanted, at, shard = wanted.partition("@")
    name, _, number = wanted.partition(":")
    if name not in POINTS:
        return f"{name!r} is not a crash point; there are {', '.join(POINTS)}"
    if at and not shard.isdecimal():
        return f"{shard!r} is not a shard: write for instance {wanted}@1"
    is_epoch = number.isdecimal() and str(int(number)) == number
    return f"{number!r} is not an epoch: write for instance {name}:3" if number and not is_epoch else ""


def _is_first() -> bool:
    """Return whether no process has died here yet; without ``HOLDFAST_FAULT_MARK`` every process does."""
    mark = os.environ.get("HOLDFAST_FAULT_MARK")
    if not mark:
        return True
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _matches(wanted: str, point: str, epoch: int, shard: int) -> bool:
    wanted, _, in_shard = wanted.partition("@")
    name, _, number = wanted.partition(":")
    return name == point and number in ("", str(epoch)) and in_shard in ("", str(shard))


def _shard_of(pipeline: str) -> int:
    # As holdfast.shards.naming, which is above this module.
    number = pipeline.rpartition("-")[2]
    return int(number) if number.isdecimal() and "-" in pipeline else 0
