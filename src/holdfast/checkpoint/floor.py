"""The floor: the positions from which rows may still have to be replayed, for sources that drop what is published.

Moved by the checkpointer when older snapshots are gone, read by the planning processes of sources.
"""

from __future__ import annotations

from pathlib import Path

from holdfast import checked_json
from holdfast.ports import Store
from holdfast.positions import Positions

KEY = "snapshots/floor.json"


def write_floor(store: Store, positions: Positions) -> None:
    """Move the floor: nothing before these positions is replayed any more."""
    store.put(KEY, checked_json.dump(positions))


def read_floor(path: Path) -> Positions:
    """Return the floor; empty when there is none yet, or it cannot be read: then everything stays."""
    try:
        found: Positions = checked_json.load(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found
