"""Logins, certificates and permissions, against a real broker: what works, and what is said where it does not.

Both client libraries connect, for the source and for the sink: a large epoch's transactions are those of kafka-python.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import read
from holdfast.connectors.kafka.sink import session as kafka_session
from holdfast.connectors.kafka.sink import topics as kafka_topics
from holdfast.connectors.kafka.sink.form import MessageForm
from holdfast.connectors.kafka.sink.spec import KafkaSpec
from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Task
from holdfast.testing.servers.kafka import NoKafka
from tests.contract.source_contract import rows_between
from tests.kafka_secured import KEY_PASSWORD, PASSWORD, PROGRESS, TOPIC, SecuredKafka, secured_kafka
from tests.kafka_servers import KafkaTopic

pytestmark = pytest.mark.slow

ROWS = pa.schema([("id", pa.int64())])
WRONG = "hunter2-that-is-wrong"
SECRETS = (PASSWORD, KEY_PASSWORD, WRONG)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    try:
        with secured_kafka(tmp_path_factory.mktemp("certificates")) as kafka:
            yield kafka
    except NoKafka as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    said = [record.getMessage() + str(record.exc_info or "") for record in caplog.records]
    assert not [each for each in said if any(secret in each for secret in SECRETS)]


def written(address: str, security: Mapping[str, str], name: str, *ids: int) -> None:
    """Open a sink, stage a task's transaction, publish it with rows of the driver, and ask what is held."""
    spec = KafkaSpec(address, MessageForm(TOPIC), security, progress=PROGRESS)
    assert not any(secret in repr(spec) + json.dumps(spec.arguments()) for secret in SECRETS)
    sink = spec.connect(name, "secured", ROWS)
    try:
        sink.open(RunIdentity("secured", 1))
        writer = sink.writer_factory()(Task("secured", 1, 1, 0, 0))
        writer.write(pa.record_batch({"id": ids[:1]}, ROWS))
        parts = (writer.stage(), Carried(pa.table({"id": ids[1:]}, ROWS)))
        sink.publish([Publication(EpochRecord("secured", 1, 1, {"s": {"log": 1}}), parts)], Held())
        assert sink.outcome(1) is Outcome.PUBLISHED
        assert sink.sweep(below_epoch=2) == 0
    finally:
        sink.close()


def begins(address: str, security: Mapping[str, str], path: Path) -> tuple[Any, Any]:
    """Open a source; return it and its first positions."""
    spec: Any = read.kafka(address, TOPIC, schema="id BIGINT", security=security).node.spec
    source = spec.open("messages", str(path))
    return source, source.initial()


