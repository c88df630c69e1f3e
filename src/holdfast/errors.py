"""Every error a user of Holdfast can meet, by what they should do about it.

The tree, with the reaction each kind asks for::

    HoldfastError
    ├── InvalidPipeline   change the code or the arguments (raised while building, or before the run starts)
    ├── BadRow            mend the input, or choose on_bad_row="reject"
    ├── Unavailable       try again: a system that is needed did not answer, and nothing was changed
    ├── Fenced            stop: a newer generation owns this pipeline
    ├── InDoubt           resolve: an epoch may or may not be visible; delete nothing
    ├── Diverged          a person decides: a sink and the ledger contradict each other
    ├── Corrupt           restore: stored bytes fail their checksum or cannot be read
    └── InternalError     report: an invariant of Holdfast itself does not hold

Kinds follow the reaction, not the cause.  *Failed* is never merged with *unknown*: a connection that
breaks during COMMIT raises :class:`InDoubt`, never :class:`Unavailable`.

This module imports nothing of Holdfast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REPORT = "please report this with the log; starting the pipeline again is safe."
"""What to do about a bug of ours."""


class HoldfastError(Exception):
    """An error with its cause and its cure: what happened, why, and what to do.

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
    Survives pickling (executor to driver).  On the way through the JVM an error is cut down to its text:
    :func:`from_text` finds the kind and the three parts in such a text again.
    """

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
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (type(self), self.__dict__.copy()))


class InvalidPipeline(HoldfastError):
    """The graph, an argument or a permission is wrong: change it.  Nearly always raised before a run starts."""


class BadRow(HoldfastError):
    """A row of the input cannot be read with the declared schema, or a sink refuses it: mend it, or choose
    ``on_bad_row="reject"``.
    """

    is_decided: bool = False
    """Whether the row's epoch is decided: nothing can be left out of it any more but by ``resolve --reject-rows``."""


class Unavailable(HoldfastError):
    """A system did not answer and nothing was changed there: it is safe to try again."""


class Fenced(HoldfastError):
    """A newer generation owns the pipeline: this run must stop and has changed nothing."""


class InDoubt(HoldfastError):
    """Nobody here knows whether an epoch is visible in a sink: ask the sink (resolve); delete nothing."""


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
    if story is not None and (told := story()):
        error.add_note(told)
    raise error


KINDS: dict[str, type[HoldfastError]] = {
    kind.__name__: kind
    for kind in (InvalidPipeline, BadRow, Unavailable, Fenced, InDoubt, Diverged, Corrupt, InternalError)
}


def _restore(kind: type[HoldfastError], fields: dict[str, Any]) -> HoldfastError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    Exception.__init__(error, error.message)
    return error


def from_text(text: str) -> HoldfastError | None:
    r"""Find a Holdfast error again in a text that went through the JVM.

    Parameters
    ----------
    text : str
        A traceback or a JVM message; the error appears in it as ``...errors.<Kind>: <what>`` with its
        ``Why:`` and ``Do:`` lines behind it.

    Returns
    -------
    HoldfastError or None
        The last error the text names (the innermost cause of a chain is printed first, the one that was
        raised last), or None when it names none.

    Examples
    --------
    >>> error = from_text("...\nholdfast.errors.Fenced: generation 3 is fenced\n  Why: 4 started\n  Do:  stop")
    >>> type(error).__name__, error.what, error.why, error.do
    ('Fenced', 'generation 3 is fenced', '4 started', 'stop')
    """
    found: HoldfastError | None = None
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
        found = KINDS[name](what, why=parts["Why"], do=parts["Do"])
    return found
