"""What a run says about itself: frozen values, made by the engine, shown by the display, ``--json`` and tests.

A :class:`Status` is a snapshot of one moment: it never changes, and its numbers belong together.  Epochs start at 1, so
0 means "none yet".  Counts grow within one run and start from 0 with the next one; what a *sink* holds over all runs
is asked of the sink (``holdfast inspect``), never of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from holdfast.health import HEALTHY, CallStatus, ExpectationStatus, Health
from holdfast.json_values import Picture, is_number
from holdfast.positions import SourcePositions
from holdfast.time_use import EpochStatus, EpochTotals, TimeUse

State = Literal["starting", "running", "stopping", "stopped", "failed"]
"""Life of a run; ``stopped`` and ``failed`` are its ends."""

ShardState = Literal["starting", "running", "waiting", "stopping", "stopped", "failed"]
"""Life of a shard: as of a run, and it may wait to be started again."""

STATE_REPORT_KEY = "state/report.json"
"""Where a checkpoint keeps the newest report on its stateful operators: replaced now and then, for people to read."""


@dataclass(frozen=True)
class SourceStatus(Picture):
    """One source at one moment.

    Parameters
    ----------
    name : str
        The node's name.
    positions : mapping of str to int or str
        Segment -> next position to read, after the last published epoch.
    newest : mapping of str to int or str, optional
        Positions after everything the source knows now; None when it does not know.
    lag : int, optional
        Positions between the two (:func:`~holdfast.positions.lag_between`); None when unknown.
    rows : int
        Rows read by this run.
    rejects : int
        Malformed rows that went to the side output ``rejects`` in this run.
    reasons : mapping of str to mapping of str to int
        Of ``rejects``, how many for which reason, values left out of it; of ``rescued``, how many have which member.
    lag_s : float, optional
        For how long there has been something to read after ``positions``, as far as this run has seen; 0 where there
        is nothing, None when unknown.
    bound_us : int, optional
        The time below which it promises no more rows, microseconds of Unix time; None where it has promised nothing, or
        its timestamps are no TIMESTAMPs.
    is_paused : bool
        Whether it delivers nothing because the run was told so: ``holdfast pause``.
    limit_rows_per_s : float, optional
        How many rows a second it may deliver: ``holdfast limit``; None: there is no limit.
    rescued : int
        Rows in this run with members that are no column, which ``on_new_column="rescue"`` has kept.
    """

    name: str
    positions: SourcePositions = field(default_factory=dict)
    newest: SourcePositions | None = None
    lag: int | None = None
    rows: int = 0
    rejects: int = 0
    reasons: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    lag_s: float | None = None
    bound_us: int | None = None
    is_paused: bool = False
    limit_rows_per_s: float | None = None
    rescued: int = 0


@dataclass(frozen=True)
class Wait(Picture):
    """One key of a stateful operator that waits on an input.

    Parameters
    ----------
    key : mapping of str to Any
        Key column -> value, as JSON has it; empty where all rows are of one key.
    input : str
        The input that the key waits for.
    since_us : int
        Batch time of the epoch since which it waits, microseconds of Unix time.
    bound : int, optional
        The input's bound for the key, ticks: what it has promised so far; None when it has never said anything.
    waiting_rows : int
        Rows of the key that wait.
    is_time : bool
        Whether the ticks of ``bound`` are microseconds of Unix time.
    """

    key: Mapping[str, Any]
    input: str
    since_us: int
    bound: int | None = None
    waiting_rows: int = 0
    is_time: bool = False

    @staticmethod
    def from_json(value: Any) -> Wait:
        """Return the wait from :meth:`as_json`; what a later version added is ignored.

        Raises
        ------
        ValueError
            If it is none.

        Examples
        --------
        >>> Wait.from_json({"key": {"origin": "JFK"}, "input": "weather", "since_us": 7, "mood": 1})
        Wait(key={'origin': 'JFK'}, input='weather', since_us=7, bound=None, waiting_rows=0, is_time=False)
        >>> Wait.from_json({"key": {"origin": "JFK"}, "input": "weather"})
        Traceback (most recent call last):
        ValueError: {'key': {'origin': 'JFK'}, 'input': 'weather'} is not a wait
        """
        known = {f.name: value[f.name] for f in fields(Wait) if f.name in value} if isinstance(value, Mapping) else {}
        if (
            isinstance(known.get("key"), Mapping)
            and isinstance(known.get("input"), str)
            and all(is_number(known.get(name, 0)) for name in ("since_us", "waiting_rows"))
            and "since_us" in known
            and (known.get("bound") is None or is_number(known["bound"]))
        ):
            return Wait(**known)
        raise ValueError(f"{value!r} is not a wait")


@dataclass(frozen=True)
class OperatorStatus(Picture):
    """One stateful operator at one moment.

    Parameters
    ----------
    name, kind : str
        The node's name, and what it does.
    state_rows, state_bytes : int
        Rows of all its tables, and their stored size, over all buckets that have reported.
    waiting_rows : int
        Input rows that wait for others.
    waiting_keys : int, optional
        Keys under which rows wait, as far as its buckets have counted them; None where none can wait.
    late, shed : int
        Late rows, and rows dropped at the entry, in this run.
    counts : mapping of str to int
        What else its steps counted in this run: ``dropped``, ``forgotten``, ...
    waits : tuple of Wait
        The longest waits, the longest first; ten at most.
    reasons : mapping of str to mapping of str to int
        Of late, shed, dropped and unmatched rows, how many for which reason.
    """

    name: str
    kind: str = ""
    state_rows: int = 0
    state_bytes: int = 0
    waiting_rows: int = 0
    late: int = 0
    shed: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    waiting_keys: int | None = None
    reasons: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class FilterStatus(Picture):
    """One operator that drops rows, at one moment.

    Parameters
    ----------
    name : str
        The node's name.
    rows : int, optional
        Rows that reached it in this run; None where Spark's plan evaluates it, which does not count them.
    filtered : int, optional
        Those of them that it dropped; None where that is not known either.
    """

    name: str
    rows: int | None = None
    filtered: int | None = None


@dataclass(frozen=True)
class SinkStatus(Picture):
    """One sink at one moment.

    Parameters
    ----------
    name, kind : str
        The node's name, and the kind of system (``sqlite``, ``postgres``, ``files``, ...).
    guarantee : str
        ``exactly-once`` or ``at-least-once``.
    staging : str
        How the sink stages large epochs, in its own words.
    epoch : int
        Highest epoch that the sink has published; 0 when none.
    rows : int
        Rows published by this run.
    last_choice : str
        Whether the last epoch was ``carried`` or ``staged``; empty before the first.
    pace : str
        How seldom it commits (``30 s``, ``10 epochs``); empty: as often as the pipeline.
    waiting_epochs, waiting_rows, waiting_since_us : int
        What is decided and waits for a sink with a pace; since when, microseconds of Unix time, 0 when nothing does.
    stale_s : float, optional
        Age of the oldest row that was there and that it lacks, as far as this run has seen; None when unknown.
    freshness_s : float, optional
        How old that may be: ``freshness=`` of the sink; None where nothing is declared.
    """

    name: str
    kind: str
    guarantee: str
    staging: str = ""
    epoch: int = 0
    rows: int = 0
    last_choice: Literal["carried", "staged", ""] = ""
    pace: str = ""
    waiting_epochs: int = 0
    waiting_rows: int = 0
    waiting_since_us: int = 0
    stale_s: float | None = None
    freshness_s: float | None = None


@dataclass(frozen=True)
class CheckpointStatus(Picture):
    """The snapshots of one run.

    Parameters
    ----------
    count, dropped, failed : int
        Snapshots made; those that were due while another was being made; those that failed, and the run continues.
    epoch : int
        The epoch at whose end the last one is; 0 when there is none.
    at_us : int
        When it was made, microseconds of Unix time.
    duration_ms : float
        How long it took, concurrently with the epochs.
    size_bytes, rows : int
        What all its files hold.
    last_error : str
        Why the last that failed could not be made.
    is_failing : bool
        Whether it was the last that was tried.
    """

    count: int = 0
    dropped: int = 0
    failed: int = 0
    epoch: int = 0
    at_us: int = 0
    duration_ms: float = 0.0
    size_bytes: int = 0
    rows: int = 0
    last_error: str = ""
    is_failing: bool = False


@dataclass(frozen=True)
class ComparedSink(Picture):
    """A sink that the start of the run has compared with what it should hold, and mended.

    Parameters
    ----------
    sink : str
        Its name.
    epoch : int
        Up to where; 0 where it was not compared.
    expected, actual, missing, extra, changed, repaired : int
        Rows that it should have held, and that it held; that it lacked, had in excess, and had with other values; that
        were written and removed.
    why_not : str
        Why it was not compared; empty where it was.
    """

    sink: str
    epoch: int = 0
    expected: int = 0
    actual: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    repaired: int = 0
    why_not: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether it was compared, and held what it should."""
        return not (self.why_not or self.missing or self.extra or self.changed)

    @property
    def text(self) -> str:
        """What was found, for people.

        Examples
        --------
        >>> ComparedSink("table", 7, expected=1_000, actual=998, missing=2, repaired=2).text
        "sink 'table' at epoch 7: 998 rows compared with 1,000: 2 missing, 0 extra, 0 changed; 2 repaired"
        >>> ComparedSink("topic", why_not="it does not say which rows it holds.").text
        "sink 'topic' is not compared: it does not say which rows it holds."
        """
        if self.why_not:
            return f"sink {self.sink!r} is not compared: {self.why_not}"
        counts = f"{self.missing:,} missing, {self.extra:,} extra, {self.changed:,} changed"
        found = "equal" if self.is_equal else f"{counts}; {self.repaired:,} repaired"
        at = f"sink {self.sink!r} at epoch {self.epoch}"
        return f"{at}: {self.actual:,} rows compared with {self.expected:,}: {found}"


