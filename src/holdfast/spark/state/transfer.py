"""State that moves to a changed graph: a snapshot of the old graph becomes one for the new graph, file by file.

Renamed operators get their state under the new name; tables that have another form are grown or migrated; and where the
number of buckets differs, every key goes to the bucket of its hash.  What need not change is not read: a bucket that
stays as it is keeps its files.

The order of durable writes is that of every snapshot: files, then the manifest.  A crash leaves files that no manifest
names, or a snapshot of a graph that does not run yet; the next start writes both again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.checkpoint.manifest import BucketState, EpochEnd, Manifest, OperatorState, StateSchema
from holdfast.checkpoint.snapshot import Bucket, checked, commit, from_parquet, write_bucket
from holdfast.checkpoint.state_upgrade import StateMove, StateUpgrade, TableMove, Way, state_move
from holdfast.errors import HoldfastError, InvalidPipeline, present
from holdfast.graph.naming import callable_text
from holdfast.operators.stateful.spec import converted
from holdfast.plan.levels.seed import StateDivision
from holdfast.ports import Clock, Store
from holdfast.state import checks, joins, tables
from holdfast.state.step import StepTime

log = logging.getLogger("holdfast.checkpoint")

Feeds = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Transfer:
    """How the state of an old graph becomes that of a new one.

    Parameters
    ----------
    store : Store
        The checkpoint.
    pipeline : str
        Its name.
    graph : str
        Fingerprint of the new graph's state.
    state_schemas : mapping of str to StateSchema
        The state tables of each of its operators.
    upgrades : mapping of str to StateUpgrade
        How tables of another form are converted.
    buckets : int
        How many the state of each operator is divided into from now on.
    generation : int
        Of this run.
    clock : Clock
        For the time of the snapshot.
    """

    store: Store
    pipeline: str
    graph: str
    state_schemas: Mapping[str, StateSchema]
    upgrades: Mapping[str, StateUpgrade]
    buckets: int
    generation: int
    clock: Clock

    def sources(self, found: Mapping[str, OperatorState]) -> dict[str, str]:
        """Return the operators that find state in a snapshot of another graph, with its names there."""
        names = {name: self._upgrade(name).past.renamed_from for name in self.state_schemas}
        pairs = {name: name if name in found else names[name] for name in self.state_schemas}
        return {name: was for name, was in pairs.items() if was in found}

    def move(self, name: str, was: StateSchema) -> StateMove:
        """Return where the tables of an operator come from."""
        return state_move(was, self.state_schemas[name], self._upgrade(name))

    def is_needed(self, manifest: Manifest, sources: Mapping[str, str]) -> bool:
        """Return whether a snapshot cannot be used unchanged."""
        return manifest.buckets != self.buckets or any(
            name != was or not self.move(name, manifest.operators[was].schema).is_plain for name, was in sources.items()
        )

    def made(self, manifest: Manifest, sources: Mapping[str, str]) -> Manifest:
        """Write the state of a snapshot as that of the new graph; return the resulting snapshot.

        Parameters
        ----------
        manifest : Manifest
            The state before.
        sources : mapping of str to str
            The operators that take state over, with its names in the snapshot.

        Raises
        ------
        InvalidPipeline
            If a migration fails, or its result does not fit, or rows cannot be assigned to other buckets.
        Corrupt
            If a file of the snapshot is missing or damaged.
        """
        at = StepTime(manifest.ended.step_epoch, manifest.ended.batch_us)
        renamed = {was: name for name, was in sources.items()}
        redistributed = {
            name
            for name, was in sources.items()
            if manifest.buckets != self.buckets
            or not manifest.operators[was].schema.key.equals(self.state_schemas[name].key)
        }
        operators = {}
        for name, was in sources.items():
            before = manifest.operators[was]
            move = self.move(name, before.schema)
            feeds = ReceivedBounds(renamed, redistributed, manifest.buckets, self.buckets)
            if move.is_plain and name not in redistributed:
                buckets = {
                    number: BucketState(of.version, of.digest, feeds.renamed(of.feeds), of.files)
                    for number, of in before.buckets.items()
                }
                if name != was:
                    log.info("operator %r takes over the state of %r", name, was)
            else:
                buckets = self._rewritten(name, was, before, move, feeds, at)
            operators[name] = OperatorState(self.state_schemas[name], buckets)
        made = Manifest(
            self.pipeline, self.generation, self.clock.now_us(), self.graph, manifest.ended, self.buckets, operators
        )
        commit(self.store, made)
        return made

    def begun_with(self, given: Mapping[str, Mapping[str, pa.Table]], ended: EpochEnd) -> Manifest:
        """Write state that was given; return the resulting snapshot.

        Parameters
        ----------
        given : mapping of str to mapping of str to pa.Table
            Operator -> every table of its state.
        ended : EpochEnd
            The epoch at whose end it is valid.  Its number is not 0: 0 is the version of a bucket without state.

        Raises
        ------
        InvalidPipeline
            If rows cannot be assigned to buckets.
        """
        operators = {
            name: OperatorState(self.state_schemas[name], self._written(name, state, ended.step_epoch, {}))
            for name, state in given.items()
        }
        made = Manifest(self.pipeline, self.generation, self.clock.now_us(), self.graph, ended, self.buckets, operators)
        commit(self.store, made)
        return made

    # --- inside -----------------------------------------------------------------------------------------------------

    def _upgrade(self, name: str) -> StateUpgrade:
        return self.upgrades.get(name, StateUpgrade())

    def _rewritten(
        self, name: str, was: str, before: OperatorState, move: StateMove, feeds: ReceivedBounds, at: StepTime
    ) -> dict[int, BucketState]:
        """Read all state of an operator, convert its tables, and write it into the current buckets."""
        if not before.buckets:
            return {}
        known = {
            table: self._division(name, before.schema).united(table, of, self._read(before, table))
            for table, of in before.schema.tables.items()
        }
        state = {table: self._converted(name, table, each, known, at) for table, each in move.tables.items()}
        for table, each in move.tables.items():
            rows = (known[each.source].num_rows if each.source else 0, state[table].num_rows)
            if each.way is not Way.AS_IS:
                log.info("state table %r of operator %r, %s: %d rows, then %d", table, name, each.way.value, *rows)
        for table in move.dropped:
            log.warning("state table %r of operator %r is dropped, with %d rows", table, was, known[table].num_rows)
        version = max(of.version for of in before.buckets.values())
        of_all = feeds.united([of.feeds for of in before.buckets.values()])
        return self._written(name, state, version, of_all)

    def _written(self, name: str, state: Mapping[str, pa.Table], version: int, of_all: Feeds) -> dict[int, BucketState]:
        """Write all state of an operator into the current buckets."""
        written = {}
        for number, parts in self._division(name, self.state_schemas[name]).divided(state, self.buckets):
            digest = hashlib.blake2b(tables.encode(parts), digest_size=8).hexdigest()
            written[number] = write_bucket(self.store, Bucket(name, number, version, digest, of_all, parts))
        rows_held = sum(table.num_rows for table in state.values())
        log.info("state of operator %r: %d rows in %d buckets", name, rows_held, self.buckets)
        return written

    def _read(self, before: OperatorState, table: str) -> list[pa.Table]:
        schema = before.schema.tables[table].schema
        found = [of.files[table] for _, of in sorted(before.buckets.items()) if table in of.files]
        return [from_parquet(checked(self.store.get(file.key), file), schema, file.key) for file in found]

    def _converted(
        self, name: str, table: str, move: TableMove, known: Mapping[str, pa.Table], at: StepTime
    ) -> pa.Table:  # fmt: skip
        declared = self.state_schemas[name].tables[table]
        if move.way is Way.AS_IS:
            return known[move.source]
        if move.migrate is None:
            found = self._upgrade(name).grown(table, known[move.source] if move.source else None, at)
            return present(found, f"state table {table!r} of operator {name!r} cannot be grown, as was planned.")
        where = f"migrate= of operator {name!r}"
        try:
            given = move.migrate(known[move.source])
            given = (
                given if isinstance(given, pa.Table) or not hasattr(given, "__arrow_c_stream__") else pa.table(given)
            )
        except HoldfastError:
            raise
        except Exception as error:
            raise InvalidPipeline(
                f"{where} failed: {callable_text(move.migrate)} raised {error!r}.",
                why=f"it received state table {move.source!r}, {known[move.source].num_rows} rows with the columns "
                f"{checks.spelled(known[move.source].schema)}.",
                do="fix the function; nothing has happened yet.",
                pipeline=self.pipeline,
                participant=name,
            ) from error
        what = f"state table {table!r}"
        if isinstance(given, pa.Table) and set(given.schema.names) < set(declared.schema.names):
            part = pa.schema([column for column in declared.schema if column.name in given.schema.names])
            grown = self._upgrade(name).grown(table, converted(given, part, what, where), at)
            given = given if grown is None else grown
        if given is None:
            raise InvalidPipeline(
                f"{where} returned None for {what}.",
                why="it would silently lose every row.",
                do="return the table; to begin without rows, return table.slice(0, 0) with the new columns.",
                pipeline=self.pipeline,
                participant=name,
            )
        found = converted(given, declared.schema, what, where)
        if joins.distinct_keys(found, declared.key).num_rows < found.num_rows:
            raise InvalidPipeline(
                f"{where} returned state table {table!r} with two rows of one key.",
                why=f"its key is {', '.join(declared.key) or 'empty: it holds one row'}.",
                do="return one row for each key.",
                pipeline=self.pipeline,
                participant=name,
            )
        return found

    def _division(self, name: str, schema: StateSchema) -> StateDivision:
        return StateDivision.of(name, schema, self._upgrade(name).step, self.pipeline)


@dataclass(frozen=True)
class ReceivedBounds:
    """The bounds that operators received from upstream operators, which may have another name, or other buckets, now.

    Parameters
    ----------
    names : mapping of str to str
        Previous name of an operator -> current one.
    redistributed : set of str
        Operators (by their current names) whose keys are in other buckets than before.
    before, now : int
        How many buckets there were and are.
    """

    names: Mapping[str, str]
    redistributed: set[str]
    before: int
    now: int

    def renamed(self, feeds: Feeds) -> dict[str, dict[str, int]]:
        """Return the bounds that one bucket received, under the current names of operators."""
        return {name: self._current(of) for name, of in feeds.items()}

    def united(self, several: Sequence[Feeds]) -> dict[str, dict[str, int]]:
        """Return the bounds that any of several buckets received: each holds for all keys, not only for that bucket."""
        greatest: dict[str, dict[str, int]] = {}
        for feeds in several:
            for name, of in feeds.items():
                known = greatest.setdefault(name, {})
                for source, bound in of.items():
                    known[source] = max(bound, known.get(source, bound))
        return self.renamed(greatest)

    def _current(self, of: Mapping[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        by_bucket: dict[str, dict[int, int]] = {}
        for source, bound in of.items():
            operator, slash, bucket = source.rpartition("/")
            operator, dot, output = operator.partition(".")
            is_redistributed = self.names.get(operator, operator) in self.redistributed
            now = f"{self.names.get(operator, operator)}{dot}{output}"
            if slash and is_redistributed:
                by_bucket.setdefault(now, {})[int(bucket)] = bound
            else:
                found[f"{now}{slash}{bucket}"] = bound
        for operator, bounds in by_bucket.items():
            if len(bounds) == self.before:  # its keys may come from any bucket: the least bound holds
                found |= {f"{operator}/{bucket}": min(bounds.values()) for bucket in range(self.now)}
        return found
