"""What is said on the socket of a live run: lines of JSON, a request and then its answers.

A request names a command and has an id that its caller made; it may be sent again under the same id, to the same run or
to the next, and is carried out once.  Answers: ``accepted``; ``progress``, any number; then ``done`` or ``failed``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from holdfast.errors import HoldfastError, InvalidPipeline, from_text


class CallerGone(OSError):
    """Who has told the run something does not hear the answer any more."""


VERSION = 1
LINE_MAX = 1 << 24
"""Bytes of a request: a token has a position for each segment of a source, and may be given back."""

SAMPLE_MAX = 1_000
"""Rows that a call shows at most."""
SAMPLE_S = 10.0
"""So long a call waits for rows where it does not say."""

_TOO_LONG = f"it has more than {LINE_MAX:,} bytes"

Progress = Callable[[Mapping[str, Any]], None]
"""Tells the caller how far a command is; raises :class:`CallerGone` where it has gone."""


Command = Callable[["SteerRequest", Progress], Mapping[str, Any]]
"""Carries a command out; returns what its caller is told."""


@dataclass(frozen=True)
class SteerRequest:
    """One command.

    Parameters
    ----------
    id : str
        Made by the caller.
    command : str
        Its name.
    arguments : mapping
        As JSON has them.
    """

    id: str
    command: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return an argument that is a list of texts; empty where it is not given.

        Raises
        ------
        InvalidPipeline
            If it is something else.
        """
        found = self.arguments.get(name) or []
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise wrong_request(f"{name} is no list of names")
        return tuple(found)

    def text(self, name: str) -> str:
        """Return an argument that is a text; empty where it is not given.

        Raises
        ------
        InvalidPipeline
            If it is something else.
        """
        found = self.arguments.get(name) or ""
        if not isinstance(found, str):
            raise wrong_request(f"{name} is no text")
        return found

    def number(self, name: str) -> int:
        """Return an argument that is a whole number; 0 where it is not given.

        Raises
        ------
        InvalidPipeline
            If it is something else.
        """
        found = self.arguments.get(name) or 0
        if not isinstance(found, int) or isinstance(found, bool):
            raise wrong_request(f"{name} is no whole number")
        return found


def wrong_request(why: str) -> InvalidPipeline:
    """Return the error of a request that is none."""
    return InvalidPipeline(
        "the run was told something that it does not understand.",
        why=f"{why}.",
        do="use holdfast.attach or the commands of this version of Holdfast.",
    )


def to_line(value: Mapping[str, Any]) -> bytes:
    """Return a JSON value as a line."""
    return json.dumps(value, separators=(",", ":"), default=str).encode() + b"\n"


def request_line(request: SteerRequest) -> bytes:
    r"""Return a request as a line.

    Examples
    --------
    >>> request_line(SteerRequest("7", "pause", {"sources": ["rides"]}))
    b'{"protocol":1,"id":"7","command":"pause","arguments":{"sources":["rides"]}}\n'
    """
    said = {"id": request.id, "command": request.command, "arguments": dict(request.arguments)}
    line = to_line({"protocol": VERSION, **said})
    if len(line) > LINE_MAX:
        raise wrong_request(_TOO_LONG)
    return line


def read_request(line: bytes) -> SteerRequest:
    """Return the request of a line.

    Raises
    ------
    InvalidPipeline
        If it is none, or of a later version.
    """
    if len(line) > LINE_MAX:
        raise wrong_request(_TOO_LONG)
    try:
        said = json.loads(line)
        version, named, arguments = said["protocol"], (said["id"], said["command"]), said.get("arguments", {})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise wrong_request("it is no request in JSON") from None
    if version != VERSION:
        raise wrong_request(f"it is of version {version!r} of the protocol, and this run speaks {VERSION}")
    if not all(isinstance(each, str) and each for each in named) or not isinstance(arguments, dict):
        raise wrong_request("id, command or arguments are not what they should be")
    return SteerRequest(*named, arguments)


def failure(error: HoldfastError) -> dict[str, Any]:
    """Return the answer to a request that was not carried out, or of which that is not known."""
    return {"answer": "failed", "error": error.record()}


def read_answers(file: BinaryIO, tell: Progress) -> Mapping[str, Any]:
    """Read answers up to the last; return what a command that is done says.

    Raises
    ------
    HoldfastError
        Why it was not carried out.
    EOFError
        If the run has gone before it said so.
    """
    while line := file.readline():
        said = json.loads(line)
        if said["answer"] == "progress":
            tell(said["said"])
        elif said["answer"] == "failed":
            raise from_text(said["error"]) or wrong_request("its error cannot be read")
        elif said["answer"] == "done":
            found: Mapping[str, Any] = said["said"]
            return found
    raise EOFError
