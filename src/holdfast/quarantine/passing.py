"""What passes behind an operator with state: all it gives, without the rows that are dead letters there.

An *outlet* is one output of such an operator in one bucket.  What it gives in an epoch is fixed, as the epoch's content
is: the levels are deterministic, and an epoch that is repeated begins with the same state.  So a row that something
behind state cannot process has an address too: outlet, epoch, and its ordinal among the rows of the outlet there.  It
is left out behind the state, which has processed it: what the row was made of was good, and so were the rows whose
arrival let it go.

A row is left out only where it equals its letter.  An epoch that is evaluated again with other content (behind a
rewind, or by a changed graph) may have another row at that place.

In a trial nothing passes behind some level, and behind the one before it only a number of rows: so it shows where an
epoch fails.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.quarantine.mask import one_row
from holdfast.state.tables import fitted
from holdfast.types.casting import by_name

OUTLET = "out-"
"""Segments of rows that an operator with state has given begin so."""


def segment_at(output: str, bucket: int) -> str:
    """Return the segment of an outlet's rows.

    Examples
    --------
    >>> segment_at("rows", 3)
    'out-rows-3'
    """
    return f"{OUTLET}{output}-{bucket}"


def outlet_of(operator: str, output: str, bucket: int) -> str:
    """Return the name of an outlet: the operator, and the segment.

    Examples
    --------
    >>> outlet_of("sums", "rows", 3)
    'sums/out-rows-3'
    """
    return f"{operator}/{segment_at(output, bucket)}"


def digest_of(row: bytes) -> str:
    """Return what identifies a row that is kept as an Arrow IPC stream, for the version of Arrow that runs here."""
    return _digest(pa.ipc.open_stream(row).read_all(), 0)


@dataclass(frozen=True)
class GivenRows:
    """What an outlet gave in a trial.

    Parameters
    ----------
    count : int
        Number of rows.
    row : bytes, optional
        The one that was to be shown, an Arrow IPC stream.
    """

    count: int
    row: bytes | None = None

    def to_json(self) -> list[Any]:
        """Return it as a JSON value."""
        return [self.count, None if self.row is None else base64.b64encode(self.row).decode()]

    @staticmethod
    def from_json(value: Sequence[Any]) -> GivenRows:
        """Return what :meth:`to_json` wrote."""
        return GivenRows(value[0], None if value[1] is None else base64.b64decode(value[1]))


@dataclass(frozen=True)
class Passing:
    """What passes behind the levels in one epoch.

    Parameters
    ----------
    left_out : mapping of str to mapping of int to str
        Outlet -> ordinal -> digest of the row there that is a dead letter.
    level : int, optional
        In a trial: the level behind which some rows pass, behind later ones none; 0: none behind any.  None: no trial.
    until : mapping of str to int
        In a trial: outlet of that level -> how many of its rows pass; of others none do.
    shown : (str, int), optional
        In a trial: outlet and ordinal of a row to be reported.
    """

    left_out: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    level: int | None = None
    until: Mapping[str, int] = field(default_factory=dict)
    shown: tuple[str, int] | None = None

    def of(self, level: int, outlet: str, rows: pa.Table) -> pa.Table:
        """Return the rows of an outlet that pass."""
        left_out = self.left_out.get(outlet, {})
        gone = [at for at, digest in left_out.items() if at < rows.num_rows and _digest(rows, at) == digest]
        if gone:
            rows_kept = np.ones(rows.num_rows, bool)
            rows_kept[gone] = False
        else:
            rows_kept = None
        if self.level is not None and level >= self.level:
            most = self.until.get(outlet, 0) if level == self.level else 0
            rows, rows_kept = rows.slice(0, most), None if rows_kept is None else rows_kept[:most]
        return rows if rows_kept is None else rows.filter(pa.array(rows_kept))

    def report(self, outlet: str, rows: pa.Table) -> GivenRows | None:
        """Return what a trial reports of an outlet; None where this is no trial."""
        if self.level is None:
            return None
        is_here = self.shown is not None and self.shown[0] == outlet
        return GivenRows(rows.num_rows, _row(rows, self.shown[1]) if is_here and self.shown is not None else None)

    def to_json(self) -> str:
        """Return it as it travels to workers."""
        if self == EVERYTHING:
            return "{}"
        left_out = {outlet: {str(at): digest for at, digest in of.items()} for outlet, of in self.left_out.items()}
        return json.dumps({"left_out": left_out, "level": self.level, "until": self.until, "shown": self.shown})

    @staticmethod
    def from_json(text: str) -> Passing:
        """Return what :meth:`to_json` wrote."""
        value = json.loads(text)
        if not value:
            return EVERYTHING
        left_out = {outlet: {int(at): digest for at, digest in of.items()} for outlet, of in value["left_out"].items()}
        shown = value["shown"]
        return Passing(left_out, value["level"], value["until"], None if shown is None else (shown[0], shown[1]))


EVERYTHING = Passing()
"""All rows pass."""


def _row(rows: pa.Table, ordinal: int) -> bytes:
    batch = rows.slice(ordinal, 1).combine_chunks().to_batches()[0]
    return one_row(batch, 0)


def _digest(rows: pa.Table, ordinal: int) -> str:
    row = fitted(rows.slice(ordinal, 1), by_name(rows.schema))  # the graph may name its columns in another order now
    return hashlib.sha256(_row(row, 0)).hexdigest()[:16]
