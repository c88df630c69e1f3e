"""The schema that rows are written with in Avro: derived from their columns, named, or the newest of its subject."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.connectors.kafka.avro_registry import Registry, schemas_of
from holdfast.connectors.kafka.avro_schemas import schema_of
from holdfast.connectors.kafka.brokers import libraries_for
from holdfast.errors import InvalidPipeline

if TYPE_CHECKING:
    from holdfast.connectors.kafka.avro_writing import AvroEncoder


@dataclass(frozen=True)
class AvroSchema:
    """What ``write.kafka`` says of a value's schema; see there.

    Parameters
    ----------
    registry : Registry
        Where it is.
    subject : str
        Under which name it is there.
    schema : str, optional
        As JSON; without one it is derived from the columns.
    registers : bool
        Whether it is registered; else the newest one of the subject is used.
    """

    registry: Registry
    subject: str
    schema: str | None = None
    registers: bool = True

    def encoder(self, node: str, columns: pa.Schema) -> AvroEncoder:
        """Ask the registry; return what writes rows with these columns.

        Raises
        ------
        InvalidPipeline
            If the schema does not fit the columns, or those that the subject has.
        Unavailable
            If the registry does not answer.
        """
        with libraries_for(node, "avro"):
            from holdfast.connectors.kafka.avro_writing import AvroEncoder
        schemas = schemas_of(self.registry.expanded(node), node)
        if self.registers:
            text = self.schema or self._derived(node, columns)
            self._check(node, text, columns)
            return AvroEncoder(text, schemas.registered(self.subject, text))
        newest = schemas.latest(self.subject)
        if newest is None:
            raise InvalidPipeline(
                f"{node}: the subject {self.subject!r} has no schema in the registry {self.registry}.",
                why="register=False uses the newest schema that is there.",
                do="register one, correct subject=, or leave register= out: the schema is then made of the columns.",
                participant=node,
            )
        number, text = newest
        self._check(node, text, columns)
        return AvroEncoder(text, number)

    def _derived(self, node: str, columns: pa.Schema) -> str:
        try:
            return json.dumps(schema_of(columns, self.subject.removesuffix("-value")))
        except ValueError as error:
            raise InvalidPipeline(
                f"{node}: no Avro schema can be made of the columns.",
                why=f"{error}.",
                do="rename or cast the column before the sink with select(...).",
                participant=node,
            ) from error

    def _check(self, node: str, text: str, columns: pa.Schema) -> None:
        from holdfast.connectors.kafka.avro_writing import unfit

        problem = unfit(text, columns)
        if problem is not None:
            raise InvalidPipeline(
                f"{node}: rows cannot be written with the schema of the subject {self.subject!r}.",
                why=f"{problem}.",
                do="give the rows the columns of the schema with select(...) before the sink, or name another schema.",
                participant=node,
            )


def schema_text(schema: Any) -> str | None:
    """Return what ``value_schema=`` says as JSON."""
    return schema if schema is None or isinstance(schema, str) else json.dumps(schema)
