"""The values that cross the interfaces of :mod:`holdfast.ports`: frozen, picklable, without behaviour of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.positions import Holding, Positions


class Guarantee(Enum):
    """What a node promises for each row that reaches it."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class Outcome(Enum):
    """The sink's word on an epoch, always asked, never remembered."""

    ABSENT = "absent"
    """The sink holds nothing of the epoch."""
    STAGED = "staged"
    """The sink itself began to publish it and has not finished; its own ``open`` or ``publish`` completes it."""
    PUBLISHED = "published"
    """Visible, together with its ledger row."""
    UNKNOWN = "unknown"
    """The sink did not answer, or does not know: ask again."""
    EXPIRED = "expired"
    """It holds nothing of the epoch, and rows that were staged for it, or for an epoch before it, are gone.  No sink
    says so of an epoch: whoever has the decision asks it about the parts (:class:`~holdfast.ports.Expiring`)."""


@dataclass(frozen=True)
class RunIdentity:
    """One generation of one pipeline, as sinks see it.

    Parameters
    ----------
    pipeline, generation
        Identity.
    is_grouped : bool
        Several epochs are published together: what is staged waits, perhaps for long, while later epochs are staged.
    """

    pipeline: str
    generation: int
    is_grouped: bool = False


@dataclass(frozen=True)
class Held:
    """What a sink says it holds of a pipeline, from its own ledger.

    Parameters
    ----------
    epoch : int
        Highest epoch held; 0 when none (epochs start at 1).
    generation : int
        Highest generation that opened the sink *before* this one; 0 when none.
    positions : Positions
        End positions of that epoch; empty when none.
    pts : int, optional
        Minimum timestamp over the inputs at that epoch, in their unit.
    stops : tuple of Positions
        Later positions up to which it holds some of the rows: epochs that give it what it lacks must end there, too.
    explained : mapping of str to int, optional
        Source -> the highest number of its explanations that the sink keeps; None: it keeps none.
    recent_ends : str
        What that epoch says of recent ends (:class:`EpochRecord`); empty where it says nothing.
    """

    epoch: int = 0
    generation: int = 0
    positions: Positions = field(default_factory=dict)
    pts: int | None = None
    explained: Mapping[str, int] | None = field(default=None, compare=False)
    stops: tuple[Positions, ...] = field(default=(), compare=False)
    recent_ends: str = field(default="", compare=False, repr=False, metadata={"is_shown": False})

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing: no epoch, and no rows of later ones either."""
        return not self.epoch and not self.stops


@dataclass(frozen=True)
class Task:
    """One attempt of one task of one epoch: the name that orphans are found by."""

    pipeline: str
    generation: int
    epoch: int
    task: int
    attempt: int

    @property
    def name(self) -> str:
        """``pipeline/generation/epoch/task/attempt``."""
        return f"{self.pipeline}/{self.generation}/{self.epoch}/{self.task}/{self.attempt}"


@dataclass(frozen=True)
class Staged:
    """Handle of rows that one task made durable for one sink; not yet visible.

    Parameters
    ----------
    name : str
        :attr:`Task.name` of the attempt that staged them.
    row_count : int
        Rows staged, but those that are not to be published because the sink refuses them.
    reference : mapping of str to str
        What the sink needs to publish or discard them (a transaction id, a table, a path).  JSON, no secrets.
    """

    name: str
    row_count: int
    reference: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is open in a sink's system, under a name of that sink.

    Parameters
    ----------
    task : str
        :attr:`Task.name` of the attempt that staged in it; empty for that of the driver.
    state : str
        In the words of the system.
    age_s, timeout_s : float
        How long it has been open, and after how long the system itself aborts it.
    is_decided : bool
        Whether the sink's ledger says that it will be committed.
    """

    task: str
    state: str
    age_s: float
    timeout_s: float
    is_decided: bool = False


@dataclass(frozen=True)
class WaitingReaders:
    """A part of a target of which readers do not see all: they wait for a transaction that is open there.

    Parameters
    ----------
    place : str
        Its name: ``topic/partition``.
    readable, end : int
        Where they wait, and where it ends.
    """

    place: str
    readable: int
    end: int


