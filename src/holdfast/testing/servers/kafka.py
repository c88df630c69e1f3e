"""Throw-away Kafka brokers on loopback, from the published Java artifacts: one, or a cluster of three.

For tests, the demo, the benchmarks and ``holdfast dev kafka``.  ``kafka_jars.txt`` beside this module names every
artifact with its version and the SHA-256 of its file; Maven brings them once, from wherever it is set up to bring
things from, into the user's cache directory, and nothing that does not match stays there; this module as a program does
only that.
``HOLDFAST_KAFKA=<directory>`` names another directory, of jars that are there already or are to be brought there.

Brokers run in KRaft mode, each with its own controller, in a directory of their own below the system's temporary
directory; they do not force their log to the disk (tests kill processes, never the machine).

Jars from Maven by a list of names and checksums: all of them or none, and none that is not the one that is meant.

A list has lines of ``group:artifact:version sha256``.  Maven knows the way to its registry, and a machine's mirror or
proxy for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from holdfast.testing.servers.ports import free_port

JARS = Path(__file__).with_name("kafka_jars.txt")
"""Lines of ``group:artifact:version sha256``: the broker and what it needs."""

SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Of a broker of tests: quick to start."""

JVM_AS_INSTALLED = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""Heap, compiler and collector as Kafka's own scripts have them."""

_STARTED = b"Kafka Server started"
_LOGGING = f"""\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = info
# {_STARTED.decode()}
"""

SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",  # 10 s as installed
    "broker.session.timeout.ms": "1500",  # for as long is a broker that was killed not let in again; 9 s as installed
    "broker.heartbeat.interval.ms": "300",
    "log.retention.ms": "-1",  # tests give messages times of long ago
    "log.cleaner.dedupe.buffer.size": "2097152",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
"""Beyond the places: a small broker that ends transactions soon after their time."""


class NoKafka(RuntimeError):
    """There is no Kafka here, and the text says what is missing."""


_missing: list[str] = []
"""Why there is none: a second test process does not wait for the same failure again and again."""


_formatted: dict[int, dict[str, bytes]] = {}
"""Number of a broker -> its data directory as it was formatted: the tool that does it is a JVM of its own."""


