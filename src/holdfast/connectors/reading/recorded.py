"""Where a source of byte streams begins and ends: recorded once in its workspace, and then never looked up again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import takewhile

from holdfast.errors import Corrupt
from holdfast.store import sealed

_START = "start"
_END = "end"


class Recorded:
    """What one source has recorded.

    Parameters
    ----------
    workspace : str
        Directory below the checkpoint that belongs to the source alone.
    name : str
        The source, for errors.
    """

    def __init__(self, workspace: str, name: str) -> None:
        self._directory = sealed.local_directory(workspace, participant=name)

    @property
    def has_start(self) -> bool:
        """Whether it has begun."""
        return self._read(_START) is not None

    @property
    def start(self) -> dict[str, int]:
        """Segment -> position where reading begins; a stream that is not named appeared later."""
        return self._read(_START) or {}

    @property
    def end(self) -> dict[str, int] | None:
        """Segment -> position where it ends; None while that is not known, or never is."""
        return self._read(_END)

    def put_start(self, positions: Mapping[str, int]) -> None:
        """Record the beginning, unless another process has."""
        self._put(_START, positions)

    def put_end(self, positions: Mapping[str, int]) -> None:
        """Record the end, unless another process has."""
        self._put(_END, positions)

    def texts(self) -> list[str]:
        """Return what is recorded, as it is: the beginning, then the end, as far as they are."""
        found = [sealed.read_sealed(os.path.join(self._directory, kind)) for kind in (_START, _END)]
        return [data.decode() for data in takewhile(lambda data: data is not None, found) if data is not None]

    def restore(self, number: int, text: str) -> bool:
        """Record one of :meth:`texts` again, by its place from 1; return False where something else is recorded."""
        path = os.path.join(self._directory, (_START, _END)[number - 1])
        sealed.prepare(self._directory)
        sealed.put_if_absent(path, text.encode())
        return sealed.read_sealed(path) == text.encode()

    def _put(self, kind: str, positions: Mapping[str, int]) -> None:
        sealed.prepare(self._directory)
        sealed.put_if_absent(os.path.join(self._directory, kind), json.dumps(dict(positions)).encode())

    def _read(self, kind: str) -> dict[str, int] | None:
        path = os.path.join(self._directory, kind)
        data = sealed.read_sealed(path)
        if data is None:
            return None
        try:
            return {str(segment): int(at) for segment, at in json.loads(data).items()}
        except (ValueError, AttributeError) as error:
            raise Corrupt(
                f"{path} does not say where reading {kind}s.",
                why=f"{error}.",
                do="restore it from a copy of the checkpoint.",
                participant=path,
            ) from error
