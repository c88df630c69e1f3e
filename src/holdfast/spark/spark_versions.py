"""The versions of Spark: which ones run a pipeline, what the others lack, and the refusal of these and of Connect.

This module imports no PySpark: a version that lacks what others of our modules import must be refused by a sentence,
before they fail by it.

Invariants:

- Each minor version that was looked at has one row in :data:`VERSIONS`; a version without one does not run.
- The bounds of ``pyspark`` in pyproject.toml are what the table says (``tests/arch/test_private.py``).
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from holdfast.errors import InvalidPipeline

if TYPE_CHECKING:
    from holdfast.graph.nodes import Node


@dataclass(frozen=True)
class SparkVersion:
    """A minor version of Spark, and what differs between it and others.

    Parameters
    ----------
    lacks : tuple of str
        What a run cannot do without and this version does not have; empty: it runs.
    names_sources : bool
        Whether Spark logs the position of a source under its name; else by the place that it has in the plan: offsets
        say whose they are then, and a source that comes, goes or changes places begins another of Spark's directories.
    asks_from : bool
        Whether Spark says where an epoch begins when it asks a source in Python where it ends, and lets it take part
        in ``AvailableNow``; else the source remembers where it is, and the run ends itself.
    utc : mapping of str to object
        The argument by which PySpark makes the columns of an Arrow schema TIMESTAMPs of UTC.
    inlining : tuple of bool
        The switches of Catalyst's rule ``InlineCTE`` for: all of them, keeping none that is not used.
    has_our_launcher : bool
        Whether the JVM's command line is composed as :mod:`holdfast.spark.launch.jvm_options` does; else Spark's
        scripts compose it, and a start takes longer.
    first : str
        The first release of it that runs a pipeline; empty: each of them.
    why_first : str
        What is wrong with those before it.
    settings : mapping of str to (str, str)
        Settings of a run that other versions do without: key -> value, and why.
    """

    lacks: tuple[str, ...] = ()
    names_sources: bool = True
    asks_from: bool = True
    utc: Mapping[str, Any] = field(default_factory=lambda: {"timezone": "UTC"})
    inlining: tuple[bool, ...] = (True, False, False)
    has_our_launcher: bool = False
    first: str = ""
    why_first: str = ""
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def is_supported(self) -> bool:
        """Whether a pipeline runs on it."""
        return not self.lacks


SOCKETS = "Unix sockets between the JVM and Python"
REASONS = "the counts of rejected rows by reason (approx_top_k)"

OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"
"""Form of Spark's log of positions; from 4.3 on, names of sources alone make it the second."""

VERSIONS: Mapping[str, SparkVersion] = {
    "4.0": SparkVersion(lacks=(SOCKETS, REASONS), names_sources=False, asks_from=False),
    "4.1": SparkVersion(
        names_sources=False,
        asks_from=False,
        utc={"timestamp_utc": True},
        inlining=(True, False),
        first="4.1.4",
        why_first="releases before it were not tried",
    ),
    "4.2": SparkVersion(
        inlining=(True, False),
        has_our_launcher=True,
        first="4.2.1",
        why_first="it does not start again after a crash in an epoch: its log of positions fails (None.get)",
        settings={OFFSET_LOG: ("2", "positions under names are of this form")},
    ),
    "4.3": SparkVersion(has_our_launcher=True),
}
"""Minor version -> what differs.  Oldest first; seen in the releases 4.0.1, 4.1.1, 4.1.4, 4.2.0, 4.2.1 and 4.3.0."""

