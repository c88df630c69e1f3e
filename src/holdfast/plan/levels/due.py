"""When an epoch without rows can release something: a file that the driver writes, and one planning process reads.

It is a hint only: what an epoch decides follows from what is logged with it, and without the file one epoch is planned
that finds out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from holdfast.plan.notes import beside, read_note, write_note
from holdfast.state.bucket_report import BucketReport

FILE_NAME = "due"


def due_file(stop_file: str) -> str:
    """Return the path of the file: beside the one that stops a run."""
    return beside(stop_file, FILE_NAME)


class DueTimes:
    """When rows are released next, by bucket: an epoch need not call all of them."""

    def __init__(self) -> None:
        self._of_bucket: dict[str, int] = {}

    @property
    def next_us(self) -> int | None:
        """When rows are released next although none arrive; None: never."""
        return min(self._of_bucket.values(), default=None)

    def take(self, reports: Mapping[str, BucketReport]) -> dict[str, BucketReport]:
        """Take in an epoch's reports; return them without the due times."""
        for bucket, report in reports.items():
            self._of_bucket.pop(bucket, None)
            if report.due_us is not None:
                self._of_bucket[bucket] = report.due_us
        return {bucket: replace(report, due_us=None) for bucket, report in reports.items()}

    def forget(self) -> None:
        """Forget all due times."""
        self._of_bucket.clear()


class Dues:
    """Writes into a file when the next epoch is needed.  Lives on the driver.

    Parameters
    ----------
    path : str
        The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._times = DueTimes()

    def take(self, reports: Mapping[str, BucketReport]) -> dict[str, BucketReport]:
        """Write when the next epoch is needed; return the reports of an epoch's buckets without the due times."""
        left = self._times.take(reports)
        write_due(self._path, self._times.next_us)
        return left

    def forget(self) -> None:
        """Forget all due times: an epoch that is repeated, and held by every sink, reports nothing."""
        self._times.forget()
        with suppress(OSError):
            os.unlink(self._path)


def write_due(path: str, due_us: int | None) -> None:
    """Write when the next epoch is needed, with or without rows; None: when rows arrive."""
    with suppress(OSError):  # a full disk: the epochs that it asks for come late, or find nothing
        write_note(path, due_us)


def is_due(path: str, now_us: int) -> bool:
    """Return whether an epoch is needed now; true also before the first epoch of a run has written anything."""
    due_us = read_note(path, 0)
    # Spark's batch time is cut to milliseconds: what is due within this one would not be released yet.
    return due_us is not None and now_us // 1000 * 1000 >= due_us
