"""``read.rate``: rows that a clock makes, for trials and load: ``value`` 0, 1, 2, ... and the ``timestamp`` of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.errors import InvalidPipeline
from holdfast.ports import Clock, Span
from holdfast.positions import SourcePositions
from holdfast.store import sealed

if TYPE_CHECKING:
    from holdfast.graph.nodes import Stream

SEGMENT = "rows"
SCHEMA = pa.schema(
    [pa.field("value", pa.int64(), nullable=False), pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False)]
)
_ROW_SIZE = 16
_BATCH_ROWS = 65_536
_SPAN_ROWS_MIN = 50_000
_SECOND = 1_000_000


@dataclass(frozen=True)
class RateSpec:
    """Declaration of ``read.rate``; see :func:`rate` for the arguments."""

    rows_per_second: int
    start_us: int | None = None
    max_rows_per_epoch: int | None = None
    from_us: int | None = None
    """Where reading begins; no argument of users."""
    clock: Clock = field(default_factory=SystemClock, compare=False)
    kind: str = field(default="rate", init=False)
    timestamp: str | None = field(default="timestamp", init=False)
    rejects: bool = field(default=False, init=False)
    schema: ClassVar[pa.Schema] = SCHEMA

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        shown = {
            "rows_per_second": self.rows_per_second,
            "start_us": self.start_us,
            "max_rows_per_epoch": self.max_rows_per_epoch,
        }
        return {name: value for name, value in shown.items() if value is not None}

    def from_time(self, at_us: int) -> RateSpec:
        """Return the source from the last row at or before a time."""
        return replace(self, from_us=at_us)

    def open(self, name: str, workspace: str) -> RateSource:
        """Return the source; the start time is made durable when it is first needed."""
        return RateSource(self, name, workspace)

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return whether the time of row 0 is lost."""
        return sealed.obstacle(workspace)

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return nothing: row n is the same wherever the log of epochs stands."""
        return {}


class RateSource:
    """Row ``n`` exists from ``start + n / rate`` on: everything follows from the durable start."""

    def __init__(self, spec: RateSpec, name: str, workspace: str) -> None:
        self.spec = spec
        self.name = name
        self.workspace = workspace
        self._start_us: int | None = None
        self._frozen: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (RateSource, (self.spec, self.name, self.workspace))

    @property
    def start_us(self) -> int:
        """Time of row 0, microseconds: put down once, by whoever comes first."""
        if self._start_us is None:
            self._start_us = _durable_start(self.spec, self.name, self.workspace)
        return self._start_us

    def initial(self) -> SourcePositions:
        """Positions before row 0, or before the last row at or before the time where reading begins."""
        if self.spec.from_us is None:
            return {SEGMENT: 0}
        return {SEGMENT: max(0, (self.spec.from_us - self.start_us) * self.spec.rows_per_second // _SECOND)}

    def latest(self, start: SourcePositions, *, bounded: bool) -> SourcePositions:
        """End of the next epoch: the rows whose time has come, within the limit."""
        first = _value(start)
        if bounded and self._frozen is None:
            self.freeze()
        end = self._due() if not bounded or self._frozen is None else self._frozen
        if self.spec.max_rows_per_epoch is not None:
            end = min(end, first + self.spec.max_rows_per_epoch)
        return {SEGMENT: max(first, end)}  # a clock that was set back takes nothing back

    def freeze(self) -> None:
        """Note how many rows there are now."""
        self._frozen = self._due()

    def newest(self) -> SourcePositions | None:
        """Position behind the last row whose time has come."""
        return {SEGMENT: self._due()}

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes between two positions."""
        return (_value(end) - _value(start)) * _ROW_SIZE

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Rows between two positions."""
        return _value(end) - _value(start)

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Cut into one span per core; small epochs into one."""
        first, last = _value(start), _value(end)
        count = last - first
        parts = max(1, min(parallelism, count // _SPAN_ROWS_MIN))
        cuts = [first + count * number // parts for number in range(parts + 1)]
        return [
            Span((self.start_us, self.spec.rows_per_second, begin, stop), stop - begin, (stop - begin) * _ROW_SIZE)
            for begin, stop in pairwise(cuts)
            if stop > begin
        ]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span."""
        start_us, per_second, first, last = span.value
        for begin in range(first, last, _BATCH_ROWS):
            values = np.arange(begin, min(begin + _BATCH_ROWS, last), dtype=np.int64)
            # Whole seconds first: value * 1_000_000 would leave 64 bits after some months at high rates.
            micros = start_us + values // per_second * _SECOND + values % per_second * _SECOND // per_second
            yield pa.RecordBatch.from_arrays(
                [pa.array(values), pa.array(micros).cast(SCHEMA.field("timestamp").type)], schema=SCHEMA
            )

    def committed(self, end: SourcePositions) -> None:
        """Do nothing: nothing is kept."""

    def _due(self) -> int:
        elapsed_us = self.spec.clock.now_us() - self.start_us
        return max(0, elapsed_us * self.spec.rows_per_second // _SECOND)


def _durable_start(spec: RateSpec, name: str, workspace: str) -> int:
    directory = sealed.local_directory(workspace, participant=name)
    sealed.prepare(directory)
    path = os.path.join(directory, "start")
    held = sealed.read_sealed(path)
    if held is None:
        start_us = spec.clock.now_us() if spec.start_us is None else spec.start_us
        wanted = {"start_us": start_us, "rows_per_second": spec.rows_per_second}
        sealed.put_if_absent(path, json.dumps(wanted).encode())
        held = sealed.read_sealed(path)
    known = json.loads(held or b"{}")
    if known["rows_per_second"] != spec.rows_per_second or spec.start_us not in (None, known["start_us"]):
        raise InvalidPipeline(
            f"source {name!r} has begun with {known['rows_per_second']} rows a second, and now has other arguments.",
            why="a row's timestamp follows from start and rate: new ones would change rows already delivered.",
            do="restore the former arguments, or give the source another name=.",
            participant=name,
        )
    return int(known["start_us"])


def _value(positions: SourcePositions) -> int:
    return int(positions.get(SEGMENT, 0))


def rate(
    rows_per_second: int, *, start: str | None = None, max_rows_per_epoch: int | None = None, name: str | None = None
) -> Stream:
    """Make rows (``value`` BIGINT, ``timestamp`` TIMESTAMP) at a steady rate.

    Parameters
    ----------
    rows_per_second : int
        Rows for each second of clock time.
    start : str, optional
        Time of row 0 in ISO 8601 (UTC without a zone); by default the first start of the pipeline.  If it lies in the
        past, the rows up to now are there at once.
    max_rows_per_epoch : int, optional
        Limit of one epoch.
    name : str, optional
        The source's name.

    Examples
    --------
    ::

        ticks = hf.read.rate(1000, name="ticks")
    """
    from holdfast.graph.checks import building
    from holdfast.graph.nodes import stream_from

    with building("source", name):
        for argument, value in {"rows_per_second": rows_per_second, "max_rows_per_epoch": max_rows_per_epoch}.items():
            if (value is not None or argument == "rows_per_second") and (not isinstance(value, int) or value < 1):
                raise InvalidPipeline(f"{argument}={value!r} is not a positive number.", do=f"write {argument}=1000.")
        spec = RateSpec(rows_per_second, _start_us(start), max_rows_per_epoch)
    return stream_from(spec, name=name)


def _start_us(start: str | None) -> int | None:
    if start is None:
        return None
    try:
        moment = datetime.fromisoformat(start)
    except (TypeError, ValueError) as error:
        raise InvalidPipeline(f"start={start!r} is not a time.", do='write start="2024-01-01T00:00:00Z".') from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * _SECOND + elapsed.microseconds
