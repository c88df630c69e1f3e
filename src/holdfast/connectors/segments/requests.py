"""Requests to seal segments now: small files that anybody may put beside a manifest, and the run that is alive obeys.

Nothing depends on them but when a segment is sealed: one that is lost, or obeyed twice, changes no row.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.connectors.segments.places import OWN_DIRECTORY
from holdfast.errors import InvalidPipeline
from holdfast.store import durable


@dataclass(frozen=True)
class FlushRequest:
    """Somebody's wish that segments be sealed; of these partitions, or None for all."""

    path: str
    partitions: tuple[str, ...] | None


def ask(own: str, partitions: Iterable[str] | None = None) -> FlushRequest:
    """Ask whoever writes the sink with this directory of its own to seal what grows."""
    names = None if partitions is None else tuple(partitions)
    directory = os.path.join(own, "flush")
    path = os.path.join(directory, f"{uuid.uuid4().hex}.json")
    with durable.explained(f"writing {path}"):
        durable.make_directory(directory)
        durable.create(path, json.dumps(names).encode(), aside=os.path.join(own, "writing"))
    return FlushRequest(path, names)


def pending(own: str) -> list[FlushRequest]:
    """Return the requests that nobody has obeyed: what cannot be read is one for all partitions."""
    directory = os.path.join(own, "flush")
    found = []
    with suppress(OSError):
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            with suppress(FileNotFoundError):  # somebody else has obeyed it
                found.append(FlushRequest(path, _partitions(path)))
    return found


def _partitions(path: str) -> tuple[str, ...] | None:
    try:
        with open(path, "rb") as file:
            names = json.load(file)
    except ValueError:
        return None
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def wanted(requests: Sequence[FlushRequest]) -> set[str] | None:
    """Return the partitions that are asked for; None for all."""
    if any(request.partitions is None for request in requests):
        return None
    return {partition for request in requests for partition in request.partitions or ()}


def obeyed(requests: Iterable[FlushRequest]) -> None:
    """Remove requests: what they wanted is sealed."""
    for request in requests:
        with suppress(OSError):
            os.unlink(request.path)


def flush(
    path: str | os.PathLike[str], partitions: Iterable[str] | None = None, *, pipeline: str, sink: str
) -> FlushRequest:
    """Ask the run that writes a directory of ``hf.write.segments`` to seal what grows, at the end of an epoch.

    Returns at once.  Where no run is alive, the next one obeys.

    Parameters
    ----------
    path : str or path
        The sink's directory.
    partitions : iterable of str, optional
        Directories of partitions (``"origin=JFK"``); by default all.
    pipeline, sink : str
        Their names.

    Raises
    ------
    InvalidPipeline
        If that sink has written nothing there.

    Examples
    --------
    ::

        hf.segments.flush("out/flights", ["origin=JFK"], pipeline="flights", sink="flights")
    """
    directory = durable.local_directory(path, "segments.flush")
    own = os.path.join(directory, OWN_DIRECTORY, pipeline, sink)
    if not os.path.isdir(os.path.join(own, "manifest")):
        raise InvalidPipeline(
            f"Sink {sink!r} of pipeline {pipeline!r} has written no segments to {directory}.",
            why=f"there is no manifest in {own}.",
            do="name the directory, the pipeline and the sink as the program does.",
            participant=sink,
        )
    return ask(own, partitions)