@dataclass(frozen=True)
class ShardStatus(Picture):
    """One shard of a run at one moment.

    Parameters
    ----------
    shard : int
        Its number.
    state : str
        As of a run; and ``waiting``: it has failed, and is started again.
    generation, epoch, rows_total, rows_per_s
        As of a run.
    lag : int, optional
        Positions between what it has published and what its sources know; None when unknown.
    restarts : int
        How often it was started again.
    doing : str
        What it does now.
    error : str, optional
        Why it failed the last time, or what it retries.
    """

    shard: int
    state: ShardState = "starting"
    generation: int = 0
    epoch: int = 0
    rows_total: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    restarts: int = 0
    doing: str = ""
    error: str | None = None


@dataclass(frozen=True, repr=False)
class _Work(Picture):
    """Which run it is, and what it has done."""

    pipeline: str
    generation: int = 0
    state: State = "starting"
    epoch: int = 0
    rows_total: int = 0
    rows_per_s: float = 0.0


@dataclass(frozen=True, repr=False)
class _Minded(_Work):
    """What is to be minded, and what stands by."""

    in_doubt: int = 0
    audit_difference: int = 0
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    spare: str = ""
    is_replica: bool = False
    drops: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Status(_Minded):
    """A run at one moment.

    Parameters
    ----------
    pipeline : str
        Name of the pipeline.
    generation : int
        Generation of this run; 0 until it has taken over.
    state : str
        ``starting``, ``running``, ``stopping``, ``stopped`` or ``failed``.
    epoch : int
        Last epoch published in every sink; 0 when none.
    rows_total : int
        Rows published by this run, over all sinks.
    rows_per_s : float
        The same per second, over the recent past.
    sources, sinks : tuple
        In the order of the graph.
    operators : tuple
        The stateful ones, in the order of the graph.
    filters : tuple
        The operators that drop rows, ``filter`` and ``clip``, in the order of the graph.
    retries : int
        Transient failures that this run retried.
    queue : int
        Epochs decided and waiting for the commit thread.
    in_doubt : int
        Epochs that are decided and not yet in every sink.
    audit_difference : int
        Rows by which epochs of this run did not add up.
    started_at_us : int
        When the run began, microseconds of Unix time.
    last_epoch : EpochStatus, optional
        The last finished epoch.
    error : str, optional
        Message of the error that ended a failed run.
    checkpoints : CheckpointStatus, optional
        The snapshots of state; None where no operator keeps any.
    waits_for : str
        What failed and is retried after a wait; empty while the run waits for nothing.
    doing : str
        What the run does now, in words: ``waiting for files``, ``replaying epoch 7``; empty when it has ended.
    compared : tuple of ComparedSink
        What the start has compared and repaired, in the order of the graph; empty unless it was asked to.
    time : TimeUse, optional
        Where the time of the last epochs went, and what limits the run; None before one has ended.
    shards : tuple of ShardStatus
        In their order; empty where the pipeline runs as one.  Then everything else is of all of them: rows and rates
        are added, ``generation`` is that of shard 0, and ``epoch`` is 0, because each has epochs of its own.
    expectations : tuple of ExpectationStatus
        In the order of the graph.
    calls : tuple of CallStatus
        What each call has cost, in the order of the graph.
    health : Health
        What is wrong, if anything is.
    dead_letters : mapping of str to int
        Source, operator or sink -> its rows that were isolated, and not sent again.
    spare : str
        Of ``run --supervise --spare``: ``ready``, or ``away`` while none waits; else empty.
    is_replica : bool
        Whether this is no run, but a process that waits to take over.
    drops : mapping of str to int
        ``spans``, ``lineage`` -> how many of them this process could not tell to who follows them.
    totals : EpochTotals, optional
        What all epochs of this run took together, for its metrics; in no JSON.  None before one has ended.
    """

    sources: tuple[SourceStatus, ...] = ()
    sinks: tuple[SinkStatus, ...] = ()
    retries: int = 0
    queue: int = 0
    started_at_us: int = 0
    last_epoch: EpochStatus | None = None
    error: str | None = None
    operators: tuple[OperatorStatus, ...] = ()
    checkpoints: CheckpointStatus | None = None
    filters: tuple[FilterStatus, ...] = ()
    waits_for: str = ""
    doing: str = ""
    compared: tuple[ComparedSink, ...] = ()
    time: TimeUse | None = None
    shards: tuple[ShardStatus, ...] = ()
    expectations: tuple[ExpectationStatus, ...] = ()
    calls: tuple[CallStatus, ...] = ()
    health: Health = HEALTHY
    totals: EpochTotals | None = field(default=None, metadata={"is_shown": False})

    @property
    def is_final(self) -> bool:
        """Whether the run has ended, well or badly."""
        return self.state in ("stopped", "failed")

    def __repr__(self) -> str:
        doing = f", {self.doing}" if self.doing else ""
        return f"<status of {self.pipeline!r}: {self.state}{doing}, epoch {self.epoch}, {self.rows_total:,} rows>"
