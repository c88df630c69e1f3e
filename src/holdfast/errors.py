"""Every error that a user of Holdfast can see, grouped by what to do about it.

The tree, with the reaction each kind asks for::

    HoldfastError
    ├── InvalidPipeline   change the code or the arguments (raised while building, or before the run starts)
    ├── BadRow            leave the row out, or let it pass: on_bad_row="reject" at the source, or as the message says
    ├── Unavailable       try again: a system that is needed did not answer, and nothing was changed
    ├── Fenced            stop: a newer generation owns this pipeline
    ├── InDoubt           resolve: an epoch may or may not be visible; delete nothing
    ├── Diverged          a person decides: a sink and the ledger contradict each other
    ├── Corrupt           restore: stored bytes fail their checksum or cannot be read
    └── InternalError     report: an invariant of Holdfast itself does not hold

Kinds follow the reaction, not the cause.  *Failed* is never merged with *unknown*: a connection that
breaks during COMMIT raises :class:`InDoubt`, never :class:`Unavailable`.

Between Python processes an error is pickled; on its way through the JVM it is cut down to a text.  What leaves a worker
or a planning process through :func:`crossing` says its fields in one line of that text, and :func:`from_text` reads
them again.  No code searches a message for words: messages are for people.

This module imports nothing of Holdfast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

MARKER = "holdfast-error: "
"""What precedes the fields of an error in a text: one line of JSON."""

T = TypeVar("T")

REPORT = "please report this with the log; starting the pipeline again is safe."
"""What to do about a bug of ours."""


class HoldfastError(Exception):
    """An error with its cause and its remedy: what happened, why, and what to do.

    Parameters
    ----------
    what : str
        One sentence: what happened, with the names of the things concerned.
    why : str
        What led to it.  May be empty where the first sentence says it all.
    do : str
        What the user should do now.
    pipeline, participant : str
        Name of the pipeline, and of the node, sink or file concerned.  Empty where unknown.
    epoch, generation : int, optional
        Where known.

    Notes
    -----
    Survives pickling with all that is set, and the way through the JVM with its fields (:func:`crossing`).
    """

    errno: int | None = None
    """Number of the error of the operating system that led to it, where that is known."""

    is_of_timer: bool = False
    """Whether a function of the user raised it that a timer had called: then no row of the epoch is the reason."""

    _is_crossing = False

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        do: str = "",
        pipeline: str = "",
        participant: str = "",
        epoch: int | None = None,
        generation: int | None = None,
    ) -> None:
        self.what = what
        self.why = why
        self.do = do
        self.pipeline = pipeline
        self.participant = participant
        self.epoch = epoch
        self.generation = generation
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The whole message, as the user reads it: what, why, what to do."""
        lines = [self.what]
        if self.why:
            lines.append(f"  Why: {self.why}")
        if self.do:
            lines.append(f"  Do:  {self.do}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.message}\n  {self.record()}" if self._is_crossing else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: value for name, value in self.__dict__.items() if name != "_is_crossing"}
        return (_restore, (type(self), fields))

    def record(self) -> str:
        """Return the error as one line: kind and fields as JSON, the short ones first, for a line may be cut."""
        fields = {name: value for name in _FIELDS if (value := getattr(self, name, None)) not in (None, "", False)}
        # In ASCII: no encoding, and nothing that takes some other character for the end of a line, can spoil it.
        kind = next((each.__name__ for each in type(self).__mro__ if each.__name__ in KINDS), type(self).__name__)
        return f"{MARKER}{json.dumps({'kind': kind, **fields}, default=str)}"


class InvalidPipeline(HoldfastError):
    """The graph, an argument or a permission is wrong: change it.  Nearly always raised before a run starts."""


