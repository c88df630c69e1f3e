"""Flink by PyFlink: lines of files, a Python function, and a file sink, with checkpoints.

As written in https://nightlies.apache.org/flink/flink-docs-stable/docs/connectors/datastream/filesystem/ ("designed for
providing exactly-once semantics for STREAMING execution") and .../docs/deployment/config/ (a checkpoint that is kept
after the end of a job, ``execution.state-recovery.path`` to start from).  The job runs in a cluster within its process;
the function waits two milliseconds for each row, so that checkpoints come between the rows of this small input.

- ``files``: ``FileSink`` that rolls with each checkpoint; a reader takes finished files only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from killed import lead, seen

lead()
WORK, ADDRESS = Path(os.environ["MATRIX_WORK"]), os.environ["MATRIX_ADDRESS"]

from pyflink.common import Configuration, Types, WatermarkStrategy  # noqa: E402
from pyflink.common.serialization import Encoder  # noqa: E402
from pyflink.datastream import StreamExecutionEnvironment  # noqa: E402
from pyflink.datastream.connectors.file_system import FileSink, FileSource, RollingPolicy, StreamFormat  # noqa: E402


def number_of(line: str) -> str:
    """Return a row with its number alone."""
    time.sleep(0.002)
    return json.dumps({"id": seen(json.loads(line)["id"])})


settings = Configuration()
settings.set_string("python.executable", sys.executable)
settings.set_string("python.client.executable", sys.executable)
settings.set_string("python.fn-execution.bundle.size", "50")
settings.set_string("execution.checkpointing.interval", "500 ms")
settings.set_string("execution.checkpointing.dir", (WORK / "checkpoints").as_uri())
settings.set_string("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION")
kept = [path.parent for path in WORK.glob("checkpoints/*/chk-*/_metadata")]
if kept:
    newest = max(kept, key=lambda path: (path.stat().st_mtime, path.name))
    settings.set_string("execution.state-recovery.path", newest.as_uri())
environment = StreamExecutionEnvironment.get_execution_environment(settings)
environment.set_parallelism(1)
source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), (WORK / "in").as_uri()).build()
lines = environment.from_source(source, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
rows = lines.map(number_of, output_type=Types.STRING()).uid("rows")
sink = FileSink.for_row_format(Path(ADDRESS).as_uri(), Encoder.simple_string_encoder())
rows.sink_to(sink.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).build()).uid("files")
environment.execute("matrix")
