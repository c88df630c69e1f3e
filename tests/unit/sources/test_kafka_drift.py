"""``holdfast plan`` looks at the newest messages of a topic, and leaves no trace (design/0055); with a real broker."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.connectors.kafka.source import sampling
from holdfast.observe.drift import drift_lines, drifts
from holdfast.ports import SourceDrift
from holdfast.testing.servers.kafka import KafkaServer, NoKafka
from tests.kafka_secured import PASSWORD, TOPIC, SecuredKafka, secured_kafka
from tests.kafka_topics import Topics

pytestmark = pytest.mark.slow

GOOD, NEW = b'{"id": 1}', b'{"id": 1, "tip": 2.5}'


@pytest.fixture(scope="module")
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


@pytest.fixture
def topic(new_topic: Callable[[], str]) -> str:
    return f"drift-{new_topic()}"


def found(bootstrap: str, topic: str | None, schema: str = "id BIGINT", **arguments: Any) -> list[SourceDrift]:
    rides = hf.read.kafka(bootstrap, topic, schema=schema, name="rides", **arguments)
    return drifts(hf.Pipeline("p", rides | hf.write.memory("drift")))


def test_the_newest_messages_of_each_partition_are_compared(topics: Topics, topic: str) -> None:
    topics.create(topic, 2)
    topics.produce(topic, {0: [b'{"old": 1}'] * 60 + [NEW] * 50, 1: [GOOD, b'{"id": "x"}', None]})
    assert list(drift_lines(found(topics.bootstrap, topic))) == [
        f"~ source rides: 50 of 53 rows of topic {topic} have the member 'tip', which is no column (left out); "
        "add: tip DOUBLE",
        f"! source rides: 1 of 53 rows of topic {topic} would stop the run: it has no value; "
        "correct schema=, or who writes them",
        f"! source rides: 1 of 53 rows of topic {topic} would stop the run: column 'id' is declared int64; "
        "correct schema=, or who writes them",
    ]
    # Nobody has told the cluster anything: no group is there, and no topic that was not.
    groups = topics.admin.list_consumer_groups().result()
    assert not [each.group_id for each in groups.valid if each.group_id == "holdfast"]


def test_only_what_a_run_would_read_counts(topics: Topics, topic: str) -> None:
    """Marks of transactions, aborted rows and those of an open transaction are the newest offsets."""
    topics.create(topic, 1)
    topics.produce(topic, {0: [NEW]})
    topics.transaction(topic, {0: [b'{"aborted": 1}'] * 120}, commits=False)
    open_ = topics.transaction(topic, {0: [b'{"open": 1}']}, commits=None)
    (drift,) = found(topics.bootstrap, topic)
    assert (drift.rows, drift.members, drift.problem) == (1, {"tip": 1}, "")
    (drift,) = found(topics.bootstrap, topic, isolation="read_uncommitted")
    assert drift.rows >= 99, "a mark is no row"
    assert drift.members == {"aborted": drift.rows - 1, "open": 1}
    open_.abort_transaction(30)


def test_a_compacted_topic_and_a_partition_that_lost_its_begin_are_looked_at(topics: Topics, topic: str) -> None:
    topics.create(topic, 2, cleanup_policy="compact")
    topics.produce(topic, {0: [NEW, None], 1: [GOOD]}, key=b"k")
    (drift,) = found(topics.bootstrap, topic, on_bad_row="reject")
    assert (drift.rows, drift.members, drift.bad) == (3, {"tip": 1}, {"it has no value": 1})
    topics.create(f"{topic}-cut", 1)
    topics.produce(f"{topic}-cut", {0: [GOOD, GOOD, NEW]})
    topics.drop_before(f"{topic}-cut", 0, 2)
    (drift,) = found(topics.bootstrap, f"{topic}-cut")
    assert (drift.rows, drift.members) == (1, {"tip": 1})


def test_what_is_empty_or_not_there_is_said_and_not_created(topics: Topics, topic: str) -> None:
    nothing = "  source rides: no sample of its rows: "
    topics.create(topic, 3)
    (line,) = drift_lines(found(topics.bootstrap, topic))
    assert line == f"{nothing}topic {topic} has no message that a run would read now"
    (line,) = drift_lines(found(topics.bootstrap, f"{topic}-away"))
    assert line == f"{nothing}topic {topic}-away is not there, or this user may not describe it"
    assert f"{topic}-away" not in topics.admin.list_topics(timeout=10).topics
    topics.produce(topic, {1: [NEW]})
    (drift,) = found(topics.bootstrap, None, pattern=f"{topic}.*")
    assert (drift.place, drift.members) == (f"topic {topic}", {"tip": 1})


def test_a_broker_that_stands_still_is_waited_for_a_few_seconds(mortal_kafka: KafkaServer) -> None:
    broker = Topics(mortal_kafka.bootstrap)
    broker.create("rides", 1)
    broker.produce("rides", {0: [NEW]})
    assert [each.members for each in found(mortal_kafka.bootstrap, "rides")] == [{"tip": 1}]
    mortal_kafka.freeze()
    try:
        begun = time.monotonic()
        (line,) = drift_lines(found(mortal_kafka.bootstrap, "rides"))
        took_s = time.monotonic() - begun
    finally:
        mortal_kafka.thaw()
    assert line.startswith("  source rides: no sample of its rows: the Kafka cluster ")
    assert took_s < 4 * sampling.LIMIT_S, "a plan waits for a person's patience"


def test_a_plan_prints_everything_else_and_is_json_with_it(
    topics: Topics, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""
        import holdfast as hf
        rides = hf.read.kafka("{topics.bootstrap}", "{topic}", schema="id BIGINT", name="rides")
        pipeline = hf.Pipeline("rides", rides | hf.write.sqlite("rides.db", table="rides", name="table"))
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "flows.py").write_text(textwrap.dedent(script))
    topics.create(topic, 1)
    first = "nothing has run in ckpt yet: pipeline 'rides' starts from the beginning."
    for values, said in (([], "no sample of its rows"), ([NEW], "1 of 1 rows of topic")):
        topics.produce(topic, {0: values})
        ended = CliRunner().invoke(app, ["plan", "flows.py:pipeline", "--checkpoint", "ckpt"])
        assert ended.exit_code == 0, ended.output
        one, two = ended.stdout.splitlines()
        assert one == first
        assert said in two
    ended = CliRunner().invoke(app, ["plan", "flows.py:pipeline", "--checkpoint", "ckpt", "--json"])
    (drift,) = json.loads(ended.stdout)["drift"]
    assert (drift["source"], drift["rows"], drift["members"]) == ("rides", 1, {"tip": 1})
    assert {each.name for each in tmp_path.iterdir()} <= {"flows.py", "__pycache__"}


# --- security ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    try:
        with secured_kafka(tmp_path_factory.mktemp("certificates")) as kafka:
            yield kafka
    except NoKafka as error:
        pytest.skip(str(error))


def test_who_may_read_has_a_sample_and_who_may_not_is_told_without_a_secret(secured: SecuredKafka) -> None:
    address = secured.server.address("LOGIN")
    Topics(secured.server.bootstrap).produce(TOPIC, {0: [NEW]})
    (drift,) = found(address, TOPIC, security=secured.login("LOGIN"))
    assert (drift.members, drift.problem) == ({"tip": 1}, "")
    wrong = {**secured.login("LOGIN"), "password": "hunter2-that-is-wrong"}
    lines = [
        line
        for security in (wrong, secured.login("LOGIN", user="poor"), secured.login("LOGIN", user="looker"))
        for line in drift_lines(found(address, TOPIC, security=security))
    ]
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("  source rides: no sample of its rows: "), line
        assert "refuses this user" in line or "may not describe it" in line
        assert "hunter2" not in line
        assert PASSWORD not in line
