"""The messages of an epoch in the order in which their streams get them: by timestamp, then by arrival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from holdfast.connectors.byte_stream.sink.messages import Messages, Payloads


@dataclass(frozen=True)
class StreamMessages:
    """What one stream gets, in its order; all arrays are of one length.

    Parameters
    ----------
    timestamps, keys, lengths, offsets, checksums, arrival
        As of :class:`~holdfast.connectors.byte_stream.sink.messages.Messages`.
    parts : array of int64
        Where each payload lies: a number in ``payloads``.
    payloads : sequence of Payloads
        Of all parts.
    """

    timestamps: np.ndarray
    keys: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray
    checksums: np.ndarray
    arrival: np.ndarray
    parts: np.ndarray
    payloads: Sequence[Payloads]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.timestamps)

    def between(self, first: int, last: int) -> StreamMessages:
        """Return the messages from ``first`` to below ``last``."""
        return StreamMessages(
            self.timestamps[first:last],
            self.keys[first:last],
            self.lengths[first:last],
            self.offsets[first:last],
            self.checksums[first:last],
            self.arrival[first:last],
            self.parts[first:last],
            self.payloads,
        )

    def views(self, first: int, last: int) -> Iterator[memoryview]:
        """Yield the payloads from ``first`` to below ``last``."""
        parts, begins = self.parts[first:last], self.offsets[first:last].tolist()
        ends = (self.offsets[first:last] + self.lengths[first:last]).tolist()
        borders = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
        for low, high in pairwise(borders):
            if low < high:
                yield from self.payloads[int(parts[low])].views(begins[low:high], ends[low:high])


@dataclass(frozen=True)
class MessagePart:
    """The messages of one part of an epoch."""

    epoch: int
    messages: Messages
    payloads: Payloads


def by_stream(parts: Sequence[MessagePart]) -> dict[str, StreamMessages]:
    """Return what each stream gets: epoch by epoch, in it by timestamp, then in the order of parts and rows."""
    parts = [part for part in parts if part.messages.count]
    if not parts:
        return {}
    names = sorted({name for part in parts for name in part.messages.streams})
    numbers = {name: number for number, name in enumerate(names)}
    streams = np.concatenate(
        [np.array([numbers[name] for name in part.messages.streams])[part.messages.codes] for part in parts]
    )
    sizes = [part.messages.count for part in parts]
    epochs = np.repeat([part.epoch for part in parts], sizes)
    places = np.repeat(np.arange(len(parts)), sizes)

    def joined(field: str) -> np.ndarray:
        return np.concatenate([getattr(part.messages, field) for part in parts])

    order = np.lexsort((joined("arrival"), places, joined("timestamps"), epochs, streams))
    every = StreamMessages(
        joined("timestamps")[order],
        joined("keys")[order],
        joined("lengths")[order],
        joined("offsets")[order],
        joined("checksums")[order],
        joined("arrival")[order],
        places[order],
        [part.payloads for part in parts],
    )
    borders = np.searchsorted(streams[order], np.arange(len(names) + 1)).tolist()
    return {name: every.between(first, last) for name, (first, last) in zip(names, pairwise(borders), strict=True)}
