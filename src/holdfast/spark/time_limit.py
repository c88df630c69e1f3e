"""How long an evaluation may take: its Spark jobs are cancelled then, which ends the workers that do them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from holdfast.errors import BadRow

GROUP = "spark.jobGroup.id"


@contextmanager
def limited(limit_s: float | None, doing: str) -> Iterator[None]:
    """Cancel the jobs that this thread runs in the block when it takes too long; None: it never does.

    Raises
    ------
    BadRow
        If it took too long: a function hangs, for all that can be seen from here.

    Notes
    -----
    Spark interrupts the task, and two seconds later ends its Python worker.
    """
    context = SparkContext._active_spark_context
    if limit_s is None or context is None:
        yield
        return
    group = context.getLocalProperty(GROUP)
    if group is None:  # a thread of ours; a stream's own thread has one
        group = f"holdfast-{uuid.uuid4().hex}"
        context.setJobGroup(group, doing, interruptOnCancel=True)
    is_over = threading.Event()

    def cancel() -> None:
        is_over.set()
        context.cancelJobGroup(group)

    timer = threading.Timer(limit_s, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if not is_over.is_set():
            raise
        raise BadRow(
            f"{doing} was not done within {limit_s:g} s.",
            why="a function hangs, or needs longer; its workers were ended.",
            do="mend the function, or raise HOLDFAST_POISON_TIMEOUT.",
        ) from error
    finally:
        timer.cancel()