@dataclass
class KafkaServer:
    """One broker, which can be killed and started again; its ports and its data stay.

    Parameters
    ----------
    number : int
        ``node.id``.
    directory : Path
        Of its settings, its log and its data.
    port : int
        Of clients, on 127.0.0.1.
    settings : mapping of str to str
        ``server.properties``.
    listeners : mapping of str to int
        Name -> port of those that clients have besides.
    jvm : sequence of str
        Options of its JVM.
    """

    number: int
    directory: Path
    port: int
    settings: Mapping[str, str]
    listeners: Mapping[str, int] = field(default_factory=dict)
    jvm: Sequence[str] = SMALL_JVM
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def bootstrap(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    def address(self, listener: str) -> str:
        """Return ``host:port`` of a listener that clients have besides."""
        return f"127.0.0.1:{self.listeners[listener]}"

    @property
    def pid(self) -> int | None:
        """Of its process; None = it is away."""
        return None if self._process is None else self._process.pid

    def format(self) -> None:
        """Write its settings and make its data directory ready."""
        self.directory.mkdir()
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        data = self.directory / "data"
        if (files := _formatted.get(self.number)) is not None:
            for name, content in files.items():
                (data / name).parent.mkdir(parents=True, exist_ok=True)
                (data / name).write_bytes(content)
            return
        tool = ("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(self._properties))
        done = subprocess.run([*self._java(), *tool], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's storage was not formatted: {(done.stderr or done.stdout)[-2000:]}")
        there = [path for path in data.rglob("*") if path.is_file()]
        _formatted[self.number] = {str(path.relative_to(data)): path.read_bytes() for path in there}

    def launch(self) -> None:
        """Start its process, if it is away; returns at once."""
        if self._process is None:
            with self._log.open("ab") as log:
                self._said = log.tell()
                command = [*self._java(), "kafka.Kafka", str(self._properties)]
                # Ctrl-C at the terminal must not reach it before we stop it.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    def await_start(self) -> None:
        """Return when it takes requests."""
        end = time.monotonic() + 120
        while _STARTED not in self._log.read_bytes()[self._said :]:
            if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"Kafka did not start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def start(self) -> None:
        """Start it, if it is away; returns when it takes requests."""
        if self._process is None:
            self.launch()
            self.await_start()

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Take it away: as a crash does, or with SIGTERM as an operator does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)
            self._process = None

    def freeze(self) -> None:
        """Let it do nothing, with its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    def _java(self) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"
        return [_java(), *self.jvm, logging, "-cp", f"{jars()}/*"]


@dataclass(frozen=True)
class KafkaCluster:
    """Brokers that belong together.

    Parameters
    ----------
    brokers : sequence of KafkaServer
        Each can be taken away and brought back.
    """

    brokers: Sequence[KafkaServer]

    @property
    def bootstrap(self) -> str:
        """The addresses of all of them."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start those that are away, together: a controller alone is no quorum."""
        away = [broker for broker in self.brokers if broker.pid is None]
        for broker in away:
            broker.launch()
        for broker in away:
            broker.await_start()

    def stop(self) -> None:
        """Take all of them away."""
        for broker in self.brokers:
            broker.stop()


@contextmanager
def kafka_server(settings: Mapping[str, str] | None = None, **more: Any) -> Iterator[KafkaServer]:
    """Start one broker, yield it, stop it and remove its data.

    Parameters
    ----------
    settings : mapping of str to str, optional
        Settings that replace or add to ``SETTINGS``.
    **more
        ``protocol``, ``beside``, ``jvm`` and ``first_port``, as of :func:`kafka_cluster`.

    Raises
    ------
    NoKafka
        If there is none here and none can be brought.
    """
    with kafka_cluster(1, settings, **more) as cluster:
        yield cluster.brokers[0]


@contextmanager
def kafka_cluster(
    size: int = 3,
    settings: Mapping[str, str] | None = None,
    protocol: str = "PLAINTEXT",
    beside: Mapping[str, str] | None = None,
    jvm: Sequence[str] = SMALL_JVM,
    first_port: int | None = None,
) -> Iterator[KafkaCluster]:
    """Start brokers that belong together, yield them, stop them and remove their data.

    Parameters
    ----------
    size : int
        How many; the topics of the broker itself have as many copies, up to three.
    settings : mapping of str to str, optional
        Settings that replace or add to ``SETTINGS``.
    protocol : str
        What clients speak: ``PLAINTEXT``, ``SASL_PLAINTEXT``, ``SSL``, ``SASL_SSL``.
    beside : mapping of str to str, optional
        More listeners for clients, each with a port of its own: name, in capitals -> protocol.
    jvm : sequence of str
        Options of the brokers' JVMs.
    first_port : int, optional
        Of the first broker's clients; by default, as of the others, one that is free.

    Raises
    ------
    NoKafka
        If there is none here and none can be brought.
    """
    jars()
    _java()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-kafka-"))
    try:
        ports = [(free_port(), free_port()) for _ in range(size)]
        if first_port is not None:
            ports[0] = (first_port, ports[0][1])
        voters = ",".join(f"{number}@127.0.0.1:{ports[number - 1][1]}" for number in range(1, size + 1))
        copies = {
            "default.replication.factor": str(min(size, 3)),
            "offsets.topic.replication.factor": str(min(size, 3)),
            "transaction.state.log.replication.factor": str(min(size, 3)),
            "transaction.state.log.min.isr": str(2 if size > 2 else 1),
        }
        brokers = []
        more = beside or {}
        spoken = "".join(f",{name}:{said}" for name, said in more.items())
        for number, (port, controller) in enumerate(ports, 1):
            place = directory / str(number)
            others = {name: free_port() for name in more}
            clients = ",".join(f"{name}://127.0.0.1:{at}" for name, at in {"CLIENTS": port, **others}.items())
            said = {
                "process.roles": "broker,controller",
                "node.id": str(number),
                "controller.quorum.voters": voters,
                "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": clients,
                "controller.listener.names": "CONTROLLER",
                "inter.broker.listener.name": "CLIENTS",
                "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,CLIENTS:{protocol}{spoken}",
                "log.dirs": str(place / "data"),
                **copies,
            }
            brokers.append(KafkaServer(number, place, port, {**said, **SETTINGS, **(settings or {})}, others, jvm))
        cluster = KafkaCluster(brokers)
        try:
            for broker in brokers:
                broker.format()
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def jars() -> Path:
    """Return the directory of the broker's jars; brings them if they are not here.

    Raises
    ------
    NoKafka
        If they are neither here nor to be had.
    """
    place = default_jars()
    if place.is_dir():
        return place
    if not _missing:
        try:
            fetch(JARS, place, "HOLDFAST_KAFKA")
            return place
        except (NoKafka, NoJars, OSError, subprocess.SubprocessError) as error:
            _missing.append(str(error))
    raise NoKafka(f"Kafka's jars are not here, and were not to be had: {_missing[0]}")


def default_jars() -> Path:
    """Return where the jars are or will be; ``HOLDFAST_KAFKA`` says it, or else it is the user's cache directory."""
    if named := os.environ.get("HOLDFAST_KAFKA"):
        return Path(named)
    version = next(version for name, version, _ in artifacts(JARS) if name.endswith(":kafka_2.13"))
    return cache(JARS, "kafka", version)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise NoKafka("Kafka's brokers need Java 17 or newer: neither JAVA_HOME nor the PATH has a java")
    return found


def main() -> int:
    """Bring the jars, and say where they are."""
    try:
        sys.stdout.write(f"kafka: {jars()}\n")
    except NoKafka as error:
        sys.stderr.write(f"kafka: {error}; the tests that need a broker are skipped\n")
        return 1
    return 0


_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class NoJars(RuntimeError):
    """They are not to be had, and the text says why."""


def artifacts(listed: Path) -> list[tuple[str, str, str]]:
    """Return ``group:artifact``, version and checksum of each."""
    found = []
    for line in listed.read_text().splitlines():
        artifact, checksum = line.split()
        name, _, version = artifact.rpartition(":")
        found.append((name, version, checksum))
    return found


def cache(listed: Path, what: str, version: str) -> Path:
    """Return where the jars of a list are or will be: the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    pinned = hashlib.sha256(listed.read_bytes()).hexdigest()[:8]
    return Path(base) / "holdfast" / what / f"{version}-{pinned}"


def fetch(listed: Path, place: Path, variable: str) -> None:
    """Bring the jars of a list to a directory, all of them or none.

    Parameters
    ----------
    listed, place : Path
        The list, and the directory; nothing is done if that is there.
    variable : str
        Which environment variable names another directory.

    Raises
    ------
    NoJars
        If they are not to be had.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise NoJars(f"there is no Maven (mvn) on the PATH; install it, or name a directory of jars: {variable}")
    wanted = artifacts(listed)
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.is_dir():
            return  # another process was first
        sys.stderr.write(f"{place.parent.name}: bringing {len(wanted)} jars, once: {place}\n")
        sys.stderr.flush()
        pom = Path(scratch, "pom.xml")
        pom.write_text(_pom(wanted))
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(pom), _COPY, f"-DoutputDirectory={scratch}/jars"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise NoJars(f"Maven did not bring them: {done.stdout.strip()[:500]}")
        for name, version, checksum in wanted:
            jar = Path(scratch, "jars", f"{name.rpartition(':')[2]}-{version}.jar")
            if not jar.exists() or hashlib.sha256(jar.read_bytes()).hexdigest() != checksum:
                raise NoJars(f"{jar.name} is not the file that {listed.name} names")
        Path(scratch, "jars").rename(place)


def _pom(wanted: list[tuple[str, str, str]]) -> str:
    """Return a project that depends on exactly the artifacts of a list, and on nothing that they would bring."""
    needs = []
    for name, version, _ in wanted:
        group, artifact = map(escape, name.split(":"))
        needs.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{escape(version)}</version>"
            "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>holdfast</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{''.join(needs)}</dependencies></project>"
    )


if __name__ == "__main__":
    sys.exit(main())
