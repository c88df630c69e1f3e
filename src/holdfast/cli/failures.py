"""How a command ends when it cannot do what it was asked: one message, one exit code.

====  =====================================================================
code  meaning
====  =====================================================================
0     done
1     failed: the message says what to do
2     wrong usage, or a wrong pipeline: change the command or the code
3     fenced: a newer generation owns the pipeline
4     in doubt or diverged: resolve, or a person decides
5     a signal asked for a stop, and the start or the epoch could not be finished: start again
130   SIGINT a second time (128 + its number)
143   SIGTERM a second time
====  =====================================================================
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from holdfast.errors import Diverged, Fenced, HoldfastError, InDoubt, InternalError, InvalidPipeline, from_text
from holdfast.masking import masked, masked_json
from holdfast.observe.logs import FILE_ONLY

OK, FAILED, INVALID, FENCED, UNDECIDED, STOPPED_EARLY = 0, 1, 2, 3, 4, 5


class StoppedEarly(HoldfastError):
    """A stop that was asked for ended in the middle of a start or an epoch: start again whenever it suits."""


_CODES: dict[type[HoldfastError], int] = {
    StoppedEarly: STOPPED_EARLY,
    InvalidPipeline: INVALID,
    Fenced: FENCED,
    InDoubt: UNDECIDED,
    Diverged: UNDECIDED,
}

_log = logging.getLogger(__name__)


def exit_code(error: HoldfastError) -> int:
    """Return the exit code for an error, by its kind."""
    return _CODES.get(type(error), FAILED)


@contextmanager
def reported(*, as_json: bool, log_file: Path | None = None) -> Iterator[None]:
    """Turn an error of the block into one message and an exit code; its traceback goes to the log only.

    Parameters
    ----------
    as_json : bool
        Report the error as one JSON object on stdout instead of words on stderr.
    log_file : Path, optional
        The log, for the message to name it.

    Raises
    ------
    typer.Exit
        With the code, after the report.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, typer.Exit | typer.Abort) or _is_usage(error):
            raise
        if isinstance(error, KeyboardInterrupt):
            sys.stderr.write("interrupted; if something is in doubt now, the next start resolves it.\n")
            raise typer.Exit(130) from None
        failure = as_failure(error, log_file)
    else:
        return
    _log.error("%s", failure.message, exc_info=failure, extra={FILE_ONLY: True})
    report(failure, as_json=as_json, log_file=log_file)
    raise typer.Exit(exit_code(failure))


def report(error: HoldfastError, *, as_json: bool, log_file: Path | None = None) -> None:
    """Write an error for its reader: words on stderr, or a JSON object on stdout."""
    if as_json:
        sys.stdout.write(json.dumps({"error": as_object(error)}, ensure_ascii=False) + "\n")
        sys.stdout.flush()
        return
    lines = [f"{type(error).__name__}: {error.message}"]
    lines += [f"  {line}" for note in getattr(error, "__notes__", ()) for line in str(note).splitlines()]
    if log_file is not None:
        lines.append(f"  Log: {log_file}")
    sys.stderr.write(masked("\n".join(lines)) + "\n")


def as_object(error: HoldfastError) -> dict[str, Any]:
    """Return an error as a JSON value: kind, the three parts of the message, what it concerns, story, exit code."""
    answer: dict[str, Any] = masked_json(
        {
            "kind": type(error).__name__,
            "what": error.what,
            "why": error.why,
            "do": error.do,
            "pipeline": error.pipeline,
            "participant": error.participant,
            "epoch": error.epoch,
            "generation": error.generation,
            "story": [str(note) for note in getattr(error, "__notes__", ())],
            "exit_code": exit_code(error),
        }
    )
    return answer


def as_failure(error: Exception, log_file: Path | None = None) -> HoldfastError:
    """Return an error as one of ours: itself, the one that it carries, or one that says where to look."""
    if isinstance(error, HoldfastError):
        return error
    ours = from_text(str(error))
    if ours is None:
        where = f"the log, {log_file}" if log_file else "HOLDFAST_LOG_LEVEL=DEBUG"
        ours = InternalError(
            f"unforeseen {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
            why="This error is not known to Holdfast.",
            do=f"{where} shows the traceback; if no code of yours is in it, please report it.",
        )
    ours.__cause__ = error
    return ours


def _is_usage(error: BaseException) -> bool:
    # Click's errors print and exit by themselves; typer has a copy of click, so they are recognised by shape.
    return hasattr(error, "exit_code") and hasattr(error, "format_message")
