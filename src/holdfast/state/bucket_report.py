"""What a bucket reports to the driver about an epoch in which its step was called; how it is sent, and stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.json_values import is_number
from holdfast.state.step import Result
from holdfast.status import Wait

Feeds = Mapping[str, Mapping[str, int]]
"""Input -> where its rows come from -> bound for all keys."""

_WAITING = "waiting_rows"

WAITING_ROWS_MAX = 1_000_000
"""``max_waiting_rows`` where it is not given: of one key, as of the gate of ``commit_at="pts"`` for all its rows.

At a hundred bytes to a kilobyte a row it is what one worker can still hold of one key.  A smaller number would hold
sources of pipelines that keep pace: the rows of one epoch, often hundreds of thousands, wait for each other in passing.
(MediaPipe's ``max_queue_size`` is 100 by default: of packets, which are images.)
"""


@dataclass(frozen=True)
class Pressure:
    """How full a bucket is whose operator limits the rows that wait.

    Parameters
    ----------
    most : int
        Waiting rows of its fullest key; 0 where no key is full.
    ahead, lagging : tuple of str
        Of the keys that are full: the inputs that run ahead, and those that are waited for.
    """

    most: int = 0
    ahead: tuple[str, ...] = ()
    lagging: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeptVersion:
    """Which version of its state a bucket has, for snapshots.

    Parameters
    ----------
    version : int
        The epoch that last changed it.
    digest : str
        Names its content.
    feeds : mapping, optional
        The bounds of its feeds; None where they have not moved.
    """

    version: int
    digest: str
    feeds: Feeds | None = None


@dataclass(frozen=True)
class BucketReport:
    """What one bucket reports of one epoch.

    Parameters
    ----------
    counts : mapping of str to int
        What its step counted; adds up over buckets and epochs.
    state_rows, state_bytes : int
        Its present state.
    waiting_rows : int, optional
        Rows that wait in it; None where the operator says nothing of the kind.
    waits : tuple of Wait, optional
        The longest waits; None where they were not computed.
    waiting_keys : int, optional
        How many keys wait, computed with them; None also where none can.
    due_us : int, optional
        The batch time from which an epoch can release something although nothing arrives.
    pressure : Pressure, optional
        How full it is, where its operator has a limit.
    kept : KeptVersion, optional
        For the checkpointer.
    pts : int, optional
        Of the gate before the sinks: the time below which everything has left it.
    held : (int, int), optional
        For the audit: the rows that waited before the call, and those that wait behind it.

    Examples
    --------
    >>> said = BucketReport({"late": 1}, state_rows=3, state_bytes=90, kept=KeptVersion(7, "1f"))
    >>> said.to_json()
    {'counts': {'late': 1}, 'state_rows': 3, 'state_bytes': 90, 'kept': [7, '1f', None]}
    >>> BucketReport.from_json(said.to_json()) == said
    True
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0
    waiting_rows: int | None = None
    waits: tuple[Wait, ...] | None = None
    due_us: int | None = None
    pressure: Pressure | None = None
    kept: KeptVersion | None = None
    pts: int | None = None
    held: tuple[int, int] | None = None
    waiting_keys: int | None = None

    @classmethod
    def of(cls, result: Result, **others: Any) -> BucketReport:
        """Return a report with what a call counted; waiting rows are not counted but kept as they are."""
        counts = {what: count for what, count in result.counts.items() if what != _WAITING}
        return cls(counts, waiting_rows=result.counts.get(_WAITING), due_us=result.due_us, pts=result.pts, **others)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; what is not said is left out."""
        value: dict[str, Any] = {"counts": dict(self.counts)} if self.counts else {}
        value |= {"state_rows": self.state_rows, "state_bytes": self.state_bytes}
        if self.waiting_rows is not None:
            value[_WAITING] = self.waiting_rows
        if self.waits is not None:
            value["waits"] = [wait.as_json() for wait in self.waits]
        if self.waiting_keys is not None:
            value[_KEYS] = self.waiting_keys
        if self.due_us is not None:
            value["due_us"] = self.due_us
        if self.pressure is not None:
            value["pressure"] = [self.pressure.most, list(self.pressure.ahead), list(self.pressure.lagging)]
        if self.kept is not None:
            value["kept"] = [self.kept.version, self.kept.digest, self.kept.feeds]
        if self.pts is not None:
            value["pts"] = self.pts
        if self.held is not None:
            value["held"] = list(self.held)
        return value

    @classmethod
    def from_json(cls, value: Any) -> BucketReport:
        """Return the report that :meth:`to_json` gave; what a later version added is left out.

        Raises
        ------
        ValueError, TypeError
            If it is none: what is kept of it in a checkpoint has no checksum, and a change may leave it JSON.
        """
        if not isinstance(value, Mapping) or not all(is_number(value.get(name, 0)) for name in _SIZES):
            raise ValueError(f"{value!r} is no report of a bucket")
        waits, pressure, kept = value.get("waits"), value.get("pressure"), value.get("kept")
        held = value.get("held")
        return cls(
            dict(value.get("counts", {})),
            value.get("state_rows", 0),
            value.get("state_bytes", 0),
            value.get(_WAITING),
            None if waits is None else tuple(map(Wait.from_json, waits)),
            value.get("due_us"),
            None if pressure is None else Pressure(pressure[0], tuple(pressure[1]), tuple(pressure[2])),
            None if kept is None else KeptVersion(*kept),
            value.get("pts"),
            None if held is None else (held[0], held[1]),
            value.get(_KEYS),
        )


_KEYS = "waiting_keys"
_SIZES = ("state_rows", "state_bytes", _WAITING, _KEYS)
