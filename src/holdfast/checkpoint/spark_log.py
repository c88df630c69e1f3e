"""Positions as Spark logged them: its offset log, written before an epoch runs, fixes what the epoch holds.

Its files do not tell where they end: the checksum beside each (``.<name>.crc``, of Hadoop's local file system) shows a
cut one.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import Corrupt, invariant
from holdfast.positions import Position, Positions, SourcePositions

OPAQUE_SEGMENT = ""
"""The one segment of a source whose positions only Spark understands."""


MARKS = {"has_ended": "@ended", "ticks": "@ticks", "behind_us": "@behind", "given_us": "@given"}
"""What an offset says besides how far rows are read -> the segment under which it counts as a position."""

SIGNATURE = "source"
"""What an offset says whose it is by, where Spark logs positions by the place of a source (before 4.2)."""

BY_PLACE, BY_NAME = "v1", "v2"
"""How an entry begins in which positions are under places, and one in which they are under names."""

_CONF = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
"""What an entry has to say of Spark's settings: that its sources are named.  The others are the session's."""

CONTROLS = "holdfast_controls"
"""Name under which a source without rows reports ends (:mod:`holdfast.spark.controls`); none of the graph's."""


@dataclass(frozen=True)
class Offsets:
    """One entry of Spark's offset log.

    Parameters
    ----------
    positions : Positions
        Source name -> segment -> position.  A source without any position yet is left out.  An end, how many epochs
        were planned without rows, and when the source was found to have more to give, and to have given all, are
        segments of their own (:data:`MARKS`): two epochs never have the same positions, and none of these ever falls.
    sizes, rows : mapping of str to int or None
        Source name -> bytes and rows before these positions, where the source knows them.
    newest : Positions
        Positions after everything that the sources knew when the epoch was planned; unknown ones are left out.
    batch_us : int
        When Spark planned the epoch, microseconds of Unix time: the only clock that steps see.
    """

    positions: Positions
    sizes: Mapping[str, int | None]
    rows: Mapping[str, int | None]
    newest: Positions
    batch_us: int = 0


NOWHERE = Offsets({}, {}, {}, {})
"""Before the first epoch."""


def read_offsets(spark_checkpoint: Path, batch_id: int) -> Offsets:
    """Return what Spark logged for a batch.

    Parameters
    ----------
    spark_checkpoint : Path
        The query's checkpoint directory.
    batch_id : int
        Spark's number; below 0 there is nothing yet.

    Raises
    ------
    Corrupt
        If the entry is missing, damaged or of an unknown version.
    """
    if batch_id < 0:
        return NOWHERE
    path = spark_checkpoint / "offsets" / str(batch_id)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        if not lines or lines[0] not in (BY_PLACE, BY_NAME):
            raise ValueError(f"version {lines[0] if lines else 'missing'!r} instead of {BY_PLACE!r} or {BY_NAME!r}")
        if len(lines) < 2:
            raise ValueError("it is cut.")
        return _parse(lines)
    except (OSError, ValueError, KeyError) as error:
        raise _damage(spark_checkpoint, path, str(error)) from error


def check_logs(spark_checkpoint: Path) -> None:
    """Check the files of a query's checkpoint that Spark reads when it starts.

    Raises
    ------
    Corrupt
        If one of them is missing, cut or damaged: says which, and that it can be done without.

    Notes
    -----
    Spark itself would stop too, with a message that names no cure.
    """
    offsets, commits = _newest(spark_checkpoint, "offsets"), _newest(spark_checkpoint, "commits")
    needed = ["metadata", *_trailing(offsets)] if offsets else []
    for name in dict.fromkeys(["metadata", *needed, *offsets, *commits, *_of_state(spark_checkpoint)]):
        path = spark_checkpoint / name
        try:
            if path.exists() or name in needed:
                _check_whole(path)
        except (OSError, ValueError, KeyError, struct.error) as error:
            raise _damage(spark_checkpoint, path, str(error)) from error


