"""What uses a library that only an extra brings: statements, each of which must say how the extra is installed.

Also a program, for an environment that has none of them: prints what each extra's statements say, as JSON.  It needs
nothing but Holdfast.
"""

from __future__ import annotations

import json
import sys

BLOCKED = (
    "av", "botocore", "confluent_kafka", "cv2", "fastavro", "gcsfs", "kafka", "obstore", "openlineage", "opentelemetry",
    "polars", "prometheus_client", "psycopg", "pymysql", "redis", "s3fs", "starlette", "urllib3", "uvicorn",
)  # fmt: skip
"""What an environment with the wheel alone may lack."""

KAFKA = 'hf.read.kafka("h:9092", "t", schema="v INT", name="s").node.spec.open("s", "w")'
CONNECT = '.spec.connect("s", "p", pa.schema([("k", pa.string())]))'

USES = {
    "postgres": [
        'hf.write.postgres("postgresql://h/d", table="t")' + CONNECT,
        'with hf.lookup_table.postgres("postgresql://h/d", query="SELECT 1 AS k")._connection(): pass',
    ],
    "mysql": ['hf.write.mysql("mysql://u@h/d", table="t")' + CONNECT],
    "redis": ['hf.write.redis("redis://h", key="k", id="k")' + CONNECT],
    "kafka": [KAFKA, 'hf.write.kafka("h:9092", "t")' + CONNECT],
    "http": ['hf.write.http("http://h/", id="k")' + CONNECT],
    "s3": ['from holdfast.connectors.formats.access import file_system; file_system("s3://bucket/part")'],
    "gcs": ['from holdfast.connectors.formats.access import file_system; file_system("gs://bucket/part")'],
    "object-store": ['from holdfast.store.paths import open_store; open_store("s3://bucket/checkpoint")'],
    "metrics": ["import holdfast.metrics.families"],
    "otel": ["import holdfast.metrics.tracing"],
    "lineage": ["import holdfast.metrics.lineage"],
    "page": ['from holdfast.cli import page; page.serve(None, "127.0.0.1:0", None, (), None, until_input_ends=False)'],
    "video": ['hf.read.camera("rtsp://h/", journal="j", name="c")', "hf.video.VideoFrame.from_array(None, pts=0)"],
}
"""Extra -> statements.  ``avro`` brings Kafka's libraries too, and is asked for where a value is decoded."""


def answers() -> dict[str, list[str]]:
    """Return what each statement says."""
    import pyarrow as pa

    import holdfast as hf

    said: dict[str, list[str]] = {}
    for extra, statements in USES.items():
        for statement in statements:
            try:
                exec(statement, {"hf": hf, "pa": pa})
                said.setdefault(extra, []).append("nothing")
            except hf.HoldfastError as error:
                said.setdefault(extra, []).append(str(error))
            except Exception as error:
                said.setdefault(extra, []).append(repr(error))
    return said


def command(extra: str) -> str:
    """Return what each of its statements must name."""
    return f"pip install 'holdfast[{extra}]'"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answers()))
