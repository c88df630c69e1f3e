"""The contents of a checkpoint: read, never changed, even while the pipeline runs.

Its ledger says what *should* be visible, Spark's plain log files what has been planned and finished.  What *is*
visible only the sinks know: see :mod:`holdfast.observe.sink_answers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.checkpoint.backfills import BackfillNote, noted_backfills
from holdfast.checkpoint.spark_log import ended, last_logged, newest_positions
from holdfast.commit.ledger import LedgerEntry, Standing, survey
from holdfast.commit.owner import Owner, noted_owner
from holdfast.commit.records import Decided, Done
from holdfast.commit.recovery import CASES, Decision, Verdict
from holdfast.errors import Corrupt
from holdfast.graph.event_time import TimeUnit
from holdfast.observe.ledgers import LeaseReport
from holdfast.observe.schemas import OperatorSchema, schemas_in
from holdfast.observe.shards import ShardReport
from holdfast.observe.time_indexes import TimeIndexReport, time_indexes
from holdfast.ports import Held, OpenTransaction, Outcome, Staged, Store, WaitingReaders
from holdfast.positions import Positions
from holdfast.status import STATE_REPORT_KEY, OperatorStatus
from holdfast.store import records
from holdfast.time_use import TimeUse
from holdfast.values import ExpectationCount


@dataclass(frozen=True)
class DecisionSummary:
    """One decision of the ledger: its status, and the rows it holds for each sink.

    Parameters
    ----------
    epoch, generation : int
        Which epoch, and which run decided it.
    standing : Standing
        ``open``: not known to be published everywhere; ``void``: of a run that had been fenced, and ignored.
    positions : Positions
        Where the epoch ends.
    pts : int, optional
        Its pts, ticks of event time.
    rows : mapping of str to int
        Sink -> its rows of the epoch.
    """

    epoch: int
    generation: int
    standing: Standing
    positions: Positions = field(default_factory=dict)
    pts: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    carried: tuple[str, ...] = ()
    """Sinks whose rows the decision itself holds."""
    rewound_to: int | None = None
    """A rewind: the epoch after which everything is withdrawn."""
    before: Mapping[str, int] = field(default_factory=dict)
    """Of an open one, per sink: the epoch before it there, if that was recorded."""
    recent_ends: str = field(default="", repr=False, metadata={"is_shown": False})
    """As in :class:`~holdfast.ports.EpochRecord`."""
    expected: Mapping[str, ExpectationCount] = field(default_factory=dict)
    """Expectation -> what was counted of it, in this epoch and in all up to it."""


@dataclass(frozen=True)
class SparkHeads:
    """Heads of Spark's two logs, as epochs.

    Parameters
    ----------
    directory : str
        Below the checkpoint.
    base : int
        Epoch of Spark's batch 0.
    planned, finished : int
        Last epoch in the offset log (its positions are fixed) and in the commit log (Spark knows it is done); 0 when
        none.
    ended : tuple of str
        Sources that have ended: they are finished, and a changed graph does not take them up again.
    """

    directory: str
    base: int
    planned: int
    finished: int
    ended: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateReport:
    """What the stateful operators of the last run reported last: kept now and then, so older than the run.

    Parameters
    ----------
    epoch, generation : int
        The epoch after which it was made, and the run that made it; counts are those of that run.
    at_us : int
        When it was kept, microseconds of Unix time.
    operators : tuple of OperatorStatus
        In the order of the graph.
    problem : str
        Why it cannot be read.
    rejects : mapping of str to mapping of str to int
        Source -> how many rows it rejected for which reason.
    time : TimeUse, optional
        Where the time of its last epochs went, and what limited it.
    """

    epoch: int = 0
    generation: int = 0
    at_us: int = 0
    operators: tuple[OperatorStatus, ...] = ()
    problem: str = ""
    rejects: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    time: TimeUse | None = None


@dataclass(frozen=True)
class SinkAnswer:
    """What a sink answered about one epoch, and what follows from it.

    Parameters
    ----------
    epoch : int
        Which.
    decision : Decision
        What the ledger says.
    outcome : Outcome
        What the sink says.
    verdict : Verdict
        What a start does.
    """

    epoch: int
    decision: Decision
    outcome: Outcome
    verdict: Verdict

    @property
    def why(self) -> str:
        """What leads to this pair of decision and outcome."""
        return next(case.why for case in CASES if (case.decision, case.outcome) == (self.decision, self.outcome))


TransactionStanding = Literal["decided", "at work", "orphan", "left behind"]
"""What becomes of an open transaction: the next start commits it; it is of a run that may be alive; the next run aborts
it; it is of a driver that is gone, and the next start ends it."""


@dataclass(frozen=True)
class TransactionReport:
    """A transaction that is open in a sink's system, and what becomes of it.

    Parameters
    ----------
    transaction : OpenTransaction
        As the sink says.
    standing : str
        One of :data:`TransactionStanding`.
    """

    transaction: OpenTransaction
    standing: TransactionStanding


@dataclass(frozen=True)
class SinkReport:
    """What a sink says of itself.

    Parameters
    ----------
    name, kind, guarantee, staging : str
        As in the graph; ``staging`` is empty when the sink did not answer.
    held : Held, optional
        None when the sink was not or could not be asked.
    orphans : tuple of str, optional
        Names of staged rows that nothing refers to; None when the sink cannot list them.
    answers : tuple of SinkAnswer
        Its answer on every epoch that is not settled in the ledger, and on the last that is.
    problem : str
        Why it did not answer.
    pts_unit : TimeUnit, optional
        What ``held.pts`` counts; None where the sources have no unit in common.
    is_at_pts : bool
        Whether the pipeline commits at pts: then the sink holds exactly what lies before it, of every input.
    pace : str
        How seldom it commits; empty: as often as the pipeline.
    waiting : tuple of int
        Epochs that are decided, and that a sink with a pace lacks.
    waiting_rows : int
        Their rows for it.
    controls : mapping of str to int
        How many control rows it has carried out, by what they changed: ``schema``, ``partition``.
    expired : tuple of str
        Staged rows that are missing, of the first decided epoch that the sink cannot publish without them.
    transactions : tuple of TransactionReport
        Transactions that are open in its system under its names.
    waiting_readers : tuple of WaitingReaders
        Parts of its target that readers do not see to the end.
    """

    name: str
    kind: str
    guarantee: str
    staging: str = ""
    held: Held | None = None
    orphans: tuple[str, ...] | None = None
    answers: tuple[SinkAnswer, ...] = ()
    problem: str = ""
    pts_unit: TimeUnit | None = None
    is_at_pts: bool = False
    pace: str = ""
    waiting: tuple[int, ...] = ()
    waiting_rows: int = 0
    controls: Mapping[str, int] = field(default_factory=dict)
    expired: tuple[str, ...] = ()
    transactions: tuple[TransactionReport, ...] = ()
    waiting_readers: tuple[WaitingReaders, ...] = ()


@dataclass(frozen=True)
class BehindReport:
    """A sink that lacks what was published in it.

    Parameters
    ----------
    sink : str
        Its name.
    epoch, published : int
        What it holds, and what was published.
    lacks : str
        The difference, in words.
    obstacles : tuple of str
        What cannot be read again, and why; empty where the next start replays everything.
    """

    sink: str
    epoch: int
    published: int
    lacks: str
    obstacles: tuple[str, ...] = ()


@dataclass(frozen=True)
class SegmentReport:
    """One segment of a source.

    Parameters
    ----------
    place : str
        Its name for people: ``flights/3``.
    held : mapping of str to int
        Sink -> the position up to which it holds everything.
    read : int, optional
        The position up to which epochs are planned; None where nothing is known of that.
    end : int
        The one after everything that can be read now.
    lag : int
        From the lowest that is held, or from what was read where no sink is asked, to the end.
    lag_s : float, optional
        How old the oldest row of these is; 0 where there is none, None where it has no time.
    """

    place: str
    held: Mapping[str, int]
    read: int | None
    end: int
    lag: int
    lag_s: float | None = None


@dataclass(frozen=True)
class SourceReport:
    """The segments of one source, or why they are not known.

    Parameters
    ----------
    name : str
        The source's.
    segments : tuple of SegmentReport
        How far each is.
    problem : str
        Why that is not known.
    """

    name: str
    segments: tuple[SegmentReport, ...] = field(default=())
    problem: str = ""


@dataclass(frozen=True)
class Inspection:
    """A checkpoint, and the sinks of a pipeline where the target is known.

    Parameters
    ----------
    checkpoint, pipeline : str
        Which checkpoint, and whose it is.
    format : int
        Version of its format.
    owner : Owner
        Who took the pipeline over last.
    last_done : int
        The last epoch that is known to be published in every sink.
    decisions : tuple of DecisionSummary
        The newest of the ledger, and all that are open.
    spark : tuple of SparkHeads
        Spark's directories; the last one is in use.
    sinks : tuple of SinkReport
        Where the target is known.
    """

    checkpoint: str
    pipeline: str
    format: int
    owner: Owner
    last_done: int
    decisions: tuple[DecisionSummary, ...]
    spark: tuple[SparkHeads, ...]
    sinks: tuple[SinkReport, ...] = ()
    state: StateReport | None = None
    """None where nothing was reported yet."""
    supervisor: Mapping[str, Any] | None = None
    """What ``run --supervise`` noted at its last restart: ``pid``, ``restarts``, ``in_a_row``, ``why``, ``at_us``."""
    lease: LeaseReport | None = None
    """Of a pipeline that keeps one, where the target is known."""
    behind: tuple[BehindReport, ...] = ()
    """Sinks that have lost what was published in them; searched when no run is alive."""
    schemas: tuple[OperatorSchema, ...] = ()
    """What the operators of the graph that ran last keep as state."""
    time_indexes: tuple[TimeIndexReport, ...] = ()
    """Of the sources that read files by their times."""
    sources: tuple[SourceReport, ...] = ()
    """Of the sources that can tell how far they are, where the target is known."""
    shards: tuple[ShardReport, ...] = ()
    """Of a pipeline that runs in several."""
    backfills: tuple[BackfillNote, ...] = ()
    """Ranges of the past that were read beside it."""

    @property
    def open_epochs(self) -> tuple[int, ...]:
        """Epochs that are decided and not known to be published everywhere."""
        return tuple(d.epoch for d in self.decisions if d.standing is Standing.OPEN)

    @property
    def open_without_reason(self) -> tuple[int, ...]:
        """Those of them that some sink lacks, or may lack, which has no pace of its own to wait for."""
        fine = {(sink, answer.epoch) for sink, answer in self.answers if answer.verdict is Verdict.SKIP}
        fine |= {(sink.name, epoch) for sink in self.sinks for epoch in sink.waiting}
        is_open = [d for d in self.decisions if d.standing is Standing.OPEN]
        return tuple(d.epoch for d in is_open if not d.rows or any((name, d.epoch) not in fine for name in d.rows))

    @property
    def answers(self) -> tuple[tuple[str, SinkAnswer], ...]:
        """Every sink's answers, by epoch."""
        return tuple(sorted(((s.name, a) for s in self.sinks for a in s.answers), key=lambda pair: pair[1].epoch))


