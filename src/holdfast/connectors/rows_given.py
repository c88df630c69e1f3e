"""What ``read.rows`` has delivered, by digests: a program may be edited and its checkpoint kept, read rows may not."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.store import sealed


class Given:
    """Digests of the epochs that were delivered, durable before the source returns a position.

    Rows may be added and changed after those that were delivered; nothing else.

    Parameters
    ----------
    epochs : sequence of bytes
        The program's rows, one Arrow IPC stream an epoch.
    name, workspace : str
        The source's name, and its directory below the checkpoint.

    Notes
    -----
    One durable write for a program, not for an epoch: with the first epoch the digests of all are put down.  Pickles to
    its arguments; a process that only reads spans asks for nothing here.
    """

    def __init__(self, epochs: Sequence[bytes], name: str, workspace: str) -> None:
        self.epochs = epochs
        self.name = name
        self.workspace = workspace
        self._known: list[str] | None = None
        self._agreed = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (Given, (self.epochs, self.name, self.workspace))

    def check(self, end: int) -> None:
        """Compare the epochs below ``end`` with what was put down of them.

        Raises
        ------
        InvalidPipeline
            If the program has other rows there now, or none.
        """
        if end <= self._agreed:
            return
        changed = self._changed(end, self._noted())
        if changed is not None:  # what is known here may be older than what the planning process put down meanwhile
            changed = self._changed(end, self._noted(again=True))
        if changed is not None:
            raise InvalidPipeline(
                f"list {changed} of the rows of source {self.name!r} has changed since it was given.",
                why=f"{end} of the lists have been read with this checkpoint: the sinks may hold their former rows.",
                do="restore those rows and put new ones after them; or give the source another name=, or start over "
                "with a new checkpoint and empty targets.",
                participant=self.name,
            )
        self._agreed = end

    def note(self, end: int) -> None:
        """Put down the digests of the epochs below ``end``, unless they are.  Durable when it returns."""
        if end <= self._agreed:
            return
        now = self._digests
        if self._noted()[:end] != now[:end]:
            sealed.prepare(self._directory)
            number = max(self._numbers(), default=-1) + 1
            while not sealed.put_if_absent(self._path(number), json.dumps(now).encode()):
                number += 1
            self._noted(again=True)
        self._agreed = end

    def _changed(self, end: int, noted: Sequence[str]) -> int | None:
        """Return the first epoch below ``end`` that differs from what was delivered; None when none is known to."""
        now = self._digests
        known = min(end, len(noted), len(now))
        first = next((number for number in range(known) if noted[number] != now[number]), None)
        return len(now) if first is None and len(now) < end else first

    def _noted(self, *, again: bool = False) -> list[str]:
        if self._known is None or again:
            newest = max(self._numbers(), default=None)
            held = None if newest is None else sealed.read_sealed(self._path(newest))
            self._known = list(json.loads(held or b"[]"))
        return self._known

    @cached_property
    def _digests(self) -> list[str]:
        # Of the values, not of the packed bytes: those may change with another version of Arrow.
        values = (pa.ipc.open_stream(epoch).read_all().to_pydict() for epoch in self.epochs)
        return [hashlib.sha256(repr(each).encode()).hexdigest()[:16] for each in values]

    @property
    def _directory(self) -> str:
        return sealed.local_directory(self.workspace, participant=self.name)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{number:06d}.rows")

    def _numbers(self) -> list[int]:
        names = os.listdir(self._directory) if os.path.isdir(self._directory) else []
        return [int(name.removesuffix(".rows")) for name in names if name.endswith(".rows")]
