"""Frames that a user gives, of any library, as Arrow tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def is_frame(given: Any) -> bool:
    """Return whether a value is a frame: of Arrow, pandas, Polars, Spark, or whoever exports one as Arrow does."""
    return hasattr(given, "__arrow_c_stream__") or _is_of_older_spark(given)


def is_of_spark(given: Any) -> bool:
    """Return whether a frame is Spark's: asked for its rows, it would compute them."""
    return type(given).__module__.startswith("pyspark.")


def as_arrow(frame: Any) -> pa.Table:
    """Return the rows of a frame."""
    if isinstance(frame, pa.Table):
        return frame
    if type(frame).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(frame, preserve_index=False)
    return frame.toArrow() if _is_of_older_spark(frame) else pa.table(frame)


def _is_of_older_spark(given: Any) -> bool:
    """Return whether it is a frame of Spark 4.1, which exports nothing by Arrow's interface."""
    return is_of_spark(given) and type(given).__name__ == "DataFrame" and not hasattr(given, "__arrow_c_stream__")