def inspect_checkpoint(location: str, store: Store, directory: Path) -> Inspection:
    """Read a checkpoint.

    Parameters
    ----------
    location : str
        As the user wrote it, for display.
    store : Store
        The checkpoint.
    directory : Path
        The same, for Spark's plain files.

    Raises
    ------
    Corrupt
        If identity, owner or the newest fence cannot be read.
    """
    identity = json_object(store, "identity.json")
    entries = survey(store)
    done = [entry.key.epoch for entry in entries if entry.standing is Standing.DONE]
    return Inspection(
        checkpoint=location,
        pipeline=str(identity.get("pipeline", "")),
        format=int(identity.get("format", 0)),
        owner=noted_owner(store),
        last_done=max(done, default=0),
        decisions=tuple(_summary(entry) for entry in entries),
        spark=tuple(_spark_heads(directory)),
        state=_state(store),
        supervisor=json_object(store, "supervisor.json") or None,
        schemas=_schemas(store),
        time_indexes=tuple(time_indexes(directory)),
        backfills=_backfills(store),
    )


def _backfills(store: Store) -> tuple[BackfillNote, ...]:
    try:
        return tuple(noted_backfills(store))
    except Corrupt:
        return ()  # for reading only; the next backfill says what is damaged


def _schemas(store: Store) -> tuple[OperatorSchema, ...]:
    try:
        return schemas_in(store)
    except Corrupt:
        return ()  # for reading only; the next start says what is damaged


