"""What a bucket receives in an epoch: rows and bounds of its chunks, in their places; and which bounds it passes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.capabilities import offers
from holdfast.errors import invariant
from holdfast.plan.bounds import all_keys
from holdfast.plan.chunks import BOUNDS, COMBINED, PLACED, ROWS, Chunk, decode, divided
from holdfast.plan.stages import CLOSED_ONLY, EVERY, Hosted
from holdfast.state import keyed, tables
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, ROW_COUNT, UNBOUNDED, Arrivals, Step, Timed, with_places

OF_SOURCE = -1
"""Stands for the sender of rows that keep the order of their source."""


class FeedBounds:
    """The bounds for all keys that an operator has received, by where they come from.

    An input with several feeds (a union, or an operator of several buckets) is bounded by the least of them.

    Parameters
    ----------
    hosted : Hosted
        The operator.
    known : mapping of str to mapping of str to int
        Input -> where its rows come from -> bound for all keys: those received so far.
    buckets : int
        Of each operator.
    """

    def __init__(self, hosted: Hosted, known: Mapping[str, Mapping[str, int]], buckets: int) -> None:
        self.bounds = {name: dict(of) for name, of in known.items()}
        self.has_moved = False
        self._operator = hosted.name
        self._expected = {
            name: [source for feed in feeds for source in feed.labels(buckets)] for name, feeds in hosted.feeds.items()
        }
        self._is_single = {name: len(feeds) == 1 for name, feeds in hosted.feeds.items()}

    def raise_bound(self, name: str, source: str, bound: int) -> int | None:
        """Record a bound for all keys; return the bound of the input if that has risen."""
        invariant(
            source in self._expected[name],
            f"input {name!r} of operator {self._operator!r} got a bound of {source!r}, which is no feed of it.",
            participant=self._operator,
        )
        of = self.bounds.setdefault(name, {})
        before = self._least(name)
        if bound <= of.get(source, bound - 1):
            return None
        of[source] = bound
        self.has_moved = True
        after = self._least(name)
        return after if after is not None and (before is None or after > before) else None

    @property
    def has_ended(self) -> bool:
        """Whether every input has ended."""
        return all(self._least(name) == CLOSED for name in self._expected)

    def takes_keyed(self, name: str) -> bool:
        """Return whether bounds of single keys hold: where there is one feed."""
        return self._is_single[name]

    def _least(self, name: str) -> int | None:
        of = self.bounds.get(name, {})
        return min(of.values()) if all(source in of for source in self._expected[name]) else None


def arrivals_of(hosted: Hosted, chunks: Sequence[Chunk], feeds: FeedBounds) -> dict[str, Arrivals]:
    """Return what each input receives from the chunks of one bucket.

    Places are numbered in the order of :func:`~holdfast.plan.chunks.in_order`; bounds follow the rows, except
    the bound rows of sources, which keep their place among them.  Rows of several buckets of operators are interleaved.
    Partial rows have places among the rows that they stand for, where the order of arrival counts.
    """
    step: Step = hosted.step
    names = {number: name for name, number in hosted.targets.items()}
    rows: dict[str, list[pa.Table]] = {name: [] for name in hosted.targets}
    senders: dict[str, list[int]] = {name: [] for name in hosted.targets}
    bounds: dict[str, list[pa.Table]] = {name: [] for name in hosted.targets}
    partials: dict[str, list[pa.Table]] = {name: [] for name in hosted.targets}
    place = 0
    for chunk in chunks:
        if chunk.kind == ROWS:
            table = decode(chunk.data)
            rows[names[chunk.target]].append(_placed(table, place))
            senders[names[chunk.target]].append(chunk.rank if _is_of_operator(chunk.rank) else OF_SOURCE)
            place += table.num_rows
        elif chunk.kind == COMBINED:
            table = decode(chunk.data)
            partials[names[chunk.target]].append(with_places(table, partial(pc.add, place)))
            place += pc.sum(table.column(ROW_COUNT)).as_py()
        elif chunk.kind == PLACED:
            name = names[chunk.target]
            for table in _effective(decode(chunk.data), name, chunk.source, step.key, feeds):
                bounds[name].append(_placed(table, place))
                place += table.num_rows
    for chunk in chunks:
        if chunk.kind == BOUNDS:
            name = names[chunk.target]
            for table in _effective(decode(chunk.data), name, chunk.source, step.key, feeds):
                bounds[name].append(_placed(table, place))
                place += table.num_rows
    found = {}
    for name, schema in step.inputs.items():
        row_schema = schema.append(pa.field(PLACE, pa.int64()))
        bound_schema = tables.bounds_schema(step.key).append(pa.field(PLACE, pa.int64()))
        found[name] = Arrivals(
            _interleaved(rows[name], row_schema, senders[name], step.time_of(name) if offers(step, Timed) else None),
            _unite(bounds[name], bound_schema),
            tables.united(partials[name], partials[name][0].schema) if partials[name] else None,
        )
    return found


def _is_of_operator(rank: int) -> bool:
    """Return whether a bucket of an operator made the chunks of a rank, and not a task that read a source."""
    return rank >> 56 > 0


def _interleaved(parts: Sequence[pa.Table], schema: pa.Schema, senders: Sequence[int], time: str | None) -> pa.Table:
    """Return the rows of an input; those of several buckets of operators by the newest time that each had reached.

    Between buckets there is no order, and one after the other they would break what their input promised: rows of the
    second may be as far below those of the first as an epoch is long, and were late for any ``disorder``.  Here the
    rows of a bucket keep their order, and before a row there is none newer than the newest that its own bucket had sent
    by then.  So where a source keeps its promise and rows pass in the order of their arrival, it is kept here.
    """
    of_operators = [at for at, sender in enumerate(senders) if sender != OF_SOURCE]
    if time is None or len({senders[at] for at in of_operators}) < 2:
        return _unite(parts, schema)
    reached: dict[int, int] = {}
    newest = []
    for at in of_operators:
        times = _ticks(parts[at].column(time))
        newest.append(np.maximum.accumulate(np.append(reached.get(senders[at], UNBOUNDED), times))[1:])
        reached[senders[at]] = int(newest[-1][-1]) if len(times) else reached.get(senders[at], UNBOUNDED)
    order = np.argsort(np.concatenate(newest), kind="stable")
    sent = _unite([parts[at] for at in of_operators], schema)
    mixed = sent.take(pa.array(order)).set_column(len(schema) - 1, schema.field(PLACE), sent.column(PLACE))
    return _unite([*(part for part, of in zip(parts, senders, strict=True) if of == OF_SOURCE), mixed], schema)


def _ticks(times: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return timestamps as numbers; a null, which the step refuses, is below all."""
    return keyed.ticks(pc.fill_null(pc.cast(times, pa.int64()), UNBOUNDED))


