r"""The manifest of a snapshot: which files hold the state of every stateful operator at the end of one epoch.

Layout of an object ``snapshots/<epoch>-<generation>.manifest``::

    holdfast snapshot 1 <sha256 of the rest, hex> <length of the JSON>\n
    <JSON>

A manifest is read completely or not at all: whatever fails to match raises ``Corrupt``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.errors import Corrupt
from holdfast.positions import Positions
from holdfast.state.step import StateTable

_MAGIC = b"holdfast snapshot 1"
PREFIX = "snapshots/"
SUFFIX = ".manifest"


@dataclass(frozen=True, order=True)
class SnapshotKey:
    """Name of a snapshot.

    Parameters
    ----------
    epoch : int
        The epoch at whose end the state is.
    generation : int
        The run that made it.
    """

    epoch: int
    generation: int

    @property
    def path(self) -> str:
        """Key of the manifest in the store."""
        return f"{PREFIX}{self.epoch:012d}-{self.generation:08d}{SUFFIX}"

    @staticmethod
    def from_path(path: str) -> SnapshotKey | None:
        """Return the snapshot that a key of the store names; None for other keys.

        Examples
        --------
        >>> SnapshotKey.from_path("snapshots/000000000007-00000002.manifest")
        SnapshotKey(epoch=7, generation=2)
        """
        name = path.removeprefix(PREFIX).removesuffix(SUFFIX)
        numbers = name.split("-")
        if not path.endswith(SUFFIX) or len(numbers) != 2 or not all(map(str.isdigit, numbers)):
            return None
        return SnapshotKey(int(numbers[0]), int(numbers[1]))


@dataclass(frozen=True)
class TableFile:
    """One state table of one bucket, as a Parquet file.

    Parameters
    ----------
    key : str
        Its key in the store.
    sha256 : str
        Of its bytes.
    size_bytes, rows : int
        How much it holds.
    """

    key: str
    sha256: str
    size_bytes: int
    rows: int


@dataclass(frozen=True)
class BucketState:
    """One bucket of one operator.

    Parameters
    ----------
    version : int
        The epoch that last changed it, as the steps count them.
    digest : str
        Over everything that was ever written to it: equal digests, equal tables.
    feeds : mapping of str to mapping of str to int
        Input -> where its rows come from -> bound for all keys.
    files : mapping of str to TableFile
        Table -> its file.
    """

    version: int
    digest: str
    feeds: Mapping[str, Mapping[str, int]]
    files: Mapping[str, TableFile]


@dataclass(frozen=True)
class StateSchema:
    """What a stateful operator keeps: enough to compare it with another version of itself.

    Parameters
    ----------
    kind : str
        Kind of the operator.
    arguments : str
        Its arguments, as canonical JSON.
    key : pa.Schema
        The columns that decide the bucket.
    tables : mapping of str to StateTable
        Its state tables.
    """

    kind: str
    arguments: str
    key: pa.Schema
    tables: Mapping[str, StateTable]

    def fits(self, other: StateSchema) -> bool:
        """Return whether state in this form can be used by another version."""
        return (
            self.kind == other.kind
            and self.key.equals(other.key)
            and self.tables.keys() == other.tables.keys()
            and all(of.is_like(other.tables[name]) for name, of in self.tables.items())
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        tables = {name: {"schema": _text(of.schema), "key": list(of.key)} for name, of in self.tables.items()}
        return {"kind": self.kind, "arguments": self.arguments, "key": _text(self.key), "tables": tables}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StateSchema:
        """Return what :meth:`to_json` wrote."""
        tables = {
            name: StateTable(_schema(of["schema"]), tuple(of["key"])) for name, of in dict(value["tables"]).items()
        }
        return StateSchema(value["kind"], value["arguments"], _schema(value["key"]), tables)


@dataclass(frozen=True)
class OperatorState:
    """All state of one operator.

    Parameters
    ----------
    schema : StateSchema
        What it keeps.
    buckets : mapping of int to BucketState
        The buckets that hold anything.
    """

    schema: StateSchema
    buckets: Mapping[int, BucketState]

    @property
    def rows(self) -> dict[str, int]:
        """State table -> its rows."""
        held = [of.files for of in self.buckets.values()]
        return {name: sum(files[name].rows for files in held if name in files) for name in self.schema.tables}


@dataclass(frozen=True)
class EpochEnd:
    """The end of an epoch.

    Parameters
    ----------
    epoch : int
        Its number.
    step_epoch : int
        The number that the steps saw; another one where the epoch is the replay of an older one.
    positions : Positions
        Where it ended.
    batch_us : int
        Its batch time, microseconds of Unix time.
    pts : int, optional
        Minimum timestamp over the inputs.
    """

    epoch: int
    step_epoch: int
    positions: Positions
    batch_us: int
    pts: int | None = None

    @property
    def step_time(self) -> tuple[int, int]:
        """Its number and batch time as steps saw them."""
        return self.step_epoch, self.batch_us

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        positions = {source: dict(segments) for source, segments in self.positions.items()}
        return {
            "epoch": self.epoch,
            "step_epoch": self.step_epoch,
            "positions": positions,
            "batch_us": self.batch_us,
            "pts": self.pts,
        }


@dataclass(frozen=True)
class Manifest:
    """A snapshot.

    Parameters
    ----------
    pipeline : str
        Whose it is.
    generation : int
        The run that made it.
    at_us : int
        When, microseconds of Unix time.
    graph : str
        Fingerprint of the graph's state.
    ended : EpochEnd
        The epoch at whose end the state is.
    buckets : int
        Into how many the state of each operator is divided.
    operators : mapping of str to OperatorState
        Every stateful operator of the graph.
    user_data : mapping, optional
        What ``on_checkpoint`` had returned last (:mod:`holdfast.checkpoint.user_data`).
    """

    pipeline: str
    generation: int
    at_us: int
    graph: str
    ended: EpochEnd
    buckets: int
    operators: Mapping[str, OperatorState] = field(default_factory=dict)
    user_data: Mapping[str, Any] | None = None

    @property
    def key(self) -> SnapshotKey:
        """Its name."""
        return SnapshotKey(self.ended.epoch, self.generation)

    @property
    def files(self) -> Iterator[TableFile]:
        """All its files."""
        for operator in self.operators.values():
            for bucket in operator.buckets.values():
                yield from bucket.files.values()

    @property
    def state_schemas(self) -> dict[str, StateSchema]:
        """What each operator keeps."""
        return {name: of.schema for name, of in self.operators.items()}

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def rows(self) -> int:
        """Rows in all state tables."""
        return sum(file.rows for file in self.files)


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest."""
    body = {
        "pipeline": manifest.pipeline,
        "generation": manifest.generation,
        "at_us": manifest.at_us,
        "graph": manifest.graph,
        "ended": manifest.ended.to_json(),
        "buckets": manifest.buckets,
        "operators": {name: _operator_json(operator) for name, operator in manifest.operators.items()},
    }
    if manifest.user_data is not None:
        body["user_data"] = manifest.user_data
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return b"%s %s %d\n" % (_MAGIC, _digest(text), len(text)) + text


