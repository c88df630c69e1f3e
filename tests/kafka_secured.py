"""A broker that asks who its clients are: by login, by certificate, by both; users, and what each may do."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from holdfast.testing.servers.kafka import KafkaServer, NoKafka, kafka_server

PASSWORD = "hunter2-of-users"
KEY_PASSWORD = "hunter2-of-a-key"

LISTENERS = {"LOGIN": "SASL_PLAINTEXT", "CERTIFICATE": "SSL", "BOTH": "SASL_SSL"}

TOPIC, PROGRESS = "secured", "secured-progress"

_TOPIC = (ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL)
_PROGRESS = (ResourceType.TOPIC, PROGRESS, ResourcePatternType.LITERAL)
_NAMES = (ResourceType.TRANSACTIONAL_ID, "holdfast/", ResourcePatternType.PREFIXED)
_READ, _WRITE, _DESCRIBE, _CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE
_LEDGER = ((_PROGRESS, _READ), (_PROGRESS, _WRITE), (_PROGRESS, _DESCRIBE), (_PROGRESS, _CREATE))
_TRANSACTIONS = ((_NAMES, _WRITE), (_NAMES, _DESCRIBE))

USERS = {
    "app": ((_TOPIC, _WRITE), (_TOPIC, _DESCRIBE), (_TOPIC, _READ), *_LEDGER, *_TRANSACTIONS),
    "poor": (),
    "looker": ((_TOPIC, _DESCRIBE), *_LEDGER, *_TRANSACTIONS),
    "unnamed": ((_TOPIC, _WRITE), (_TOPIC, _DESCRIBE), *_LEDGER),
    "forgetful": ((_TOPIC, _WRITE), (_TOPIC, _DESCRIBE), *_TRANSACTIONS),
}
"""Name -> what they may do: ``app`` what the pages of source and sink say, the others less."""


@dataclass(frozen=True)
class SecuredKafka:
    """A broker with one topic, users and certificates.

    Parameters
    ----------
    server : KafkaServer
        The broker; at ``bootstrap`` everybody may do everything.
    certificates : Path
        Directory of ``ca.pem``, ``other.pem`` and, with their keys, ``app`` and ``stranger``.
    """

    server: KafkaServer
    certificates: Path

    def file(self, name: str) -> str:
        """Return the path of a certificate or a key."""
        return str(self.certificates / name)

    def login(self, listener: str, mechanism: str = "PLAIN", user: str = "app") -> dict[str, str]:
        """Return ``security=`` of a user."""
        said = {"protocol": LISTENERS[listener], "mechanism": mechanism, "username": user, "password": PASSWORD}
        return said if listener == "LOGIN" else {**said, "ca": self.file("ca.pem")}

    def certified(self, name: str = "app") -> dict[str, str]:
        """Return ``security=`` of a client with a certificate."""
        said = {"protocol": "SSL", "ca": self.file("ca.pem"), "certificate": self.file(f"{name}.pem")}
        return {**said, "key": self.file(f"{name}.key"), "key_password": KEY_PASSWORD}


@contextmanager
def secured_kafka(directory: Path) -> Iterator[SecuredKafka]:
    """Make certificates, start a broker, give its users what they have; stop it.

    Raises
    ------
    NoKafka
        If there is no broker here, or no openssl.
    """
    _certificates(directory)
    with kafka_server(_settings(directory), beside=LISTENERS) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            wanted = [UserScramCredentialUpsertion("app", info, PASSWORD.encode())]
            admin.alter_user_scram_credentials(wanted)["app"].result(30)
        allowed = [
            AclBinding(*what, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for name, may in USERS.items()
            for user in (name, f"CN={name}")
            for what, operation in may
        ]
        for done in admin.create_acls(allowed).values():
            done.result(30)
        yield SecuredKafka(server, directory)


def _settings(directory: Path) -> Mapping[str, str]:
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in USERS)
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "broker.store"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
        "listener.name.certificate.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    for listener in ("login", "both"):
        settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = f"{plain} {users};"
        settings[f"listener.name.{listener}.scram-sha-256.sasl.jaas.config"] = scram
        settings[f"listener.name.{listener}.scram-sha-512.sasl.jaas.config"] = scram
    return settings


def _certificates(directory: Path) -> None:
    """Make two authorities; the one that counts issues the broker's and the app's certificates."""
    if shutil.which("openssl") is None:
        raise NoKafka("there is no openssl on the PATH, which makes the certificates")
    for name in ("ca", "other"):
        _openssl(directory, "req", "-x509", *_KEY, "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", name=name)
    (directory / "extension").write_text("subjectAltName=IP:127.0.0.1\n")
    for name, issuer in (("broker", "ca"), ("app", "ca"), ("stranger", "other")):
        closed = ("-nodes",) if name == "broker" else ("-passout", f"pass:{KEY_PASSWORD}")
        _openssl(directory, "req", *_KEY, *closed, "-keyout", f"{name}.key", "-out", f"{name}.csr", name=name)
        signed = ("-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key", "-CAcreateserial", "-extfile", "extension")
        _openssl(directory, "x509", "-req", "-days", "2", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    store = (directory / "broker.key").read_text() + (directory / "broker.pem").read_text()
    (directory / "broker.store").write_text(store)


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(directory: Path, *arguments: str, name: str = "") -> None:
    subject = ("-subj", f"/CN={name}") if name else ()
    subprocess.run(["openssl", *arguments, *subject], cwd=directory, check=True, capture_output=True)
