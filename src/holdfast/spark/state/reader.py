"""State that an older version kept in Spark's state store, as of an epoch's end, into the files of a snapshot.

State is kept in a journal (:mod:`holdfast.plan.levels.journal`); versions before 0.2 kept it in Spark's store.  A start
moves it, as it does when a graph changes: that is what this reader is for.

Spark's state reader reads committed versions, which never change, beside the running query.  It refuses a batch that
Spark's commit log lacks; but an epoch that ``foreachBatch`` came back from, or that a sink holds, has complete stores:
every task had committed its version before the driver had its handles.  So the reader is shown a *view*: a directory
with that batch in its commit log, and a link to the state.  Spark's own log is left as it is.

Two jobs: the records of all buckets come to the driver; what changed since the last snapshot is put together from base
and deltas by the executors, and written by them.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.checkpoint.graph_record import GraphRecord
from holdfast.checkpoint.manifest import BucketState, Manifest, OperatorState, StateSchema, TableFile
from holdfast.checkpoint.snapshot import Bucket, write_bucket
from holdfast.checkpoint.spark_log import operators_with_state
from holdfast.errors import Corrupt, crossing, invariant
from holdfast.plan.levels.kept import KeptTables, read_state, same_as_known
from holdfast.plan.levels.store import Record, load
from holdfast.ports import Store
from holdfast.spark import private
from holdfast.spark.state.shape import noted_shape
from holdfast.state.step import StateTable
from holdfast.store import durable
from holdfast.store.paths import open_store

VIEWS = ".reading"


def stored_state(
    session: Callable[[], SparkSession],
    store: Store,
    checkpoint: Path,
    below: str,
    batch_id: int,
    graph: GraphRecord,
    seed: Manifest | None,
) -> dict[str, OperatorState]:
    """Write the state of a directory that no run uses into the files of a snapshot; see :func:`read_state`.

    Parameters
    ----------
    session : callable
        Returns a session, where the state is in Spark's store.
    store, checkpoint : Store, Path
        The checkpoint, and where it lies.
    below : str
        Spark's directory below it.
    batch_id : int
        The epoch at whose end the state is wanted, as Spark numbers it.
    graph : GraphRecord
        What was run there.
    seed : Manifest, optional
        The snapshot that the directory began with.
    """
    shape = noted_shape(store, below)
    if shape is None or shape.is_in_journal:
        return read_state(store, below, batch_id, graph.state_schemas, seed=seed)
    reader = StateReader(session(), checkpoint, below)
    return reader.read(store, batch_id, graph.state_schemas, graph.buckets, seed=seed)


_FOUND = "operator string, number int, state string"
_FOUND_SCHEMA = pa.schema([("operator", pa.string()), ("number", pa.int32()), ("state", pa.string())])


@dataclass(frozen=True)
class StateReader:
    """Reads the state of one Spark directory.

    Parameters
    ----------
    session : SparkSession
        A session of its own: it is used from another thread than the query's.
    checkpoint : Path
        Our directory, which executors see too.
    below : str
        Spark's directory below it.
    tasks : int
        Tasks that read at a time; the epochs want cores too.
    """

    session: SparkSession
    checkpoint: Path
    below: str
    tasks: int = 1

    def read(
        self,
        store: Store,
        batch_id: int,
        state_schemas: Mapping[str, StateSchema],
        buckets: int,
        *,
        known: Manifest | None = None,
        seed: Manifest | None = None,
        only: frozenset[tuple[str, int]] | None = None,
    ) -> dict[str, OperatorState]:
        """Write the files of all operators as of the end of a batch, and return what the manifest says of them.

        Parameters
        ----------
        store : Store
            The checkpoint.
        batch_id : int
            Spark's number.
        state_schemas : mapping of str to StateSchema
            The operators whose state is wanted.
        buckets : int
            Of each operator.
        known : Manifest, optional
            The last snapshot: buckets that did not change since are taken from it, if their files are whole.
        seed : Manifest, optional
            The snapshot that the directory began with: buckets that were not called since have their state there.
        only : frozenset of (str, int), optional
            The buckets that are wanted, by operator and number; default is all.

        Raises
        ------
        Corrupt
            If what Spark stored is not all there, or cannot be read.
        """
        with self._view(batch_id) as view:
            records = self._records(view, batch_id, state_schemas)
            if only is not None:
                records = {key: of for key, of in records.items() if (key[0], key[1] % buckets) in only}
            found: dict[tuple[str, int], BucketState] = {}
            for operator, label in list(records):
                at = (operator, label % buckets)
                before = same_as_known(store, known, at, records[operator, label])
                if before is not None:
                    found[at] = before
            wanted = {key: record for key, record in records.items() if (key[0], key[1] % buckets) not in found}
            tables = {name: dict(of.tables) for name, of in state_schemas.items()}
            task = WriteTask(str(self.checkpoint), self.below, tables, wanted, buckets)
            for operator, number, state in self._written(view, batch_id, task):
                found[operator, number] = state
            for operator, label in sorted(records):
                if (operator, label % buckets) not in found:
                    raise _incomplete(self.below, f"of bucket {label % buckets} there is only the record.", operator)
            invariant(
                len(found) == len(records),
                f"{len(records)} buckets have records in Spark's store, and {len(found)} were read.",
                why="a bucket has one label.",
                story=lambda: f"Records: {sorted(records)}",
            )
        states = {}
        for name, of in state_schemas.items():
            began = seed.operators[name].buckets if seed is not None and name in seed.operators else {}
            wished = {number: state for number, state in began.items() if only is None or (name, number) in only}
            called = {number: state for (operator, number), state in found.items() if operator == name}
            states[name] = OperatorState(of, {**wished, **called})
        return states

    # --- inside -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _view(self, batch_id: int) -> Iterator[Path]:
        """Yield a directory that Spark's reader takes for the query's, with the batch committed."""
        spark = self.checkpoint / self.below
        view = self.checkpoint / VIEWS / uuid.uuid4().hex
        try:
            try:
                private.show_as_committed(spark, batch_id, view, partial(durable.make_directory, is_synced=False))
            except FileNotFoundError as error:
                raise _incomplete(self.below, f"{error.filename} is missing.") from error
            if not (spark / "state").is_dir() or not operators_with_state(view):
                raise _incomplete(self.below, "no operator of Spark's has state there.")
            yield view
        finally:
            shutil.rmtree(view, ignore_errors=True)

    def _records(
        self, view: Path, batch_id: int, state_schemas: Mapping[str, StateSchema]
    ) -> dict[tuple[str, int], Record]:
        frame = self._variable(view, batch_id, "record", {}).select("key.operator", "key.label", "value.value")
        rows = private.rows_of(frame.coalesce(self.tasks))
        known = (row for row in rows if row["operator"] in state_schemas)
        return {(row["operator"], row["label"]): Record.from_json(row["value"]) for row in known}

    def _written(self, view: Path, batch_id: int, task: WriteTask) -> Iterator[tuple[str, int, BucketState]]:
        empty = [key for key, record in task.records.items() if not record.parts]
        for operator, label in empty:
            record = task.records[operator, label]
            yield operator, label % task.buckets, BucketState(record.version, record.token, record.feeds, {})
        if len(empty) == len(task.records):
            return
        options = {"flattenCollectionTypes": "true"}
        frame = self._variable(view, batch_id, "parts", options).select(
            "key.operator", "key.label", "user_map_key.part", "user_map_key.piece", "user_map_value.data"
        )
        for row in private.rows_of(frame.coalesce(self.tasks).mapInArrow(task, _FOUND)):
            yield row["operator"], row["number"], _state_of(json.loads(row["state"]))

    def _variable(self, view: Path, batch_id: int, name: str, options: Mapping[str, str]) -> DataFrame:
        frames = []
        for operator_id in operators_with_state(view):
            reader = self.session.read.format("statestore").option("stateVarName", name)
            for key, value in {**options, "batchId": str(batch_id), "operatorId": str(operator_id)}.items():
                reader = reader.option(key, value)
            frames.append(reader.load(str(view)))
        return reduce(DataFrame.union, frames)


@dataclass(frozen=True)
class WriteTask:
    """One task of the second job: parts to tables to files.  Picklable; called by ``mapInArrow``."""

    checkpoint: str
    below: str
    tables: Mapping[str, Mapping[str, StateTable]]
    records: Mapping[tuple[str, int], Record]
    buckets: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row for each bucket whose files are written."""
        with crossing():
            yield from self._written_buckets(batches)

    def _written_buckets(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self.checkpoint)
        named = {key: record.pieces for key, record in self.records.items()}
        cells: dict[tuple[str, int], _Pieces] = {}
        for batch in batches:
            keys = batch.select(["operator", "label", "part", "piece"]).to_pylist()
            data = batch.column("data")
            for at, row in enumerate(keys):
                key = (row["operator"], row["label"])
                if (row["part"], row["piece"]) not in named.get(key, ()):
                    continue
                cells.setdefault(key, _Pieces()).pieces[row["part"], row["piece"]] = data[at].as_py()
                if cells[key].pieces.keys() == named[key]:
                    yield self._written(store, key, cells.pop(key))
        for (operator, label), incomplete in cells.items():
            there, wanted = len(incomplete.pieces), len(named[operator, label])
            why = f"of bucket {label % self.buckets} there are {there} pieces, and its record names {wanted}."
            raise _incomplete(self.below, why, operator)

    def _written(self, store: Store, key: tuple[str, int], cells: _Pieces) -> pa.RecordBatch:
        operator, label = key
        record = self.records[key]
        number = label % self.buckets
        state = load(cells, record, KeptTables(self.tables[operator]), None)  # type: ignore[arg-type]
        bucket = Bucket(operator, number, record.version, record.token, record.feeds, state)
        row = {"operator": operator, "number": number, "state": json.dumps(_json_of(write_bucket(store, bucket)))}
        return pa.RecordBatch.from_pylist([row], _FOUND_SCHEMA)


@dataclass
class _Pieces:
    """The pieces of one bucket, as cells to load from."""

    pieces: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def piece(self, part: int, number: int) -> bytes:
        return self.pieces[part, number]


def _incomplete(below: str, why: str, operator: str = "") -> Corrupt:
    whose = f" of operator {operator!r}" if operator else ""
    return Corrupt(
        f"the state{whose} in {below}/state is incomplete.",
        why=f"{why} An older version of Holdfast kept it there, in Spark's state store.",
        do=f"restore {below} from a copy; or start the pipeline once by the version that wrote it: it takes its state "
        "from an older snapshot, and leaves a new one when it is stopped.",
        participant=operator,
    )


def _json_of(state: BucketState) -> list[object]:
    files = {name: [file.key, file.sha256, file.size_bytes, file.rows] for name, file in state.files.items()}
    return [state.version, state.digest, {name: dict(of) for name, of in state.feeds.items()}, files]


def _state_of(value: list[object]) -> BucketState:
    version, digest, feeds, files = value
    assert isinstance(version, int)
    assert isinstance(digest, str)
    assert isinstance(feeds, dict)
    assert isinstance(files, dict)
    return BucketState(version, digest, feeds, {name: TableFile(*of) for name, of in files.items()})
