"""What stateful operators keep, for people: the schema by which state is given, exported and edited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.checkpoint.directory_header import newest_directory
from holdfast.checkpoint.graph_record import GRAPH, read_graph
from holdfast.checkpoint.manifest import StateSchema
from holdfast.ports import Store
from holdfast.state.checks import spelled


@dataclass(frozen=True)
class TableSchema:
    """One state table.

    Parameters
    ----------
    name : str
        Its name.
    columns : str
        Its columns and their types.
    key : tuple of str
        The columns by which a row is found.
    """

    name: str
    columns: str
    key: tuple[str, ...]


@dataclass(frozen=True)
class OperatorSchema:
    """What one operator keeps, by what key.

    Parameters
    ----------
    operator, kind : str
        Its name, and what it does.
    key : str
        Columns and types of its key.
    tables : tuple of TableSchema
        Its tables.
    """

    operator: str
    kind: str
    key: str
    tables: tuple[TableSchema, ...]


def operator_schemas(schemas: Mapping[str, StateSchema]) -> tuple[OperatorSchema, ...]:
    """Return what operators keep."""
    return tuple(
        OperatorSchema(
            name,
            of.kind,
            spelled(of.key),
            tuple(TableSchema(table, spelled(each.schema), each.key) for table, each in of.tables.items()),
        )
        for name, of in schemas.items()
    )


def schemas_in(store: Store) -> tuple[OperatorSchema, ...]:
    """Return what the operators keep of the graph that ran last; nothing where none has run, or none keeps state.

    Raises
    ------
    Corrupt
        If the record of the graph is damaged.
    """
    below = f"spark/{newest_directory(store)}"
    return () if store.get(f"{below}/{GRAPH}") is None else operator_schemas(read_graph(store, below).state_schemas)


def schema_lines(schemas: tuple[OperatorSchema, ...]) -> Iterator[str]:
    r"""Say what each operator keeps.

    Examples
    --------
    >>> keys = TableSchema("keys", "origin string, n int64", ("origin",))
    >>> print(*schema_lines((OperatorSchema("counts", "apply", "origin string", (keys,)),)), sep="\n")
    keeps       counts, apply by origin string
      keys  origin string, n int64; one row for each origin
    """
    for of in schemas:
        yield f"keeps       {of.operator}, {of.kind} by {of.key}"
        for table in of.tables:
            key = f"each {', '.join(table.key)}" if table.key else "all"
            yield f"  {table.name}  {table.columns}; one row for {key}"