def decode(data: bytes, key: str) -> Manifest:
    """Read what :func:`encode` wrote.

    Raises
    ------
    Corrupt
        If the bytes are truncated or damaged anywhere.  Names the key.
    """
    head, newline, text = data.partition(b"\n")
    words = head.rsplit(b" ", 2)
    if not newline or len(words) != 3 or words[0] != _MAGIC or not words[2].isdigit():
        raise damaged(key, "its header is not Holdfast's")
    if int(words[2]) != len(text) or _digest(text) != words[1]:
        raise damaged(key, "its checksum does not match: it was truncated or changed")
    body = json.loads(text)
    operators = {name: _operator(value) for name, value in body["operators"].items()}
    return Manifest(
        body["pipeline"],
        body["generation"],
        body["at_us"],
        body["graph"],
        EpochEnd(**body["ended"]),
        body["buckets"],
        operators,
        body.get("user_data"),
    )


def damaged(key: str, why: str) -> Corrupt:
    """Return the error for an object of a snapshot that cannot be used."""
    return Corrupt(
        f"{key!r} in the checkpoint cannot be used.",
        why=f"{why}.",
        do=f"restore {key!r} from a copy of the checkpoint, or leave it: an older snapshot is used.",
        participant=key,
    )


def _operator_json(operator: OperatorState) -> dict[str, Any]:
    buckets = {
        str(number): {
            "version": bucket.version,
            "digest": bucket.digest,
            "feeds": {name: dict(of) for name, of in bucket.feeds.items()},
            "files": {name: [f.key, f.sha256, f.size_bytes, f.rows] for name, f in bucket.files.items()},
        }
        for number, bucket in operator.buckets.items()
    }
    return {**operator.schema.to_json(), "buckets": buckets}


def _operator(value: Mapping[str, Any]) -> OperatorState:
    buckets = {
        int(number): BucketState(
            bucket["version"],
            bucket["digest"],
            bucket["feeds"],
            {name: TableFile(*of) for name, of in bucket["files"].items()},
        )
        for number, bucket in value["buckets"].items()
    }
    return OperatorState(StateSchema.from_json(value), buckets)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