def _effective(bounds: pa.Table, name: str, source: str, key: pa.Schema, feeds: FeedBounds) -> Iterator[pa.Table]:
    everywhere = bounds.filter(bounds.column(ALL_KEYS))
    of_keys = bounds.filter(pc.invert(bounds.column(ALL_KEYS)))
    if of_keys.num_rows and feeds.takes_keyed(name):
        yield of_keys
    if everywhere.num_rows:
        risen = feeds.raise_bound(name, source, pc.max(everywhere.column(BOUND)).as_py())
        if risen is not None:
            yield all_keys(key, risen)


def _placed(table: pa.Table, first: int) -> pa.Table:
    places = pa.array(np.arange(first, first + table.num_rows, dtype=np.int64))
    return table.append_column(pa.field(PLACE, pa.int64()), places)


def _unite(parts: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    if not parts:
        return schema.empty_table()
    return tables.united(parts, schema)


def bounds_for(
    bounds: pa.Table, key: pa.Schema, wanted: pa.Schema, passes: str, buckets: int
) -> Iterator[tuple[int, pa.Table]]:
    """Yield (bucket, bounds) of an operator's output for an input that has its own key.

    Bounds of single keys hold only where the key is the same; those for all keys go to every bucket.
    """
    everywhere = bounds.filter(bounds.column(ALL_KEYS))
    if passes == CLOSED_ONLY:
        everywhere = everywhere.filter(pc.equal(everywhere.column(BOUND), CLOSED))
    if everywhere.num_rows:
        highest = pc.max(everywhere.column(BOUND)).as_py()
        for bucket in range(buckets):
            yield bucket, all_keys(wanted, highest)
    if passes == EVERY and len(key) and sorted(key.names) == sorted(wanted.names):
        keyed = bounds.filter(pc.invert(bounds.column(ALL_KEYS)))
        schema = tables.bounds_schema(wanted)
        yield from divided(keyed.select(schema.names).cast(schema), wanted, buckets)