@dataclass(frozen=True)
class Carried:
    """Rows that the driver itself holds: written by ``publish`` in the sink's own transaction."""

    rows: pa.Table

    @property
    def row_count(self) -> int:
        """Rows carried."""
        return int(self.rows.num_rows)


Part = Staged | Carried


@dataclass(frozen=True)
class Explanation:
    """A part of what maps the positions of a source to data: an increment of its log, the time of its first row.

    Parameters
    ----------
    source : str
        Its name.
    number : int
        Place among the explanations of the source, from 1, dense.  A number is given once, and what it says never
        changes.
    text : str
        What the source itself would read again; one line.
    """

    source: str
    number: int
    text: str


@dataclass(frozen=True)
class SinkLedger:
    """What a sink's own ledger says, without a look at the rows.

    Parameters
    ----------
    held : Held
        What an opening would find; ``explained`` is left to ``explanations``.
    explanations : tuple of Explanation
        What the sink keeps of the meaning of its positions.
    segments : Holding, optional
        Up to where the sink's segments have rows beyond ``held``, where it has some of them and not all.
    """

    held: Held
    explanations: tuple[Explanation, ...] = ()
    segments: Holding | None = None


@dataclass(frozen=True)
class Reset:
    """What a reset of a sink removes, or would remove, in words (design/0042).

    Parameters
    ----------
    removed : tuple of str
        What goes, and how much of it; empty where nothing is there.
    stays : tuple of str
        What it cannot remove, or was told to leave, and what that means for the next run.
    """

    removed: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublishedEpoch:
    """An epoch that a sink has published, from its own ledger.

    Parameters
    ----------
    epoch, generation : int
        Its number, and the generation that decided it.
    positions : Positions
        Its end.
    at_us : int
        When the sink was given it, by the clock of the driver, microseconds of Unix time.
    """

    epoch: int
    generation: int
    positions: Positions
    at_us: int


class ExpectationCount(NamedTuple):
    """What was counted of an expectation: the rows that came, and those of them that did not meet it.

    Parameters
    ----------
    rows, failed : int
        In one epoch.
    rows_total, failed_total : int
        In all epochs of the checkpoint up to it, each once, however often it was evaluated.
    """

    rows: int
    failed: int
    rows_total: int
    failed_total: int

    def then(self, rows: int, failed: int) -> ExpectationCount:
        """Return what is counted after one more epoch.

        Examples
        --------
        >>> ExpectationCount(5, 1, 5, 1).then(3, 0)
        ExpectationCount(rows=3, failed=0, rows_total=8, failed_total=1)
        """
        return ExpectationCount(rows, failed, self.rows_total + rows, self.failed_total + failed)


@dataclass(frozen=True)
class EpochRecord:
    """What is known of an epoch apart from its rows.

    Parameters
    ----------
    pipeline, epoch, generation
        Identity; ``generation`` is the one that decided the epoch.
    positions : Positions
        End positions: the epoch is everything before them that earlier epochs did not hold.
    pts : int, optional
        Minimum over the inputs of the highest timestamp seen so far, in their unit; None when no input declares one.
    rewound_to : int, optional
        The epoch is a *rewind*: it withdraws what was published after the end of this one, whose positions it has.
    explanations : tuple of Explanation
        What its positions mean, as far as a sink may lack it; for each source in order and without a gap.
    recent_ends : str
        How this epoch and those before it ended that no progress record tells yet, as
        :mod:`holdfast.checkpoint.progress` writes and reads it: a replay needs it, and sinks keep it with the epoch.
        Empty where no replay depends on it.
    expected : mapping of str to ExpectationCount
        Expectation -> what was counted of it, in this epoch and in all up to it.  The ledger keeps it, no sink does.
    """

    pipeline: str
    epoch: int
    generation: int
    positions: Positions
    pts: int | None = None
    rewound_to: int | None = None
    explanations: tuple[Explanation, ...] = ()
    recent_ends: str = ""
    expected: Mapping[str, ExpectationCount] = field(default_factory=dict)


@dataclass(frozen=True)
class Publication:
    """One epoch's rows for one sink, ready to become visible."""

    record: EpochRecord
    parts: tuple[Part, ...]

    @property
    def row_count(self) -> int:
        """Rows of all parts."""
        return sum(part.row_count for part in self.parts)


