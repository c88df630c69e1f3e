"""What the controller records of all shards, for people: ``shards/progress.json``, replaced now and then.

No recovery reads it.  A crash loses what has changed since it was written last; the next controller writes it anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.masking import masked_json
from holdfast.ports import Store
from holdfast.status import ShardStatus

PROGRESS = "shards/progress.json"
"""Key, in the checkpoint of the pipeline."""


@dataclass(frozen=True)
class ShardsRecord:
    """What was recorded last.

    Parameters
    ----------
    at_us : int
        When, microseconds of Unix time.
    pid : int
        The process of the controller.
    layout : int
        Number of the layout.
    shards : tuple of mapping
        Of each shard what its status says, and ``positions``: source -> segment -> position.
    """

    at_us: int
    pid: int
    layout: int
    shards: tuple[Mapping[str, Any], ...]


def write_progress(
    store: Store, layout: int, shards: Sequence[tuple[ShardStatus, Mapping[str, Any]]], now_us: int
) -> None:
    """Replace the record.

    Parameters
    ----------
    store : Store
        The checkpoint of the pipeline.
    layout : int
        Number of the layout.
    shards : sequence of (ShardStatus, mapping)
        Of each its status, and positions.
    now_us : int
        The time.
    """
    each = [{**status.as_json(), "positions": positions} for status, positions in shards]
    value = {"at_us": now_us, "pid": os.getpid(), "layout": layout, "shards": masked_json(each)}
    store.put(PROGRESS, json.dumps(value).encode())


def read_progress(store: Store) -> ShardsRecord | None:
    """Return what was recorded last; None where nothing was, or it cannot be read."""
    data = store.get(PROGRESS)
    try:
        value = json.loads(data or b"")
        return ShardsRecord(value["at_us"], value["pid"], value["layout"], tuple(value["shards"]))
    except (ValueError, KeyError, TypeError):
        return None
