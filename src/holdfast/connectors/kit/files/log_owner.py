"""Whether a run still owns the log of a sink on a file system: the last entry says which generation does."""

from __future__ import annotations

from holdfast.errors import Diverged, Fenced
from holdfast.ports import Held


def check_owner(sink: str, pipeline: str, ours: int, last: Held, *, what: str, place: str, holder: str) -> None:
    """Stop a run that does not own a log any more.

    Parameters
    ----------
    sink, pipeline : str
        Whose log it is.
    ours : int
        Generation of the run, which has opened the sink.
    last : Held
        What the last entry says.
    what, place, holder : str
        What the log is called, where it lies, and what holds the epochs, for errors.

    Raises
    ------
    Fenced
        If a higher generation has opened the sink.
    Diverged
        If the entries of this run are gone.
    """
    if last.generation > ours:
        raise fenced(sink, pipeline, ours, last)
    if last.generation < ours:
        raise Diverged(
            f"The {what} of sink {sink!r} does not hold generation {ours}, which wrote to it.",
            why=f"somebody removed or replaced {place}.",
            do=f"restore it from a copy; without it, which epochs the {holder} is unknown.",
            pipeline=pipeline,
            participant=sink,
            generation=ours,
        )


def fenced(sink: str, pipeline: str, generation: int, last: Held) -> Fenced:
    """Return the error of a generation that may not write: a higher one has opened the sink."""
    return Fenced(
        f"Generation {generation} of pipeline {pipeline!r} may not write to sink {sink!r}.",
        why=f"generation {last.generation} has opened it.",
        do="stop this run: another one has taken over.",
        pipeline=pipeline,
        participant=sink,
        epoch=last.epoch,
        generation=last.generation,
    )