@dataclass(frozen=True)
class Refused:
    """A row of a decided epoch that a sink refuses.

    Parameters
    ----------
    number : int
        Among the rows of the publication.
    row : pa.Table
        The row.
    error : HoldfastError
        Why.
    """

    number: int
    row: pa.Table
    error: HoldfastError


@dataclass(frozen=True)
class Withdrawal:
    """What a sink would withdraw to go back to some positions.

    Parameters
    ----------
    epoch : int
        The last epoch that stays, as the sink counts.
    epoch_count, row_count : int
        What goes.
    obstacle : str
        Why it cannot; empty when it can.
    is_recomputed : bool
        Whether it moves its ledger alone, because it does not know what it has replaced: what its rows were is computed
        from the sources, and it is repaired (design/0024).
    """

    epoch: int = 0
    epoch_count: int = 0
    row_count: int = 0
    obstacle: str = ""
    is_recomputed: bool = False


PLACE_COLUMN = "__holdfast_place"
"""Name of the binary column in which a sink says where a row of its is."""

HASH_COLUMN = "__holdfast_hash"
"""Name of the uint64 column with the hash of a row in canonical form (:mod:`holdfast.types.canonical`)."""


class LossKind(Enum):
    """A distinction between values that a system does not keep, in words that follow the column's name."""

    NAN = "NaN is null"  # SQLite
    INFINITE = "infinities are null"  # JSON
    EMPTY = "an empty text is null"  # the name of a directory
    PADDING = "a text is without the spaces at its end"  # char(n)
    UUID = "a UUID is itself, however it was spelled,"
    JSON = "JSON is what it means"  # jsonb


@dataclass(frozen=True)
class Loss:
    """A distinction between values of a column that a system does not keep, so that nobody is to look for it.

    Parameters
    ----------
    column : str
        Its name.
    kind : LossKind
        Which one.
    """

    column: str
    kind: LossKind


Losses = frozenset[Loss]
NO_LOSSES: Losses = frozenset()


@dataclass(frozen=True)
class Repair:
    """What makes a sink hold what it should (design/0024).

    Parameters
    ----------
    held : Held
        The ledger of the view in which the differences were found.
    removed : pyarrow.Table
        Rows that are too many, as the sink's content gave them: with ``PLACE_COLUMN`` and ``HASH_COLUMN``; other
        columns are not read.
    written : pyarrow.Table
        Rows that are missing; columns besides those of the content's schema are not read.  A row of an upsert that has
        changed is in both.
    losses : frozenset of Loss
        With which the content was asked for the removed rows, beside its own.
    """

    held: Held
    removed: pa.Table
    written: pa.Table
    losses: Losses = NO_LOSSES


@dataclass(frozen=True)
class Span:
    """Part of an epoch that one task reads from one source.  Picklable."""

    value: Any
    row_count: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True)
class SegmentLag:
    """How far a position in one segment of a source is behind what there is.

    Parameters
    ----------
    segment, place : str
        Its name in positions, and for people: ``flights/3``.
    position, end : int
        The position, and the one after everything that can be read now.
    oldest_us : int, optional
        When the first row between them was written, microseconds of Unix time; None where there is none, or it is not
        known.
    """

    segment: str
    place: str
    position: int
    end: int
    oldest_us: int | None = None


@dataclass(frozen=True)
class SourceDrift:
    """What a sample of one source has otherwise than its schema.

    Parameters
    ----------
    source : str
        Its name.
    place : str
        Where the sample is from.
    rows : int
        Rows in it.
    on_new : str
        What becomes of members that are no column.
    rejects : bool
        Whether a bad row is rejected; else it stops the run.
    members : mapping of str to int
        Member that is no column -> how many rows have it; ``name.*`` of what is within a column.
    types : mapping of str to str
        Of these members, how each would be declared; not of those that a column has but for their case.
    absent : tuple of str
        Columns that no row has.
    bad : mapping of str to int
        Why rows are bad -> how many, values left out.
    problem : str
        Why there is no sample, or, with rows, why it is not whole; empty where it is.
    """

    source: str
    place: str = ""
    rows: int = 0
    on_new: str = "ignore"
    rejects: bool = False
    members: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    bad: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_any(self) -> bool:
        """Whether there is something to say."""
        return bool(self.members or self.absent or self.bad or self.problem)


