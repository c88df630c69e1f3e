"""The sources that back-pressure holds: a file that the driver writes, and every source's planning process reads."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.plan.notes import beside, read_note, write_note

FILE_NAME = "held"


def hold_file(stop_file: str) -> str:
    """Return the path of the file that names held sources: beside the one that stops a run."""
    return beside(stop_file, FILE_NAME)


def write_held(path: str, held: Iterable[str]) -> None:
    """Replace the list of sources that are held from now on."""
    write_note(path, sorted(held))


def is_held(path: str, source: str) -> bool:
    """Return whether a source is to deliver nothing in the next epoch."""
    return source in read_note(path, ())
