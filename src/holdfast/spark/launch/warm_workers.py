"""Spark's first job, run before one is needed: an empty job, beside the rest of a start.

The first job of a JVM takes half a second for its classes, and for the first Python worker.  An epoch that executors
stage would wait for both; while a start compiles its plan and asks the sinks, a core has nothing to do.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.run")


def has_idle_core() -> bool:
    """Tell whether a core has nothing to do: on a busy machine a start would wait for what is to shorten it."""
    return os.getloadavg()[0] < (os.cpu_count() or 1)


def warm_workers(session: SparkSession, parallelism: int, task: object | None) -> None:
    """Run a job of nothing in the background, in as many Python workers as tasks can run at a time.

    Parameters
    ----------
    session : SparkSession
        Of the run.
    parallelism : int
        Tasks that can run at a time.
    task : object, optional
        What an RDD will run in them, or its class: they import what it needs.  None: they are for plans of Spark, which
        has others for these.
    """

    def run() -> None:
        try:
            if task is not None:
                tasks = session.sparkContext.parallelize(range(parallelism), parallelism)
                tasks.mapPartitions(partial(_nothing_of, task)).collect()
            else:
                session.range(0, parallelism, 1, parallelism).mapInArrow(_nothing, "nothing BIGINT").collect()
        except Exception as error:  # whatever it is, the first epoch meets it too, and says so
            log.debug("Spark's workers are not warmed up: %s", error)

    threading.Thread(target=run, name="holdfast-warm-workers", daemon=True).start()


def _nothing_of(task: object, numbers: Iterable[int]) -> Iterable[int]:
    return ()


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())
