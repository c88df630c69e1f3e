"""The source of a camera: a feed's journal, into which this process receives while it plans epochs."""

from __future__ import annotations

from typing import Any

from holdfast.connectors.camera.receiving import CameraReceiver, Receiving
from holdfast.connectors.reading.wrapped import WrappedSource
from holdfast.limits import ReadLimit
from holdfast.ports import Source
from holdfast.positions import SourcePositions


class CameraSource(WrappedSource):
    """The journal as a source; receiving begins with the first epoch that is planned.

    Parameters
    ----------
    source : Source
        The journal's.
    of : Receiving
        What is received.
    """

    def __init__(self, source: Source, of: Receiving) -> None:
        super().__init__(source)
        self.of = of
        self._receiver: CameraReceiver | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (CameraSource, (self.source, self.of))

    @property
    def receiver(self) -> CameraReceiver:
        """What receives; begun where it was not."""
        if self._receiver is None:
            self._receiver = CameraReceiver(self.of)
            self._receiver.start()
        return self._receiver

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: the entries that are there, within the limit."""
        receiver = None if bounded else self.receiver
        end = self.source.latest(start, bounded=bounded, limit=limit)
        if receiver is not None and receiver.failure is not None and end == start:
            raise receiver.failure
        return end

    def freeze(self) -> None:
        """Record what is there now; of a file, all of it."""
        if self.of.address.is_file:
            self.receiver.join()
            if self.receiver.failure is not None:
                raise self.receiver.failure
        self.source.freeze()