WAYS = [
    ("BOTH", "SCRAM-SHA-512"),
    ("CERTIFICATE", ""),
    pytest.param("LOGIN", "PLAIN", marks=pytest.mark.nightly),
    pytest.param("LOGIN", "SCRAM-SHA-256", marks=pytest.mark.nightly),
    pytest.param("LOGIN", "SCRAM-SHA-512", marks=pytest.mark.nightly),
    pytest.param("BOTH", "PLAIN", marks=pytest.mark.nightly),
    pytest.param("BOTH", "SCRAM-SHA-256", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_a_user_with_the_permissions_of_the_pages_writes_and_reads(
    secured: SecuredKafka, tmp_path: Path, listener: str, mechanism: str
) -> None:
    address = secured.server.address(listener)
    security = secured.login(listener, mechanism) if mechanism else secured.certified()
    _, start = begins(address, security, tmp_path / "before")
    source, _ = begins(address, security, tmp_path / "source")
    before = source.latest(start, bounded=False) or start
    written(address, security, f"{listener}-{mechanism}", 1, 2, 3)
    end = source.latest(before, bounded=False)
    assert sorted(row["id"] for row in rows_between(source, before, end)) == [1, 2, 3]
    ledger = b"".join(KafkaTopic(secured.server.bootstrap, PROGRESS).values())
    assert b'"epoch"' in ledger
    assert not any(secret.encode() in ledger for secret in SECRETS)


def test_plain_is_the_mechanism_of_a_login_that_names_none(secured: SecuredKafka, tmp_path: Path) -> None:
    security = {name: said for name, said in secured.login("LOGIN").items() if name != "mechanism"}
    _, start = begins(secured.server.address("LOGIN"), security, tmp_path)
    assert len(start) == 1


CASES = {
    "a wrong password": (
        "LOGIN",
        lambda kafka: {**kafka.login("LOGIN"), "password": WRONG},
        "Invalid username or password",
        "correct security=",
    ),
    "a wrong password, scrambled": (
        "BOTH",
        lambda kafka: {**kafka.login("BOTH", "SCRAM-SHA-512"), "password": WRONG},
        "invalid credentials",
        "correct security=",
    ),
    "the certificate of another authority": (
        "BOTH",
        lambda kafka: {**kafka.login("BOTH"), "ca": kafka.file("other.pem")},
        "certificate verify failed",
        "certificates",
    ),
    "no certificate of the client": (
        "CERTIFICATE",
        lambda kafka: {"protocol": "SSL", "ca": kafka.file("ca.pem")},
        "SSL alert",
        "certificates",
    ),
    "a client's certificate of another authority": (
        "CERTIFICATE",
        lambda kafka: kafka.certified("stranger"),
        "SSL alert",
        "certificates",
    ),
    "a wrong password of the key": (
        "CERTIFICATE",
        lambda kafka: {**kafka.certified(), "key_password": WRONG},
        "ssl.key.location",
        "are the files there",
    ),
    "a file that is not there": (
        "CERTIFICATE",
        lambda kafka: {"protocol": "SSL", "ca": kafka.file("none.pem")},
        "ssl.ca.location",
        "are the files there",
    ),
}


EVERYDAY = {"a wrong password, scrambled", "the certificate of another authority", "no certificate of the client"}


@pytest.mark.parametrize(
    "case", [each if each in EVERYDAY else pytest.param(each, marks=pytest.mark.nightly) for each in CASES]
)
def test_who_is_not_let_in_is_told_why_and_what_to_do(secured: SecuredKafka, tmp_path: Path, case: str) -> None:
    """At once: the brokers are not asked again for the rest of the time that a start waits for them."""
    listener, security, why, cure = CASES[case]
    address = secured.server.address(listener)
    for act in (
        lambda: written(address, security(secured), case, 1),
        lambda: begins(address, security(secured), tmp_path),
    ):
        with pytest.raises(InvalidPipeline) as caught:
            act()
        assert why in caught.value.why
        assert cure in caught.value.do
        assert not any(secret in str(caught.value) + repr(caught.value.__cause__) for secret in SECRETS)


@pytest.mark.parametrize(
    ("user", "what", "cure"),
    [
        ("poor", "no topic 'secured'", "create it"),
        ("looker", "refuses this user", "Write and Describe on the topics"),
        ("unnamed", "refuses this user", "transactional ids that begin with holdfast/"),
        ("forgetful", "refuses this user", "Create on the progress topic"),
    ],
)
def test_a_permission_that_lacks_is_named(secured: SecuredKafka, user: str, what: str, cure: str) -> None:
    security = secured.login("LOGIN", user=user)
    with pytest.raises(InvalidPipeline) as caught:
        written(secured.server.address("LOGIN"), security, f"of-{user}", 1, 2)
    assert what in caught.value.what
    assert cure in caught.value.do
    assert PASSWORD not in str(caught.value)


@pytest.mark.nightly
@pytest.mark.parametrize(("listener", "protocol"), [("CERTIFICATE", "PLAINTEXT"), ("LOGIN", "SSL")])
def test_another_protocol_than_that_of_the_listener_is_a_cluster_that_does_not_answer(
    secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch, listener: str, protocol: str
) -> None:
    """Nothing tells it from a broker that is away; so it is asked again, and the message names the protocol."""
    monkeypatch.setattr(kafka_topics, "CONNECT_S", 1.0)
    with pytest.raises(Unavailable, match=r"the protocol in security="):
        written(secured.server.address(listener), {"protocol": protocol}, "protocol", 1)


@pytest.mark.nightly
def test_the_requests_on_transactions_say_why_they_are_refused(
    secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second library is asked behind the first; a password may have changed in between."""
    from holdfast.connectors.kafka.sink.transactions import Transactions

    monkeypatch.setattr("holdfast.connectors.kafka.sink.transactions.TIMEOUT_S", 1.0)
    spec = KafkaSpec(secured.server.address("LOGIN"), MessageForm(TOPIC), {**secured.login("LOGIN"), "password": WRONG})
    asked = Transactions(kafka_session.KafkaSession(spec.brokers, "sink 's'", "test"))
    with pytest.raises(HoldfastError, match="does not answer about a transaction") as caught:
        asked.describe(["holdfast/x"])
    assert WRONG not in str(caught.value)
    asked.close()
