"""Trials: a part of an epoch is evaluated, and nothing is published.

Where an Arrow program evaluates the pipeline, a trial is a job over some of the rows; of a small epoch with functions
of the user it is tried without a job first, in a process beside the driver, as the run would.  Otherwise it is a query
over a *copy* of Spark's directory, which evaluates the planned batch as the run would, and is stopped before the batch
ends: stores of state must not see rows that are then left out.

All sinks take part, since they refuse rows too: their writers stage, and then each is asked whether it admits the
epoch.  What was staged is swept like the orphans of any dead run.

A time limit for an evaluation: its workers are ended, those of Spark by cancelling its jobs.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame

from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.spark_log import Offsets, last_logged, read_offsets
from holdfast.commit.coordinator import Coordinator
from holdfast.errors import BadRow, Unavailable, invariant
from holdfast.ports import EpochRecord, Sink
from holdfast.positions import Positions
from holdfast.quarantine.mask import GivenRows, Mask, Passing, write_masks
from holdfast.spark import private
from holdfast.spark.evaluation import Evaluated, Evaluation, is_small
from holdfast.spark.kept_worker import KeptWorker
from holdfast.spark.staging import TaskStaging
from holdfast.spark.state.evaluation import StateEvaluation

log = logging.getLogger("holdfast.poison")

_NO_FRAME: Any = None
"""A program reads its rows itself."""

COPY = ".trial"
"""Below the checkpoint: the copy of Spark's directory that trials use; no object of the store."""


@dataclass(frozen=True)
class Planned:
    """The epoch that is planned and not finished."""

    batch: int
    epoch: int
    start: Offsets
    end: Offsets


def clear_copy(checkpoint: Path) -> None:
    """Remove the copy left by a process that was killed in a trial: its links keep old state on the disk."""
    shutil.rmtree(checkpoint / COPY, ignore_errors=True)


def planned(spark: Path, header: DirectoryHeader) -> Planned | None:
    """Return the epoch that Spark's next query begins with, where it has begun before; else None."""
    offsets, commits = last_logged(spark, "offsets"), last_logged(spark, "commits")
    if offsets <= commits:
        return None
    start = read_offsets(spark, offsets - 1) if offsets else Offsets(header.start, {}, {}, {})
    return Planned(offsets, header.base + offsets, start, read_offsets(spark, offsets))


def reads_on(spark: Path, header: DirectoryHeader) -> Positions:
    """Return where Spark's next query begins to read: after its last finished batch."""
    finished = last_logged(spark, "commits")
    return read_offsets(spark, finished).positions if finished >= 0 else header.start


