"""The command line: ``holdfast run``, ``inspect``, ``resolve``, ``explain``."""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    # Loading the commands takes a good part of a second: Ctrl-C meanwhile ends in a message, not in a traceback.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, _leave)
    gc.disable()  # what is loaded stays: to look through it again and again is an eighth of the time
    from holdfast.cli.app import app

    gc.freeze()
    gc.enable()
    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="holdfast")


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted before anything was done.\n")
    os._exit(128 + number)
