"""Whether a spare waits beside a run: a file of its supervisor, which the run's process reads for its status."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SUPERVISED = "HOLDFAST_SUPERVISED"
"""Names a file of the supervisor; the note is beside it."""
_NAME = "spare"
READY, AWAY = "ready", "away"


def note_spare(place: Path, *, is_ready: bool) -> None:
    """Note whether a spare waits, in the directory of a supervisor; where that cannot be, the status is older."""
    text = READY if is_ready else AWAY
    with suppress(OSError):
        if spare_in(place) != text:
            (place / f"{_NAME}.new").write_text(text)
            (place / f"{_NAME}.new").replace(place / _NAME)


def spare_in(place: Path) -> str:
    """Return what was noted last: ``ready``, ``away``, or nothing."""
    try:
        text = (place / _NAME).read_text()
    except OSError:
        return ""
    return text if text in (READY, AWAY) else ""


def spare_beside() -> str:
    """Return what the supervisor of this process has noted; nothing where it has none, or keeps no spare."""
    file = os.environ.get(SUPERVISED, "")
    return spare_in(Path(file).parent) if file else ""