def _summary(entry: LedgerEntry) -> DecisionSummary:
    content = entry.content
    key = entry.key
    if content is None:
        return DecisionSummary(key.epoch, key.generation, entry.standing)
    record = content.record
    return DecisionSummary(
        key.epoch,
        key.generation,
        entry.standing,
        record.positions,
        record.pts,
        _rows(content),
        _carried(content),
        record.rewound_to,
        content.before if isinstance(content, Decided) else {},
        record.recent_ends,
        record.expected,
    )


def _rows(content: Decided | Done) -> dict[str, int]:
    if isinstance(content, Done):
        return dict(content.row_counts)
    return {sink: sum(part.row_count for part in parts) for sink, parts in content.parts.items()}


def _carried(content: Decided | Done) -> tuple[str, ...]:
    if isinstance(content, Done):
        return ()
    return tuple(s for s, parts in content.parts.items() if any(not isinstance(part, Staged) for part in parts))


def _state(store: Store) -> StateReport | None:
    try:
        kept = json_object(store, STATE_REPORT_KEY)
        if not kept:
            return None
        operators = tuple(records.read(OperatorStatus, one) for one in kept["operators"])
        of_sources = kept.get("rejects", {}).items()  # earlier versions kept none
        rejects = {str(source): {str(why): int(count) for why, count in of.items()} for source, of in of_sources}
        use = None if kept.get("time") is None else records.read(TimeUse, kept["time"])
        if not operators and not rejects and use is None:
            return None  # it is the audit's alone
        when = int(kept["epoch"]), int(kept["generation"]), int(kept["at_us"])
        return StateReport(*when, operators, rejects=rejects, time=use)
    except Corrupt as error:
        return StateReport(problem=error.what)
    except (KeyError, ValueError, TypeError, AttributeError) as error:  # for reading only: no reason to show nothing
        return StateReport(problem=f"{STATE_REPORT_KEY} is not what this version writes: {error!r}")


