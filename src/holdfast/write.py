"""``hf.write``: the sinks, each a function that declares one; to stand to the right of ``stream |``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import later

if TYPE_CHECKING:
    from holdfast.sinks.console import console
    from holdfast.sinks.files.spec import files
    from holdfast.sinks.foreach_batch import foreach_batch
    from holdfast.sinks.memory import memory
    from holdfast.sinks.postgres.spec import postgres
    from holdfast.sinks.sqlite.spec import sqlite

__all__ = ["console", "files", "foreach_batch", "memory", "postgres", "sqlite"]

__getattr__, __dir__ = later.names(
    __name__,
    {
        "console": "holdfast.sinks.console",
        "files": "holdfast.sinks.files.spec",
        "foreach_batch": "holdfast.sinks.foreach_batch",
        "memory": "holdfast.sinks.memory",
        "postgres": "holdfast.sinks.postgres.spec",
        "sqlite": "holdfast.sinks.sqlite.spec",
    },
)
