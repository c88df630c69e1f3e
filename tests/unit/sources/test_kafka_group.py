"""A consumer group is told what every sink holds (design/0038, section 8); the library's client is scripted."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast import read
from holdfast.capabilities import offers
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.source import group
from holdfast.connectors.kafka.source.group import GroupFollower
from holdfast.ports import FollowedSpec, Held
from holdfast.spark.sight import Followers


class Client:
    """Notes what it commits; the first commit may wait, or fail."""

    def __init__(self):
        self.told = []
        self.may_answer, self.has_begun = threading.Event(), threading.Event()
        self.may_answer.set()
        self.fails = 0

    def commit(self, *, offsets, asynchronous):
        assert not asynchronous
        self.has_begun.set()
        assert self.may_answer.wait(30)
        if self.fails:
            self.fails -= 1
            raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
        self.told.append({(at.topic, at.partition): at.offset for at in offsets})

    def close(self):
        self.told.append("closed")


@pytest.fixture
def client(monkeypatch):
    found = Client()
    monkeypatch.setattr(group, "Consumer", lambda settings: found)
    return found


def follower():
    return GroupFollower(Brokers("nowhere:9092"), "watch", "source 'rows'")


def at(offset, **more):
    return {"t@28LoSSUP/3": offset, **more}


def test_the_last_positions_are_sent_before_it_closes(client):
    told = follower()
    told.tell(at(7, **{"@bound": 12}))
    told.close()
    assert client.told == [{("t", 3): 7}, "closed"]


def test_where_the_cluster_is_slow_only_the_newest_positions_follow(client):
    told = follower()
    client.may_answer.clear()
    told.tell(at(1))
    assert client.has_begun.wait(30)
    for offset in range(2, 100):
        told.tell(at(offset))
    client.may_answer.set()
    told.close()
    assert client.told == [{("t", 3): 1}, {("t", 3): 99}, "closed"]


def test_a_group_that_cannot_be_told_is_a_warning_and_later_positions_are_sent(client, caplog):
    client.fails = 1
    told = follower()
    told.tell(at(1))
    assert client.has_begun.wait(30)
    told.tell(at(2))
    told.close()
    assert client.told == [{("t", 3): 2}, "closed"]
    assert "the group 'watch' was not told its offsets" in caplog.text


def test_one_that_is_told_nothing_asks_nobody(client):
    follower().close()
    assert client.told == []


def test_a_source_is_followed_where_a_group_is_named():
    rows = read.kafka("nowhere:9092", "t", format="bytes", name="rows").node.spec
    assert offers(rows, FollowedSpec)
    assert rows.follower("rows") is None


def test_followers_are_told_what_every_sink_holds_of_their_own_source():
    told = {"rows": [], "others": []}

    def node(name):
        note = SimpleNamespace(tell=told[name].append, close=lambda: told[name].append("closed"))
        return SimpleNamespace(name=name, source_spec=SimpleNamespace(follower=lambda _: note))

    graph: Any = SimpleNamespace(sources=[node("rows"), node("others")])
    followers = Followers(graph)
    rows, others = {"rows": {"a": 5, "b": 1}}, {"others": {"c": 1}}
    followers.tell({"quick": Held(2, positions={**rows, **others}), "slow": Held(1, positions={"rows": {"a": 3}})})
    followers.close()
    assert told == {"rows": [{"a": 3}, "closed"], "others": ["closed"]}
