"""``latest`` and ``combine``: one row per key of one stream, or of several, by ``reduce``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building, require_columns
from holdfast.graph.evolution import Evolution, Migration, past_of
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream
from holdfast.operators.aggregate.aggregates import last
from holdfast.operators.aggregate.spec import Aggregation, AggregationAnywhere
from holdfast.operators.aggregate.window import Total
from holdfast.operators.union import union
from holdfast.state import keyed
from holdfast.types import units


def latest(
    stream: Stream,
    *,
    by: str | Sequence[str],
    forget_after: str | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Stream:
    """Keep of each key the last row by event time: one row per changed key and epoch, to be upserted by the key.

    Parameters
    ----------
    stream : Stream
        The rows; its columns must be known, and it must have a timestamp.
    by : str or sequence of str
        Key columns.
    forget_after : str, optional
        Logged time after which a silent key is forgotten; its next row counts whatever its time.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Returns
    -------
    Stream
        The key columns, then the others.

    Raises
    ------
    InvalidPipeline
        If the columns are not known, or there is no timestamp or no column besides the key.

    Notes
    -----
    The same as ``hf.reduce`` with ``hf.last`` of each column: nulls are values.  Of rows of one time the last to
    arrive counts.

    Examples
    --------
    ::

        now = hf.latest(positions, by="vehicle", name="now")
        now | hf.write.postgres(dsn, table="vehicles", mode="upsert", key="vehicle")
    """
    with building("latest", name) as built_at:
        if not isinstance(stream, Stream):
            raise InvalidPipeline(f"{a_type(stream)} stands for the stream.", do='write hf.latest(stream, by="id")')
        return _last(
            stream, by, False, forget_after, name, past_of(renamed_from, migrate, kind="aggregate", built_at=built_at),
            built_at,
        )  # fmt: skip


def combine(
    *streams: Stream,
    by: str | Sequence[str],
    forget_after: str | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Stream:
    """Fold several streams into one row per key: of each column the last value that is not null, by event time.

    Parameters
    ----------
    *streams : Stream
        Two or more, with the key columns and the same timestamp column; a column that one lacks is null in its rows.
        Columns of all must be known.
    by : str or sequence of str
        Key columns.
    forget_after : str, optional
        Logged time after which a silent key is forgotten; it then begins anew.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Returns
    -------
    Stream
        The key columns, then the others in the order of the streams: one row per changed key and epoch, to be
        upserted by the key.

    Raises
    ------
    InvalidPipeline
        If the columns are not known, the streams have different timestamps, or a stream is given twice.

    Notes
    -----
    The same as ``hf.union(*streams, missing="null")`` and ``hf.reduce`` with ``hf.last(ignore_nulls=True)`` of each
    column.

    Examples
    --------
    ::

        customers = hf.combine(names, addresses, scores, by="id", name="customers")
    """
    with building("combine", name) as built_at:
        keys = keyed.key_names(by)
        for stream in streams:
            if not isinstance(stream, Stream):
                raise InvalidPipeline(
                    f"{a_type(stream)} is not a stream.", do='write hf.combine(names, addresses, by="id")'
                )
            require_columns(keys, stream.columns, "by=")
        times = {stream.timestamp for stream in streams}
        if len(times) > 1:
            raise InvalidPipeline(
                f"the streams have different timestamps: {', '.join(sorted(map(repr, times)))}.",
                why="which value of a column is the last is decided by event time.",
                do='give the column one name before: stream | hf.select("* except (since)", t="since")',
            )
        past = past_of(renamed_from, migrate, kind="aggregate", built_at=built_at)
    united = union(*streams, missing="null")
    with building("combine", name, built_at):
        return _last(united, by, True, forget_after, name, past, built_at)


def _last(
    stream: Stream,
    by: str | Sequence[str],
    ignore_nulls: bool,
    forget_after: str | None,
    name: str | None,
    past: Evolution,
    built_at: Origin,
) -> Stream:
    keys = keyed.key_names(by)
    if stream.columns is None:
        raise InvalidPipeline(
            f"the columns of {stream.name!r} are not known.",
            why="each of them is kept by name.",
            do='name them before: stream | hf.select("id", "name", "t")',
        )
    require_columns(keys, stream.columns, "by=")
    others = [column for column in stream.columns if column not in keys]
    if not others:
        raise InvalidPipeline("there is no column besides the key.", do="leave a column for the key to have.")
    forget_us = 0 if forget_after is None else units.duration_us(forget_after, argument="forget_after")
    aggregates = tuple((column, last(column, ignore_nulls=ignore_nulls)) for column in others)
    timestamp = keyed.timestamp_of(stream, None)
    spec = Aggregation(keys, Total(), aggregates, "changes", timestamp, "ascending", None, 0, forget_us)
    return stream | AggregationAnywhere(spec, name, built_at, past)
