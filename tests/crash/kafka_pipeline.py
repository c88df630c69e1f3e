"""The pipeline that is killed while it reads a topic: read, draw a random number, write to the sinks."""

from __future__ import annotations

import os

import holdfast as hf
from tests.crash.pipeline import SINKS, drawing, sink_of

source = hf.read.kafka(
    os.environ["CRASH_KAFKA"],
    "rows",
    schema="id BIGINT, at TIMESTAMP, value DOUBLE",
    timestamp="at",
    max_rows_per_epoch=500,
    name="messages",
)
rows = source | drawing
pipeline = hf.Pipeline("crashing", *[rows | sink_of(kind) for kind in SINKS])
