"""An outside reader of what shards write: a table, a segments store, a topic.

``python -m tests.crash.shards_reader WORK BOOTSTRAP``: writes to ``WORK/seen`` what it sees for the first time, a line
``[sink, [id, ...]]`` each, until its input ends.  A row that a sink shows twice is in two lines.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from holdfast import segments

LOOK_S = 0.2


def of_table(path: Path) -> Iterator[list[int]]:
    """Yield the ids of rows that are new in the table."""
    last = 0
    while True:
        with sqlite3.connect(path) as connection:
            query = "SELECT rowid, id FROM rows WHERE rowid > ? ORDER BY rowid"
            found = connection.execute(query, (last,)).fetchall()
        last = found[-1][0] if found else last
        yield [number for _, number in found]


def of_store(path: Path) -> Iterator[list[int]]:
    """Yield the ids of rows that are new in the store."""
    seen = Counter[int]()
    while True:
        found = Counter(segments.open(path).to_arrow()["id"].to_pylist())
        yield [*(found - seen).elements()]
        seen = found


def of_topic(bootstrap: str) -> Iterator[list[int]]:
    """Yield the ids of messages that are new in the topic, and committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "outside", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("rows", 0, 0)])
    while True:
        found = consumer.consume(10_000, LOOK_S)
        values = [message.value() for message in found if message.error() is None]
        yield [json.loads(value)["id"] for value in values if value is not None]


def main(work: Path, bootstrap: str) -> None:
    """Look until there is no more input."""
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    sinks: dict[str, Callable[[], Iterator[list[int]]]] = {
        "table": lambda: of_table(work / "table.db"),
        "store": lambda: of_store(work / "store"),
        "topic": lambda: of_topic(bootstrap),
    }
    looks = {sink: begin() for sink, begin in sinks.items()}
    with (work / "seen").open("a") as seen:
        while not is_over.wait(LOOK_S):
            for sink, look in looks.items():
                if new := next(look):
                    seen.write(f"{json.dumps([sink, new])}\n")
                    seen.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