def _spark_heads(directory: Path) -> Iterator[SparkHeads]:
    places = [path for path in (directory / "spark").glob("[0-9]*") if path.name.isdigit()]
    for place in sorted(places, key=lambda path: int(path.name)):
        try:
            base = int(json.loads((place / "origin.json").read_text())["base"])
        except (OSError, ValueError, KeyError, TypeError):
            base = 1
        planned, finished = last_logged(place, "offsets"), last_logged(place, "commits")
        yield SparkHeads(
            f"spark/{place.name}",
            base,
            0 if planned < 0 else base + planned,
            0 if finished < 0 else base + finished,
            ended(newest_positions(place)),
        )


def json_object(store: Store, key: str) -> dict[str, Any]:
    """Return the JSON object under a key; empty when there is none.

    Raises
    ------
    Corrupt
        If it cannot be read.
    """
    data = store.get(key)
    if data is None:
        return {}
    try:
        found = json.loads(data)
    except ValueError as error:
        raise unreadable(key, str(error)) from error
    if not isinstance(found, dict):
        raise unreadable(key, "it is not a JSON object")
    return found


def unreadable(key: str, why: str) -> Corrupt:
    """Return the error for an object of the checkpoint that cannot be read."""
    return Corrupt(
        f"{key!r} in the checkpoint cannot be read.",
        why=f"{why}.",
        do=f"restore {key!r} from a copy of the checkpoint; delete nothing.",
        participant=key,
    )
