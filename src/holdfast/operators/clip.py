"""``clip``: the rows of an interval of event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building, require_columns
from holdfast.graph.event_time import no_timestamp
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.shape import Shape

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_RIGHT = 'hf.clip("2013-03-01", "2013-04-01")'

Time = str | datetime | int


@dataclass(frozen=True)
class Clip:
    """Keep the rows with ``start_us <= timestamp < end_us``; a row without a timestamp is dropped.

    Parameters
    ----------
    column : str
        The timestamp column.
    start_us, end_us : int, optional
        Microseconds of Unix time; None where there is no border.
    """

    column: str
    start_us: int | None
    end_us: int | None
    kind: ClassVar[str] = "clip"

    def arguments(self) -> Mapping[str, Any]:
        """Return the column and the borders."""
        return {"column": self.column, "start_us": self.start_us, "end_us": self.end_us}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the input's columns, with the timestamp now known."""
        return Shape(inputs[0].columns, self.column, inputs[0].ids)

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound holds downstream of it."""
        before = inputs[0].timestamp
        return (
            None if before == self.column else f"they are about {before!r}, and rows go by {self.column!r} from here on"
        )


@dataclass(frozen=True)
class ClipAnywhere:
    """A clip that has no input yet: what ``hf.clip(...)`` returns.  The stream says which column is its timestamp."""

    start_us: int | None
    end_us: int | None
    timestamp: str | None
    name: str | None
    origin: Origin

    def attach(self, stream: Stream) -> Stream:
        """Return the clipped stream."""
        with building(Clip.kind, self.name, self.origin):
            column = self.timestamp or stream.timestamp
            if column is None:
                here = 'hf.clip(..., timestamp="time_hour")'
                raise no_timestamp(f"stream {stream.name!r}", stream.node, here=here)
            if stream.columns is not None:
                require_columns([column], stream.columns, "timestamp=")
                column = next(known for known in stream.columns if known.lower() == column.lower())
        return apply(Clip(column, self.start_us, self.end_us), (stream,), name=self.name, built_at=self.origin)


def clip(
    start: Time | None = None, end: Time | None = None, *, timestamp: str | None = None, name: str | None = None
) -> ClipAnywhere:
    """Keep the rows of an interval of event time.

    Parameters
    ----------
    start, end : str, datetime or int, optional
        First time, and first time no longer wanted: ISO 8601 text, datetime, or microseconds of Unix time.  Without
        a zone they are UTC.
    timestamp : str, optional
        The column to use; by default the one that the source declares.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If a time cannot be read, the span is empty, or the stream has no known timestamp column (when attached).

    Examples
    --------
    ::

        flights | hf.clip("2013-03-01", "2013-04-01", name="march")
    """
    with building(Clip.kind, name) as built_at:
        start_us, end_us = _us(start, "start"), _us(end, "end")
        if start_us is None and end_us is None:
            raise InvalidPipeline("it has neither start nor end.", do=f"write for instance {_RIGHT}")
        if start_us is not None and end_us is not None and end_us <= start_us:
            raise InvalidPipeline(
                f"start={start!r} is not before end={end!r}.",
                why="the span start <= timestamp < end is empty.",
                do=f"write for instance {_RIGHT}",
            )
        return ClipAnywhere(start_us, end_us, timestamp, name, built_at)


def _us(time: Time | None, argument: str) -> int | None:
    if time is None or (isinstance(time, int) and not isinstance(time, bool)):
        return time
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else time
        if not isinstance(moment, datetime):
            raise TypeError(f"it is {a_type(time)}")
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    except (ValueError, TypeError) as error:
        raise InvalidPipeline(
            f"{argument}={time!r} is not a time.",
            why=f"{error}.",
            do=f'write ISO 8601 text, a datetime or microseconds: for instance {argument}="2013-03-01T06:00"',
        ) from error
