"""A schema registry: which schema the id before a value stands for, and the id of the one that is written with.

An id is given once and means the same schema for ever, so what was asked once is kept, and a message that is read again
later is read with the same schema, whatever was registered since.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable
from holdfast.masking import masked
from holdfast.types.variables import filled_in

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

MAGIC = b"\0"
PREFIX_BYTES = 5
"""A value begins with a zero and four bytes of the schema's id, the highest first."""

_CLIENT = {
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
    "key_password": "ssl.key.password",
}
_LOGIN = ("username", "password")
SECRETS = ("password", "key_password")
_RETRIES = {"max.retries": 5, "retries.wait.ms": 500, "retries.max.wait.ms": 10_000, "timeout": 10}
ONCE = {"max.retries": 0, "timeout": 3}
"""For whoever looks at a few messages: a person waits for the answer."""


@dataclass(frozen=True)
class Registry:
    """Where a registry is, and what it asks of its clients.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``; several with commas between.
    security : tuple of (str, str)
        ``username``, ``password``, ``ca``, ``certificate``, ``key``, ``key_password``.
    """

    url: str
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @staticmethod
    def of(argument: str | Mapping[str, str], where: str) -> Registry:
        """Return what ``registry=`` says.

        Raises
        ------
        InvalidPipeline
            If it is no address, or says something unknown.
        """
        said = {"url": argument} if isinstance(argument, str) else dict(argument)
        url = said.pop("url", "")
        unknown = sorted(said.keys() - {*_CLIENT, *_LOGIN})
        registry = Registry(url, tuple(sorted(said.items())))
        if unknown or not ("${" in url or registry._is_address()):
            raise InvalidPipeline(
                f"{where}: registry= with {f'key {unknown[0]!r}' if unknown else masked(repr(url))} is not known.",
                why=f"it is the address of a schema registry, or a mapping with url, {', '.join((*_LOGIN, *_CLIENT))}.",
                do='write registry="http://localhost:8081", or {"url": "https://schemas:8081", "username": "app", '
                '"password": "${REGISTRY_PASSWORD}"}.',
            )
        if any(urlsplit(each).password for each in url.split(",")):
            raise InvalidPipeline(
                f"{where}: the address of the registry has a password in it.",
                why="addresses are shown.",
                do='write {"url": ..., "username": ..., "password": "${REGISTRY_PASSWORD}"}.',
            )
        return registry

    def _is_address(self) -> bool:
        parts = [urlsplit(each) for each in self.url.split(",")]
        return all(each.scheme in ("http", "https") and each.hostname for each in parts)

    @property
    def has_secret(self) -> bool:
        """Whether a secret is in it."""
        return any(name in SECRETS for name, _ in self.security)

    def expanded(self, where: str, environment: Mapping[str, str] = os.environ) -> Registry:
        """Return it with the variables filled in; raise :class:`InvalidPipeline` where one is not set."""
        said = {
            name: filled_in(text, f"{where}: registry[{name!r}]", environment=environment)
            for name, text in self.security
        }
        url = filled_in(self.url, f"{where}: the registry's address", environment=environment)
        return Registry.of({"url": url, **said}, where)

    def __str__(self) -> str:
        """Return what may be shown."""
        return self.url