_FILE = re.compile(r"^__version__\b[^=\n]*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)

_REMOTE = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""Variables by which PySpark makes a session of Spark Connect."""

_WHY_CONNECT = (
    "Spark Connect hands the driver's plans to a server: the process that calls it has no JVM, no foreachBatch of its "
    "own, and no way to fix what an epoch contains before sinks write it."
)


def minor_of(version: str) -> str:
    """Return the minor version of a version.

    Examples
    --------
    >>> minor_of("4.2.1.dev0")
    '4.2'
    """
    return ".".join(version.split(".")[:2])


def supported_versions() -> list[str]:
    """Return the minor versions that run a pipeline, oldest first."""
    return [minor for minor, version in VERSIONS.items() if version.is_supported]


def bounds() -> str:
    """Return the versions that run a pipeline, as pip is asked for them.

    Examples
    --------
    >>> bounds()
    '>=4.1.4,!=4.2.0,<4.4'
    """
    major, minor = supported_versions()[-1].split(".")
    later = [(each, _numbers(VERSIONS[each].first or each)) for each in supported_versions()[1:]]
    refused = [f"!={each}.{patch}," for each, first in later for patch in range(first[2] if len(first) > 2 else 0)]
    return f">={first_release()},{''.join(refused)}<{major}.{int(minor) + 1}"


def by_name() -> str:
    """Return the first release that logs positions under the names of sources."""
    return next(each.first or minor for minor, each in VERSIONS.items() if each.is_supported and each.names_sources)


@cache
def running() -> SparkVersion:
    """Return the row of the PySpark that an import loads here; that of the newest one where it has none."""
    return VERSIONS.get(minor_of(installed_version() or ""), VERSIONS[supported_versions()[-1]])


def first_release() -> str:
    """Return the first release that runs a pipeline, or the minor version where each of its releases does."""
    oldest = supported_versions()[0]
    return VERSIONS[oldest].first or oldest


def installed_version() -> str | None:
    """Return the version of the PySpark that an import would load; None where there is none, or it does not say.

    It is read, not imported: from the directory of a package, or from Spark's own zip.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None or found.loader is None:
        return None
    try:
        data = cast(Any, found.loader).get_data(os.path.join(os.path.dirname(found.origin), "version.py"))
    except (AttributeError, OSError):
        return None
    told = _FILE.search(data.decode())
    return told[1] if told else None


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def require_version(version: str | None) -> None:
    """Refuse a version of Spark that cannot run a pipeline.

    Parameters
    ----------
    version : str, optional
        Of PySpark, as :func:`installed_version` returns it.  None is not refused: the import says what is wrong.

    Raises
    ------
    InvalidPipeline
        If it lacks something, or was not tried.
    """
    if version is None:
        return
    row = VERSIONS.get(minor_of(version))
    is_too_early = row is not None and _numbers(version) < _numbers(row.first)
    if row is not None and row.is_supported and not is_too_early:
        return
    if row is not None and row.is_supported:
        why = f"{row.why_first}; {row.first} is the first release that does."
    elif row is None:
        tried = " and ".join(supported_versions())
        why = f"Holdfast uses what a minor version of Spark may change, and was tried with {tried}."
    else:
        why = f"it lacks {', and '.join(row.lacks)}; Spark {first_release()} is the first that has them."
    raise InvalidPipeline(
        f"PySpark {version} cannot run a pipeline.",
        why=why,
        do=f"pip install 'pyspark{bounds()}', in this environment.",
    )


def require_classic(session: object | None, environ: Mapping[str, str] | None = None) -> None:
    """Refuse a session of Spark Connect, and an environment in which PySpark would make one.

    Parameters
    ----------
    session : object, optional
        What the user gave as a session; None: one will be made.
    environ : mapping of str to str, optional
        Default is that of the process.

    Raises
    ------
    InvalidPipeline
        If the session has no JVM in this process.
    """
    if session is not None:
        # NB by its module: Connect's classes cannot be imported where its libraries are not installed.
        if type(session).__module__.startswith("pyspark.sql.connect."):
            raise InvalidPipeline(
                "the session is one of Spark Connect.",
                why=_WHY_CONNECT,
                do="start the pipeline with spark-submit, or with `holdfast run --master ...`, and give it no session, "
                "or a classic one: SparkSession.builder.master(...) without .remote(...).",
            )
        return
    environ = os.environ if environ is None else environ
    named = [name for name in _REMOTE if environ.get(name)]
    if environ.get("SPARK_API_MODE", "").lower() == "connect":
        named.append("SPARK_API_MODE")
    if named:
        raise InvalidPipeline(
            f"{named[0]} is set: PySpark would make a session of Spark Connect.",
            why=_WHY_CONNECT,
            do=f"unset {named[0]}, and say with HOLDFAST_MASTER (--master) where executors run.",
        )


def trigger_of(interval_us: int | None) -> dict[str, Any]:
    """Return the arguments by which a query is triggered; None: it ends where there is no more, or the run ends it."""
    if interval_us is None and running().asks_from:
        return {"availableNow": True}
    return {"processingTime": f"{(interval_us or 0) // 1000} milliseconds"}


def require_for(sources: Iterable[Node], version: str | None) -> None:
    """Refuse sources whose positions this version of Spark does not keep under their names.

    Parameters
    ----------
    sources : iterable of Node
        Of a pipeline.
    version : str, optional
        Of PySpark, as :func:`installed_version` returns it.

    Raises
    ------
    InvalidPipeline
        If Spark reads one of them itself: what its positions mean, and whose they are, only Spark's log says.
    """
    row = None if version is None else VERSIONS.get(minor_of(version))
    refused = [] if row is None or row.names_sources else [node.name for node in sources if node.kind == "spark"]
    if refused:
        raise InvalidPipeline(
            f"PySpark {version} cannot run a pipeline with read.spark, which {refused[0]!r} is.",
            why="it keeps the positions of Spark's own sources by their place in the plan, and not under their names; "
            f"Spark {by_name()} is the first that does.",
            do=f"pip install 'pyspark>={by_name()}', in this environment; or read it by a source of Holdfast's.",
            participant=refused[0],
        )


def require_spark(session: object | None = None, sources: Iterable[Node] = ()) -> None:
    """Refuse a Spark that cannot run a pipeline: :func:`require_version`, :func:`require_for`, :func:`require_classic`.

    ``sources`` are those of the pipeline, as far as there is one.
    """
    version = installed_version()
    require_version(version)
    require_for(sources, version)
    require_classic(session)
