"""The sources that back-pressure holds: a file that the driver writes, and every source's planning process reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

FILE_NAME = "held"


def hold_file(stop_file: str) -> str:
    """Return the path of the file that names held sources: beside the one that stops a run."""
    return os.path.join(os.path.dirname(stop_file), FILE_NAME)


def write_held(path: str, held: Iterable[str]) -> None:
    """Replace the list of sources that are held from now on."""
    aside = f"{path}.new"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(sorted(held), file)
    os.replace(aside, path)


def is_held(path: str, source: str) -> bool:
    """Return whether a source is to deliver nothing in the next epoch."""
    try:
        with open(path, encoding="utf-8") as file:
            return source in json.load(file)
    except FileNotFoundError:
        return False
