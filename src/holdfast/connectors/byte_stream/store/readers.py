"""What a reader of a store says of itself: up to where its sinks hold everything, so that retention waits for it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress

from holdfast.store import durable, sealed

READERS = "_readers"
"""Directory of a store; one object for each reader.  Who is gone for good is removed by hand."""


class ReaderMark:
    """What one reader has said.

    Parameters
    ----------
    store : str
        The store's directory.
    name, workspace : str
        The source, and its place in the checkpoint of its pipeline.
    streams : collection of str, optional
        The streams that it reads; None for all.
    """

    def __init__(self, store: str, name: str, workspace: str, streams: Collection[str] | None) -> None:
        tag = hashlib.sha256(f"{name}\n{os.path.abspath(workspace)}".encode()).hexdigest()[:12]
        self._directory = os.path.join(store, READERS)
        self._path = os.path.join(self._directory, f"{name}-{tag}.json")
        self._said = {"source": name, "workspace": workspace, "streams": None if streams is None else sorted(streams)}

    @property
    def is_there(self) -> bool:
        """Whether the reader is registered."""
        return os.path.exists(self._path)

    def put(self, positions: Mapping[str, int | str]) -> None:
        """Say that nothing before these positions is needed."""
        aside = os.path.join(self._directory, "writing")
        durable.prepare(self._directory, aside=aside)
        data = json.dumps({**self._said, "positions": dict(positions)}).encode()
        durable.replace(self._path, sealed.seal(data), aside=aside)

    def remove(self) -> None:
        """Take the mark away: the reader needs nothing any more."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)
