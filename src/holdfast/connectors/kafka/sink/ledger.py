"""The ledger of a Kafka sink: records of a compacted topic of one partition, written in the transaction of the rows.

Keys: ``<pipeline>/<sink>`` (what is held, as JSON), ``<pipeline>/<sink>#<source>#<number>`` (what positions mean) and
``<pipeline>/<sink>!`` (a random text, of the producer that was made last).  The last record of a key counts.

Invariant: a record is believed only if its header says that the sink's own driver has written it, with a digest over
that name, the key and the value.  Any producer may write under any key: rows that say where they go, or a mirror.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from holdfast.connectors.kafka.sink.form import HEADERS, RecordColumns
from holdfast.connectors.kafka.sink.session import KafkaSession, LogRecord
from holdfast.connectors.kit.sql import LedgerRow, positions_text
from holdfast.errors import Corrupt
from holdfast.ports import EpochRecord, Explanation, Held, SinkLedger, Task
from holdfast.shards.naming import shard_name, shard_of

log = logging.getLogger("holdfast.connectors.kafka")

PROGRESS = "holdfast-progress"
"""The topic, unless another one is named."""

HEADER = "holdfast"
"""Of each record: who has written it, and a digest."""

DRIVER = "/driver"
"""What the transactional id of a driver ends with."""


@dataclass(frozen=True)
class KafkaNames:
    """Names of what a sink keeps for itself.

    Parameters
    ----------
    pipeline, sink : str
        Whose it is.
    progress : str
        The topic of its ledger.
    """

    pipeline: str
    sink: str
    progress: str = PROGRESS

    @staticmethod
    def of(pipeline: str, sink: str, progress: str) -> KafkaNames:
        """Return the names of a sink whose declaration names a topic for ledgers.

        A shard has a topic of its own: in one that several share, a transaction of one that hangs would hide what the
        others write behind it.

        Examples
        --------
        >>> [KafkaNames.of(name, "out", "progress").progress for name in ("trips", "trips-3")]
        ['progress', 'progress-3']
        """
        return KafkaNames(pipeline, sink, shard_name(progress, shard_of(pipeline)[1]))

    @property
    def key(self) -> str:
        """Key of the ledger's record."""
        return f"{quote(self.pipeline, safe='')}/{quote(self.sink, safe='')}"

    @property
    def barrier(self) -> str:
        """Key of the record that a new producer writes before the ledger is read."""
        return f"{self.key}!"

    @property
    def every(self) -> str:
        """What all its transactional ids begin with."""
        return f"holdfast/{self.key}/"

    @property
    def driver(self) -> str:
        """Transactional id of the driver."""
        return f"holdfast/{self.key}{DRIVER}"

    @property
    def of_pipeline(self) -> str:
        """What transactional ids of the pipeline begin with."""
        return f"holdfast/{quote(self.pipeline, safe='')}/"

    @property
    def staged(self) -> str:
        """What transactional ids of tasks begin with."""
        return f"holdfast/{self.key}/staged/"

    def staged_by(self, task: Task, token: str) -> str:
        """Return the transactional id of one attempt of a task; no other attempt ever has it."""
        return f"{self.staged}{task.generation}.{task.epoch}.{task.task}.{task.attempt}.{token}"

    def seal(self, key: bytes, value: bytes | None) -> bytes:
        """Return the header of a record of the driver's: its transactional id, and a digest."""
        digest = hashlib.sha256()
        for each in (self.driver.encode(), key, b"-" if value is None else b"+" + value):
            digest.update(len(each).to_bytes(8, "little") + each)
        return f"{self.driver} {digest.hexdigest()}".encode()

    def has_written(self, record: LogRecord) -> bool:
        """Return whether a record is the driver's."""
        return (HEADER, self.seal(record.key, record.value)) in record.headers

    def task_of(self, name: str) -> Task | None:
        """Return whose transaction has a name; None where it is no such name."""
        parts = name.removeprefix(self.staged).split(".")
        if len(parts) != 5 or not all(part.isdecimal() for part in parts[:4]):
            return None
        generation, epoch, task, attempt = map(int, parts[:4])
        return Task(self.pipeline, generation, epoch, task, attempt)


