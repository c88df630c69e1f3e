"""What an earlier version left, unpacked, with a server that holds what its server held."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.capabilities import offers
from holdfast.errors import present
from holdfast.ports import LedgerSpec, SinkLedger
from tests.spark.earlier.pipeline import HERE, pipeline, place
from tests.spark.earlier.servers import HELD, SERVERS

ARCHIVES = HERE / "sinks-09f82eec"
_FIXTURES = {"s3": "s3_of_session", "postgres": "postgres_plain", "redis": "redis_url", "kafka": "mortal_kafka"}

_MARKS = {"postgres": pytest.mark.postgres}
KINDS = [
    pytest.param(kind, marks=_MARKS.get(kind, ()))
    for kind in (path.name.removesuffix(".tar.gz") for path in sorted(ARCHIVES.glob("*.tar.gz")))
]


@dataclass(frozen=True)
class Left:
    """A checkpoint and its targets.

    Parameters
    ----------
    kind : str
        Of the sinks.
    root : Path
        Where it is unpacked.
    server : Any
        What has the targets, if they are no files.
    """

    kind: str
    root: Path
    server: Any

    def ledgers(self) -> dict[str, SinkLedger]:
        """Return what the ledger of each sink says."""
        graph = pipeline(self.root, self.kind)
        specs = {node.name: node.spec for node in graph.sinks}
        found = {name: spec.ledger(name, graph.name) for name, spec in specs.items() if offers(spec, LedgerSpec)}
        assert found.keys() == specs.keys()
        return {name: present(ledger, name) for name, ledger in found.items()}


@pytest.fixture
def left(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    """What was left with one kind of sinks."""
    server = request.getfixturevalue(_FIXTURES[kind]) if kind in _FIXTURES else None
    with place() as root:
        with tarfile.open(ARCHIVES / f"{kind}.tar.gz") as packed:
            packed.extractall(root, filter="data")
        if kind in SERVERS:
            SERVERS[kind].give(server, root / HELD)
            for name, value in SERVERS[kind].variables(server).items():
                monkeypatch.setenv(name, value)
        yield Left(kind, root, server)
