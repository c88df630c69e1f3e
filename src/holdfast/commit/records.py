r"""How a decision is written down: one line of header, a checksum, JSON, and the carried rows as Arrow.

Layout of an object under ``ledger/``::

    holdfast ledger 1 <decision|done> <sha256 of the rest, hex> <length of the JSON>\n
    <JSON><Arrow IPC stream><Arrow IPC stream>...

The JSON names, for every sink, its parts: a staged part is its handle; a carried part is the place of its rows among
the bytes that follow.  A record is read completely or not at all: whatever fails to match raises ``Corrupt``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.errors import Corrupt, invariant
from holdfast.ports import Carried, EpochRecord, Explanation, Part, Refused, Staged
from holdfast.positions import Positions
from holdfast.store.records import without_step_time
from holdfast.values import ExpectationCount

_MAGIC = b"holdfast ledger 1"


@dataclass(frozen=True)
class Decided:
    """A decision: the epoch *will* be visible in these sinks, with these parts.

    ``rejected`` has, per sink, the rows that were taken out of its parts because it refuses them: their numbers in
    the epoch as it was decided, because the remaining rows are renumbered each time, and a number must not occur twice.

    ``before`` has, per sink, the last epoch that was decided for it before this one, or that it held: one that holds
    less, and for which none of those between is open, went back.  A version that did not note it names no sink, nor
    does a rewind.

    ``start`` is where the epoch begins, noted where one of its sinks held nothing: nobody else knows where that one
    begins, should its rows be gone before it has published them.
    """

    record: EpochRecord
    parts: Mapping[str, tuple[Part, ...]]
    rejected: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    start: Positions | None = None

    @property
    def is_staged(self) -> bool:
        """Whether the driver holds none of the rows."""
        return all(isinstance(part, Staged) for several in self.parts.values() for part in several)

    @property
    def carried_bytes(self) -> int:
        """Bytes of the rows that the driver holds."""
        return sum(map(self.carried_bytes_of, self.parts))

    def carried_bytes_of(self, sink: str) -> int:
        """Bytes of the rows for one sink that the driver holds."""
        return sum(part.rows.nbytes for part in self.parts[sink] if isinstance(part, Carried))

    @property
    def row_counts(self) -> dict[str, int]:
        """Rows for each sink."""
        return {name: sum(part.row_count for part in parts) for name, parts in self.parts.items()}

    def as_decided(self, sink: str, refused: Iterable[Refused]) -> list[Refused]:
        """Return rows that a sink refuses of what is left, under their numbers in the epoch as it was decided."""
        gone = sorted(self.rejected.get(sink, ()))
        return [replace(row, number=_number_as_decided(row.number, gone)) for row in refused]

    def without(self, sink: str, parts: Sequence[Part], rejected: Sequence[Refused]) -> Decided:
        """Return the decision with the parts that are left for a sink, and which rows of it are not in them."""
        numbers = sorted([*self.rejected.get(sink, ()), *(row.number for row in rejected)])
        epoch = self.record.epoch
        invariant(
            len(numbers) == len(set(numbers)),
            f"rows of epoch {epoch} are rejected by sink {sink!r} twice: numbers {numbers}.",
            pipeline=self.record.pipeline,
            participant=sink,
            epoch=epoch,
            generation=self.record.generation,
        )
        left, gone = {**self.parts, sink: tuple(parts)}, {**self.rejected, sink: tuple(numbers)}
        return replace(self, parts=left, rejected=gone)


@dataclass(frozen=True)
class Done:
    """What is left of a decision once every sink holds the epoch: where it ended, who has it, and how many rows.

    What its positions mean is left out: the sinks keep that.

    ``rejected`` is that of the decision: the sinks lack these rows.  None: a version that did not note it.

    ``revoked`` has the sinks that held nothing when the decision was revoked for them, with where what they lack
    begins: a sink that holds nothing would be taken for one that was added.
    """

    record: EpochRecord
    row_counts: Mapping[str, int]
    rejected: Mapping[str, tuple[int, ...]] | None = field(default_factory=dict)
    revoked: Mapping[str, Positions] = field(default_factory=dict)

    @property
    def sinks(self) -> tuple[str, ...]:
        """Names of the sinks that published the epoch."""
        return tuple(self.row_counts)


def encode(value: Decided | Done) -> bytes:
    """Return the bytes of a decision, or of what is left of it."""
    payloads: list[bytes] = []
    if isinstance(value, Done):
        kind = b"done"
        body: dict[str, Any] = {
            "record": _record_json(value.record),
            "row_counts": dict(value.row_counts),
            **({} if value.rejected is None else {"rejected": dict(value.rejected)}),
            **({"revoked": dict(value.revoked)} if value.revoked else {}),
        }
    else:
        kind = b"decision"
        body = {
            "record": _record_json(value.record),
            "sinks": {sink: [_part_json(part, payloads) for part in parts] for sink, parts in value.parts.items()},
            **({"rejected": dict(value.rejected)} if value.rejected else {}),
            **({"before": dict(value.before)} if value.before else {}),
            **({} if value.start is None else {"start": value.start}),
        }
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    digest = _digest(kind, text, payloads)
    return b"%s %s %s %d\n" % (_MAGIC, kind, digest, len(text)) + text + b"".join(payloads)


def decode(data: bytes, key: str) -> Decided | Done:
    """Read what :func:`encode` wrote.

    Raises
    ------
    Corrupt
        If the bytes are truncated or damaged anywhere, or say how many rows were rejected, and not which.  Names the
        key.
    """
    head, newline, rest = data.partition(b"\n")
    words = head.rsplit(b" ", 3)
    if not newline or len(words) != 4 or words[0] != _MAGIC or not words[3].isdigit():
        raise _damage(key, "its header is not Holdfast's")
    _, kind, digest, length = words
    text, payload = rest[: int(length)], rest[int(length) :]
    if _digest(kind, text, [payload]) != digest:
        raise _damage(key, "its checksum does not match: it was truncated or changed")
    body = json.loads(text)
    record = _record(body["record"])
    if kind == b"done":
        rejected = _rejected(body["rejected"], key) if "rejected" in body else None
        return Done(record, body["row_counts"], rejected, body.get("revoked", {}))
    parts = {sink: tuple(_part(part, payload) for part in several) for sink, several in body["sinks"].items()}
    rejected = _rejected(body.get("rejected", {}), key)
    return Decided(record, parts, rejected, body.get("before", {}), body.get("start"))


def _number_as_decided(number: int, gone: Sequence[int]) -> int:
    """Return which row it is, ``gone`` counted; they ascend.

    Examples
    --------
    >>> [_number_as_decided(number, [1, 2]) for number in range(3)]
    [0, 3, 4]
    """
    for each in gone:
        number += each <= number
    return number


def _rejected(body: Mapping[str, Any], key: str) -> dict[str, tuple[int, ...]]:
    if any(isinstance(numbers, int) for numbers in body.values()):
        raise Corrupt(
            f"{key!r} in the checkpoint says how many rows a sink has refused, but not which.",
            why="a version that was never released wrote it: rows that are refused next would get the same numbers.",
            do="resolve the epoch with the version that wrote it; then start again.",
            participant=key,
        )
    return {sink: tuple(numbers) for sink, numbers in body.items()}


def _digest(kind: bytes, text: bytes, payloads: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256(kind + b"%d" % len(text))
    digest.update(text)
    for payload in payloads:
        digest.update(payload)
    return digest.hexdigest().encode()


def _record_json(record: EpochRecord) -> dict[str, Any]:
    return {
        "pipeline": record.pipeline,
        "epoch": record.epoch,
        "generation": record.generation,
        "positions": {source: dict(segments) for source, segments in record.positions.items()},
        "pts": record.pts,
        **({} if record.rewound_to is None else {"rewound_to": record.rewound_to}),
        **({"explanations": [astuple(each) for each in record.explanations]} if record.explanations else {}),
        **({"recent_ends": record.recent_ends} if record.recent_ends else {}),
        **({"expected": {name: [*each] for name, each in record.expected.items()}} if record.expected else {}),
    }


def _record(body: Mapping[str, Any]) -> EpochRecord:
    explanations = tuple(Explanation(*each) for each in body.get("explanations", ()))
    expected = {name: ExpectationCount(*each) for name, each in body.get("expected", {}).items()}
    return EpochRecord(**{**without_step_time(body), "explanations": explanations, "expected": expected})


def _part_json(part: Part, payloads: list[bytes]) -> dict[str, Any]:
    if isinstance(part, Staged):
        return {"name": part.name, "row_count": part.row_count, "reference": dict(part.reference)}
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, part.rows.schema) as stream:
        stream.write_table(part.rows)
    payload = out.getvalue().to_pybytes()
    start = sum(map(len, payloads))
    payloads.append(payload)
    return {"carried": [start, start + len(payload)]}


def _part(body: Mapping[str, Any], payload: bytes) -> Part:
    if "carried" not in body:
        return Staged(body["name"], body["row_count"], body["reference"])
    start, end = body["carried"]
    with pa.ipc.open_stream(pa.BufferReader(payload[start:end])) as stream:
        return Carried(stream.read_all())


def _damage(key: str, why: str) -> Corrupt:
    return Corrupt(
        f"{key!r} in the checkpoint cannot be read.",
        why=f"{why}.",
        do=f"restore {key!r} from a backup of the checkpoint, and delete nothing: the epoch's staged rows are still "
        "there (docs/how-recovery-works.md, 'A damaged ledger').",
        participant=key,
    )
