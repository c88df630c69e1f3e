"""The state with which each shard goes on under another layout, written before that counts (design/0048, 6 and 7).

Durable writes, in the checkpoint of each shard: files, as those of a snapshot; then a manifest aside, under the
generation of the shard, which the layout names.  A crash before the layout leaves files that no snapshot names, which
are pruned with others, and manifests aside that the next change removes: those of lower generations, since a change
that is slower than one which has fenced it would take that one's away.  The manifest becomes a snapshot, the only one
of the shard, when its directory begins (:meth:`holdfast.controller.layouts.directory.SparkDirectory.begin`).

Invariant: nothing is written where a shard reads its own state, before the layout counts.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from holdfast.checkpoint.graph_record import state_fingerprint
from holdfast.checkpoint.manifest import BucketState, EpochEnd, Manifest, OperatorState, encode
from holdfast.checkpoint.snapshot import Bucket, check, checked, from_parquet, write_bucket
from holdfast.clock import SystemClock
from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.connectors.reading.partitioned import BOUND
from holdfast.connectors.reading.wrapped import WrappedSpec
from holdfast.controller.layouts.directory import SparkDirectory
from holdfast.controller.layouts.moving import StandingShard
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.operators.lookup.as_of import AsOfLookup
from holdfast.plan.gating import gate_of
from holdfast.plan.levels.edited import division_of
from holdfast.plan.levels.seed import StateDivision
from holdfast.plan.shard_key import columns_of_state
from holdfast.ports import SourceSpec, Store
from holdfast.positions import Positions
from holdfast.shards.assignment import Assignment, moves
from holdfast.shards.keys import ShardKey
from holdfast.shards.layout import ShardLayout
from holdfast.shards.moves import Move
from holdfast.shards.naming import shard_name
from holdfast.spark.state.shard_state import KeyMoves, OperatorTables, StateMoves, bounds_differ
from holdfast.spark.state.transfer import ReceivedBounds
from holdfast.state import tables

log = logging.getLogger("holdfast.checkpoint")

ASIDE = "seeds/"
"""Where manifests are that a layout names, until the directory begins."""


@dataclass(frozen=True)
class StateSeeds:
    """How the state of a pipeline moves to other shards.

    Parameters
    ----------
    pipeline : Graph
        As the user built it.
    key : ShardKey
        By which column rows are held to their segments, and where that is noted.
    divisible : collection of str
        The sources that shards read in parts.
    shard : callable
        Given its number, returns a shard that was taken over, and stands.
    directory : callable
        Given its number, returns what Spark has written for it.
    """

    pipeline: Graph
    key: ShardKey
    divisible: Collection[str]
    shard: Callable[[int], StandingShard]
    directory: Callable[[int], SparkDirectory]

    def __call__(self, before: ShardLayout, after: Assignment, moves: Mapping[int, Move]) -> dict[int, str]:
        """Write the state with which each shard goes on; return the keys of the manifests.

        Raises
        ------
        InvalidPipeline
            If state cannot move: says what to do first.  Nothing was changed.
        Diverged
            If the state of a shard cannot be read.
        """
        givers = givers_of(before.assignment, after)
        check_bounds(self.pipeline, {number: move.positions for number, move in moves.items()}, givers)
        held = {
            number: self.directory(number).state_at(move.positions, self.shard(number).holdings)
            for number, move in moves.items()
        }
        begun = {number: manifest for number, manifest in held.items() if manifest is not None}
        if not begun:
            return {}
        self._check_same(begun)
        shares = {
            shard: {shard, *givers.get(shard, ())}
            for shard in range(after.shard_count)
            if shard in givers or any(shard in of for of in givers.values())
        }
        claims = self.key.open()
        claims.refresh()  # other processes have claimed since this one has read them
        keys = KeyMoves(claims, before.assignment, after, self._alone)
        made = self._move_operators(begun, shares, keys, moves)
        found = {}
        for shard in range(after.shard_count):
            if shard in shares:
                found[shard] = self._put(shard, moves[shard], begun[min(begun)], made[shard])
            elif shard in begun:
                found[shard] = self._put(shard, moves[shard], begun[shard], begun[shard].operators)
        new = [shard for shard in found if shard not in begun and not self.directory(shard).has_begun]
        for shard in new:
            self.directory(shard).note_state(self.directory(min(begun)), begun[min(begun)].buckets)
        return found

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _alone(self) -> frozenset[str]:
        return frozenset(node.name for node in self.pipeline.sources if node.name not in self.divisible)

    @property
    def _bounding(self) -> frozenset[str]:
        return frozenset(node.name for node in self.pipeline.sources if _gives_bounds(node.source_spec))

    def _check_same(self, begun: Mapping[int, Manifest]) -> None:
        """Refuse shards whose operators keep tables of unlike forms: some of them ran another version last."""
        first = begun[min(begun)]
        for number, manifest in begun.items():
            for name, of in manifest.operators.items():
                if name in first.operators and not of.schema.fits(first.operators[name].schema):
                    raise InvalidPipeline(
                        f"operator {name!r} keeps other tables in shard {number} than in shard {min(begun)}.",
                        why="one of them ran another version of the graph last.",
                        do="start the pipeline once with as many shards as before, then with the new number.",
                        pipeline=self.pipeline.name,
                        participant=name,
                    )

    def _move_operators(
        self,
        begun: Mapping[int, Manifest],
        shares: Mapping[int, Collection[int]],
        keys: KeyMoves,
        moves: Mapping[int, Move],
    ) -> dict[int, dict[str, OperatorState]]:
        """Write the files of the shards whose state changes, operator by operator; return what their manifests say."""
        columns, buckets = columns_of_state(self.pipeline), begun[min(begun)].buckets
        schemas = {name: of.schema for manifest in begun.values() for name, of in manifest.operators.items()}
        found: dict[int, dict[str, OperatorState]] = {shard: {} for shard in shares}
        for name, schema in schemas.items():
            division = division_of(name, schema, self.pipeline.name)
            received = {number: ReceivedBounds({}, {*schemas}, of.buckets, buckets) for number, of in begun.items()}
            before = {
                number: _tables(self.directory(number).store, division, of.operators.get(name), received[number])
                for number, of in begun.items()
            }
            moving = StateMoves(division, columns.get(name), keys, shares, self._bounding)
            for shard, state in moving.state_after(before).items():
                store, version = self.directory(shard).store, moves[shard].end[0]
                found[shard][name] = OperatorState(schema, _write_buckets(store, division, state, buckets, version))
        return found

    def _put(self, shard: int, move: Move, like: Manifest, operators: Mapping[str, OperatorState]) -> str:
        """Put a manifest aside; return its key."""
        store, generation = self.directory(shard).store, self.shard(shard).coordinator.generation
        for key in store.keys(ASIDE):
            # Of a change that was never decided.  One of a higher generation may be: it has fenced this one.
            if int(key.rpartition("-")[2].partition(".")[0]) < generation:
                store.delete(key)
        epoch, positions = move.end
        ended = EpochEnd(epoch, epoch, positions, like.ended.batch_us)
        made = Manifest(
            shard_name(self.pipeline.name, shard),
            generation,
            SystemClock().now_us(),
            state_fingerprint(self.pipeline),
            ended,
            like.buckets,
            operators,
        )
        check(made)
        key = f"{ASIDE}{epoch:012d}-{generation:08d}.manifest"
        store.put(key, encode(made))
        rows = sum(rows for of in operators.values() for rows in of.rows.values())
        log.info("shard %d goes on with %d rows of state", shard, rows)
        return key


def givers_of(before: Assignment, after: Assignment) -> dict[int, set[int]]:
    """Return shard -> those that give it units.

    Examples
    --------
    >>> givers_of(Assignment(1, {"a": 0, "b": 0}), Assignment(2, {"a": 0, "b": 1}))
    {1: {0}}
    """
    found: dict[int, set[int]] = {}
    for giver, receiver in moves(before, after).values():
        found.setdefault(receiver, set()).add(giver)
    return found


def check_state(pipeline: Graph) -> None:
    """Refuse a graph whose state does not move; changes nothing.

    Raises
    ------
    InvalidPipeline
        Naming the operator, or what is not said of the pipeline.
    """
    if pipeline.shard_by is None:
        raise InvalidPipeline(
            f"pipeline {pipeline.name!r} keeps state, and is to have another number of shards.",
            why="which segment has the rows of a key was not noted: it has no shard_by=. Where shards are independent, "
            "each has a result of its own, and results cannot be put together or divided.",
            do="start it with as many shards as before; or begin anew with shard_by=, and another checkpoint.",
            pipeline=pipeline.name,
        )
    if gate_of(pipeline.nodes) is not None:
        raise InvalidPipeline(
            f'pipeline {pipeline.name!r} has commit_at="pts", keeps state, and is to have another number of shards.',
            why="each shard has published up to a time of its own, which only grows, and rows that wait are of no key.",
            do="start it with as many shards as before; or begin anew, with another checkpoint.",
            pipeline=pipeline.name,
        )
    for node in pipeline.nodes:
        if isinstance(node.spec, AsOfLookup):
            raise InvalidPipeline(
                f"{node.kind} {node.name!r}, built at {node.origin}, keeps a table that each shard has whole.",
                why="rows that wait for it would go to a shard whose table is of another moment.",
                do="start it with as many shards as before; or begin anew, with another checkpoint.",
                pipeline=pipeline.name,
                participant=node.name,
            )


def check_bounds(pipeline: Graph, positions: Mapping[int, Positions], givers: Mapping[int, Collection[int]]) -> None:
    """Refuse to move segments of a source of which shards have reached unlike bounds.

    Raises
    ------
    InvalidPipeline
        Naming the source.
    """
    for shard, of in givers.items():
        for node in pipeline.sources:
            there = [positions.get(each, {}).get(node.name) for each in (shard, *of)]
            if len({None if each is None else each.get(BOUND) for each in there if each}) > 1:
                raise bounds_differ(pipeline.name, node.name, "")


def _gives_bounds(spec: SourceSpec) -> bool:
    while isinstance(spec, WrappedSpec):
        if isinstance(spec, MarkedSpec):
            return True
        spec = spec.given
    return False


def _tables(
    store: Store, division: StateDivision, of: OperatorState | None, received: ReceivedBounds
) -> OperatorTables:  # fmt: skip
    """Return what an operator keeps in one shard."""
    buckets = [] if of is None else [bucket for _, bucket in sorted(of.buckets.items())]

    def read(table: str) -> list[pa.Table]:
        schema = division.schema.tables[table].schema
        files = [bucket.files[table] for bucket in buckets if table in bucket.files]
        return [from_parquet(checked(store.get(file.key), file), schema, file.key) for file in files]

    found = {table: division.united(table, declared, read(table)) for table, declared in division.schema.tables.items()}
    return OperatorTables(found, received.united([bucket.feeds for bucket in buckets]))


def _write_buckets(
    store: Store, division: StateDivision, state: OperatorTables, buckets: int, version: int
) -> dict[int, BucketState]:  # fmt: skip
    """Write what an operator keeps, by buckets."""
    found = {}
    for number, parts in division.divided(state.tables, buckets):
        digest = hashlib.blake2b(tables.encode(parts), digest_size=8).hexdigest()
        found[number] = write_bucket(store, Bucket(division.operator, number, version, digest, state.feeds, parts))
    return found
