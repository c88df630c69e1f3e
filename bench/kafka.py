"""Topic to topic: messages of 100 bytes from one Kafka topic to another, by three sides that take turns.

- ``spark``: Spark's own Kafka source and sink (the connector's jars are brought once: ``spark_kafka_jars.txt``);
  at-least-once.
- ``loop``: two processes that consume, filter and produce with confluent-kafka, each half of the partitions, without
  transactions; offsets are committed when the brokers have what was produced: at-least-once.
- ``holdfast``: a pipeline through the public API; exactly-once.
- ``public``: the same without librdkafka's own functions (``HOLDFAST_KAFKA_NATIVE=off``): what a version of the
  library has that was not tried.

All read the values of four partitions, leave tombstones out, and write the values, compressed with lz4, to a topic of
four partitions.  What a side wrote is read back by a ``read_committed`` consumer that knows nothing of it: every number
once.  The broker has the heap, compiler and collector of Kafka's own scripts; a first round is not counted
(``--warm-rounds``), because the broker's JVM compiles beside it what a broker has run for days elsewhere.  Each side
runs in a process of its own, warmed up by a small topic; measured is the time from the start of the query (or from the
first ``consume`` of the loop) to its end.  ``vs_spark``, ``vs_loop`` and ``vs_public`` are quotients of messages/s,
medians of the rounds.

Then how long a message waits: 1000 messages/s, each with the time of its creation, until a ``read_committed`` consumer
has it; ``latency_p50_ms`` and ``latency_p99_ms`` of Holdfast, ``spark_p50_ms`` and ``spark_p99_ms`` of Spark's own.
Messages of the first seconds (``--warm-seconds``) are left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.epoch_latency import watch_holdfast, watch_spark
from bench.sides import figures_in, median, percentile, print_result, run_side, start_side
from holdfast.testing.servers.kafka import JVM_AS_INSTALLED, artifacts, cache, fetch, kafka_server

SPARK_JARS = Path(__file__).with_name("spark_kafka_jars.txt")
SIDES = ("spark", "loop", "holdfast", "public")
SERVER = {"log.segment.delete.delay.ms": "1000"}  # what a side wrote leaves the disk before the next one writes
PARTITIONS = 4
MESSAGE_BYTES = 100
WARM_ROWS = 200_000
LOOP_PROCESSES = 2

PRODUCER = {
    "linger.ms": 20,
    "batch.size": 1 << 20,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
    "compression.type": "lz4",
    "delivery.report.only.error": True,
}
"""Of the loop and of what fills the topics."""

CONSUMER = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1 << 18,
    "fetch.message.max.bytes": 8 << 20,
    "check.crcs": False,
}


# --- sides: throughput ------------------------------------------------------------------------------------------------


def side_spark(bootstrap: str, topics: dict[str, list[str]], scratch: str) -> dict[str, Any]:
    """Spark's own source and sink."""
    session = _spark_session()

    def run(name: str, source: str, target: str) -> float:
        started = time.perf_counter()
        query = _spark_query(session, bootstrap, source, target, f"{scratch}/{name}").trigger(availableNow=True).start()
        query.awaitTermination()
        return time.perf_counter() - started

    run("warm", *topics["warm"])
    return {"seconds": run("bench", *topics["bench"])}


def side_holdfast(bootstrap: str, topics: dict[str, list[str]], scratch: str) -> dict[str, Any]:
    """The pipeline that a user of Holdfast writes."""
    import holdfast as hf

    os.environ.setdefault("HOLDFAST_MASTER", "local[2]")

    def run(name: str, source: str, target: str) -> Any:
        # The sink knows what a pipeline of this name has written, in an earlier round too.
        pipeline = _holdfast_pipeline(f"{name}_{time.time_ns()}", bootstrap, source, target)
        return pipeline.run(checkpoint=f"{scratch}/{name}", trigger=hf.available_now())

    run("warm", *topics["warm"])
    started = time.perf_counter()
    status = run("bench", *topics["bench"]).status()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "epochs": status.epoch, "staging": status.sinks[0].staging}


def side_public(bootstrap: str, topics: dict[str, list[str]], scratch: str) -> dict[str, Any]:
    """The same pipeline, with a Python object for each message."""
    os.environ["HOLDFAST_KAFKA_NATIVE"] = "off"
    return side_holdfast(bootstrap, topics, scratch)