def _newest(spark_checkpoint: Path, log: str) -> list[str]:
    """Return the names of the last two entries of a log: Spark reads the one before the last too."""
    return [f"{log}/{number}" for number in logged(spark_checkpoint, log)[-2:]]


def _trailing(names: list[str]) -> list[str]:
    """Return the entry before the last, which Spark asks for; whether or not it is there."""
    log, _, number = names[-1].partition("/") if names else ("", "", "0")
    return [f"{log}/{int(number) - 1}"] if int(number) else []


def _of_state(spark_checkpoint: Path) -> list[str]:
    """Return what Spark reads of each stateful operator before its state: the newest entry, and the schemas."""
    found: list[Path] = []
    for operator in sorted((spark_checkpoint / "state").glob("[0-9]*")):
        entries = [path for path in (operator / "_metadata" / "v2").glob("[0-9]*") if path.name.isdigit()]
        found += [*sorted(entries, key=lambda path: int(path.name))[-1:], *(operator / "_stateSchema").glob("*/[0-9]*")]
    return [str(path.relative_to(spark_checkpoint)) for path in found]


def _check_whole(path: Path) -> None:
    data = path.read_bytes()
    beside = path.with_name(f".{path.name}.crc")
    if beside.exists():
        _check_sums(data, beside.read_bytes())
    if path.parents[1].name in ("_metadata", "_stateSchema"):
        if not data:
            raise ValueError("it is empty.")
        return  # in a form of Spark's own
    lines = data.decode().splitlines()
    if path.name == "metadata":
        json.loads(data)
    elif len(lines) < 2 or not lines[0].startswith("v"):
        raise ValueError("it is cut.")
    elif path.parent.name == "offsets":
        _parse(lines)
    else:
        json.loads(lines[1])


def _check_sums(data: bytes, sums: bytes) -> None:
    """Compare with a checksum file of Hadoop's: a magic word, the bytes per sum, then a CRC-32 for each."""
    magic, size = struct.unpack_from(">4sI", sums)
    if magic == b"crc\0" and size:
        found = b"".join(struct.pack(">I", zlib.crc32(data[at : at + size])) for at in range(0, len(data), size))
        if found != sums[8:]:
            raise ValueError("its checksum does not fit its bytes.")


def _damage(spark_checkpoint: Path, path: Path, why: str) -> Corrupt:
    return Corrupt(
        f"{path}, which Spark wrote, cannot be read.",
        why=f"{why} The disk, an interrupted copy or somebody changed it.",
        do=f"remove the directory {spark_checkpoint}: the next start makes it anew and continues where the sinks are. "
        "With read.spark, or with state, it cannot: restore the checkpoint and all sinks from the same moment.",
        participant=str(path),
    )


def logged(spark_checkpoint: Path, log: str) -> list[int]:
    """Return the batches in one of Spark's logs (``offsets``: planned, ``commits``: finished), ascending."""
    try:
        names = os.listdir(spark_checkpoint / log)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isdigit())


def last_logged(spark_checkpoint: Path, log: str) -> int:
    """Return the last batch in one of Spark's logs; -1 when there is none."""
    return max(logged(spark_checkpoint, log), default=-1)


def operators_with_state(spark_checkpoint: Path) -> list[int]:
    """Return Spark's numbers of the operators that keep state in its store.

    The data source ``state-metadata`` would say it too, and costs a job.
    """
    return sorted(int(path.name) for path in (spark_checkpoint / "state").iterdir() if path.name.isdigit())


def newest_positions(spark_checkpoint: Path) -> Positions:
    """Return the positions of the newest entry; none where there is none, or it cannot be read."""
    try:
        return read_offsets(spark_checkpoint, last_logged(spark_checkpoint, "offsets")).positions
    except Corrupt:
        return {}


def ended(positions: Positions) -> tuple[str, ...]:
    """Return the sources whose end is logged.

    Examples
    --------
    >>> ended({"a": {"log": 3, "@ended": 1}, "b": {"log": 3}})
    ('a',)
    """
    return tuple(name for name, segments in positions.items() if MARKS["has_ended"] in segments)