@dataclass(frozen=True)
class Unfinished:
    """Transactions of tasks that the ledger has decided to commit.

    Parameters
    ----------
    first : int
        The first epoch of the decision.
    transactions : mapping of str to (int, int)
        Name -> producer id and epoch.
    before : mapping, optional
        What the ledger said before; None where more than these transactions was published with the decision.
    """

    first: int
    transactions: Mapping[str, tuple[int, int]]
    before: Mapping[str, Any] | None


@dataclass(frozen=True)
class KafkaLedger:
    """What the ledger says.

    Parameters
    ----------
    row : LedgerRow
        Epoch, generation, positions, pts.
    recent_ends : str
        As in :class:`~holdfast.ports.EpochRecord`, of the epoch.
    owner : str
        Drawn by the runtime that opened the sink last.
    unfinished : Unfinished, optional
        What is decided and perhaps not committed.
    explained : mapping of str to int
        Source -> how many explanations are kept.
    is_sealed : bool
        Whether its records say who wrote them; those of an earlier version do not, until a run takes the sink.
    """

    row: LedgerRow
    recent_ends: str = ""
    owner: str = ""
    unfinished: Unfinished | None = None
    explained: Mapping[str, int] = ()  # type: ignore[assignment]
    is_sealed: bool = True

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        return replace(self.row.held(), recent_ends=self.recent_ends, explained=dict(self.explained))

    def moved_to(self, record: EpochRecord) -> KafkaLedger:
        """Return it at the end of an epoch."""
        row = replace(self.row, epoch=record.epoch, positions=positions_text(record.positions), pts=record.pts)
        return replace(self, row=row, recent_ends=record.recent_ends, unfinished=None)

    def of_epoch(self) -> dict[str, Any]:
        """Return what it says of the epoch that is held."""
        row = self.row
        return {"epoch": row.epoch, "positions": row.positions, "pts": row.pts, "recent_ends": self.recent_ends}

    def text(self) -> str:
        """Return it as it is stored."""
        said = {**self.of_epoch(), "generation": self.row.generation, "owner": self.owner}
        if self.unfinished is not None:
            left = self.unfinished
            said["unfinished"] = {
                "first": left.first,
                "transactions": {name: list(ids) for name, ids in left.transactions.items()},
                "before": left.before,
            }
        return json.dumps(said)

    def taken_back(self) -> KafkaLedger:
        """Return it as it was before the decision that it notes."""
        assert self.unfinished is not None
        assert self.unfinished.before is not None
        said = self.unfinished.before
        row = replace(self.row, epoch=said["epoch"], positions=said["positions"], pts=said["pts"])
        return replace(self, row=row, recent_ends=said.get("recent_ends", ""), unfinished=None)


ABSENT = KafkaLedger(LedgerRow(0, 0, "{}", None), explained={})
"""Where there is no ledger yet."""


def read(
    session: KafkaSession,
    names: KafkaNames,
    *,
    waits: bool = True,
    patience_s: float | None = None,
    is_there: bool = False,
    barrier: str | None = None,
) -> tuple[KafkaLedger | None, list[Explanation]]:
    """Return what the ledger says, None where there is none; and all explanations, for each source in order.

    Without ``waits`` it may be what the ledger said before: what an open transaction hides is left out; with it, that
    is waited for, at most ``patience_s``.  Where the
    topic ``is_there`` for certain, a broker that has not heard of it is asked again, and is no proof of its absence.
    Read up to a ``barrier`` that its producer has written, it is exact: a broker that lacks that is not believed.
    """
    if not is_there and barrier is None and names.progress not in session.partitions(awaited=[names.progress]):
        return None, []
    ours, beside = names.key.encode(), f"{names.key}#".encode()
    sealed: dict[bytes, bytes] = {}
    foreign: dict[bytes, bytes | None] = {}
    last = None if barrier is None else (names.barrier.encode(), barrier.encode())
    foreign_count = 0
    for record in session.records(names.progress, waits=waits, patience_s=patience_s, last=last):
        key, value = record.key, record.value
        if key != ours and not key.startswith(beside):
            continue
        if not names.has_written(record):
            foreign[key] = value
            foreign_count += 1
            continue
        if _is_unsealed(foreign.get(ours)):  # a run took over what was said before, and said all of it again
            foreign, foreign_count = {}, 0
        if value is not None:
            sealed[key] = value
        elif key == ours:  # a reset: what was told before explains nothing
            sealed.clear()
    is_sealed = bool(sealed) or not _is_unsealed(foreign.get(ours))
    if is_sealed and foreign_count:
        _note_foreign(names, foreign_count, is_alone=ours not in sealed)
    said = sealed if is_sealed else {key: value for key, value in foreign.items() if value is not None}
    return (None, []) if ours not in said else _parsed(names, said, is_sealed=is_sealed)


