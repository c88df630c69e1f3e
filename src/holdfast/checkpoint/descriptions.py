"""Readable descriptions of a checkpoint's graphs: ``graph/<fingerprint>.json``, a pipeline's ``spec()`` each.

Nothing reads them back, so a damaged one is ignored.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.connectors import spark_options
from holdfast.graph.graph import Graph
from holdfast.ports import Store


def note_description(store: Store, pipeline: Graph) -> None:
    """Record the graph of a pipeline; cover what older versions noted in clear."""
    key = f"graph/{pipeline.fingerprint()}.json"
    store.put(key, _text(pipeline.spec()))
    for other in store.keys("graph/"):
        if other != key:
            _cover(store, other)


def _cover(store: Store, key: str) -> None:
    data = store.get(key)
    try:
        spec = json.loads(data or b"")
        for node in spec["nodes"]:
            if node["kind"] == "spark":
                node["arguments"]["options"] = spark_options.shown(node["arguments"]["options"])
        covered = _text(spec)
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    if covered != data:
        store.put(key, covered)


def _text(spec: dict[str, Any]) -> bytes:
    return json.dumps(spec).encode()
