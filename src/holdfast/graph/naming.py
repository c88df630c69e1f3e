"""Names of nodes: which are allowed, how one is derived where there is none, and which line built a node.

A derived name is the same in every run of the same program.  It is a function of the kind and of what the node is:

- of an operator, its arguments and its inputs' names (its place);
- of a source or sink, only *where* it reads or writes (path, table).  A limit that is tuned or a filter that is
  fixed upstream must not change the name of a sink: its ledger is kept under the name, and a sink that
  does not find its ledger cannot know which epochs it holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType
from typing import Any

from holdfast.errors import InternalError, InvalidPipeline
from holdfast.store import durable

NAME_LENGTH_MAX = 60
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")  # Spark allows its sources no other names

_WHERE = ("path", "paths", "database", "host", "port", "dsn", "schema", "table", "target", "topic", "directory", "url")
"""Arguments of a source or sink that say where it reads or writes; everything else is tuning."""

_LOCAL = ("path", "directory")
"""Those of them that are local paths, unless they are URLs."""


@dataclass(frozen=True)
class Origin:
    """Place in the user's code that built a node.

    Parameters
    ----------
    file : str
        File name, relative to the working directory if it is below it.
    line : int
        Line number; 0 when unknown.
    scope : str
        Qualified name of the function, ``<module>`` outside of any.
    """

    file: str
    line: int
    scope: str = "<module>"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def origin() -> Origin:
    """Return the innermost place on the stack outside Holdfast."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    if frame is None:
        return Origin("<unknown>", 0)
    return Origin(_show(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_qualname)


def _is_ours(frame: FrameType) -> bool:
    # By module and not by file: the constructor that a dataclass generates has no file of its own.
    module = frame.f_globals.get("__name__", "")
    return module == "holdfast" or str(module).startswith("holdfast.")


def _show(filename: str) -> str:
    if filename.startswith("<"):
        return filename
    try:
        relative = os.path.relpath(filename)
    except (ValueError, OSError):  # another drive; a working directory that is gone
        return filename
    return filename if relative.startswith("..") else relative


def checked_name(name: str | None, *, of: str, built_at: Origin) -> str | None:
    """Return the user's name if it is allowed.

    Raises
    ------
    InvalidPipeline
        If it is not a letter followed by at most 59 letters, digits and underscores.
    """
    if name is None or (isinstance(name, str) and len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name)):
        return name
    proposal = re.sub(r"\W+", "_", str(name), flags=re.ASCII).strip("_")[:NAME_LENGTH_MAX]
    if not _NAME.fullmatch(proposal):
        proposal = f"my_{of}"
    raise InvalidPipeline(
        f"name={name!r} of the {of} built at {built_at} is not allowed.",
        why=f"a name is a letter followed by letters, digits and underscores, {NAME_LENGTH_MAX} characters at most.",
        do=f'write for instance name="{proposal}".',
    )


def derived_name(kind: str, arguments: Mapping[str, Any], place: Sequence[str] = ()) -> str:
    """Return a name for a node without one: ``<kind>_<six hexadecimal digits>``.

    Examples
    --------
    >>> derived_name("filter", {"condition": "a > 1"}, ["flights"])
    'filter_7d2bed'
    """
    digest = hashlib.sha256(canonical_json([kind, arguments, list(place)]).encode()).hexdigest()
    return f"{kind[: NAME_LENGTH_MAX - 7]}_{digest[:6]}"


def where(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that say where a source or sink reads or writes.  Empty when there is no such place.

    A local path has one spelling here: a name that followed the user's would make another sink of the same file.
    """
    found = {name: arguments[name] for name in _WHERE if arguments.get(name) is not None}
    return {name: _one_spelling(value) if name in _LOCAL else value for name, value in found.items()}


def local_paths(arguments: Mapping[str, Any]) -> list[str]:
    """Return the local paths among the arguments of a source or sink, in one spelling."""
    paths = [arguments[name] for name in _LOCAL if isinstance(arguments.get(name), str)]
    return [str(_one_spelling(path)) for path in paths if durable.local_path(path) is not None]


def _one_spelling(path: Any) -> Any:
    if not isinstance(path, str) or (local := durable.local_path(path)) is None:
        return path
    return os.path.abspath(os.path.expanduser(local))


def extended(name: str, suffix: str) -> str:
    """Return ``name_suffix``, cut at its beginning's end where it would be too long."""
    room = NAME_LENGTH_MAX - len(suffix) - 1
    if len(name) <= room:
        return f"{name}_{suffix}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: room - 7]}_{digest}_{suffix}"


def canonical_json(value: Any) -> str:
    """Return JSON text that is equal for equal values.

    Raises
    ------
    InternalError
        If ``arguments()`` of a spec returned something that is not a JSON value.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except (TypeError, ValueError) as error:
        raise InternalError(
            f"arguments for the fingerprint are no JSON values: {error}.",
            do="if the spec is your own, return only text, numbers, booleans, lists and mappings from arguments().",
        ) from error


def callable_text(function: Callable[..., Any]) -> str:
    """Return a text for a function that changes when its code does: qualified name and hash of the code.

    Values that the function closes over, its defaults and the arguments of a ``partial`` count where they are plain
    (text, numbers, booleans, tuples of such).  The hash is of byte code: another Python version produces another one.
    """
    digest = hashlib.sha256(canonical_json(_describe(function)).encode()).hexdigest()
    return f"{_qualified_name(function)}#{digest[:8]}"


def _qualified_name(function: Callable[..., Any]) -> str:
    if isinstance(function, partial):
        return f"partial({_qualified_name(function.func)})"
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _describe(function: Any) -> Any:
    if isinstance(function, partial):
        plain = {name: _plain(value) for name, value in function.keywords.items()}
        return [_describe(function.func), [_plain(value) for value in function.args], plain]
    function = getattr(function, "__func__", function)  # a bound method
    code = getattr(function, "__code__", None)
    if code is None:
        return [getattr(function, "__module__", ""), _qualified_name(function)]
    closed_over = [_plain(_cell_value(cell)) for cell in function.__closure__ or ()]
    return [_code(code), closed_over, [_plain(value) for value in function.__defaults__ or ()]]


def _cell_value(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _code(code: CodeType) -> Any:
    constants = [_code(constant) if isinstance(constant, CodeType) else _plain(constant) for constant in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


def _plain(value: Any) -> Any:
    """Return a value as JSON that does not vary between processes; of anything but plain values only the type."""
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(canonical_json(_plain(item)) for item in value)  # their own order varies with the hash seed
    if callable(value) and hasattr(value, "__code__"):
        return _qualified_name(value)
    return type(value).__qualname__
