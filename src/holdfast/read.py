"""``hf.read``: the sources, each a function that gives a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import later

if TYPE_CHECKING:
    from holdfast.sources.callback import CallbackFeed, callback
    from holdfast.sources.files.spec import files
    from holdfast.sources.rate import rate
    from holdfast.sources.rows import rows
    from holdfast.sources.spark import spark

__all__ = ["CallbackFeed", "callback", "files", "rate", "rows", "spark"]

__getattr__, __dir__ = later.names(
    __name__,
    {
        "CallbackFeed": "holdfast.sources.callback",
        "callback": "holdfast.sources.callback",
        "files": "holdfast.sources.files.spec",
        "rate": "holdfast.sources.rate",
        "rows": "holdfast.sources.rows",
        "spark": "holdfast.sources.spark",
    },
)
