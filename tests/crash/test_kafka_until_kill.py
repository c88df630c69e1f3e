"""Kill runs over a topic that end at a time: each ends exactly there all the same, and the next goes on (design/0038).

Messages are appended while a run is dead: they are below its time, and it ends where the partitions ended when it
began.  Every place in planning is one in ``tests/unit/sources/test_kafka_until.py``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset
import pytest

from holdfast.checkpoint.directory_header import FILE_NAME, read_origin
from holdfast.testing.servers.kafka import KafkaServer
from tests.crash.lives import MODES, Lives
from tests.kafka_topics import Topics
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

Row = tuple[str, int]

DEATHS = {
    15: ("after-stage:1", "after-decide+1"),
    27: ("after-decide+1", "moment:1"),
    None: ("after-stage+1", "publish-begun+1"),
}
"""Where a run ends -> where its lives die: a number of epochs after those that Spark has committed."""


def send(topics: Topics, topic: str, part: int, count: int) -> list[Row]:
    """Append messages to both partitions: times far apart, in no order."""
    rows = [(f"{part}/{number}/{p}", (7 * number + part + p) % 40) for number in range(count) for p in range(2)]
    for p in range(2):
        values = [json.dumps({"id": name, "t": t}).encode() for name, t in rows if name.endswith(f"/{p}")]
        topics.produce(topic, {p: values})
    return rows


def last_epoch(lives: Lives) -> int:
    """Return the last epoch that Spark has committed."""
    header = lives.work / "checkpoint" / "spark" / "1" / FILE_NAME
    return lives.committed() + (read_origin(header).base - 1 if header.exists() else 0)


def shown(work: Path) -> list[list[Row]]:
    """Return what each sink shows."""
    told = pyarrow.dataset.dataset(work / "out", format="parquet").to_table().select(["id", "t"]).to_pylist()
    table = sqlite_rows(work / "out.db", "SELECT id, t FROM rows")
    return [sorted(table), sorted((row["id"], row["t"]) for row in told)]


@pytest.mark.parametrize("deaths", ["few", pytest.param("all", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "mode", [*list(MODES)[:1], *(pytest.param(m, marks=pytest.mark.nightly) for m in list(MODES)[1:])]
)
def test_each_run_over_a_topic_ends_at_its_time_wherever_its_lives_die(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], tmp_path: Path, mode: str, deaths: str
) -> None:
    topics, topic = Topics(kafka_of_session.bootstrap), f"until-kill-{new_topic()}"
    topics.create(topic, 2)
    environment = {"CRASH_KAFKA": kafka_of_session.bootstrap, "CRASH_TOPIC": topic, **MODES[mode]}
    lives = Lives(tmp_path, "kafka_until_pipeline", environment)
    rows: list[Row] = []
    late: list[Row] = []
    few = {until: places[:1] for until, places in DEATHS.items() if until != 27}
    for part, (until, places) in enumerate(few.items() if deaths == "few" else DEATHS.items()):
        rows += late + send(topics, topic, 2 * part, 24)
        late = []
        lives.arguments = () if until is None else ("--until", str(until))
        for where in places:
            name, plus, ahead = where.partition("+")
            lives.die(f"{name}:{last_epoch(lives) + int(ahead)}" if plus else where)
            if until is not None:
                late += send(topics, topic, 2 * part + 1, 4)
        if until == 27 and deaths == "all":  # the log, with what is owed, comes back from the sinks
            lives.wait_for_survivors()
            shutil.rmtree(tmp_path / "checkpoint")
            rows, late = rows + late, []  # the ends of the run, too, if no sink was told them: checked below
            continue_after_loss(lives, tmp_path, rows, until)
            continue
        assert lives.end() == 0, lives.said()
        wanted = sorted(row for row in rows if until is None or row[1] < until)
        assert shown(tmp_path) == [wanted, wanted]


def continue_after_loss(lives: Lives, work: Path, rows: list[Row], until: int) -> None:
    """End a run whose ends a sink may know, or not: what was there when it began is there, and nothing twice."""
    assert lives.end() == 0, lives.said()
    table, files = shown(work)
    assert table == files
    assert len(table) == len({*table})
    assert {*table} <= {row for row in rows if row[1] < until}
