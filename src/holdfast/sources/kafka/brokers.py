"""The address of a Kafka cluster and what it asks of its clients, in the words of its client library.

Secrets are filled in from the environment on the driver when a run starts; no text of this class shows them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import InvalidPipeline

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
"""Our word -> that of the library."""

SECRETS = ("password", "key_password")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class BrokerAddress:
    """Where a cluster is.

    Parameters
    ----------
    bootstrap : str
        ``host:port``, several with commas between.
    security : tuple of (str, str)
        ``protocol``, ``mechanism``, ``username``, ``password``, ``ca``, ``certificate``, ``key``, ``key_password``.
    """

    bootstrap: str
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def check(self) -> None:
        """Raise :class:`InvalidPipeline` if it cannot be one."""
        hosts = [each.rpartition(":") for each in self.bootstrap.split(",")] if isinstance(self.bootstrap, str) else []
        if "${" not in str(self.bootstrap) and not (
            hosts and all(host and port.isdecimal() for host, _, port in hosts)
        ):
            raise InvalidPipeline(
                f"read.kafka: {self.bootstrap!r} is no address of Kafka brokers.",
                why="it is host:port, or several with commas between.",
                do='write for instance "localhost:9092".',
            )
        said = dict(self.security)
        unknown = sorted(set(said) - set(_CLIENT))
        protocol, mechanism = said.get("protocol", "PLAINTEXT"), said.get("mechanism", "PLAIN")
        if unknown or protocol not in PROTOCOLS or mechanism not in MECHANISMS:
            what = f"key {unknown[0]!r}" if unknown else f"{protocol!r} with {mechanism!r}"
            raise InvalidPipeline(
                f"read.kafka: security= with {what} is not known.",
                why=f"keys are {', '.join(_CLIENT)}; protocols {', '.join(PROTOCOLS)}; mechanisms "
                f"{', '.join(MECHANISMS)}.",
                do='write for instance security={"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", '
                '"username": "app", "password": "${KAFKA_PASSWORD}"}.',
            )

    def expanded(self, environment: Mapping[str, str] = os.environ) -> BrokerAddress:
        """Return it with the variables filled in; raise :class:`InvalidPipeline` where one is not set."""

        def value(match: re.Match[str]) -> str:
            if match[1] not in environment:
                raise InvalidPipeline(
                    f"read.kafka names the environment variable {match[1]}, which is not set.",
                    why="it is filled in when the run starts, on the driver.",
                    do=f"set it: export {match[1]}=...",
                )
            return environment[match[1]]

        security = tuple((name, _VARIABLE.sub(value, str(text))) for name, text in self.security)
        return BrokerAddress(_VARIABLE.sub(value, self.bootstrap), security)

    @property
    def protocol(self) -> str:
        """What its clients speak."""
        return dict(self.security).get("protocol", "PLAINTEXT")

    @property
    def has_secret(self) -> bool:
        """Whether a secret is in it."""
        return any(name in SECRETS for name, _ in self.security)

    def client(self, **settings: Any) -> dict[str, Any]:
        """Return settings of a client; the library writes nothing to the terminal."""
        said = {_CLIENT[name]: text for name, text in self.security}
        dotted = {name if name == "error_cb" else name.replace("_", "."): value for name, value in settings.items()}
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **said, **dotted}

    def without_secrets(self, text: str) -> str:
        """Return a text of a broker or of the library without what is secret here."""
        for name, secret in self.security:
            if name in SECRETS and secret:
                text = text.replace(secret, "***")
        return text

    def __str__(self) -> str:
        """Return what may be shown."""
        return self.bootstrap
