"""Runs of sources up to a time: what arrives, a driver that dies, and what a sink then holds (design/0021).

The driver does with sources what a run does: asks each for its latest position, logs the end of the epoch, reads it,
and publishes it with its number.  What it logged and published lives on when it dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.reading.from_time import from_time
from holdfast.connectors.reading.until import has_passed, up_to
from holdfast.ports import Source
from holdfast.store import sealed

Row = tuple[str, int | None]
"""Name and timestamp."""


class Killed(BaseException):
    """The driver is dead."""


@dataclass
class Writes:
    """Counts durable writes, and kills before or after one of them."""

    kill_at: int | None = None
    is_after: bool = False
    count: int = 0
    is_outside: bool = False
    """Whether it is not the driver that writes."""

    @contextmanager
    def one(self) -> Iterator[None]:
        if self.is_outside:
            yield
            return
        self.count += 1
        mine = self.count
        if mine == self.kill_at and not self.is_after:
            raise Killed
        yield
        if mine == self.kill_at and self.is_after:
            raise Killed

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Let the writes of sources count, too."""
        put = sealed.put_if_absent

        def counted(path: str, payload: bytes, **told: bool) -> bool:
            with self.one():
                return put(path, payload, **told)

        patch.setattr(sealed, "put_if_absent", counted)


@dataclass
class Driver:
    """What is durable of a pipeline of several sources into one sink.

    Parameters
    ----------
    streams : mapping of str to Stream
        Its sources.
    work : str
        Where their workspaces are.
    arrive : callable
        Lets the next thing arrive; returns False when there is none.
    lets_go : bool
        Whether sources let go of an epoch as soon as it is published.
    """

    streams: Mapping[str, hf.Stream]
    work: str
    arrive: Callable[[], bool]
    writes: Writes = field(default_factory=Writes)
    offsets: list[dict[str, Any]] = field(default_factory=list)
    sink: dict[int, list[Row]] = field(default_factory=dict)
    starts: dict[str, Any] | None = None
    lets_go: bool = True

    @property
    def rows(self) -> list[Row]:
        """What the sink shows."""
        return [row for _, rows in sorted(self.sink.items()) for row in rows]

    def run(self, until: int | None = None, at: int | None = None, *, is_bounded: bool = False) -> bool:
        """Run until it ends by itself (True), or nothing arrives any more (False)."""
        sources = self._opened(until, at)
        if self.starts is None:
            first = {name: dict(source.initial()) for name, source in sources.items()}
            with self.writes.one():
                self.starts = first
        if len(self.offsets) > len(self.sink):
            self._publish(sources, len(self.offsets) - 1)
        if is_bounded:
            for source in sources.values():
                source.freeze()
        while True:
            start = self.offsets[-1] if self.offsets else self.starts
            end = {name: dict(source.latest(start[name], bounded=is_bounded)) for name, source in sources.items()}
            if end != start:
                with self.writes.one():
                    self.offsets.append(end)
                self._publish(sources, len(self.offsets) - 1)
            elif until is not None and all(has_passed(source, end[name]) for name, source in sources.items()):
                return True
            elif is_bounded or not self._arrived():
                return False

    def _arrived(self) -> bool:
        self.writes.is_outside = True
        try:
            return self.arrive()
        finally:
            self.writes.is_outside = False

    def _opened(self, until: int | None, at: int | None) -> dict[str, Source]:
        return {
            name: from_time(up_to(stream.node.source_spec, until), at).open(name, f"{self.work}/{name}")
            for name, stream in self.streams.items()
        }

    def _publish(self, sources: Mapping[str, Source], number: int) -> None:
        assert self.starts is not None
        start, end = self.offsets[number - 1] if number else self.starts, self.offsets[number]
        rows: list[Row] = []
        for name, source in sources.items():
            for span in source.spans(start[name], end[name], parallelism=2):
                for batch in source.read(span):
                    rows += zip(batch.column("id").to_pylist(), _ticks(batch.column("t")), strict=True)
        with self.writes.one():
            self.sink[number] = rows
        for name, source in sources.items() if self.lets_go else ():
            source.committed(end[name])


def _ticks(column: Any) -> list[int | None]:
    return list(column.cast("int64").to_pylist())


def below(rows: Sequence[Row], until: int | None, since: int | None = None) -> list[Row]:
    """Return what is visible of rows when a run up to a time has ended."""
    return sorted(
        (
            row
            for row in rows
            if (row[1] is None and since is None)
            or (row[1] is not None and (until is None or row[1] < until) and (since is None or row[1] >= since))
        ),
        key=str,
    )