class Schemas:
    """The schemas of a registry, for one process.

    Parameters
    ----------
    registry : Registry
        Where it is, its variables filled in.
    node : str
        Who asks, for messages: ``source 'flights'``.
    patience : mapping of str to int
        How often and how long it is asked, in the words of the client.
    """

    def __init__(self, registry: Registry, node: str, patience: Mapping[str, int] = _RETRIES) -> None:
        self._registry = registry
        self._patience = patience
        self._node = node
        self._known: dict[int, str | None] = {}
        self._client: SchemaRegistryClient | None = None

    def schema(self, number: int) -> str | None:
        """Return the schema with an id, as JSON; None if the registry knows none.

        Raises
        ------
        Unavailable
            If it does not answer, for about half a minute.
        InvalidPipeline
            If it refuses this user, or the schema is not one of Avro.
        """
        if number not in self._known:
            found = self._asked(lambda client: client.get_schema(number), absent=None)
            if found is not None and (found.schema_type not in (None, "AVRO") or found.references):
                raise self._not_read(number, found.schema_type or "AVRO", has_references=bool(found.references))
            self._known[number] = None if found is None else found.schema_str
            if found is None:  # it may be registered yet
                del self._known[number]
                return None
        return self._known[number]

    def registered(self, subject: str, schema: str) -> int:
        """Register a schema under a subject, where it is not yet, and return its id."""
        from confluent_kafka.schema_registry import Schema

        return int(self._asked(lambda client: client.register_schema(subject, Schema(schema, "AVRO"))))

    def latest(self, subject: str) -> tuple[int, str] | None:
        """Return id and text of the newest schema of a subject; None where it has none."""
        found = self._asked(lambda client: client.get_latest_version(subject), absent=None)
        return None if found is None else (int(found.schema_id), str(found.schema.schema_str))

    def _asked(self, ask: Any, **absent: Any) -> Any:
        import httpx2
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            if self._client is None:
                self._client = self._made()
            return ask(self._client)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and absent:
                return absent["absent"]
            raise self._refused(error.http_status_code, error.error_message) from None
        except httpx2.HTTPError as error:
            raise Unavailable(
                f"{self._node}: the schema registry {self._registry} does not answer.",
                why=f"{self._shown(str(error) or type(error).__name__)}.",
                do="start it, or correct registry=, and start again: nothing was lost.",
                participant=self._node,
            ) from None

    def _made(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        said = dict(self._registry.security)
        settings: dict[str, Any] = {"url": self._registry.url, **self._patience}
        settings |= {_CLIENT[name]: text for name, text in said.items() if name in _CLIENT}
        if "username" in said:
            settings["basic.auth.user.info"] = f"{said['username']}:{said.get('password', '')}"
        try:
            return SchemaRegistryClient(settings)
        except (ValueError, OSError) as error:
            raise InvalidPipeline(
                f"{self._node}: no client for the schema registry {self._registry} can be made.",
                why=f"{self._shown(str(error))}.",
                do="correct registry=: are the files there, on the driver and on the executors?",
                participant=self._node,
            ) from None

    def _refused(self, status: int, said: str) -> HoldfastError:
        why = f"it answered {status}: {self._shown(str(said))}."
        if status in (401, 403):
            return InvalidPipeline(
                f"{self._node}: the schema registry {self._registry} refuses this user.",
                why=why,
                do='correct "username" and "password" of registry=, or let the user read (and write) the subject.',
                participant=self._node,
            )
        if status == 409:
            return InvalidPipeline(
                f"{self._node}: the schema of the rows does not fit those that its subject has.",
                why=why,
                do="give the rows the columns and types that fit, name a schema by value_schema=, or change the "
                "subject's compatibility.",
                participant=self._node,
            )
        if status in (429, 503) or status >= 500:
            return Unavailable(
                f"{self._node}: the schema registry {self._registry} cannot answer now.",
                why=why,
                do="start again when it can: nothing was lost.",
                participant=self._node,
            )
        return InvalidPipeline(
            f"{self._node}: the schema registry {self._registry} refuses the request.",
            why=why,
            do="correct registry=, or the schema.",
            participant=self._node,
        )

    def _not_read(self, number: int, kind: str, *, has_references: bool) -> InvalidPipeline:
        what = "has references to other schemas" if has_references else f"is one of {kind}"
        return InvalidPipeline(
            f"{self._node}: schema {number} of the registry cannot be used here.",
            why=f"it {what}.",
            do='read the topic with format="bytes" and decode the column value with map_batches.',
            participant=self._node,
        )

    def _shown(self, text: str) -> str:
        for name, secret in self._registry.security:
            if name in SECRETS and secret:
                text = text.replace(secret, "***")
        return masked(text)[:300].rstrip(".")


_lock = threading.Lock()
_kept: dict[tuple[int, Registry, str], Schemas] = {}


def schemas_of(registry: Registry, node: str) -> Schemas:
    """Return what this process knows of a registry."""
    with _lock:
        return _kept.setdefault((os.getpid(), registry, node), Schemas(registry, node))
