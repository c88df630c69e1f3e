"""The pipeline that is killed to show that a flowgraph is exact: what waits in it, what it holds, what is replayed.

A graph of six calculators for each camera (:func:`tests.calculators.camera_graph`): its frames come before the poses
that they are joined with, so that they wait in its limiter.  ``GRAPH_VERSION`` 2 has one calculator more, and another
name for one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import holdfast as hf
from tests.calculators import camera_graph, frames_of

WORK = Path(os.environ.get("CRASH_WORK", "."))
EPOCHS, MORE = 36, 6
BEHIND = 2
"""Epochs by which poses come later."""

KEYS = "abc"
FRAMES = "k STRING, t BIGINT, is_key BOOLEAN, v BIGINT"
POSES = "k STRING, t BIGINT, v BIGINT"


def given(count: int) -> dict[str, list[list[Any]]]:
    """Return the rows of so many epochs."""
    frames = frames_of(KEYS, 5 * (EPOCHS + MORE), 1)
    chance = random.Random("poses")
    parts = [frames[start : start + 5] for start in range(0, len(frames), 5)]
    poses = [[{"k": row["k"], "t": row["t"], "v": row["v"] % 97} for row in part if chance.random() < 0.8]
             for part in parts]  # fmt: skip
    return {"frames": parts[:count], "poses": [*[[]] * BEHIND, *poses][:count]}


def streams(rows: dict[str, list[list[Any]]], version: int = 1) -> dict[str, hf.Stream]:
    """Return the outputs of the graph."""
    schemas = {"frames": FRAMES, "poses": POSES}
    sources = {name: hf.read.rows(rows[name], schema=schema, timestamp="t", name=name)
               for name, schema in schemas.items()}  # fmt: skip
    changed: dict[str, Any] = {"tracker": "persons", "has_count": True} if version > 1 else {}
    found: dict[str, hf.Stream] = hf.flow(
        sources,
        camera_graph(has_poses=True, **changed),
        by="k",
        inputs={"poses": "v"},
        outputs={"tracks": "track BIGINT", "thumbs": "thumb BIGINT"},
        renamed_nodes={"persons": "tracker"} if version > 1 else None,
        name="camera",
    )
    return found


def pipeline_of(count: int, version: int) -> hf.Pipeline:
    """Return the pipeline, over so many epochs."""
    made = streams(given(count), version)
    return hf.Pipeline(
        "flows",
        made["tracks"] | hf.write.sqlite(WORK / "out.db", table="tracks", name="tracks_table"),
        made["thumbs"] | hf.write.files(WORK / "thumbs", name="thumb_files"),
    )


pipeline = pipeline_of(int(os.environ.get("GIVEN", EPOCHS)), int(os.environ.get("GRAPH_VERSION", "1")))
