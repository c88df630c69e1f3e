"""A packet that kills the process in a codec is isolated, and decoding goes on behind it (design/0047, "Isolation")."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.config import Settings
from holdfast.errors import HoldfastError
from holdfast.quarantine.dead_letters import read_letters
from holdfast.store.local import LocalStore
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

SETTINGS = Settings(
    on_poison="isolate",
    poison_attempts=1,
    retry_attempts=2,
    buckets=2,
    checkpoint_freq=86_400_000,
    first_epoch_max="0 B",
)
KILLER = b"7"


def fake_codec() -> type[hf.flow.Calculator]:
    """Return a decoder whose frames are sums of a group's packets, and that one packet kills."""

    class FakeDecoder(hf.flow.Calculator):
        contract = hf.flow.Contract(
            inputs="packet", outputs={"frame": int}, timestamp_offset=0, replay_from="is_key", replay_marks=2
        )

        def __init__(self, options: Any = None) -> None:
            super().__init__(options)
            self.sum = 0

        def process(self, context: hf.flow.Context) -> None:
            packet = context["packet"]
            if packet["data"] == KILLER:
                os.kill(os.getpid(), signal.SIGSEGV)  # a fault in a codec's own code
            self.sum = int(packet["data"]) + (0 if packet["is_key"] else self.sum)
            context.emit("frame", self.sum)

    return FakeDecoder


def pipeline(work: Path) -> hf.Pipeline:
    packets = [{"stream": "a", "timestamp": t, "is_key": t % 5 == 0, "data": str(t).encode()} for t in range(12)]
    schema = "stream STRING, timestamp BIGINT, is_key BOOLEAN, data BINARY"
    rows = hf.read.rows([packets[:6], packets[6:]], schema=schema, timestamp="timestamp", name="packets")
    graph = hf.flow.Graph("decode")
    graph.output("frame", graph.input("packet") | hf.flow.node(fake_codec(), name="decode"))
    frames = rows | hf.flow(graph, by="stream", schema="total BIGINT", name="frames")
    return hf.Pipeline("video", frames | hf.write.sqlite(work / "out.db", table="frames", name="table"))


def test_a_packet_that_kills_the_process_is_left_out_and_every_other_is_decoded_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    def run() -> None:
        checkpoint = str(tmp_path / "checkpoint")
        pipeline(tmp_path).run(checkpoint=checkpoint, trigger=hf.available_now(), session=spark, settings=SETTINGS)

    with pytest.raises(HoldfastError):
        run()
    run()
    (letter,) = read_letters(LocalStore(str(tmp_path / "checkpoint")))
    assert letter.table.to_pylist()[0]["data"] == KILLER
    assert letter.table.to_pylist()[0]["timestamp"] == 7
    totals = {0: 0, 1: 1, 2: 3, 3: 6, 4: 10, 5: 5, 6: 11, 8: 19, 9: 28, 10: 10, 11: 21}  # 8 and 9 lack 7
    assert sqlite_rows(tmp_path / "out.db", "SELECT timestamp, total FROM frames") == sorted(totals.items())
