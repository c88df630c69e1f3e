"""Spark's failures as our errors: one readable message for the user, the JVM's trace for the log."""

from __future__ import annotations

import logging
import re
import traceback
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, PythonException

from holdfast.errors import (
    STATE,
    BadRow,
    Corrupt,
    HoldfastError,
    InternalError,
    InvalidPipeline,
    Unavailable,
    from_text,
)
from holdfast.spark import private

log = logging.getLogger("holdfast.spark")

LINE_MAX = 340
"""Characters of a line of Spark's that are quoted, with its condition."""

# SQLSTATE classes of Spark: a value that an expression cannot take, or that raise_error refuses; an expression that
# cannot be resolved, or a function of the user that raised.
_BAD_VALUE = ("22", "P0001")
_BAD_EXPRESSION = ("42", "39")
_PREFIX = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?=[A-Z]\w*(?:Error|Exception): )")


def translate(error: BaseException, pipeline: str, doing: str) -> HoldfastError:
    """Return the Holdfast error that stands for a failure of Spark.

    Parameters
    ----------
    error : BaseException
        What PySpark raised; its text may hold the text of an error of ours that was raised in a worker.
    pipeline : str
        Name of the pipeline.
    doing : str
        What was being done, for the message: ``"epoch 7"``.

    Notes
    -----
    The whole text is logged at DEBUG here and at ERROR when the run ends.
    """
    if isinstance(error, HoldfastError):
        return error
    text = _text(error)
    log.debug("%s of pipeline %r failed: %s", doing, pipeline, text)
    ours = from_text(text)
    if ours is not None:
        ours.pipeline = ours.pipeline or pipeline
        ours.__cause__ = error
        return ours
    if is_jvm_gone(error):
        return _jvm_gone(error, pipeline, doing)
    failed = _Failed.of(error, text)
    kind: type[HoldfastError] = InternalError
    why = summary(text)
    do = "see the log for Spark's trace; report it if the cause is not in your pipeline."
    participant, number = "", None
    if any(sign in text for sign in private.LOST):
        kind, do = Unavailable, "nothing was changed: it is retried; see the executor's log if it persists."
    elif signs := [sign for sign in private.DISK if sign in text]:
        kind, do = Unavailable, "free space on the disk of the checkpoint, then start again: nothing is lost."
        why = why if signs[0] in why else f"{why} ({signs[0]})"
        number = private.DISK[signs[0]]
    elif lost_state := failed.message_of(private.STATE_IS_LOST):
        kind, participant, why, do = (
            Corrupt,
            STATE,
            lost_state,
            "restore the checkpoint from a copy: what follows would be wrong without its state; or empty the targets "
            "and their holdfast_ledger rows (files: the _holdfast directory), and start over with a new checkpoint.",
        )
    elif failed.has_state(_BAD_VALUE):
        kind, do = (
            BadRow,
            "correct the row, leave it out with a filter before, or let the expression accept it (try_...).",
        )
    elif isinstance(error, AnalysisException | PythonException) or failed.is_users():
        kind, do = (
            InvalidPipeline,
            "correct the expression or function that it names, or leave such rows out by a filter before it.",
        )
    translated = kind(f"Spark failed in {doing} of pipeline {pipeline!r}.", why=why, do=do, pipeline=pipeline)
    translated.participant, translated.errno = participant, number
    translated.__cause__ = error
    return translated


def is_too_large(error: BaseException) -> bool:
    """Tell whether Spark refused to bring an epoch to the driver because of its size."""
    return private.TOO_LARGE in _text(error)


def is_worker_lost(error: BaseException) -> bool:
    """Return whether Spark reports that a Python worker died: of its input, or killed from outside."""
    return private.WORKER_DIED in _text(error)


def is_jvm_gone(error: BaseException) -> bool:
    """Return whether the JVM stopped answering: a connection that py4j itself, not a user's function, found broken.

    Where the connection breaks while a call is under way, py4j raises its plain error without what any answer of a JVM
    has, an exception or a trace: ``get_return_value`` of ``py4j/protocol.py``, 0.10.
    """
    frames = traceback.extract_tb(error.__traceback__)
    is_from_py4j = bool(frames) and "py4j" in frames[-1].filename
    if type(error) is Py4JError:
        return is_from_py4j and str(error).startswith("An error occurred while calling ") and "Trace:" not in str(error)
    return isinstance(error, Py4JNetworkError) or (isinstance(error, ConnectionError | EOFError) and is_from_py4j)


def _jvm_gone(error: BaseException, pipeline: str, doing: str) -> HoldfastError:
    gone = Unavailable(
        f"Spark's JVM has died in {doing} of pipeline {pipeline!r}.",
        why=f"it does not answer any more ({type(error).__name__}): it was killed, or ran out of memory.",
        do="start again: the next run asks every sink first. If it happens again, check the system's log for the "
        "out-of-memory killer, and raise HOLDFAST_DRIVER_MEMORY.",
        pipeline=pipeline,
    )
    gone.__cause__ = error
    return gone


def _text(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__name__}: {error}"


@dataclass(frozen=True)
class _Failed:
    """Conditions and classes of a failure: from the exceptions of the JVM; from its text where they have none."""

    conditions: tuple[str, ...]
    sql_states: tuple[str, ...]
    classes: tuple[str, ...]
    texts: tuple[str, ...]

    @staticmethod
    def of(error: BaseException, text: str) -> _Failed:
        chain = [each for each in private.throwables(error) if each.condition not in private.AROUND]
        classes = tuple(each.java_class for each in chain)
        texts = (text, *(each.message for each in chain))
        if any(each.condition for each in chain):
            conditions, states = ([each.condition for each in chain], [each.sql_state for each in chain])
        else:  # a task that ended because another one failed, or the text of a Python process
            found = private.IN_TEXTS.findall(text)
            conditions, states = ([condition for condition, _ in found], [state for _, state in found])
            if private.PYTHON_EXCEPTION_CLASS in text:
                conditions.append(private.PYTHON_EXCEPTION)
        return _Failed(tuple(filter(None, conditions)), tuple(filter(None, states)), classes, texts)

    def message_of(self, conditions: tuple[str, ...]) -> str:
        """Return the line that has one of some conditions, or of those below them; empty where there is none."""
        for found in self.conditions:
            if found.startswith(conditions):
                lines = [line for text in self.texts for line in text.splitlines() if f"[{found}]" in line]
                return (lines[0][lines[0].index(f"[{found}]") :] if lines else found)[:LINE_MAX]
        return ""

    def has_state(self, prefixes: tuple[str, ...]) -> bool:
        """Tell whether a SQLSTATE of the failure is of one of some classes."""
        return any(state.startswith(prefixes) for state in self.sql_states)

    def is_users(self) -> bool:
        """Tell whether the pipeline's own code failed, and would fail again."""
        is_named = any(of == private.PYTHON_EXCEPTION or of.startswith("INVALID") for of in self.conditions)
        return is_named or private.PYTHON_EXCEPTION_CLASS in self.classes or self.has_state(_BAD_EXPRESSION)


def summary(text: str) -> str:
    """Return the most specific line: the last Python exception of a worker's trace, else the first line.

    The first line of an error of Spark SQL is followed by the expression that it is about.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, colon, _ = line.partition(": ")
        if colon and name.replace(".", "").isidentifier() and name.endswith(("Error", "Exception")) and "." not in name:
            return line[:400]
    first = private.OF_THE_STREAM.sub(r"\1", lines[0]) if lines else ""
    first = _PREFIX.sub("", first)[:400]
    context = private.EXPRESSION.search(text)
    return f"{first} In: {context[1].strip()[:200]}" if context else first
