"""Notes: what a driver tells the processes that plan its sources, by small files beside the one that stops a run.

Hints only: what an epoch decides is logged with it.  Whoever reads one finds the newest whole, or none.
"""

from __future__ import annotations

import json
import os
from typing import Any


def beside(stop_file: str, name: str) -> str:
    """Return the path of a file of a run."""
    return os.path.join(os.path.dirname(stop_file), name)


def write_note(path: str, value: Any) -> None:
    """Replace what a file says: a JSON value."""
    aside = f"{path}.new"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(aside, path)


def read_note(path: str, default: Any) -> Any:
    """Return what a file says; the default where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return default
