"""Where log records go: short lines to stderr, everything with its traceback to a rotating file in the checkpoint.

No secret reaches either: a filter on both masks message, arguments and traceback of every record, whatever logged it.
A log that cannot be written (disk full, stderr closed) never stops a run.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler, WatchedFileHandler
from pathlib import Path
from typing import cast

from holdfast.errors import InvalidPipeline, without_records
from holdfast.masking import masked
from holdfast.store import durable

FILE_NAME = "holdfast.log"
FILE_BYTES = 10_000_000
"""Size at which the file is set aside; with :data:`FILES_KEPT` at most 60 MB stay."""
FILES_KEPT = 5

FILE_ONLY = "holdfast_file_only"
"""Attribute of records (``extra=``) that repeat what stderr shows anyway: shown there at DEBUG only."""

# py4j logs every closing connection, and errors of calls that are reported anyway; kafka-python every connection, and
# dozens of errors a second while a broker is away: that it is asked again, or does not answer, we say ourselves.
QUIET: dict[str, int] = {
    "py4j": logging.ERROR,
    "pyspark": logging.WARNING,
    "asyncio": logging.WARNING,
    "kafka": logging.CRITICAL,
}
"""Loggers of others, and the lowest level that is worth a line; lifted at level DEBUG."""


@contextmanager
def logging_to(
    file: Path | None, *, level: str = "INFO", as_json: bool = False, another_rotates: bool = False
) -> Iterator[None]:
    """Send the records of this process to stderr and, if given, to a file; afterwards everything is restored.

    Parameters
    ----------
    file : Path, optional
        The rotating file; its directory is created.  It takes INFO and above, or from ``level`` on when that is lower.
    level : str
        Lowest level on stderr.  Tracebacks appear on stderr at DEBUG only.
    as_json : bool
        One JSON object per line.
    another_rotates : bool
        Another process writes to the file too, and sets it aside when it is full: follow it to the new one.

    Raises
    ------
    InvalidPipeline
        If the file cannot be created: the checkpoint is not writable either.
    """
    lowest = logging.getLevelNamesMapping()[level]
    is_debug = lowest <= logging.DEBUG
    handlers: list[logging.Handler] = [_to_stderr(lowest, as_json, is_debug=is_debug)]
    if file is not None:
        handlers.append(_to_file(file, min(lowest, logging.INFO), as_json, another_rotates=another_rotates))
    root = logging.getLogger()
    before = (root.level, root.handlers[:], {name: logging.getLogger(name).level for name in QUIET})
    root.handlers[:] = handlers
    root.setLevel(min(handler.level for handler in handlers))
    for name, quiet in QUIET.items():
        logging.getLogger(name).setLevel(logging.NOTSET if is_debug else quiet)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.setLevel(before[0])
        root.handlers[:] = before[1]
        for name, loudness in before[2].items():
            logging.getLogger(name).setLevel(loudness)
        for handler in handlers:
            with suppress(OSError):  # a full disk refuses the last flush too
                handler.close()


def mask_record(record: logging.LogRecord) -> bool:
    """Cover the secrets in a record, its arguments and its traceback; a filter that lets every record pass."""
    try:
        text = record.getMessage()
    except Exception:  # a wrong format string must not let the arguments through unmasked
        text = f"{record.msg} {record.args!r}"
    record.msg, record.args = _readable(text), ()
    if record.exc_info and record.exc_info[0] is not None:
        # Kept as text and dropped as an object: every formatter that follows prints the masked text.
        record.exc_text = _readable("".join(traceback.format_exception(*record.exc_info)).rstrip())
        record.exc_info = None
    elif record.exc_text:
        record.exc_text = _readable(record.exc_text)
    if record.stack_info:
        record.stack_info = masked(record.stack_info)
    return True


def _readable(text: str) -> str:
    """Return a text without secrets, and without the parts for programs alone."""
    return masked(without_records(text))


class ShortFormatter(logging.Formatter):
    """``12:04:05 message``; the level where it is not INFO; no traceback unless asked for."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        trace = f"\n{record.exc_text}" if self._tracebacks and record.exc_text else ""
        return f"{at} {level}{record.getMessage()}{trace}"


class JsonFormatter(logging.Formatter):
    """One JSON object per record: at, level, logger, message, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
        entry = {
            "at": _utc(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_text:
            entry["traceback"] = record.exc_text
        return json.dumps(entry, ensure_ascii=False)


class FileFormatter(logging.Formatter):
    """Time in UTC, level, process, thread, logger, message, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line or lines."""
        head = f"{_utc(record)} {record.levelname:<7} {record.process} {record.threadName} {record.name}"
        rest = [part for part in (record.exc_text, record.stack_info) if part]
        return "\n".join([f"{head}: {record.getMessage()}", *rest])


def _utc(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class _Stderr:
    """Whatever ``sys.stderr`` is at the moment of writing: the live display puts itself there while it is on."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class _RotatingFile(RotatingFileHandler):
    """A log file that only its user can read: it has the output of users' functions."""

    def _open(self) -> TextIOWrapper:
        return _opened(self)


class _WatchedFile(WatchedFileHandler):
    """The same, rotated by another process."""

    def _open(self) -> TextIOWrapper:
        return _opened(self)


def _opened(handler: logging.FileHandler) -> TextIOWrapper:
    opened = open(  # noqa: SIM115
        handler.baseFilename, handler.mode, encoding=handler.encoding, opener=durable.private_opener
    )
    return cast("TextIOWrapper", opened)


def _to_stderr(level: int, as_json: bool, *, is_debug: bool) -> logging.Handler:
    formatter = JsonFormatter() if as_json else ShortFormatter(tracebacks=is_debug)
    handler = _arranged(logging.StreamHandler(_Stderr()), level, formatter)
    if not is_debug:
        handler.addFilter(lambda record: not getattr(record, FILE_ONLY, False) and not _is_of_py4j(record))
    return handler


def _is_of_py4j(record: logging.LogRecord) -> bool:
    """Tell whether py4j logs a call that failed, which is reported anyway; some it gives to the root logger."""
    return record.name == "root" and Path(record.pathname).parent.name == "py4j"


def _to_file(file: Path, level: int, as_json: bool, *, another_rotates: bool) -> logging.Handler:
    handler: logging.Handler
    try:
        durable.make_directory(str(file.parent.absolute()), is_synced=False)
        if another_rotates:
            handler = _WatchedFile(file, encoding="utf-8")
        else:
            handler = _RotatingFile(file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
    except OSError as error:
        raise InvalidPipeline(
            f"the checkpoint {str(file.parent)!r} cannot be written.",
            why=f"{error.strerror or error}: {str(file)!r}.",
            do="give this user the right to write there, free some space, or choose another --checkpoint.",
        ) from error
    return _arranged(handler, level, JsonFormatter() if as_json else FileFormatter())


def _arranged(handler: logging.Handler, level: int, formatter: logging.Formatter) -> logging.Handler:
    handler.setLevel(level)
    handler.setFormatter(formatter)
    handler.addFilter(mask_record)
    # logging's own answer to a full disk is a traceback on stderr for each record.
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    return handler
