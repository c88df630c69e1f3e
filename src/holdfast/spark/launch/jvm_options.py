"""Options of the JVM that Holdfast starts: for pipelines whose rows never enter it, one that is ready sooner.

A JVM that only plans epochs and writes Spark's logs runs little code, and seldom: what its second compiler would win is
less than what it costs while the pipeline starts.  One compiler and one collector thread are enough for it.  Where rows
pass through the JVM, Spark's own defaults stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

ONE_COMPILER = "-XX:TieredStopAtLevel=1"
ONE_COLLECTOR = "-XX:+UseSerialGC"

_WHERE = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
"""Variables by which users give options to every JVM, or to Spark's."""

_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
_COMPILER = re.compile(r"-XX:[+-]?Tiered\w*|-Xint\b|-Xcomp\b")


def quick_options(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return options for a JVM that no row enters, apart from those that the user has chosen.

    Parameters
    ----------
    environment : mapping of str to str
        The variables of the process.  A JVM does not start with two collectors.

    Examples
    --------
    >>> quick_options({})
    ('-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC')
    >>> quick_options({"JAVA_TOOL_OPTIONS": "-XX:+UseZGC"})
    ('-XX:TieredStopAtLevel=1',)
    """
    given = " ".join(environment.get(name, "") for name in _WHERE)
    compiler = () if _COMPILER.search(given) else (ONE_COMPILER,)
    collector = () if _COLLECTOR.search(given) else (ONE_COLLECTOR,)
    return (*compiler, *collector)
