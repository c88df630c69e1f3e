"""Jars from Maven by a list of names and checksums: all of them or none, and none that is not the one that is meant.

A list has lines of ``group:artifact:version sha256``.  Maven knows the way to its registry, and a machine's mirror or
proxy for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

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