def side_loop(bootstrap: str, topics: dict[str, list[str]], scratch: str) -> dict[str, Any]:
    """Two processes of confluent-kafka."""
    import multiprocessing

    del scratch
    spawning = multiprocessing.get_context("spawn")
    barrier = spawning.Barrier(LOOP_PROCESSES + 1)
    workers = []
    for number in range(LOOP_PROCESSES):
        partitions = list(range(number, PARTITIONS, LOOP_PROCESSES))
        worker = spawning.Process(target=_loop, args=(bootstrap, topics, partitions, barrier))
        worker.start()
        workers.append(worker)
    barrier.wait(300)
    started = time.perf_counter()
    barrier.wait(3600)
    seconds = time.perf_counter() - started
    for worker in workers:
        worker.join()
    return {"seconds": seconds}


def _loop(bootstrap: str, topics: dict[str, list[str]], partitions: list[int], barrier: Any) -> None:
    import gc

    from confluent_kafka import Consumer, Producer, TopicPartition

    gc.disable()  # messages are what it looks through again and again: half the time of consuming

    def run(source: str, target: str) -> None:
        at = {"bootstrap.servers": bootstrap}
        consumer = Consumer({**at, **CONSUMER, "group.id": f"loop-{source}-{partitions[0]}"})
        producer = Producer({**at, **PRODUCER})
        produce, poll = producer.produce, producer.poll
        consumer.assign([TopicPartition(source, number, 0) for number in partitions])
        left = set(partitions)
        while left:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    left.discard(message.partition())
                    continue
                value = message.value()
                if value is None:
                    continue
                while True:
                    try:
                        produce(target, value)
                        break
                    except BufferError:
                        poll(0.05)
            poll(0)
        assert producer.flush(60) == 0
        consumer.commit(offsets=consumer.position(consumer.assignment()), asynchronous=False)
        consumer.close()

    run(*topics["warm"])
    barrier.wait(300)
    run(*topics["bench"])
    barrier.wait(3600)


def _spark_session() -> Any:
    from bench.raw_spark import default_session

    return default_session({"spark.jars": ",".join(map(str, sorted(_spark_jars().glob("*.jar"))))})


def _spark_query(session: Any, bootstrap: str, source: str, target: str, checkpoint: str) -> Any:
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
    reader = reader.option("kafka.max.poll.records", 10_000).option("kafka.max.partition.fetch.bytes", 8 << 20)
    frame = reader.load().where("value is not null").select("value")
    writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    writer = writer.option("kafka.linger.ms", 20).option("kafka.batch.size", 1 << 20)
    writer = writer.option("kafka.buffer.memory", 256 << 20).option("kafka.compression.type", "lz4")
    return writer.option("checkpointLocation", checkpoint)


def _spark_jars() -> Path:
    version = next(version for name, version, _ in artifacts(SPARK_JARS) if "spark-sql-kafka" in name)
    place = cache(SPARK_JARS, "spark-kafka", version)
    if not place.is_dir():
        fetch(SPARK_JARS, place, "XDG_CACHE_HOME")
    return place


def _holdfast_pipeline(name: str, bootstrap: str, source: str, target: str) -> Any:
    import holdfast as hf

    messages = hf.read.kafka(bootstrap, source, format="bytes", name="messages")
    kept = messages | hf.filter("value is not null", name="kept") | hf.select("value", name="values")
    return hf.Pipeline(name, kept | hf.write.kafka(bootstrap, target, format="bytes", value="value", name="copies"))


# --- sides: latency ---------------------------------------------------------------------------------------------------


def side_holdfast_latency(bootstrap: str, source: str, target: str, scratch: str) -> dict[str, Any]:
    """Holdfast without pause between epochs, and where each epoch's milliseconds went."""
    import holdfast as hf

    os.environ.setdefault("HOLDFAST_MASTER", "local[2]")
    pipeline = _holdfast_pipeline(f"moments_{time.time_ns()}", bootstrap, source, target)
    return watch_holdfast(pipeline.start(checkpoint=f"{scratch}/checkpoint", trigger=hf.every("0 s")))


