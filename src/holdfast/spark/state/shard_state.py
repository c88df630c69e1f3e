"""State moves with its keys from shard to shard: what each shard keeps afterwards (design/0048, section 7).

Pure.  Invariants: every row of a key is afterwards in the shard that has the unit of its key, as it was; nothing is
ever merged, since the rows of a key are in one shard before.  What an operator keeps for all keys holds in a shard
afterwards as far as it held in each of those that it is made of: of what rows and bounds have told the least counts, of
what was seen and counted the greatest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Diverged, InvalidPipeline
from holdfast.plan.levels.seed import StateDivision
from holdfast.shards.assignment import Assignment
from holdfast.shards.key_runs import UNKNOWN
from holdfast.shards.keys import HASHED, KeyTable
from holdfast.state import tables
from holdfast.state.keys import Ints, one
from holdfast.state.step import BOUND, UNBOUNDED
from holdfast.types.row_ids import lanes_of_columns

Feeds = Mapping[str, Mapping[str, int]]

TOLD = frozenset({BOUND, "bound", "newest"})
"""Columns of rows for all keys that say which rows do not follow any more: the least of several shards holds."""

NO_SHARD = -1


@dataclass(frozen=True)
class OperatorTables:
    """What an operator keeps in one shard, that of all buckets together.

    Parameters
    ----------
    tables : mapping of str to pa.Table
        Every state table; what holds for all keys is in it once.
    feeds : mapping of str to mapping of str to int
        Input -> where its rows come from -> bound for all keys.
    """

    tables: Mapping[str, pa.Table]
    feeds: Feeds = field(default_factory=dict)


@dataclass(frozen=True)
class KeyMoves:
    """Which shard has which key, before and after.

    Parameters
    ----------
    claims : KeyTable
        Key -> unit.
    before, after : Assignment
        Unit -> shard.
    alone : collection of str
        Units that are in no assignment, since one shard, the first, reads them alone.
    """

    claims: KeyTable
    before: Assignment
    after: Assignment
    alone: Collection[str] = ()

    def shards_of(self, values: pa.Array) -> tuple[Ints, Ints]:
        """Return the shard of each key, before and after; NO_SHARD of one that nobody has claimed."""
        if not len(values):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        distinct = pc.unique(values)
        codes = self.claims.owners(lanes_of_columns(HASHED, [distinct]))
        places = np.asarray(pc.index_in(values, value_set=distinct))
        is_known = codes != UNKNOWN
        before, after = np.full(len(codes), NO_SHARD), np.full(len(codes), NO_SHARD)
        before[is_known], after[is_known] = (of[codes[is_known]] for of in self._of_units)
        return before[places], after[places]

    def counts(self) -> dict[tuple[int, int], int]:
        """Return how many keys move: by the shard that gives them, and the one that gets them."""
        counts = self.claims.counts()
        before, after = (of[: len(counts)].tolist() for of in self._of_units)
        found: dict[tuple[int, int], int] = {}
        for giver, receiver, count in zip(before, after, counts, strict=True):
            if count and giver != receiver:
                found[giver, receiver] = found.get((giver, receiver), 0) + count
        return found

    @cached_property
    def _of_units(self) -> tuple[Ints, Ints]:
        """The shards of units before and after, by the codes that they have in this process."""
        return self._shards(self.before), self._shards(self.after)

    def _shards(self, of: Assignment) -> Ints:
        found = [of.shards.get(unit, 0 if unit in self.alone else NO_SHARD) for unit in self.claims.units]
        return np.array(found, np.int64)


@dataclass(frozen=True)
class StateMoves:
    """How the state of one operator moves.

    Parameters
    ----------
    division : StateDivision
        Which of its rows hold for all keys.
    column : str, optional
        The column of its key by which rows are held to their segments; None: it has none, and so no rows of a key.
    keys : KeyMoves
        Which shard has which key.
    shares : mapping of int to collection of int
        Shard -> those of which it has something afterwards: itself, and those that give it units.  Only shards whose
        state changes.
    bounding : collection of str
        Sources that tell bounds: in shards that get units of one another these have to be the same.
    """

    division: StateDivision
    column: str | None
    keys: KeyMoves
    shares: Mapping[int, Collection[int]]
    bounding: Collection[str] = ()

    def state_after(self, before: Mapping[int, OperatorTables]) -> dict[int, OperatorTables]:
        """Return what each shard keeps that changes.

        Parameters
        ----------
        before : mapping of int to OperatorTables
            Of all shards that have begun.

        Raises
        ------
        InvalidPipeline
            If rows are of no key that a segment has; or bounds differ that shards have been told.
        Diverged
            If a row is in another shard than the segment of its key.
        """
        for shard, of in self.shares.items():
            self._check_bounds(shard, [before[each].feeds for each in of if each in before])
        parts: dict[int, dict[str, list[pa.Table]]] = {shard: {} for shard in self.shares}
        for shard, held in sorted(before.items()):
            for name, table in held.tables.items():
                for receiver, rows in self._by_receiver(shard, name, table).items():
                    parts[receiver].setdefault(name, []).append(rows)
        found = {}
        for shard, of in self.shares.items():
            held_there = [before[each] for each in sorted(of) if each in before]
            feeds = least_of_feeds([each.feeds for each in held_there])
            found[shard] = OperatorTables(self._whole(parts[shard], held_there), feeds)
        return found

    # --- inside -----------------------------------------------------------------------------------------------------

    def _by_receiver(self, shard: int, name: str, table: pa.Table) -> dict[int, pa.Table]:
        """Return the rows of keys in a table by the shard that has them afterwards, of those whose state changes."""
        rows = table.filter(pa.array(~self.division.is_shared(name, table)))
        if not rows.num_rows:
            return {}
        before, after = self.keys.shards_of(self._values(name, rows))
        self._check(shard, name, rows, before, after)
        return {
            receiver: rows.filter(pa.array(after == receiver))
            for receiver in sorted({*after.tolist()} & self.shares.keys())
        }

    def _values(self, name: str, rows: pa.Table) -> pa.Array:
        there = {column.lower(): column for column in rows.schema.names}
        column = None if self.column is None else there.get(self.column.lower())
        if column is None:
            raise InvalidPipeline(
                f"state table {name!r} of operator {self.division.operator!r} has {rows.num_rows} rows that are of no "
                "key.",
                why="which shard has them afterwards is decided by the key of a row. With commit_at these are rows "
                "that wait for the sinks.",
                do="start it with as many shards as before until what waits is published; or keep their number.",
                pipeline=self.division.pipeline,
                participant=self.division.operator,
            )
        return one(rows.column(column))

    def _check(self, shard: int, name: str, rows: pa.Table, before: Ints, after: Ints) -> None:
        unknown = np.flatnonzero((before == NO_SHARD) | (after == NO_SHARD))
        if len(unknown):
            key = self._values(name, rows)[int(unknown[0])].as_py()
            raise InvalidPipeline(
                f"operator {self.division.operator!r} keeps state of {self.column!r} {key!r}, and of which segment "
                "that is nobody has noted.",
                why=f"{len(unknown)} rows of its table {name!r} are so: they came before the sources were divided, or "
                "a function has made the value. Which shard gets their rows next is not known.",
                do="keep the number of shards; or begin anew, with another checkpoint, and with --shards 1 at least: "
                "then it is noted.",
                pipeline=self.division.pipeline,
                participant=self.division.operator,
            )
        foreign = np.flatnonzero(before != shard)
        if len(foreign):
            at = int(foreign[0])
            raise Diverged(
                f"shard {shard} keeps state of {self.column!r} {self._values(name, rows)[at].as_py()!r} in operator "
                f"{self.division.operator!r}, and shard {before[at]} reads the segment of that key.",
                why="rows of one key are in one shard: a function has made the value, or a checkpoint was restored.",
                do="keep the number of shards; or begin anew, with another checkpoint.",
                pipeline=self.division.pipeline,
                participant=self.division.operator,
            )

    def _whole(self, parts: Mapping[str, Sequence[pa.Table]], held: Sequence[OperatorTables]) -> dict[str, pa.Table]:
        """Return the tables of a shard: rows of keys, and those for all keys."""
        found = {}
        for name, declared in self.division.schema.tables.items():
            empty = declared.schema.empty_table()
            there = [of.tables.get(name, empty) for of in held]
            shared = [table.filter(pa.array(self.division.is_shared(name, table))) for table in there]
            for_all = _least_of_rows(shared, declared.key, declared.schema)
            found[name] = tables.united([empty, *parts.get(name, ()), for_all], declared.schema)
        return found

    def _check_bounds(self, shard: int, several: Sequence[Feeds]) -> None:
        """Refuse unlike bounds that shards have been told by the sources that tell any."""
        names = {name for feeds in several for name in feeds}
        for name, source in product(sorted(names), sorted(self.bounding)):
            if len({feeds.get(name, {}).get(source) for feeds in several}) > 1:
                raise bounds_differ(self.division.pipeline, source, self.division.operator)


def bounds_differ(pipeline: str, source: str, operator: str) -> InvalidPipeline:
    """Return the error of shards that have been told unlike bounds of a source whose segments are to move."""
    return InvalidPipeline(
        f"shards of pipeline {pipeline!r} have got unlike bounds of source {source!r}, whose segments are to move.",
        why="a row between the two bounds would be late in the one shard and not in the other, where the state of its "
        "key may be gone.",
        do="send one row of the same time, later than all others, to each segment of the source, and let all shards "
        "read these: then all have the same bound; or keep the number of shards.",
        pipeline=pipeline,
        participant=operator or source,
    )


def least_of_feeds(several: Sequence[Feeds]) -> dict[str, dict[str, int]]:
    """Return the bounds that hold in each of several shards.

    Examples
    --------
    >>> least_of_feeds([{"rows": {"a": 7, "b": 3}}, {"rows": {"a": 5}}])
    {'rows': {'a': 5}}
    """
    if not several:
        return {}
    names = set(several[0]).intersection(*several[1:])
    found = {}
    for name in sorted(names):
        sources = set(several[0][name]).intersection(*(feeds[name] for feeds in several[1:]))
        found[name] = {source: min(feeds[name][source] for feeds in several) for source in sorted(sources)}
    return found


def _least_of_rows(several: Sequence[pa.Table], key: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Return rows for all keys of several shards as one: a few for each operator."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for table in several:
        for row in table.to_pylist():
            found.setdefault(tuple(row[name] for name in key), []).append(row)
    rows = []
    for of_key, same in found.items():
        row = dict(zip(key, of_key, strict=True))
        for name in schema.names:
            if name in TOLD and name not in row:
                told = [each[name] for each in same]
                row[name] = UNBOUNDED if len(told) < len(several) or None in told else min(told)
            elif name not in row:
                row[name] = max((each[name] for each in same if each[name] is not None), default=None)
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=schema)
