"""Which version of its table each look-up sees in an epoch: logged before a row of the epoch is looked up.

Invariants: a version is in the checkpoint before its record, and the record before the pins; an epoch that was planned
before this run sees what it saw then; records of a generation count from the first epoch on that it evaluates, so that
what a driver writes which was overtaken says nothing of the epochs of its successor.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import Corrupt, Unavailable
from holdfast.graph.graph import Graph
from holdfast.operators.lookup.spec import TableLookup
from holdfast.plan.lookup_operation import FOLDER, pins_key, version_key
from holdfast.ports import Store
from holdfast.store import sealed

log = logging.getLogger("holdfast.lookup")


@dataclass(frozen=True, order=True)
class VersionRecord:
    """From which epoch on a version counts; the one with the highest generation, then epoch, does.

    Parameters
    ----------
    generation : int
        Of the run that wrote it.
    epoch : int
        The first one, by the number that steps see.
    version : str
        SHA-256 of the rows.
    """

    generation: int
    epoch: int
    version: str

    def key(self, look_up: str) -> str:
        """Return its key in the checkpoint."""
        return f"{FOLDER}/{look_up}/{self.epoch:012d}-{self.generation:08d}.json"


@dataclass
class _Log:
    """What is known of one look-up."""

    spec: TableLookup
    inherited: list[VersionRecord]
    """Records of earlier runs."""
    ours: list[VersionRecord] = field(default_factory=list)
    loaded_us: int | None = None
    """Batch time of the epoch for which this run asked the table last."""

    def of(self, epoch: int) -> str | None:
        """Return the version of an epoch."""
        return _counting([*self.inherited, *self.ours], epoch)


def _counting(records: list[VersionRecord], epoch: int) -> str | None:
    found = max((record for record in records if record.epoch <= epoch), default=None)
    return None if found is None else found.version


def look_ups_of(pipeline: Graph) -> dict[str, TableLookup]:
    """Return the look-ups of a graph in tables whose versions are logged."""
    return {node.name: node.spec for node in pipeline.nodes if isinstance(node.spec, TableLookup)}


def unknown_to(store: Store, look_ups: Iterable[str], step_epoch: int) -> list[str]:
    """Return the look-ups of which no record says which version an epoch saw, and those after it."""
    return [name for name in look_ups if _counting(_records(store, name), step_epoch) is None]


class LookupVersions:
    """The versions of a run's look-ups.  Lives on the driver; asked once for each epoch.

    Parameters
    ----------
    look_ups : mapping of str to TableLookup
        Name -> declaration.
    store : Store
        The checkpoint.
    token : str
        Of the run.
    generation : int
        Of the run, which has taken over.
    planned : int
        Spark's number of the last epoch that was planned before this run, or that replays an older one.
    replayed_to : int
        The highest number, as steps see them, of an epoch that replays an older one; 0 where there is none.
    oldest : callable
        Returns the oldest epoch that may be replayed, by the number that steps see.
    """

    def __init__(
        self,
        look_ups: Mapping[str, TableLookup],
        store: Store,
        *,
        token: str,
        generation: int,
        planned: int,
        replayed_to: int,
        oldest: Callable[[], int],
    ) -> None:
        self._store = store
        self._token = token
        self._generation = generation
        self._planned = planned
        self._replayed_to = replayed_to
        self._oldest = oldest
        self._logs = {name: _Log(spec, _records(store, name)) for name, spec in look_ups.items()}
        self._pinned: dict[str, str] = {}

    def begin(self, step_epoch: int, batch_id: int, batch_us: int) -> None:
        """Decide which versions an epoch sees, and pin them.

        Parameters
        ----------
        step_epoch : int
            Its number as steps see it.
        batch_id : int
            Its number at Spark.
        batch_us : int
            When it was planned.

        Raises
        ------
        Unavailable
            If there is no version yet, and the table does not answer; or the checkpoint does not.
        Corrupt
            If there is no version yet, and the table is damaged.
        InvalidPipeline
            If the table lacks a column, or holds a key twice.
        """
        self._pin({name: self._version(name, step_epoch, batch_id, batch_us) for name in self._logs})

    def pin_newest(self) -> None:
        """Pin what the newest epoch saw: for evaluations before the first epoch of this run."""
        newest = {name: max(of.inherited).version for name, of in self._logs.items() if of.inherited}
        if newest.keys() == self._logs.keys():
            self._pin(newest)

    def _version(self, name: str, epoch: int, batch_id: int, batch_us: int) -> str:
        of = self._logs[name]
        is_replay = batch_id <= self._planned
        version = (_counting(of.inherited, epoch) if is_replay else None) or of.of(epoch)
        if version is None or (not is_replay and self._is_due(of, batch_us)):
            version = self._loaded(name, of, version)
            of.loaded_us = batch_us
        if not of.ours or of.of(epoch) != version:
            self._record(name, of, VersionRecord(self._generation, epoch, version))
        return version

    def _is_due(self, of: _Log, batch_us: int) -> bool:
        refresh_us = of.spec.refresh_us
        return of.loaded_us is None or (refresh_us is not None and batch_us - of.loaded_us >= refresh_us)

    def _loaded(self, name: str, of: _Log, known: str | None) -> str:
        """Load the table; return the version, which is in the checkpoint, or the known one if it cannot be read now."""
        try:
            there = of.spec.table.schema()
            columns = dict.fromkeys([*(theirs for _, theirs in of.spec.on), *of.spec.sources_of_added(there.names)])
            rows = of.spec.checked(of.spec.table.load(tuple(columns)))
        except (Unavailable, Corrupt) as error:
            if known is None:
                raise
            log.warning("lookup %r keeps the version of its table that it has: %s", name, error)
            return known
        data = _bytes(rows)
        version = hashlib.sha256(data).hexdigest()
        if version != known:
            # 1. The rows.  A crash here leaves a version without a record: found again, or removed with the next one.
            self._store.put_if_absent(version_key(name, version), data)
            log.info("lookup %r: a new version of its table, %d rows", name, rows.num_rows)
        return version

    def _record(self, name: str, of: _Log, record: VersionRecord) -> None:
        # 2. The record.  A crash here leaves that of an epoch, nothing of which was evaluated: it sees this version.
        # A run's first one hides what earlier runs have recorded for later epochs that it has still to replay: that is
        # recorded again before it, the latest first, so that none is ever hidden.
        later = [] if of.ours else self._inherited_after(of, record.epoch)
        for each in (*later, record):
            self._store.put_if_absent(each.key(name), sealed.dump({"version": each.version}))
            of.ours.append(each)
        self._tidy(name, of)

    def _inherited_after(self, of: _Log, epoch: int) -> list[VersionRecord]:
        """Return what counts of the epochs after one that are replayed, as records of this run; the latest first."""
        epochs = {each.epoch for each in of.inherited if epoch < each.epoch <= self._replayed_to}
        counting = [(each, _counting(of.inherited, each)) for each in sorted(epochs, reverse=True)]
        return [VersionRecord(self._generation, each, version) for each, version in counting if version is not None]

    def _pin(self, versions: dict[str, str]) -> None:
        if versions == self._pinned:
            return
        # 3. The pins.  A crash here leaves a file of a dead run, which the next one removes.
        self._store.put(pins_key(self._token), sealed.dump(versions))
        if not self._pinned:
            for key in self._store.keys(f"{FOLDER}/now-"):
                if key != pins_key(self._token):
                    self._store.delete(key)
        self._pinned = versions

    # --- what the checkpoint holds ------------------------------------------------------------------------------

    def _tidy(self, name: str, of: _Log) -> None:
        """Remove the records that no epoch needs which may be replayed, then the versions that have none."""
        oldest = self._oldest()
        every = [*of.inherited, *of.ours]
        needed = max((record for record in every if record.epoch <= oldest), default=None)
        kept = [record for record in every if record.epoch > oldest or record == needed]
        for record in every:
            if record not in kept:
                self._store.delete(record.key(name))
        of.inherited = [record for record in of.inherited if record in kept]
        of.ours = [record for record in of.ours if record in kept]
        wanted = {version_key(name, record.version) for record in kept}
        for key in self._keys(name):
            if key.endswith(".arrow") and key not in wanted:
                self._store.delete(key)

    def _keys(self, name: str) -> list[str]:
        return self._store.keys(f"{FOLDER}/{name}/")


def _bytes(rows: pa.Table) -> bytes:
    """Return rows as an Arrow IPC file; the same for the same rows."""
    sink = pa.BufferOutputStream()
    whole = rows.combine_chunks().replace_schema_metadata()
    with pa.ipc.new_file(sink, whole.schema) as file:
        file.write_table(whole)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _records(store: Store, name: str) -> list[VersionRecord]:
    found = []
    for key in store.keys(f"{FOLDER}/{name}/"):
        epoch, _, generation = key.rpartition("/")[2].removesuffix(".json").partition("-")
        if not key.endswith(".json") or not (epoch.isdigit() and generation.isdigit()):
            continue
        try:
            version = str(sealed.load(store.get(key) or b"")["version"])
        except (ValueError, KeyError) as error:
            raise Corrupt(
                f"{key} in the checkpoint cannot be read.",
                why=f"{error}; it says which rows lookup {name!r} saw.",
                do="restore it from a copy of the checkpoint; or remove the directory "
                f"'{FOLDER}/{name}' from it: an epoch that is replayed then sees the table as it is now.",
                participant=name,
            ) from error
        found.append(VersionRecord(int(generation), int(epoch), version))
    return found
