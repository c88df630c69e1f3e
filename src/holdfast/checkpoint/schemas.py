"""For connecting sinks outside of a run: the schema each was last opened with, ``schemas/<sink>.json``."""

from __future__ import annotations

import base64

import pyarrow as pa

from holdfast.errors import Corrupt
from holdfast.ports import Store
from holdfast.store import sealed

OUT_OF_REACH: dict[str, str] = {
    "memory": "its rows live in the process of the run",
    "foreach_batch": "its function wants a Spark DataFrame",
}
"""Kinds of sinks that only the run itself can ask and write, and why.  A console can be written from anywhere."""


def note_schema(store: Store, sink: str, schema: pa.Schema) -> None:
    """Record the schema of a sink; each start does."""
    store.put(_key(sink), sealed.dump({"arrow": base64.b64encode(schema.serialize().to_pybytes()).decode()}))


def noted_schema(store: Store, sink: str) -> pa.Schema | None:
    """Return what :func:`note_schema` wrote; None for a sink that was never opened.

    Raises
    ------
    Corrupt
        If it cannot be read.
    """
    key = _key(sink)
    data = store.get(key)
    if data is None:
        return None
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(sealed.load(data)["arrow"])))
    except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as error:
        raise Corrupt(
            f"{key!r} in the checkpoint cannot be read.",
            why=f"{error}; it says which columns the sink has, where no run does.",
            do="start the pipeline once, which writes it anew; or restore it from a copy of the checkpoint.",
            participant=key,
        ) from error


def _key(sink: str) -> str:
    return f"schemas/{sink}.json"
