"""Films the cameras, and imports the films into a byte stream, as ``holdfast video import`` does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.video.scene import BEGINS, CAMERAS, Camera, film


def bring_in(
    work: Path,
    seconds: float,
    seed: int = 0,
    size: tuple[int, int] = (640, 360),
    cameras: Sequence[Camera] = CAMERAS,
) -> None:
    """Write ``films/<camera>.mp4``, and from these the store ``cameras``."""
    films = work / "films"
    films.mkdir(parents=True, exist_ok=True)
    for camera in cameras:
        film(films / f"{camera.name}.mp4", camera, seconds, seed, size)
        command = [sys.executable, "-m", "holdfast", "video", "import", str(films / f"{camera.name}.mp4")]
        told = subprocess.run(
            [*command, "--store", str(work / "cameras"), "--stream", camera.name, "--start", str(BEGINS)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "NO_COLOR": "1"},
        )
        if told.returncode:
            raise RuntimeError(f"holdfast video import failed:\n{told.stderr}")


if __name__ == "__main__":
    bring_in(Path(sys.argv[1]), seconds=60)