@dataclass(frozen=True)
class Trials:
    """Evaluates parts of an epoch and publishes nothing.

    Parameters
    ----------
    pipeline : str
        Its name.
    frame : DataFrame, optional
        The pipeline's plan; None where an Arrow program evaluates it: then a trial is a job.
    evaluation : callable
        Returns, given masks and what passes behind state, how batches are evaluated.
    sinks, coordinator : mapping of str to Sink, Coordinator
        Where rows would go; opened.
    spark, copy : Path
        Spark's directory, and where its copy goes.
    masks_file : str
        Where planning processes look for masks.
    header : DirectoryHeader
        How the directory began.
    limit_s : float, optional
        How long a trial may take.
    carry_bytes : int
        Up to which size the run evaluates epochs without a job.
    """

    pipeline: str
    frame: DataFrame | None
    evaluation: Callable[[Mapping[str, Mask], Passing], Evaluation]
    sinks: Mapping[str, Sink]
    coordinator: Coordinator
    spark: Path
    copy: Path
    masks_file: str
    header: DirectoryHeader
    limit_s: float | None = None
    carry_bytes: int = 0

    def make(self, epoch: Planned, masks: Mapping[str, Mask], passing: Passing) -> Mapping[str, GivenRows]:
        """Evaluate an epoch with masks; raises what the evaluation raises.

        Parameters
        ----------
        epoch : Planned
            The epoch.
        masks : mapping of str to Mask
            What of each source is read.
        passing : Passing
            What passes behind operators with state.

        Returns
        -------
        mapping of str to GivenRows
            What the outputs of these operators gave.
        """
        evaluation = self.evaluation(masks, passing)
        writers = {name: sink.writer_factory() for name, sink in self.sinks.items()}
        staging = TaskStaging(self.pipeline, self.coordinator.generation, epoch.epoch, writers)
        try:
            if self.frame is None:
                self._admit(
                    epoch, self._without_job(evaluation, epoch) or self._staged(_NO_FRAME, evaluation, epoch, staging)
                )
                return {}
            self.clear()
            # The journal of state is read where it is: nothing is added to it here.
            shutil.copytree(self.spark, self.copy, copy_function=_link, ignore=shutil.ignore_patterns("journal"))
            write_masks(self.masks_file, masks)
            return self._evaluate(self.frame, evaluation, epoch, staging)
        finally:
            self.clear()
            with suppress(Unavailable):  # or later: no decision names what was staged
                self.coordinator.sweep(epoch.epoch + 1)

    def _without_job(self, evaluation: Evaluation, epoch: Planned) -> Evaluated | None:
        """Evaluate a small epoch in a kept worker; None where that fails, or is not where the run evaluates it.

        The first job of a session, and its workers, cost other queries of the session seconds of processor time; most
        trials pass, since a probe has found the rows before.  What fails here fails in a job again, which tells how.
        """
        here = evaluation.here
        if not isinstance(here, KeptWorker) or not is_small(here, epoch.start, epoch.end, self.carry_bytes):
            return None
        try:
            here.begin_worker()
            with limited(self.limit_s, f"a trial of epoch {epoch.epoch}", here.end_worker):
                return evaluation.carry(_NO_FRAME, epoch.start.positions, epoch.end.positions, frozenset(self.sinks))
        except Exception:
            log.debug("a trial of epoch %d has failed beside the driver: it becomes a job", epoch.epoch, exc_info=True)
            return None
        finally:
            here.end_worker()

    def _staged(self, batch: DataFrame, evaluation: Evaluation, epoch: Planned, staging: TaskStaging) -> Evaluated:
        with limited(self.limit_s, f"a trial of epoch {epoch.epoch}"):
            return evaluation.stage(batch, epoch.start.positions, epoch.end.positions, staging)

    def _admit(self, epoch: Planned, evaluated: Evaluated) -> None:
        record = EpochRecord(self.pipeline, epoch.epoch, self.coordinator.generation, epoch.end.positions)
        self.coordinator.admit(record, evaluated.parts)

    def clear(self) -> None:
        """Remove what a trial leaves, here or in a process that was killed."""
        shutil.rmtree(self.copy, ignore_errors=True)
        Path(self.masks_file).unlink(missing_ok=True)  # of a part of the epoch

    def _evaluate(
        self, frame: DataFrame, evaluation: Evaluation, epoch: Planned, staging: TaskStaging
    ) -> Mapping[str, GivenRows]:
        failures: list[BaseException] = []
        passed: list[Mapping[str, GivenRows]] = []

        def evaluate(batch: DataFrame, batch_id: int) -> None:
            try:
                if isinstance(evaluation, StateEvaluation):
                    at = self.header.step_time(batch_id, epoch.end.batch_us)
                    evaluation.begin(batch, epoch.epoch, batch_id, at, epoch.end.positions)
                evaluated = self._staged(batch, evaluation, epoch, staging)
                self._admit(epoch, evaluated)
                passed.append(evaluated.report.outlets)
            except Exception as failure:
                failures.append(failure)
            raise _TrialOver

        writer = frame.writeStream.foreachBatch(evaluate).outputMode("append")
        query = writer.option("checkpointLocation", str(self.copy)).trigger(processingTime="1 day").start()
        try:
            query.awaitTermination()
        except Exception as failure:
            if not passed and not failures:
                failures.append(failure)  # before the batch: where its rows are read
        finally:
            with suppress(Exception):  # the JVM may be gone
                query.stop()
        if failures:
            raise failures[0]
        invariant(passed, f"a trial of epoch {epoch.epoch} ended before its batch.", pipeline=self.pipeline)
        return passed[0]


class _TrialOver(Exception):
    """Ends the batch of a trial before Spark takes it for done."""


def _link(source: str, target: str) -> str:
    """Copy a file of Spark's directory: Spark replaces files and never changes one, so a link to it is a copy."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
    return target


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