def side_spark_latency(bootstrap: str, source: str, target: str, scratch: str) -> dict[str, Any]:
    """Spark's micro-batches without pause; nothing waits for a fuller batch."""
    query = _spark_query(_spark_session(), bootstrap, source, target, f"{scratch}/checkpoint")
    return watch_spark(query.option("kafka.linger.ms", 0).start())


def side_generator(bootstrap: str, topic: str, rows_per_s: int, seconds: float) -> dict[str, Any]:
    """Make messages at a steady pace; each carries its number and when it was made."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    began = time.perf_counter()
    for number in range(round(rows_per_s * seconds)):
        pause = number / rows_per_s - (time.perf_counter() - began)
        if pause > 0:
            time.sleep(pause)
        text = b"%010d %020d " % (number, time.time_ns() // 1000)
        producer.produce(topic, text.ljust(MESSAGE_BYTES, b"."), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0
    return {}


def side_reader(bootstrap: str, topic: str, row_count: int, first: int) -> dict[str, Any]:
    """Read what becomes visible; return how long each message with a number from ``first`` on has waited."""
    from confluent_kafka import Consumer, TopicPartition

    at = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer({**at, "enable.auto.commit": False, "fetch.wait.max.ms": 500})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    print("READY", flush=True)
    seen: dict[int, float] = {}
    twice = 0
    quiet_since = time.monotonic()
    while len(seen) < row_count and time.monotonic() - quiet_since < 60:
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            continue
        now_us = time.time_ns() // 1000
        quiet_since = time.monotonic()
        text = message.value()
        number = int(text[:10])
        twice += number in seen
        seen[number] = (now_us - int(text[11:31])) / 1e3
    consumer.close()
    waits = [wait for number, wait in seen.items() if number >= first]
    return {"count": len(seen), "twice": twice, "waits_ms": waits}


# --- what is written and read besides ---------------------------------------------------------------------------------


def create(bootstrap: str, *topics: str) -> None:
    """Create topics anew; those of these names are gone."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    there = [topic for topic in topics if topic in admin.list_topics(timeout=30).topics]
    if there:
        for future in admin.delete_topics(there).values():
            future.result(30)
    settings = {"segment.bytes": str(64 << 20), "file.delete.delay.ms": "1000"}
    for topic in topics:
        end = time.monotonic() + 30
        while True:
            try:
                admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=settings)])[topic].result(30)
                break
            except KafkaException:  # the last one of this name is still being deleted
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


