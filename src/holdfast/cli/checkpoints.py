"""``holdfast checkpoint``: what there is to say of named checkpoints, and when one cannot be made from here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.checkpoint import named
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.snapshot import verify
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.observe.inspection import Inspection
from holdfast.observe.times import utc
from holdfast.ports import Store


def as_json(name: str, manifest: Manifest) -> dict[str, Any]:
    """Return what there is to say of a named checkpoint, as a JSON value."""
    operators = {
        operator: {"kind": of.keeps.kind, "rows": sum(f.rows for b in of.buckets.values() for f in b.files.values())}
        for operator, of in manifest.operators.items()
    }
    return {
        "name": name,
        "pipeline": manifest.pipeline,
        "epoch": manifest.ended.epoch,
        "at_us": manifest.at_us,
        "positions": {source: dict(segments) for source, segments in manifest.ended.positions.items()},
        "operators": operators,
        "rows": manifest.rows,
        "size_bytes": manifest.size_bytes,
        "problem": "",
    }


def listed(store: Store) -> list[dict[str, Any]]:
    """Return all named checkpoints; one that cannot be read says so."""
    found = []
    for name in named.names(store):
        try:
            found.append(as_json(name, named.read_named(store, name)))
        except Corrupt as error:
            found.append({"name": name, "problem": error.what})
    return found


def shown(store: Store, name: str) -> dict[str, Any]:
    """Return one, after every file of it was read.

    Raises
    ------
    Corrupt
        If one is damaged: names it.
    """
    manifest = named.read_named(store, name)
    verify(store, manifest)
    return as_json(name, manifest)


def delete(store: Store, name: str) -> None:
    """Delete one, damaged ones too.

    Raises
    ------
    InvalidPipeline
        If there is none of that name.
    """
    if named.checked_name(name) not in named.names(store):
        named.read_named(store, name)  # raises, and says which there are
    named.delete_named(store, name)


def check_may_create(inspection: Inspection, name: str) -> None:
    """Refuse to make one beside a process that is alive on this host: its directory changes while it is read.

    Raises
    ------
    InvalidPipeline
        If there is one: it can make the checkpoint itself.
    """
    if inspection.owner.is_alive:
        raise InvalidPipeline(
            f"pipeline {inspection.pipeline!r} runs: process {inspection.owner.pid} on this host is alive.",
            why="a run prunes what no name keeps, and may do so before this name is there.",
            do=f'in the program that runs it: run.checkpoint_now(name="{name}"); or stop it first (kill -TERM). '
            "If that process is another program by now, or its run has ended, add --force.",
            pipeline=inspection.pipeline,
        )


def list_lines(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Say what each holds, one line for each."""
    found = list(found)
    if not found:
        yield "no checkpoint has a name."
    for each in found:
        if each["problem"]:
            yield f"{each['name']}  {each['problem']}"
            continue
        yield (
            f"{each['name']}  epoch {each['epoch']} of {each['pipeline']}, made {utc(each['at_us'])}, "
            f"{each['rows']:,} rows of state, {each['size_bytes']:,} bytes"
        )


def show_lines(each: Mapping[str, Any]) -> Iterator[str]:
    """Say what one holds: positions, operators."""
    yield from list_lines([each])
    for source, segments in each["positions"].items():
        yield f"  source {source}  " + "  ".join(f"{s}={p}" if s else str(p) for s, p in segments.items())
    for operator, of in each["operators"].items():
        yield f"  operator {operator}  {of['kind']}, {of['rows']:,} rows"
    yield "  every file is whole."