def remove_unfinished(spark_checkpoint: Path) -> None:
    """Remove what a killed process has left of the first entry that Spark was to write.

    With any file in the log, and no entry, Spark starts no query: not even with the hidden one from which an entry is
    renamed.

    Notes
    -----
    Called after the takeover: a process that still writes there is fenced.  After the first entry Spark passes such
    files over.
    """
    if not logged(spark_checkpoint, "offsets"):
        for path in (spark_checkpoint / "offsets").glob(".*"):
            path.unlink(missing_ok=True)


def sync_offsets(spark_checkpoint: Path, batch_id: int) -> None:
    """Make Spark's entry durable: Spark renames it into place and never syncs it.

    Without it a power cut could take the entry of an epoch that sinks hold already, and Spark would plan another epoch
    of the same number.
    """
    directory = spark_checkpoint / "offsets"
    for path in (directory / str(batch_id), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def begun_log(ends: Sequence[Positions], now_us: int) -> dict[str, str]:
    """Return the log of a query whose first batch is finished, and the next one, if there is one, planned.

    Parameters
    ----------
    ends : sequence of Positions
        Of these batches.
    now_us : int
        Their batch time, microseconds of Unix time.

    Returns
    -------
    dict
        Name below the query's checkpoint -> content, in the order in which they are to be written.
    """
    invariant(len(ends) <= 2, f"Spark's log is to begin with {len(ends)} batches; it has room for one that is planned.")
    found = {"metadata": json.dumps({"id": str(uuid.uuid4())}), "commits/0": 'v1\n{"nextBatchWatermarkMs":0}'}
    common = {"batchWatermarkMs": 0, "batchTimestampMs": now_us // 1000, "conf": _CONF, "sourceMetadataInfo": {}}
    for number in range(len(ends)):
        lines = [f"{name}:{_as_offset(of, number + 2)}" for name, of in sorted(ends[number].items())]
        found[f"offsets/{number}"] = "\n".join([BY_NAME, json.dumps(common, separators=(",", ":")), *lines])
    return found


def _as_offset(positions: SourcePositions, sought: int) -> str:
    if OPAQUE_SEGMENT in positions:
        return str(positions[OPAQUE_SEGMENT])
    of, marks = plain(positions)
    return json.dumps({"positions": of, "size_bytes": 0, "row_count": 0, **marks, "sought": sought})


def _parse(lines: list[str]) -> Offsets:
    """Return what an entry says: a version, what is common to all sources, and a line for each."""
    batch_us = int(json.loads(lines[1])["batchTimestampMs"]) * 1000
    positions: dict[str, dict[str, Position]] = {}
    sizes: dict[str, int | None] = {}
    rows: dict[str, int | None] = {}
    newest: dict[str, dict[str, Position]] = {}
    for line in lines[2:]:
        name, _, text = line.partition(":") if lines[0] == BY_NAME else (signed_by(line), ":", line)
        if text in ("", "-"):
            continue
        offset = _own_offset(text)
        if offset is None:
            positions[name] = {OPAQUE_SEGMENT: text}
            sizes[name] = rows[name] = None
        else:
            # An epoch without rows is an epoch too: a sink that holds the one before does not hold it.
            marks = {mark: int(offset[of]) for of, mark in MARKS.items() if of in offset}
            positions[name] = {**offset["positions"], **marks}
            sizes[name], rows[name] = offset["size_bytes"], offset["row_count"]
            if offset.get("newest"):
                newest[name] = offset["newest"]
    return Offsets(positions, sizes, rows, newest, batch_us)


def signed_by(offset: str) -> str:
    """Return the source that an offset says it is of.

    Raises
    ------
    ValueError
        If it does not say it.
    """
    own = _own_offset(offset)
    if own is None or SIGNATURE not in own:
        raise ValueError("it has positions by place that do not say of which source they are.")
    return str(own[SIGNATURE])


def form_of(spark_checkpoint: Path) -> str:
    """Return how the newest entry of a query's log begins; empty where there is none, or it cannot be read."""
    return next(iter(_newest_lines(spark_checkpoint)), "")


def places_in(spark_checkpoint: Path) -> list[str]:
    """Return the sources of the newest entry of a query's log, by place; none where it says no places."""
    lines = _newest_lines(spark_checkpoint)
    try:
        return [signed_by(each) for each in lines[2:]] if lines[:1] == [BY_PLACE] else []
    except ValueError:  # it is damaged: whoever reads its positions says so
        return []


def _newest_lines(spark_checkpoint: Path) -> list[str]:
    newest = spark_checkpoint / "offsets" / str(last_logged(spark_checkpoint, "offsets"))
    try:
        return newest.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []


def _own_offset(text: str) -> dict[str, Any] | None:
    value = json.loads(text) if text.startswith("{") else None
    return value if isinstance(value, dict) and "positions" in value and "size_bytes" in value else None


def plain(positions: SourcePositions) -> tuple[dict[str, Position], dict[str, Any]]:
    """Return a source's positions without marks, and the marks as an offset has them.

    Examples
    --------
    >>> plain({"log": 3, "@ended": 1, "@ticks": 4})
    ({'log': 3}, {'has_ended': True, 'ticks': 4})
    """
    names = {mark: name for name, mark in MARKS.items()}
    marks: dict[str, Any] = {names[segment]: at for segment, at in positions.items() if segment in names}
    if "has_ended" in marks:
        marks["has_ended"] = True
    return {segment: at for segment, at in positions.items() if segment not in names}, marks


def moved(start: Positions, end: Positions) -> list[str]:
    """Return the sources of which something is read between two positions.

    Examples
    --------
    >>> moved({"a": {"log": 1}, "b": {"log": 1}}, {"a": {"log": 2}, "b": {"log": 1, "@ticks": 1}})
    ['a']
    """
    marks = set(MARKS.values())

    def read(positions: Positions, name: str) -> dict[str, Position]:
        return {segment: at for segment, at in positions.get(name, {}).items() if segment not in marks}

    return [name for name in end if read(end, name) != read(start, name)]


def has_more(marks: Mapping[str, Any]) -> bool:
    """Tell whether a source had more to give than an epoch took, by what its offset or its marks say.

    Examples
    --------
    >>> has_more({}), has_more({"behind_us": 5}), has_more({"behind_us": 5, "given_us": 8})
    (False, True, False)
    """
    return "behind_us" in marks and marks["behind_us"] > marks.get("given_us", -1)


def active_until(positions: Positions, batch_us: int) -> dict[str, int]:
    """Return for each source the time up to which it counts as active: until then it had more rows to deliver.

    Parameters
    ----------
    positions : Positions
        The end of an epoch.
    batch_us : int
        The epoch's batch time: that of a source which still has more.

    Returns
    -------
    dict
        Without sources that never had more rows than an epoch took, as far as that was logged.

    Examples
    --------
    >>> active_until({"a": {"log": 3}, "b": {"log": 3, "@behind": 7}, "c": {"log": 3, "@behind": 7, "@given": 9}}, 20)
    {'b': 20, 'c': 9}
    """
    marks = {name: plain(of)[1] for name, of in positions.items()}
    return {name: batch_us if has_more(of) else of["given_us"] for name, of in marks.items() if "behind_us" in of}


def span(start: Mapping[str, int | None], end: Mapping[str, int | None]) -> int | None:
    """Return how much lies between two entries, over all sources; None when one of them does not know.

    Examples
    --------
    >>> span({"a": 10}, {"a": 30, "b": 5}), span({"a": 10}, {"a": None})
    (25, None)
    """
    known = spans(start, end)
    return sum(known.values()) if known.keys() == end.keys() else None


def spans(start: Mapping[str, int | None], end: Mapping[str, int | None]) -> dict[str, int]:
    """Return how much lies between two entries, for each source that knows it.

    Examples
    --------
    >>> spans({"a": 10}, {"a": 30, "b": 5, "c": None})
    {'a': 20, 'b': 5}
    """
    found = {}
    for name, after in end.items():
        before = start.get(name, 0)
        if after is not None and before is not None:
            found[name] = after - before
    return found