def fill(bootstrap: str, topic: str, row_count: int) -> None:
    """Write numbered messages, partition by partition."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    for number in range(row_count):
        text = b'{"id": %010d, "device": "device-%03d", "celsius": %05.2f, "at": %d' % (
            number,
            number * 7919 % 1000,
            number * 31 % 4000 / 100,
            1_700_000_000_000_000 + number * 1000,
        )
        value = text.ljust(MESSAGE_BYTES - 1) + b"}"
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def check(bootstrap: str, topic: str, row_count: int, side: str) -> None:
    """Read a topic as ``read_committed`` shows it; every number must be there once."""
    from confluent_kafka import Consumer, TopicPartition

    at = {"bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed"}
    consumer = Consumer({**at, **CONSUMER})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    left = set(range(PARTITIONS))
    numbers = []
    while left:
        some = consumer.consume(10_000, 5)
        left -= {message.partition() for message in some if message.error() is not None}
        numbers += [int(message.value()[7:17]) for message in some if message.error() is None]
    consumer.close()
    distinct = len(np.unique(np.array(numbers)))
    if (len(numbers), distinct) != (row_count, row_count):
        raise RuntimeError(f"{side} wrote {len(numbers)} messages, {distinct} distinct ones, instead of {row_count}")


# --- the measurement --------------------------------------------------------------------------------------------------


def throughput(bootstrap: str, options: argparse.Namespace) -> dict[str, Any]:
    """Let the sides take turns and return their figures."""
    create(bootstrap, "source", "warm")
    fill(bootstrap, "source", options.rows)
    fill(bootstrap, "warm", WARM_ROWS)
    sides = options.sides.split(",")
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(-options.warm_rounds, options.rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            create(bootstrap, "copies", "warm-copies")
            scratch = tempfile.mkdtemp(prefix="holdfast-bench-")
            topics = {"warm": ["warm", "warm-copies"], "bench": ["source", "copies"]}
            figures = run_side("bench.kafka", side, {"bootstrap": bootstrap, "topics": topics, "scratch": scratch})
            shutil.rmtree(scratch, ignore_errors=True)
            check(bootstrap, "copies", options.rows, side)
            took = figures.pop("seconds")
            if number >= 0:
                seconds[side].append(took)
            print(
                f"{f'round {number + 1}' if number >= 0 else 'warm'} {side}: {took:.2f} s, "
                f"{options.rows / took / 1e3:.0f} thousand messages/s, load {os.getloadavg()[0]:.1f} {figures}",
                flush=True,
            )
    rates = {side: options.rows / median(all_seconds) for side, all_seconds in seconds.items()}
    ours = rates.get("holdfast", 0)
    return {
        **{f"vs_{side}": round(ours / rate, 3) for side, rate in rates.items() if side != "holdfast"},
        "messages_per_s": {side: round(rate) for side, rate in rates.items()},
        "seconds": {side: [round(s, 2) for s in all_seconds] for side, all_seconds in seconds.items()},
    }


def latency(bootstrap: str, side: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one side under load and return its latencies in milliseconds."""
    create(bootstrap, "moments", "moved")
    scratch = tempfile.mkdtemp(prefix="holdfast-bench-")
    arguments = {"bootstrap": bootstrap, "source": "moments", "target": "moved", "scratch": scratch}
    row_count = round(options.rows_per_s * (options.warm_seconds + options.seconds))
    first = round(options.rows_per_s * options.warm_seconds)
    running: list[subprocess.Popen[str]] = []

    def start(name: str, **given: Any) -> tuple[subprocess.Popen[str], str]:
        process = start_side("bench.kafka", name, given)
        running.append(process)
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("READY"):
                return process, said
        figures_in(said, process.wait(), name)  # raises with what it said
        raise RuntimeError(f"{name} ended before it was ready")

    try:
        moving, said = start(f"{side}_latency", **arguments)
        reading, heard = start("reader", bootstrap=bootstrap, topic="moved", row_count=row_count, first=first)
        pace = {"rows_per_s": options.rows_per_s, "seconds": options.warm_seconds + options.seconds}
        run_side("bench.kafka", "generator", {"bootstrap": bootstrap, "topic": "moments", **pace})
        read = figures_in(heard + reading.communicate(timeout=180)[0], reading.returncode, "reader")
        moved = figures_in(said + moving.communicate(timeout=120)[0], moving.returncode, side)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(scratch, ignore_errors=True)
    if (read["count"], read["twice"]) != (row_count, 0):
        raise RuntimeError(f"{side}: {read['count']} of {row_count} messages came, {read['twice']} twice")
    waits, epochs = read["waits_ms"], moved["epochs"]
    stages = {stage for epoch in epochs for stage in epoch}
    figures = {
        "p50": round(percentile(waits, 0.5), 1),
        "p99": round(percentile(waits, 0.99), 1),
        "max": round(max(waits), 1),
        "epochs": len(epochs),
        "epoch_ms": {stage: round(median([each.get(stage, 0.0) for each in epochs]), 1) for stage in sorted(stages)},
    }
    print(f"{side}: {figures}, load {os.getloadavg()[0]:.1f}", flush=True)
    return figures


def main() -> int:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-rounds", type=int, default=1, help="rounds before those that are counted")
    parser.add_argument("--rows-per-s", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm-seconds", type=float, default=5)
    parser.add_argument("--sides", default=",".join(SIDES), help="which sides take turns")
    parser.add_argument("--only", choices=("throughput", "latency"))
    options = parser.parse_args()
    sides = options.sides.split(",")
    if "spark" in sides:
        _spark_jars()
    result: dict[str, Any] = {"bench": "kafka", "rows": options.rows, "rounds": options.rounds}
    with kafka_server(SERVER, jvm=JVM_AS_INSTALLED) as server:
        if options.only != "latency":
            result |= throughput(server.bootstrap, options)
        if options.only != "throughput":
            for side, prefix in (("holdfast", "latency"), ("spark", "spark")):
                if side in sides:
                    figures = latency(server.bootstrap, side, options)
                    result |= {f"{prefix}_{share}_ms": figures[share] for share in ("p50", "p99")}
                    result[f"{prefix}_epoch_ms"] = figures["epoch_ms"]
    print_result({**result, "load": round(os.getloadavg()[0], 1)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
