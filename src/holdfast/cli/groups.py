"""The groups of commands, by the name that precedes theirs."""

from __future__ import annotations

from holdfast.cli import checkpoints, dead_letters, dev, video

GROUPS = {"checkpoint": checkpoints.app, "dead-letters": dead_letters.app, "dev": dev.app, "video": video.app}
