"""The address of a Kafka cluster and what it asks of its clients, in the words of both client libraries.

Secrets are filled in from the environment on the driver when a run starts; no text of this class shows them.

The client libraries of Kafka, which are installed by those who use them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.masking import masked
from holdfast.types.variables import filled_in

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_CLIENT = {
    "protocol": "security.protocol",
    "mechanism": "sasl.mechanism",
    "username": "sasl.username",
    "password": "sasl.password",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
    "key_password": "ssl.key.password",
}
_ADMIN = {
    "protocol": "security_protocol",
    "mechanism": "sasl_mechanism",
    "username": "sasl_plain_username",
    "password": "sasl_plain_password",
    "ca": "ssl_cafile",
    "certificate": "ssl_certfile",
    "key": "ssl_keyfile",
    "key_password": "ssl_password",
}
"""Our word -> that of confluent-kafka, and that of kafka-python."""

SECRETS = ("password", "key_password")
_CALLBACKS = ("error_cb",)

NATIVE = "HOLDFAST_KAFKA_NATIVE"
"""The variable that says whether clients may be native; read on the driver, whose word travels, and where they are."""


@dataclass(frozen=True)
class Brokers:
    """Where a cluster is.

    Parameters
    ----------
    bootstrap : str
        ``host:port``, several with commas between.
    security : mapping of str to str
        ``protocol``, ``mechanism``, ``username``, ``password``, ``ca``, ``certificate``, ``key``, ``key_password``.
    where : str
        What names them in a pipeline, for messages: ``read.kafka``.
    allows_native : bool
        Whether clients may go by librdkafka's own functions, as far as the driver's environment says.
    """

    bootstrap: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    where: str = field(default="Kafka", repr=False, compare=False)
    allows_native: bool = field(default=True, repr=False)

    def check(self) -> None:
        """Raise :class:`InvalidPipeline` if it cannot be one."""
        hosts = [each.rpartition(":") for each in self.bootstrap.split(",")] if isinstance(self.bootstrap, str) else []
        if "${" not in str(self.bootstrap) and not (
            hosts and all(host and port.isdecimal() for host, _, port in hosts)
        ):
            raise InvalidPipeline(
                f"{self.where}: {self.bootstrap!r} is no address of Kafka brokers.",
                why="it is host:port, or several with commas between.",
                do='write for instance "localhost:9092".',
            )
        unknown = sorted(set(self.security) - set(_CLIENT))
        protocol, mechanism = self.protocol, self.security.get("mechanism", "PLAIN")
        if unknown or protocol not in PROTOCOLS or mechanism not in MECHANISMS:
            what = f"key {unknown[0]!r}" if unknown else f"{protocol!r} with {mechanism!r}"
            raise InvalidPipeline(
                f"{self.where}: security= with {what} is not known.",
                why=f"keys are {', '.join(_CLIENT)}; protocols {', '.join(PROTOCOLS)}; mechanisms "
                f"{', '.join(MECHANISMS)}.",
                do='write for instance security={"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", '
                '"username": "app", "password": "${KAFKA_PASSWORD}"}.',
            )

    def expanded(self, environment: Mapping[str, str] = os.environ) -> Brokers:
        """Return it with the variables filled in; raise :class:`InvalidPipeline` where one is not set."""
        brokers = Brokers(
            filled_in(self.bootstrap, f"{self.where}: the address", environment=environment),
            {
                name: filled_in(str(text), f"{self.where}: security[{name!r}]", environment=environment)
                for name, text in self.security.items()
            },
            self.where,
            allows_native(environment),
        )
        brokers.check()
        brokers._check_login()
        return brokers

    def _check_login(self) -> None:
        """Raise :class:`InvalidPipeline` where a login lacks something, or something lacks its login."""
        given = [name for name in ("username", "password", "mechanism") if self.security.get(name)]
        if self.logs_in and not {"username", "password"} <= set(given):
            raise InvalidPipeline(
                f"{self.where}: security= with {self.protocol!r} has no user and password.",
                why="SASL is a login.",
                do='write "username": "app", "password": "${KAFKA_PASSWORD}", or the protocol that needs none: '
                f"{self.protocol.removeprefix('SASL_')!r}.",
            )
        if given and not self.logs_in:
            raise InvalidPipeline(
                f"{self.where}: security= has {given[0]!r}, and with the protocol {self.protocol!r} nobody logs in.",
                why="the brokers would be asked as an unknown user.",
                do='write "protocol": "SASL_SSL", or leave it out.',
            )

    @property
    def protocol(self) -> str:
        """What clients speak."""
        return self.security.get("protocol", "PLAINTEXT")

    @property
    def logs_in(self) -> bool:
        """Whether there are a user and a password."""
        return self.protocol.startswith("SASL_")

    @property
    def _said(self) -> Mapping[str, str]:
        return {"mechanism": "PLAIN", **self.security} if self.logs_in else self.security

    @property
    def has_secret(self) -> bool:
        """Whether a secret is in it."""
        return any(name in self.security for name in SECRETS)

    def client(self, **settings: Any) -> dict[str, Any]:
        """Return settings of a client of confluent-kafka, which writes nothing to the terminal."""
        said = {_CLIENT[name]: text for name, text in self._said.items()}
        dotted = {name if name in _CALLBACKS else name.replace("_", "."): value for name, value in settings.items()}
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **said, **dotted}

    def admin(self, **settings: Any) -> dict[str, Any]:
        """Return settings of a client of kafka-python."""
        said = {_ADMIN[name]: text for name, text in self._said.items()}
        return {"bootstrap_servers": self.bootstrap.split(","), **said, **settings}

    def without_secrets(self, text: str) -> str:
        """Return a text of a broker or a library without what is secret here."""
        for name in SECRETS:
            if self.security.get(name):
                text = text.replace(self.security[name], "***")
        return text

    def shown(self, text: str) -> str:
        """Return a text of a broker or a library for a message: without secrets, short, and without a full stop."""
        return masked(self.without_secrets(text))[:300].rstrip(".")

    def __str__(self) -> str:
        """Return what may be shown."""
        return self.bootstrap


def allows_native(environment: Mapping[str, str]) -> bool:
    """Return whether a process with these variables may use native clients, if they are trusted on its machine."""
    said = environment.get(NATIVE, "").strip().lower()
    if said not in ("", "auto", "off"):
        raise InvalidPipeline(
            f"{NATIVE}={said!r} is not known.",
            why="it may be auto or off.",
            do=f"set {NATIVE}=off, or leave it out.",
        )
    return said != "off"


@contextmanager
def libraries_for(node: str, extra: str = "kafka") -> Iterator[None]:
    """Import what needs the client libraries in the block; say so where they are not installed.

    Parameters
    ----------
    node : str
        Whose they are: ``source 'flights'``.
    extra : str
        What brings them.
    """
    try:
        yield
    except ImportError as error:
        raise InvalidPipeline(
            f"{node}: the Kafka client libraries are not installed.",
            why=f"{error}.",
            do=f"pip install 'holdfast[{extra}]'",
        ) from error
