"""A time limit for an evaluation: its workers are ended, those of Spark by cancelling its jobs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark import SparkContext

from holdfast.errors import BadRow
from holdfast.spark import private

AGAIN_S = 0.5
"""How often jobs are cancelled once it took too long: another may begin right after one was cancelled."""


@contextmanager
def limited(limit_s: float | None, doing: str, end: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Cancel the jobs that this thread runs in the block when it takes too long; None: it never does.

    Parameters
    ----------
    limit_s : float, optional
        How long it may take.
    doing : str
        What is done, for the error.
    end : callable
        Ends what works outside of jobs.

    Raises
    ------
    BadRow
        If it took too long: a function hangs, as far as can be known here.

    Notes
    -----
    Spark interrupts the task, and two seconds later ends its Python worker.  The jobs are known by a tag, and not by
    their group, which the thread of a query or of a user has for other jobs too.
    """
    context = private.active_context()
    if limit_s is None or context is None:
        yield
        return
    has_ended, is_over = threading.Event(), threading.Event()
    with _tag(context) as tag:

        def cancel() -> None:
            if has_ended.wait(limit_s):
                return
            is_over.set()
            with suppress(Exception):  # the JVM may be gone: then the jobs are, too
                end()
                context.cancelJobsWithTag(tag)
                while not has_ended.wait(AGAIN_S):
                    end()
                    context.cancelJobsWithTag(tag)

        threading.Thread(target=cancel, name="holdfast-limit", daemon=True).start()
        try:
            yield
        except Exception as error:
            if not is_over.is_set():
                raise
            raise BadRow(
                f"{doing} was not done within {limit_s:g} s.",
                why="a function hangs, or needs longer; its workers were ended.",
                do="fix the function, or raise HOLDFAST_POISON_TIMEOUT.",
            ) from error
        finally:
            has_ended.set()


@contextmanager
def _tag(context: SparkContext) -> Iterator[str]:
    """Tag the jobs of this thread, and leave its properties as they were."""
    tag = f"holdfast-{uuid.uuid4().hex}"
    before = context.getLocalProperty(private.INTERRUPT)
    context.addJobTag(tag)
    context.setLocalProperty(private.INTERRUPT, "true")
    try:
        yield tag
    finally:
        with suppress(Exception):  # the JVM may be gone; what the block raised says more
            context.removeJobTag(tag)
            context.setLocalProperty(private.INTERRUPT, before)  # None removes it
