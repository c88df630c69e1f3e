"""Makes archives of checkpoints with another version of Holdfast: ``python -m tests.spark.earlier.make PYTHON NAME``.

``PYTHON`` is the interpreter of a checkout of that version, NAME the directory beside this file for the archives.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from holdfast.testing.servers.kafka import kafka_server
from holdfast.testing.servers.postgres import postgres_server
from tests.s3_server import s3_server
from tests.spark.earlier import pipeline
from tests.spark.earlier.pipeline import FILES, HERE, PLACE, SINKS, place
from tests.spark.earlier.servers import HELD, SERVERS
from tools.redis_server import redis_server

KILLED_AT = {
    "files": "publish-begun",
    "s3": "after-publish",
    "segments": "publish-begun",
    "byte_stream": "publish-begun",
    "sqlite": "after-publish",
    "postgres": "after-publish",
    "redis": "after-publish",
    "kafka": "after-publish",
}
"""Where the process dies in the last epoch: the first sink has published it, or has begun to; the others lack it."""
CARRIED = ("s3", "kafka")
"""What tasks stage for these is open in the server, and cannot be kept: the decision has the rows themselves."""
STAGED = {"HOLDFAST_CARRY_MAX": "0 B", "HOLDFAST_PREFETCH_MAX": "0 B"}


@contextmanager
def _postgres() -> Iterator[str]:
    with postgres_server({"max_prepared_transactions": "0"}) as server:  # no dump has what is prepared
        yield server.dsn


@contextmanager
def _redis() -> Iterator[str]:
    with redis_server() as server:
        yield server.url


@contextmanager
def _s3() -> Iterator[str]:
    with s3_server() as variables:
        yield variables["AWS_ENDPOINT_URL"]


SMALL_LOG = {"log.index.size.max.bytes": "1024"}
STARTED: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "postgres": _postgres,
    "redis": _redis,
    "s3": _s3,
    "kafka": lambda: kafka_server(SMALL_LOG),
}


def make(python: str, kind: str) -> bytes:
    """Return an archive: two epochs, and a third one that is decided when the process is killed."""
    kept = SERVERS.get(kind)
    with place() as root, STARTED.get(kind, nullcontext)() as server:
        for file in range(FILES):
            pipeline.arrive(root, file)
        if kept is not None:
            kept.prepare(server)
        where = kept.variables(server) if kept is not None else {}
        how = {"HOLDFAST_FAULT": f"{KILLED_AT[kind]}:{FILES}", "HOLDFAST_CHECKPOINT_FREQ": "1"}
        staged = {} if kind in CARRIED else STAGED
        variables = {**os.environ, **where, **how, **staged, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        ended = subprocess.run([python, pipeline.__file__, kind], env=variables, cwd=root, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.returncode
        if kept is not None:
            (root / HELD).mkdir()
            kept.keep(server, root / HELD)
        check(root)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(root, arcname=".", filter=_unnamed)
        return packed.getvalue()


def _unnamed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out who made it, and the log, which may name places."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if _is_left_out(Path(member.name)) else member


def _is_left_out(path: Path) -> bool:
    return path.name.startswith("holdfast.log")


def check(root: Path) -> None:
    """Assert that no file names a place of this machine but the one that archives are of."""
    home = [Path.home(), Path(__file__).parents[3], Path(sys.prefix)]
    for path in root.rglob("*"):
        if path.is_file() and not _is_left_out(path):
            content = path.read_bytes().replace(str(PLACE).encode(), b"")
            for named in (*home, "/tmp/", socket.gethostname() * (len(socket.gethostname()) > 4)):
                assert not str(named) or str(named).encode() not in content, f"{path} names {named}"


if __name__ == "__main__":
    directory = HERE / sys.argv[2]
    directory.mkdir(exist_ok=True)
    for chosen in sys.argv[3:] or SINKS:
        content = make(sys.argv[1], chosen)
        (directory / f"{chosen}.tar.gz").write_bytes(content)
        sys.stdout.write(f"{chosen}: {len(content)} bytes\n")