class BadRow(HoldfastError):
    """A row of the input cannot be read with the declared schema, or a sink refuses it: leave it out
    (``on_bad_row="reject"`` at the source, a filter before the sink), or let it pass.
    """

    is_decided: bool = False
    """Whether the row's epoch is decided: rows can be left out of it only by ``resolve --reject-rows``."""

    is_isolated_later: bool = False
    """Whether it comes from a run that isolates rows: some starts later the row is left out."""

    is_mended_by_start: bool = False
    """Whether the run has mended what the row was refused for: the next start takes it."""

    new_columns: str = ""
    """Columns that its schema lacks, in SQL's words, each in a line: the run adds them to :attr:`schema_file`.  With
    :attr:`is_mended_by_start` those that it has added."""

    schema_file: str = ""
    """The schema file of a source that lets the run add columns to it."""

    is_expected: bool = False
    """Whether an expectation of the user's stops the epoch: no row of it is left out by itself."""


class Unavailable(HoldfastError):
    """A system did not answer and nothing was changed there: it is safe to try again."""


class Fenced(HoldfastError):
    """A newer generation owns the pipeline: this run must stop and has changed nothing."""


class InDoubt(HoldfastError):
    """It is unknown here whether an epoch is visible in a sink: ask the sink (resolve); delete nothing."""


class Diverged(HoldfastError):
    """A sink and the ledger contradict each other: a person decides."""

    is_mended_by_start: bool = False
    """Whether a sink went back under a live run: the next start replays what it lacks, or says why it cannot."""


class Corrupt(HoldfastError):
    """Stored bytes fail their checksum or cannot be read."""


class InternalError(HoldfastError):
    """An invariant of Holdfast does not hold: this is our bug, please report it with the log."""


def invariant(
    condition: object,
    what: str,
    *,
    why: str = "",
    pipeline: str = "",
    participant: str = "",
    epoch: int | None = None,
    generation: int | None = None,
    story: Callable[[], str] | None = None,
) -> None:
    """Stop with an :class:`InternalError` unless an invariant of Holdfast holds.

    Parameters
    ----------
    condition : object
        What must be true.
    what, why, pipeline, participant, epoch, generation
        Those of the error.
    story : callable, optional
        Returns what led here, oldest first: it goes below the error (``add_note``).

    Notes
    -----
    For our own promises, where they could first be seen broken; what others can do wrong has kinds of its own.  It
    stays on under ``python -O``, so it must be cheap: once for an epoch, a sink or a decision, never for a row.

    Examples
    --------
    >>> invariant(2 > 1, "two is not more than one.")
    >>> invariant(1 > 2, "one is not more than two.", why="it is less.", epoch=7)
    Traceback (most recent call last):
    ...
    holdfast.errors.InternalError: one is not more than two.
      Why: it is less.
      Do:  please report this with the log; starting the pipeline again is safe.
    """
    if condition:
        return
    error = InternalError(
        what,
        why=why,
        do=REPORT,
        pipeline=pipeline,
        participant=participant,
        epoch=epoch,
        generation=generation,
    )
    if story is not None and (text := story()):
        error.add_note(text)
    raise error


def present(value: T | None, what: str, *, why: str = "", pipeline: str = "", epoch: int | None = None) -> T:
    """Return a value that an invariant of Holdfast promises; stop with an :class:`InternalError` where it is None.

    Parameters
    ----------
    value : object, optional
        The value.
    what, why, pipeline, epoch
        As for :func:`invariant`.

    Examples
    --------
    >>> present(7, "there is no number.")
    7
    """
    invariant(value is not None, what, why=why, pipeline=pipeline, epoch=epoch)
    return cast("T", value)


STATE = "@state"
"""Participant of the ``Corrupt`` that says that state in Spark's directory cannot be read: a snapshot mends it."""

KINDS: dict[str, type[HoldfastError]] = {
    kind.__name__: kind
    for kind in (InvalidPipeline, BadRow, Unavailable, Fenced, InDoubt, Diverged, Corrupt, InternalError)
}


def _restore(kind: type[HoldfastError], fields: dict[str, Any]) -> HoldfastError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    Exception.__init__(error, error.message)
    return error


_FIELDS: dict[str, type] = {
    "pipeline": str,
    "participant": str,
    "epoch": int,
    "generation": int,
    "errno": int,
    "is_decided": bool,
    "is_expected": bool,
    "is_isolated_later": bool,
    "is_mended_by_start": bool,
    "is_of_timer": bool,
    "new_columns": str,
    "schema_file": str,
    "what": str,
    "do": str,
    "why": str,
}
"""What a record says of an error besides its kind, in this order."""


