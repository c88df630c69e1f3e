"""What an epoch's evaluation reports beside its rows: what was counted, and what buckets of state report.

Tasks and buckets make reports, each of what it did; the driver adds them up.  A report is sent separately, as text:
in a column of a task's answer (:mod:`holdfast.spark.staging`), or in a chunk (:mod:`holdfast.plan.chunks`).

Totals: of each source, operator and sink, the rows that came, and where they are, in one epoch or in many.

For people to read, and to be added up: each :class:`Balance` is an equation in itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.reading import row_batches
from holdfast.errors import invariant
from holdfast.operators.lowering import InArrow, lowering_of
from holdfast.plan import laps
from holdfast.plan.laps import Laps, Waves, side_by_side
from holdfast.plan.levels.journal import BucketChange, change_from_json, change_to_json
from holdfast.plan.levels.taps import Samples, Taps, together
from holdfast.ports import REJECT_COLUMN, RESCUE_COLUMN
from holdfast.quarantine.mask import GivenRows
from holdfast.state.bucket_report import BucketReport

if TYPE_CHECKING:
    from holdfast.graph.graph import Graph

Tally = Mapping[str, Mapping[str, int]]
"""Operator -> what was counted of its rows (:mod:`holdfast.plan.audit`) -> how many."""


@dataclass(frozen=True)
class Observed:
    """What was counted in one epoch at one source, or at one filter: the rows that arrived, and those rejected.

    Of rejected rows also, for each reason, how many (:mod:`holdfast.connectors.reading.row_batches`); of those with
    members that are no column (``_rescued``) how many for each name.
    """

    rows: int = 0
    rejects: int = 0
    timestamp_max: int | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    rescued: int = 0
    members: Mapping[str, int] = field(default_factory=dict)

    def plus(self, other: Observed) -> Observed:
        """Return both together."""
        highest = [t for t in (self.timestamp_max, other.timestamp_max) if t is not None]
        reasons = row_batches.added(self.reasons, other.reasons)
        members = row_batches.added(self.members, other.members, row_batches.OTHER_MEMBERS)
        rows, rejects, rescued = self.rows + other.rows, self.rejects + other.rejects, self.rescued + other.rescued
        return Observed(rows, rejects, max(highest, default=None), reasons, rescued, members)

    def since(self, before: Observed) -> Observed:
        """Return what was counted after something, of counts that grow.

        Examples
        --------
        >>> Observed(9, 3, 7, {"no number": 3}).since(Observed(5, 2, 6, {"no number": 2}))
        Observed(rows=4, rejects=1, timestamp_max=7, reasons={'no number': 1}, rescued=0, members={})
        """
        reasons, members = _less(self.reasons, before.reasons), _less(self.members, before.members)
        rows, rejects, rescued = self.rows - before.rows, self.rejects - before.rejects, self.rescued - before.rescued
        return Observed(rows, rejects, self.timestamp_max, reasons, rescued, members)

    def to_json(self) -> list[Any]:
        """Return it as it travels."""
        return [self.rows, self.rejects, self.timestamp_max, self.reasons, self.rescued, self.members]


def _less(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    left = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: count for name, count in left.items() if count > 0}


@dataclass(frozen=True)
class EpochReport:
    """What one task, one bucket or one whole epoch reports.

    Parameters
    ----------
    observed : mapping of str to Observed
        Source or filter -> what was counted there.
    buckets : mapping of str to BucketReport
        Bucket of state (``operator/number``) -> what it reported.
    state : tuple of BucketChange
        What workers changed of state, for the journal.
    outlets : mapping of str to GivenRows
        In a trial: what the outputs of operators with state gave (:mod:`holdfast.quarantine.mask`).
    tally : mapping of str to mapping of str to int
        Operator -> its rows, for the audit.
    waves : mapping of str to Spent
        Where the time went.
    samples : mapping of str to sequence of rows
        Rows that somebody wants to see, by where they passed.
    """

    observed: Mapping[str, Observed] = field(default_factory=dict)
    buckets: Mapping[str, BucketReport] = field(default_factory=dict)
    state: tuple[BucketChange, ...] = ()
    outlets: Mapping[str, GivenRows] = field(default_factory=dict)
    tally: Tally = field(default_factory=dict)
    waves: Waves = field(default_factory=dict)
    samples: Samples = field(default_factory=dict)

    def to_json(self) -> str:
        """Return it as it travels."""
        observed = {name: of.to_json() for name, of in self.observed.items()}
        buckets = {name: of.to_json() for name, of in self.buckets.items()}
        state = [change_to_json(change) for change in self.state]
        outlets = {name: given.to_json() for name, given in self.outlets.items()}
        said = {"observed": observed, "buckets": buckets, "state": state, "outlets": outlets, "tally": self.tally}
        return json.dumps({**said, "waves": laps.to_json(self.waves), "samples": self.samples})

    @classmethod
    def from_json(cls, text: str | bytes) -> EpochReport:
        """Return the report that :meth:`to_json` wrote."""
        body = json.loads(text)
        observed = {name: Observed(*of) for name, of in body["observed"].items()}
        buckets = {name: BucketReport.from_json(of) for name, of in body["buckets"].items()}
        outlets = {name: GivenRows.from_json(given) for name, given in body["outlets"].items()}
        state, waves = tuple(map(change_from_json, body["state"])), laps.from_json(body["waves"])
        return cls(observed, buckets, state, outlets, body["tally"], waves, body["samples"])


def united(reports: Iterable[EpochReport]) -> EpochReport:
    """Return what all say together.  Counts add up; a bucket has one report, and is changed once.

    Examples
    --------
    >>> one = EpochReport({"in": Observed(3, 0, 7)}, {"sums/0": BucketReport({"late": 1})})
    >>> both = united([one, EpochReport({"in": Observed(2, 1, 5)}, {"sums/1": BucketReport({"late": 2})})])
    >>> both.observed
    {'in': Observed(rows=5, rejects=1, timestamp_max=7, reasons={}, rescued=0, members={})}
    >>> {name: of.counts for name, of in both.buckets.items()}
    {'sums/0': {'late': 1}, 'sums/1': {'late': 2}}
    """
    observed: dict[str, Observed] = {}
    buckets: dict[str, BucketReport] = {}
    state: list[BucketChange] = []
    outlets: dict[str, GivenRows] = {}
    tally: dict[str, dict[str, int]] = {}
    waves: list[Waves] = []
    samples: list[Samples] = []
    for report in reports:
        for name, of in report.observed.items():
            observed[name] = observed[name].plus(of) if name in observed else of
        twice = sorted(buckets.keys() & report.buckets.keys())
        invariant(not twice, f"buckets {twice} have reported twice in one epoch.", why="a step is called once.")
        buckets |= report.buckets
        state += report.state
        outlets |= report.outlets
        add_tally(tally, report.tally)
        waves.append(report.waves)
        samples.append(report.samples)
    return EpochReport(observed, buckets, tuple(state), outlets, tally, side_by_side(waves), together(samples))


def observed_since(before: Mapping[str, Observed], now: Mapping[str, Observed]) -> dict[str, Observed]:
    """Return what was counted between two looks at counts that grow: an attempt that failed has counted rows, too."""
    return {name: of.since(before.get(name, Observed())) for name, of in now.items()}


def add_tally(tally: dict[str, dict[str, int]], other: Tally) -> None:
    """Add what was counted elsewhere.

    Examples
    --------
    >>> rows = {"kept": {"in": 3, "out": 2}}
    >>> add_tally(rows, {"kept": {"in": 1}, "other": {"in": 5}})
    >>> rows
    {'kept': {'in': 4, 'out': 2}, 'other': {'in': 5}}
    """
    for name, counted in other.items():
        mine = tally.setdefault(name, {})
        for what, count in counted.items():
            mine[what] = mine.get(what, 0) + count


class Counts:
    """What is counted at sources and operators while batches pass.

    Parameters
    ----------
    timestamps : mapping of str to str, optional
        Source -> its timestamp column.
    laps : Laps, optional
        Of the thread in which they pass; one of its own where they are omitted.
    taps : Taps, optional
        Take rows that somebody wants to see; none where they are omitted.
    """

    def __init__(
        self, timestamps: Mapping[str, str | None], laps: Laps | None = None, taps: Taps | None = None
    ) -> None:
        self._timestamps = timestamps
        self.laps = laps or Laps()
        self.taps = taps or Taps()
        self.found: dict[str, Observed] = {}
        self.tally: dict[str, dict[str, int]] = {}

    def add(self, source: str, batch: pa.RecordBatch) -> None:
        """Count a batch."""
        rejects, reasons = 0, dict[str, int]()
        if REJECT_COLUMN in batch.schema.names:
            column = batch.column(REJECT_COLUMN)
            rejects = len(column) - column.null_count
            if rejects:
                reasons = row_batches.counted(pc.struct_field(column.drop_null(), "reason"))
        timestamp = self._timestamps.get(source)
        highest = None if timestamp is None else pc.max(batch.column(timestamp).cast(pa.int64())).as_py()
        self._note(source, Observed(batch.num_rows, rejects, highest, reasons, *_of_rescued(batch)))

    def passed(self, name: str, came: int, due: int, left: int, *, drops: bool) -> None:
        """Count the rows that reached an operator, those that are due of it, by its own count, and those that left."""
        mine = self.tally.setdefault(name, {"in": 0, "due": 0, "out": 0})
        mine["in"] += came
        mine["due"] += due
        mine["out"] += left
        if drops:
            self._note(name, Observed(came, came - left))

    def expect(self, name: str, came: int, failed: int) -> None:
        """Count the rows that reached an expectation, and those that did not meet it."""
        self._note(name, Observed(came, failed))

    def flowed(self, name: str, counted: Mapping[str, int]) -> None:
        """Count what became of the rows of an operator with state, or of a sink."""
        add_tally(self.tally, {name: counted})

    def _note(self, name: str, observed: Observed) -> None:
        self.found[name] = self.found[name].plus(observed) if name in self.found else observed

    def report(
        self, buckets: Mapping[str, BucketReport] | None = None, outlets: Mapping[str, GivenRows] | None = None
    ) -> EpochReport:
        """Return what was counted, with the reports of buckets, and of their outputs."""
        wrong = {name: of for name, of in self.found.items() if not 0 <= of.rejects <= of.rows}
        invariant(not wrong, f"more rows are rejected or dropped than there were: {wrong}.")
        return EpochReport(self.found, buckets or {}, outlets=outlets or {}, tally=self.tally, samples=self.taps.take())


def _of_rescued(batch: pa.RecordBatch) -> tuple[int, dict[str, int]]:
    """Return how many rows have members that are no column, and how many each of them."""
    if RESCUE_COLUMN not in batch.schema.names:
        return 0, {}
    texts = batch.column(RESCUE_COLUMN).drop_null()
    if not len(texts) or not pa.types.is_string(texts.type):
        return 0, {}
    from holdfast.connectors.formats.json_members import names_in  # few epochs have any

    return len(texts), row_batches.limited(names_in(texts, batch.schema.names), row_batches.OTHER_MEMBERS)


ABSORBED, DEAD, FILTERED, REJECTED = "absorbed", "dead", "filtered", "rejected"

_FUNCTIONS = frozenset({InArrow.CALL, InArrow.LATEST})


@dataclass(frozen=True)
class Balance:
    """Rows of a source, an operator or a sink: what came has left, is gone for a reason that is named, or is held.

    Parameters
    ----------
    came : int
        Rows that it read, or that came.
    left : int
        Rows of them that left it, row for row.
    gone : mapping of str to int
        What became of the others: ``filtered``, ``late``, ``shed``, ``rejected``, ``dead`` (dead letters), ``dropped``
        (by an operator that says so), ``absorbed`` (by windows, sets and functions).
    held : int
        By how much the rows grew that wait in its state.
    made : int
        Rows that left it in the place of those absorbed: any number.

    Examples
    --------
    >>> one = Balance(5, 2, {"late": 1}, 2)
    >>> one.is_even, one.plus(Balance(1, 3, held=-2)).to_json()
    (True, {'in': 6, 'out': 5, 'late': 1})
    """

    came: int = 0
    left: int = 0
    gone: Mapping[str, int] = field(default_factory=dict)
    held: int = 0
    made: int = 0

    @property
    def is_even(self) -> bool:
        """Whether all rows that came are accounted for."""
        return self.came == self.left + sum(self.gone.values()) + self.held

    def plus(self, other: Balance) -> Balance:
        """Return both together."""
        gone = dict(Counter(self.gone) + Counter(other.gone))
        return Balance(
            self.came + other.came, self.left + other.left, gone, self.held + other.held, self.made + other.made
        )

    def to_json(self) -> dict[str, int]:
        """Return it as it is kept and shown; what is 0 is left out."""
        value = {"in": self.came, "out": self.left, **self.gone, "held": self.held, "made": self.made}
        return {name: count for name, count in value.items() if count or name in ("in", "out")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Balance:
        """Return what :meth:`to_json` gave."""
        gone = {str(name): int(count) for name, count in value.items() if name not in ("in", "out", "held", "made")}
        return cls(int(value["in"]), int(value["out"]), gone, int(value.get("held", 0)), int(value.get("made", 0)))


Balances = Mapping[str, Balance]
"""Source, operator or sink -> its rows, in the order of the graph."""


def added(one: Balances, other: Balances) -> dict[str, Balance]:
    """Return the balances of both together."""
    names = dict.fromkeys([*one, *other])
    return {name: one.get(name, Balance()).plus(other.get(name, Balance())) for name in names}


class Totals:
    """How the counts of an epoch are totals of the nodes of a pipeline.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    """

    def __init__(self, pipeline: Graph) -> None:
        self._sources = [node.name for node in pipeline.sources]
        self._sinks = [sink.name for sink in pipeline.sinks]
        self._ways = {node.name: lowering_of(node).in_arrow for node in pipeline.nodes if not node.is_source}

    def of(self, report: EpochReport, sink_rows: Mapping[str, int], due: Mapping[str, int]) -> dict[str, Balance]:
        """Return the balances of an epoch.

        Parameters
        ----------
        report : EpochReport
            What was counted.
        sink_rows : mapping of str to int
            Sink -> rows that are carried or staged for it.
        due : mapping of str to int
            Sink -> rows that left the operator before it; without those whose operators are not counted.
        """
        found: dict[str, Balance] = {}
        for name in self._sources:
            if name in report.observed:
                of = report.observed[name]
                found[name] = Balance(of.rows, of.rows - of.rejects, _some({REJECTED: of.rejects}))
        for name, way in self._ways.items():
            if name in report.tally:
                found[name] = _balance(way, report.tally[name])
        for name in self._sinks:
            if name in sink_rows:
                found[name] = Balance(due.get(name, sink_rows[name]), sink_rows[name])
        return found


def _balance(way: InArrow, counted: Mapping[str, int]) -> Balance:
    if "due" not in counted:
        return _with_state(counted)
    came, left = counted["in"], counted["out"]
    if way in _FUNCTIONS:
        return Balance(came, 0, _some({ABSORBED: came}), made=left)
    if way is InArrow.REJECTS:  # it reads what the source reads, and gives what the source counts as rejected
        return Balance(left, left)
    return Balance(came, left, _some({FILTERED: came - left}))


def _with_state(counted: Mapping[str, int]) -> Balance:
    left = made = dead = 0
    gone: Counter[str] = Counter()
    for output in _named("made.", counted):
        out, given = counted.get(f"out.{output}", 0), counted[f"made.{output}"]
        if f"due.{output}" not in counted:
            made += out
        elif output in ("late", "shed"):
            gone[output] += given
        else:
            left += out
            dead += given - out
    for fate in _named("fate.", counted):
        gone[ABSORBED if fate.startswith("(") else fate] += counted[f"fate.{fate}"]
    if "fates" not in counted:
        gone[ABSORBED] += counted["in"]
    gone[DEAD] += dead
    held = counted.get("held after", 0) - counted.get("held before", 0)
    return Balance(counted["in"], left, _some(gone), held, made)


def _named(prefix: str, counted: Mapping[str, int]) -> Iterable[str]:
    return (what.removeprefix(prefix) for what in counted if what.startswith(prefix))


def _some(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
