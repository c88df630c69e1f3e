"""The command line: ``holdfast run``, ``inspect``, ``resolve``, ``explain``."""

from holdfast.cli.app import main

__all__ = ["main"]
