"""Which sealed segments are dropped: ``retain="30 d"`` or ``retain="500 GB"``.  Pure.

Never one of an epoch in which something that grows now had begun: what is sealed from there on is what a recovery would
filter out, and stays until nothing needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.connectors.segments.entries import SealedSegment
from holdfast.types.units import duration_us, size_bytes

_SIZE = re.compile(r"[\d.\s]*([kmgtp]i?)?b", re.IGNORECASE)

REMOVED_MAX = 1000
"""By one entry of the manifest."""


@dataclass(frozen=True)
class Retention:
    """How much is kept: segments sealed since, or so many bytes; None: no limit of this kind."""

    age_us: int | None = None
    bytes: int | None = None

    def expired(
        self, segments: Iterable[SealedSegment], *, total_bytes: int, now_us: int, before_epoch: int
    ) -> Iterator[SealedSegment]:
        """Yield what is to be dropped, oldest first.

        Parameters
        ----------
        segments : iterable of SealedSegment
            In the order in which they were sealed; read as far as is needed.
        total_bytes : int
            Of all of them.
        now_us : int
            Unix time.
        before_epoch : int
            Only those whose epochs are all before this one.
        """
        for _, segment in zip(range(REMOVED_MAX), segments, strict=False):
            is_old = self.age_us is not None and now_us - segment.sealed_us > self.age_us
            is_too_much = self.bytes is not None and total_bytes > self.bytes
            if not (is_old or is_too_much) or segment.last_epoch >= before_epoch:
                return
            total_bytes -= segment.size_bytes
            yield segment


KEEP_ALL = Retention()
"""No limit."""


def retention(retain: str | None) -> Retention:
    """Return what ``retain=`` says: a duration or a size.

    Examples
    --------
    >>> retention("2 d").age_us == 2 * 86_400_000_000, retention("5 GB").bytes, retention(None).bytes
    (True, 5000000000, None)
    """
    if retain is None:
        return KEEP_ALL
    if _SIZE.fullmatch(retain.strip()):
        return Retention(bytes=size_bytes(retain, argument="retain"))
    return Retention(age_us=duration_us(retain, argument="retain"))
