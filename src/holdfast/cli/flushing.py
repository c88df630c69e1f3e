"""``holdfast flush``: asks the sinks of a pipeline that seal segments to do so now."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from holdfast.errors import InvalidPipeline
from holdfast.graph.pipeline import Pipeline
from holdfast.sinks.segments.requests import flush
from holdfast.sinks.segments.spec import SegmentsSinkSpec


def flush_sinks(pipeline: Pipeline, names: Collection[str], partitions: Sequence[str] | None) -> list[str]:
    """Ask sinks to seal what grows; return their names.

    Raises
    ------
    InvalidPipeline
        If a name is not that of a sink that seals segments, or there is none.
    """
    able = {sink.name: sink.spec for sink in pipeline.sinks if isinstance(sink.spec, SegmentsSinkSpec)}
    unknown = [name for name in names if name not in able]
    if unknown or not able:
        raise InvalidPipeline(
            f"Pipeline {pipeline.name!r} has no sink {unknown[0]!r} that can be flushed."
            if unknown
            else f"Pipeline {pipeline.name!r} has no sink that can be flushed.",
            why=f"sinks of hf.write.segments can be: {', '.join(able) or 'there is none'}.",
            do="name one of these." if able else "nothing: its other sinks hold every epoch as it comes.",
        )
    chosen = [name for name in able if name in names or not names]
    for name in chosen:
        flush(os.path.abspath(able[name].path), partitions, pipeline=pipeline.name, sink=name)
    return chosen