@dataclass(frozen=True)
class SideRows:
    """What is known of a side output of an operator before anything runs.

    Parameters
    ----------
    columns : tuple of str, optional
        Its columns; None: those of the operator's rows, and their timestamp.
    timestamp : str, optional
        The column that holds event time.
    keeps_bounds : bool
        Whether the bounds of the operator's rows hold for these, too.  Otherwise only the end is known: that all of its
        inputs have ended.
    """

    columns: tuple[str, ...] | None = None
    timestamp: str | None = None
    keeps_bounds: bool = False

    @staticmethod
    def of_inputs(by: Sequence[str], inputs: Sequence[str], *, keeps_bounds: bool = False) -> SideRows:
        """Return rows of inputs with a reason: key, :data:`SIDE_COLUMNS`, and the whole row as a struct."""
        ours, of_inputs = side_names(by, inputs)
        return SideRows((*by, *ours, *of_inputs), ours[0], keeps_bounds)


SIDE_COLUMNS = ("timestamp", "input", "reason")
"""Of a row that leaves an operator beside its rows: its event time, the input it came by, and why."""

SIDE_PREFIX = "side_"
"""What one of these columns, or that of an input, gets before its name where a column of the user's has that name."""


def side_names(by: Sequence[str], inputs: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what :data:`SIDE_COLUMNS`, and the columns of the inputs, are called in a side output.

    Key columns keep their names.  Another one gets :data:`SIDE_PREFIX` once more than any key column that has its name,
    prefixes aside; so what an input's column is called follows from its own name and the key.  Those of
    :data:`SIDE_COLUMNS` make way for the inputs' too: :func:`side_column` finds them.

    Examples
    --------
    >>> side_names(["k", "Reason", "rows"], ["rows"])
    (('timestamp', 'input', 'side_reason'), ('side_rows',))
    >>> side_names(["side_input"], ["main", "reason"])
    (('timestamp', 'side_side_input', 'side_reason'), ('main', 'reason'))
    >>> side_names(["x"], ["x", "side_x", "y", "side_y"])[1]
    ('side_x', 'side_side_x', 'y', 'side_y')
    """
    of_inputs = tuple(_unlike(name, by) for name in inputs)
    return tuple(_unlike(name, [*by, *of_inputs]) for name in SIDE_COLUMNS), of_inputs


def side_column(columns: Iterable[str], name: str) -> str | None:
    """Return which of some columns has this name, prefixes aside: the one with the most; None where none has.

    Of :data:`SIDE_COLUMNS` it is among those that are no structs, as keys are; of the input of a row among the structs
    that are not null in this row.

    Examples
    --------
    >>> side_column(["reason", "timestamp", "input", "side_reason"], "reason")
    'side_reason'
    """
    return max((column for column in columns if _bare(column) == _bare(name)), key=len, default=None)


def _unlike(name: str, taken: Sequence[str]) -> str:
    lengths = [len(other) - len(_bare(other)) for other in taken if _bare(other) == _bare(name)]
    return SIDE_PREFIX * (1 + max(lengths) // len(SIDE_PREFIX)) + name if lengths else name


def _bare(column: str) -> str:
    """Return a name without its prefixes."""
    column = column.lower()
    while column.startswith(SIDE_PREFIX):
        column = column.removeprefix(SIDE_PREFIX)
    return column


REJECT_COLUMN = "__holdfast_reject"
"""Hidden column of a source with rejects: null for a good row, else ``REJECT_TYPE``."""

RESCUE_COLUMN = "_rescued"
"""Column of a source with the members of a row that are no other column, as JSON text (``on_new_column="rescue"``)."""

REJECT_TYPE = pa.struct([("reason", pa.string()), ("raw", pa.string()), ("position", pa.string())])
"""Of a rejected row: why, the raw text, and its position (``path:line`` for files)."""

REJECT_SCHEMA = pa.schema(list(REJECT_TYPE))
"""Schema of the ``rejects`` side output."""
