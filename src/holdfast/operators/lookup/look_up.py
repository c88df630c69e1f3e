"""The function ``lookup``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building
from holdfast.graph.nodes import Stream
from holdfast.graph.nodes import apply as put
from holdfast.operators.lookup.as_of import ChangingTable, as_of
from holdfast.operators.lookup.spec import HOWS, TableLookup, added_of, pairs_for, pairs_of
from holdfast.operators.lookup.tables import table_of
from holdfast.types import units

_DUPLICATES = ("fail", "all")


def lookup(
    stream: Stream,
    table: Any,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "left",
    columns: str | Sequence[str] | Mapping[str, str] | None = None,
    refresh: str | None = None,
    duplicates: str = "fail",
    disorder: str | int | None = None,
    name: str | None = None,
) -> Stream:
    """Add the columns of a dimension table to the rows of a stream, by key.

    Parameters
    ----------
    stream : Stream
        The rows.
    table : str, Path, pyarrow.Table, frame of pandas, Polars or Spark, ``hf.lookup_table`` or ``hf.table``
        What rows are looked up in: the path of a Parquet file, or of a directory of them, also as
        ``hf.lookup_table.parquet(path, partition_by=...)``; rows; or a query,
        ``hf.lookup_table.postgres(dsn, query)``, ``hf.lookup_table.sqlite(path, query)``; or a stream of changes,
        ``hf.table(stream, key=...)``: then each row finds what was valid at its own event time.
    on : str, sequence of str, or mapping of str to str
        Key columns; a mapping where the table has other names: ``{"customer": "id"}``.  A null key finds nothing.
    how : str, default "left"
        ``"left"`` keeps rows that find nothing, with nulls; ``"inner"`` drops them; ``"semi"`` keeps the rows that find
        something, and ``"anti"`` those that find nothing, both without columns of the table.
    columns : str, sequence of str, or mapping of str to str, optional
        The columns of the table that are added; a mapping gives them other names, ``{"customer_name": "name"}``.  By
        default all that are not of the key.
    refresh : str, optional
        Load the table again after this long, at the beginning of an epoch, by its batch time: ``"10 min"``.  By
        default it is loaded once in each run.
    duplicates : str, default "fail"
        What happens where two rows of the table have one key: ``"fail"`` stops the run; ``"all"`` gives a row for each
        match, in the order of the table's rows, as a join in SQL does.
    disorder : str or int, optional
        With ``hf.table``: how far a row may be below the newest one, whatever their keys.  By default rows ascend.
    name : str, optional
        The node's name, under which the versions of the table are kept in the checkpoint.

    Returns
    -------
    Stream
        The columns of the stream, then those of the table.  Rows keep their order, their timestamp and their ids.

    Raises
    ------
    InvalidPipeline
        If a column is missing, a name is there twice, or types of keys differ: while the graph is built where that is
        known, else when a run starts.

    Notes
    -----
    An epoch sees one version of the table, and sees it again in every replay: the checkpoint holds a copy of each
    version that an epoch may need.  Every worker maps the table into its memory.

    Examples
    --------
    ::

        priced = hf.lookup(orders, "prices.parquet", on="product", columns=["price"], refresh="10 min")
    """
    with building(TableLookup.kind, name) as built_at:
        if not isinstance(stream, Stream):
            raise InvalidPipeline(
                f"{a_type(stream)} stands for the stream.", do='write hf.lookup(orders, "prices.parquet", on="product")'
            )
        for value, allowed, argument in ((how, HOWS, "how"), (duplicates, _DUPLICATES, "duplicates")):
            if value not in allowed:
                raise InvalidPipeline(
                    f"{argument}={value!r} is not known.", do=f"write one of {', '.join(map(repr, allowed))}."
                )
        if columns is not None and how in ("semi", "anti"):
            raise InvalidPipeline(f"how={how!r} adds no columns.", do="leave columns= out.")
        if isinstance(table, ChangingTable):
            if refresh is not None or duplicates != "fail":
                raise InvalidPipeline(
                    "refresh= and duplicates= are for tables that are loaded.",
                    why="a table that is a stream has one row for each key and time, and changes when that says so.",
                    do="leave them out.",
                )
            pairs, added = pairs_for(on, table.key), added_of(columns)
            return as_of(
                stream, table, on=pairs, how=how, columns=added, disorder=disorder, name=name, built_at=built_at
            )
        if disorder is not None:
            raise InvalidPipeline("disorder= is for hf.table.", do="leave it out: a row waits for nothing here.")
        refresh_us = None if refresh is None else units.duration_us(refresh, argument="refresh")
        spec = TableLookup(table_of(table), pairs_of(on), how, added_of(columns), duplicates, refresh_us)
    return put(spec, (stream,), name=name, built_at=built_at)
