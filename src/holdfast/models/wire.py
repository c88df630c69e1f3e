"""What caller and process say to each other beside rows: who calls, errors, counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError, InternalError, from_text

ERROR = b"holdfast-error"
"""Key in the metadata of an answer's schema, where it is an error."""

MESSAGE_BYTES = 64 << 20
"""Rows go in messages of about this size: 2 GiB is the most that one may have."""

STATS, STOP = "stats", "stop"

LISTENS = b"listens"
"""What a process says to who has started it."""


@dataclass(frozen=True)
class CallHeader:
    """What a call says of itself.

    Parameters
    ----------
    caller : str
        The process that calls.
    is_repeated : bool
        Whether a process has died, or ended, before it answered.
    """

    caller: str
    is_repeated: bool

    def to_bytes(self) -> bytes:
        """Return it as bytes."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> CallHeader:
        """Read what :meth:`to_bytes` gave."""
        return CallHeader(**json.loads(data))


def write_rows(writer: Any, rows: pa.Table) -> None:
    """Write rows to a stream of Flight."""
    writer.begin(rows.schema)
    writer.write_table(rows, max(1, rows.num_rows * MESSAGE_BYTES // max(MESSAGE_BYTES, rows.nbytes)))


def write_error(writer: Any, error: HoldfastError) -> None:
    """Write an error instead of rows."""
    writer.begin(pa.schema([], metadata={ERROR: error.record().encode()}))


def rows_of(answer: pa.Table) -> pa.Table:
    """Return the rows of an answer; raise the error that it is."""
    record = (answer.schema.metadata or {}).get(ERROR)
    if record is not None:
        raise from_text(record.decode()) or InternalError("A shared model answered with an error that says nothing.")
    return answer


@dataclass(frozen=True)
class ModelStats:
    """What the process of a model has done since it started.

    Parameters
    ----------
    process_id : int
        0 where none is running: then all counts are 0.
    restart_count : int
        How many processes before it died, since one ended by itself.
    call_count, row_count : int
        Calls that were answered, and the rows of all batches.
    failure_count : int
        Calls that were answered with an error.
    waiting_row_count : int
        Rows that wait now.
    batches_by_callers : mapping of int to int
        Number of callers whose rows were in a batch together -> number of such batches.
    """

    process_id: int = 0
    restart_count: int = 0
    call_count: int = 0
    row_count: int = 0
    failure_count: int = 0
    waiting_row_count: int = 0
    batches_by_callers: Mapping[int, int] = field(default_factory=dict)

    @property
    def batch_count(self) -> int:
        """Batches: how often the function was called."""
        return sum(self.batches_by_callers.values())

    @property
    def mixed_batch_count(self) -> int:
        """Batches with rows of several callers."""
        return sum(count for callers, count in self.batches_by_callers.items() if callers > 1)

    @property
    def rows_per_batch(self) -> float:
        """The mean size of a batch."""
        return self.row_count / max(1, self.batch_count)

    @property
    def callers_per_batch(self) -> float:
        """The mean number of callers whose rows a batch had."""
        all_callers = sum(callers * count for callers, count in self.batches_by_callers.items())
        return all_callers / max(1, self.batch_count)

    def to_bytes(self) -> bytes:
        """Return it as bytes."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> ModelStats:
        """Read what :meth:`to_bytes` gave."""
        found = json.loads(data)
        batches = {int(callers): count for callers, count in found.pop("batches_by_callers").items()}
        return ModelStats(**found, batches_by_callers=batches)