def _is_unsealed(marker: bytes | None) -> bool:
    """Return whether it is the ledger of a version that put no header on its records; what it says is of no other."""
    return marker is not None and b'"step_time": ' in marker


def _note_foreign(names: KafkaNames, count: int, *, is_alone: bool) -> None:
    what = f"sink {names.sink!r}: {count} records of its ledger in the topic {names.progress!r} are another producer's"
    if is_alone:
        raise Corrupt(
            f"{what}, and none is its own.",
            why="whoever wrote them used its keys, and of each key the topic keeps the last record: what the sink "
            "holds is not known any more.",
            do="see who else writes into that topic, and keep it from that (only write.kafka needs Write on it); then "
            "see what is in the sink's own topics, and start over with another name=.",
            participant=names.sink,
        )
    log.warning("%s, and are not believed: see who else writes into that topic", what)


def asked(session: KafkaSession, names: KafkaNames) -> SinkLedger | None:
    """Return what the ledger says of a sink; None where there is none."""
    found, explanations = read(session, names)
    return None if found is None else SinkLedger(found.held(), tuple(explanations))


def records(names: KafkaNames, found: KafkaLedger, explanations: Sequence[Explanation] = ()) -> RecordColumns:
    """Return the records that make the ledger say something."""
    told = [(_key_of(names, each), each.text) for each in explanations]
    return _columns(names, [*told, (names.key, found.text())])


def tombstones(names: KafkaNames, explanations: Sequence[Explanation]) -> RecordColumns:
    """Return the records after which there is no ledger; that of the ledger first: the others explain nothing then."""
    return _columns(names, [(names.key, None), *((_key_of(names, each), None) for each in explanations)])


def barrier_record(names: KafkaNames, barrier: str) -> RecordColumns:
    """Return the record up to which the ledger is read."""
    return _columns(names, [(names.barrier, barrier)])


def _key_of(names: KafkaNames, explanation: Explanation) -> str:
    return f"{names.key}#{quote(explanation.source, safe='')}#{explanation.number}"


def _columns(names: KafkaNames, told: Sequence[tuple[str, str | None]]) -> RecordColumns:
    keys, texts = (pa.array(column, pa.large_string()) for column in zip(*told, strict=True))
    partitions = pa.repeat(pa.scalar(0, pa.int32()), len(keys))
    sealed = [names.seal(key.encode(), None if text is None else text.encode()) for key, text in told]
    headers = [[{"key": HEADER, "value": each}] for each in sealed]
    columns = (texts.cast(pa.large_binary()), keys.cast(pa.large_binary()), partitions, pa.array(headers, HEADERS))
    return RecordColumns(names.progress, *columns)


def _parsed(
    names: KafkaNames, told: Mapping[bytes, bytes], *, is_sealed: bool
) -> tuple[KafkaLedger, list[Explanation]]:
    ours = names.key.encode()
    try:
        said = json.loads(told[ours])
        row = LedgerRow(int(said["epoch"]), int(said["generation"]), said["positions"], said["pts"])
        row.held()
        left = said.get("unfinished")
        unfinished = None
        if left is not None:
            transactions = {name: (int(ids[0]), int(ids[1])) for name, ids in left["transactions"].items()}
            unfinished = Unfinished(int(left["first"]), transactions, left["before"])
        explained = {}
        for key, text in told.items():
            if key != ours:
                source, _, number = key[len(ours) + 1 :].decode().rpartition("#")
                explained[unquote(source), int(number)] = text.decode()
        explanations = [Explanation(source, number, text) for (source, number), text in sorted(explained.items())]
        counts = {each.source: each.number for each in explanations}
        ends, owner = str(said.get("recent_ends", "")), str(said["owner"])
        return KafkaLedger(row, ends, owner, unfinished, counts, is_sealed), explanations
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"sink {names.sink!r}: its ledger in the topic {names.progress!r} cannot be read.",
            why=f"{type(error).__name__}: {error}.",
            do="see who else writes into that topic; or start over with another name= and another topic.",
            participant=names.sink,
        ) from error
