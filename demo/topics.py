"""The flights as messages of a Kafka topic, appended while the pipeline reads it; and the topics that it writes.

Of each airport the flights are in one partition, so they keep their order.  Behind the last one stands a bound row for
each airport: nothing follows, nobody is waited for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.demo.kills import DemoFailed

SOURCE = "flights-in"
"""The topic that is read."""

PARTITIONS = 3
FILES_PER_S = 2.5
"""How fast the topic grows: for as long as two or three runs take."""

BEHIND_ALL = "2014-02-01T00:00:00Z"


@contextmanager
def loading(broker: str, files: Path, sinks: Sequence[str]) -> Iterator[Future[None]]:
    """Create all topics, and append the flights to that of the source meanwhile; the future is done when all are there.

    Parameters
    ----------
    broker : str
        ``host:port``.
    files : Path
        Directory of the flights as JSON lines, in time order.
    sinks : sequence of str
        Topics that the pipeline writes: of one partition each.
    """
    admin = AdminClient({"bootstrap.servers": broker})
    topics = [NewTopic(SOURCE, PARTITIONS, 1), *(NewTopic(name, 1, 1) for name in sinks)]
    for each in admin.create_topics(topics).values():
        each.result(30)
    stops = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(_load, broker, files, stops)
        finally:
            stops.set()


def _load(broker: str, files: Path, stops: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True, "log_level": 0})
    airports: set[str] = set()
    for path in sorted(files.glob("*.json")):
        for line in path.read_bytes().splitlines():
            origin = json.loads(line)["origin"]
            airports.add(origin)
            producer.produce(SOURCE, line, origin)
        if producer.flush(30):
            raise DemoFailed("the broker does not take the flights")
        if stops.wait(1 / FILES_PER_S):
            return
    for origin in sorted(airports):
        bound = {"origin": origin, "time_hour": BEHIND_ALL, "is_bound": True}
        producer.produce(SOURCE, json.dumps(bound), origin)
    if producer.flush(30):
        raise DemoFailed("the broker does not take the flights")
