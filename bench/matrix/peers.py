"""The peers: their scripts, what they need, their sinks, what their documentation promises, and where they die."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.matrix.lives import ROOT, Death, Side
from bench.matrix.targets import Place
from holdfast.testing.servers.kafka import artifacts, cache, fetch

BUILD = ROOT / "build" / "peers"
SPARK_JARS = ROOT / "bench" / "spark_kafka_jars.txt"
FUNCTION, BEFORE, AFTER = "in a function", "before the write", "after the write"
POINTS: Mapping[str, str] = {
    FUNCTION: "a row in the middle of the input is in a function of the user",
    BEFORE: "the sink is about to write the batch with that row",
    AFTER: "the sink has written it, and the engine has not noted that",
}
"""Where a peer dies; all of its processes do."""


@dataclass(frozen=True)
class PeerSink:
    """A sink of a peer.

    Parameters
    ----------
    target : str
        Where it writes: a key of ``TARGETS``, or ``lines`` (a file, or files, of JSON lines).
    promise : str
        What its documentation says.
    points : sequence of str
        Where its run is killed.
    """

    target: str
    promise: str
    points: Sequence[str]


@dataclass(frozen=True)
class Peer:
    """A system beside ours.

    Parameters
    ----------
    script : str
        In ``bench/peers/``.
    needs : sequence of str
        What pip installs into its environment.
    sinks : mapping of str to PeerSink
        What it writes to.
    """

    script: str
    needs: Sequence[str]
    sinks: Mapping[str, PeerSink] = field(default_factory=dict)


ONCE, OFTEN = "exactly-once", "at-least-once"
PEERS: Mapping[str, Peer] = {
    "Spark": Peer(
        "spark_query.py",
        ("pyspark==4.3.0",),
        {
            "foreachBatch, appended": PeerSink("sqlite", OFTEN, (FUNCTION, BEFORE, AFTER)),
            "foreachBatch, by batch id": PeerSink("sqlite", ONCE, (FUNCTION, BEFORE, AFTER)),
            "files": PeerSink("spark files", ONCE, (FUNCTION, AFTER)),
            "kafka": PeerSink("kafka", OFTEN, (FUNCTION,)),
        },
    ),
    "Bytewax": Peer(
        "bytewax_flow.py",
        ("bytewax==0.21.1",),
        {
            "files": PeerSink("lines", "exactly-once in a batch", (FUNCTION,)),
            "sqlite": PeerSink("sqlite", OFTEN, (FUNCTION, BEFORE, AFTER)),
        },
    ),
    "Pathway": Peer(
        "pathway_flow.py",
        ("pathway==0.33.0",),
        {
            "files": PeerSink("lines", OFTEN, (FUNCTION,)),
            "sqlite": PeerSink("sqlite", OFTEN, (FUNCTION, BEFORE, AFTER)),
        },
    ),
    "Flink": Peer(
        "flink_job.py",
        ("apache-flink==2.3.0",),
        {"files": PeerSink("lines", ONCE, (FUNCTION,))},
    ),
}


def python_of(name: str) -> Path:
    """Return the interpreter of a peer's own environment, made where it is not there."""
    directory = BUILD / name.lower()
    python = directory / ".venv" / "bin" / "python"
    stamp, needs = directory / "installed", "\n".join(PEERS[name].needs)
    if not stamp.exists() or stamp.read_text() != needs:
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(directory / ".venv")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS[name].needs], check=True)
        stamp.write_text(needs)
    return python


def side(name: str, sink: str, point: str, place: Place, work: Path) -> Side:
    """Return how a peer is run for one cell."""
    variables = {
        **place.variables,
        "MATRIX_WORK": str(work),
        "MATRIX_SINK": sink,
        "MATRIX_ADDRESS": place.address,
        "PYTHONPATH": str(ROOT / "bench" / "peers"),  # its workers load what its script imports, and nothing of ours
    }
    if name == "Spark" and PEERS[name].sinks[sink].target == "kafka":
        variables["MATRIX_JARS"] = ",".join(str(jar) for jar in sorted(_kafka_jars().glob("*.jar")))
    command = [str(python_of(name)), str(ROOT / "bench" / "peers" / PEERS[name].script)]
    return Side(command, variables, [Death(point, {"MATRIX_AT": point})])


def _kafka_jars() -> Path:
    """The jars of Spark's connector for Kafka, as for ``bench/kafka.py``."""
    version = next(version for name, version, _ in artifacts(SPARK_JARS) if "spark-sql-kafka" in name)
    place = cache(SPARK_JARS, "spark-kafka", version)
    if not place.is_dir():
        os.makedirs(place.parent, exist_ok=True)
        fetch(SPARK_JARS, place, "XDG_CACHE_HOME")
    return place