@contextmanager
def crossing() -> Iterator[None]:
    """Let an error of ours that leaves the block say its fields in its text: the way on is for texts only.

    Around all that Spark calls in a worker or a planning process.
    """
    try:
        yield
    except HoldfastError as error:
        error._is_crossing = True
        raise


def from_text(text: str) -> HoldfastError | None:
    r"""Find a Holdfast error again in a text that went through the JVM.

    Parameters
    ----------
    text : str
        A traceback or a JVM message, with whatever Spark has put around it.

    Returns
    -------
    HoldfastError or None
        The last one that is recorded (of a chain: the one that was raised last); None when there is none.  What a cut
        record lacks, or all where none is left, is taken from where the error is printed for people, as
        ``...errors.<Kind>: <what>``: without its fields.

    Examples
    --------
    >>> text = f"PythonException: ...\n  {Fenced('generation 3 is fenced', why='4 started').record()}\n\tat org.apache"
    >>> error = from_text(text)
    >>> type(error).__name__, error.what, error.why
    ('Fenced', 'generation 3 is fenced', '4 started')
    """
    records = [record for record in _records(text) if record.fields.get("kind") in KINDS]
    printed = _printed(text)
    if not records:
        return None if printed is None else _make(printed)
    fields = records[-1].fields
    if not records[-1].is_whole and printed is not None and printed["kind"] == fields["kind"]:
        fields = {**printed, **fields}
    return _make(fields) if "what" in fields else None


def without_records(text: str) -> str:
    r"""Return a text as people read it: without the lines that are for :func:`from_text`.

    Examples
    --------
    >>> without_records(f"Fenced: stop\n  {Fenced('stop').record()}\n  at the end")
    'Fenced: stop\n  at the end'
    """
    kept, at = [], 0
    for record in _records(text):
        kept.append(text[at : record.start].rstrip(" \t").removesuffix("\n"))
        at = record.end
    return "".join([*kept, text[at:]])


@dataclass(frozen=True)
class _Record:
    """A record in a text: its place, and its fields; of a truncated one, those that are complete."""

    start: int
    end: int
    fields: dict[str, Any]
    is_whole: bool


_DECODER = json.JSONDecoder()
_WHOLE_FIELD = re.compile(r'[{,] ?"(\w+)": ("(?:[^"\\]|\\.)*"|-?\d+|true)(?=[,}])')


def _records(text: str) -> Iterator[_Record]:
    start = text.find(MARKER)
    while start >= 0:
        begin = start + len(MARKER)
        try:
            fields, end = _DECODER.raw_decode(text, begin)
            found = _Record(start, end, fields if isinstance(fields, dict) else {}, is_whole=True)
        except ValueError:
            end = begin + len(text[begin:].partition("\n")[0])
            whole = _WHOLE_FIELD.finditer(text, begin, end)
            found = _Record(start, end, {field[1]: json.loads(field[2]) for field in whole}, is_whole=False)
        yield found
        start = text.find(MARKER, end)


def _printed(text: str) -> dict[str, Any] | None:
    """Return kind and parts of the last error that is printed in a text."""
    found: dict[str, Any] | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        _, marker, rest = line.partition("holdfast.errors.")
        name, colon, what = rest.partition(": ")
        if not marker or not colon or name not in KINDS:
            continue
        parts = {"Why": "", "Do": ""}
        for follower in lines[number + 1 : number + 3]:
            label, separator, value = follower.strip().partition(":")
            if not separator or label not in parts:
                break
            parts[label] = value.strip()
        found = {"kind": name, "what": what, "why": parts["Why"], "do": parts["Do"]}
    return found


def _make(fields: dict[str, Any]) -> HoldfastError:
    error = KINDS[fields["kind"]](str(fields.get("what", "")))
    for name, kind in _FIELDS.items():
        if type(fields.get(name)) is kind:
            setattr(error, name, fields[name])
    error.args = (error.message,)
    return error
