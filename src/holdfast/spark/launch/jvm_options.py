"""Options of the JVM that Holdfast starts: for pipelines whose rows it does not evaluate, one that is ready sooner.

A JVM that plans epochs, writes Spark's logs and hands packets of Arrow on runs little code, and seldom: what its second
compiler would win is less than what it costs, in a start and (measured with state: ``design/0014``) after it.  One
compiler is enough for it, and on a small machine one collector thread.  Where the JVM evaluates rows, Spark's own
defaults stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ONE_COMPILER = "-XX:TieredStopAtLevel=1"
ONE_COLLECTOR = "-XX:+UseSerialGC"

OPTIONS_OF_JAVA = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
"""Variables by which users give options to every JVM, or to Spark's."""

_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
_COMPILER = re.compile(r"-XX:[+-]?Tiered\w*|-Xint\b|-Xcomp\b")


FEW_PROCESSORS = 4
"""Up to this number, one collector thread keeps up with the packets that pass through the JVM (measured with two)."""


def quick_options(environment: Mapping[str, str], processors: int) -> tuple[str, ...]:
    """Return options for a JVM that evaluates no row, apart from those that the user has chosen.

    Parameters
    ----------
    environment : mapping of str to str
        The variables of the process.  A JVM does not start with two collectors.
    processors : int
        Of this machine.

    Examples
    --------
    >>> quick_options({}, 2)
    ('-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC')
    >>> quick_options({"JAVA_TOOL_OPTIONS": "-XX:+UseZGC"}, 2)
    ('-XX:TieredStopAtLevel=1',)
    """
    given = " ".join(environment.get(name, "") for name in OPTIONS_OF_JAVA)
    compiler = () if _COMPILER.search(given) else (ONE_COMPILER,)
    collector = () if _COLLECTOR.search(given) or processors > FEW_PROCESSORS else (ONE_COLLECTOR,)
    return (*compiler, *collector)


def is_quick(choice: str, *, is_evaluated_outside: bool) -> bool:
    """Return whether a JVM is to be ready soon rather than quick with rows.

    Parameters
    ----------
    choice : str
        The setting ``HOLDFAST_JVM``.
    is_evaluated_outside : bool
        Whether the JVM evaluates no row.
    """
    return choice == "quick" or (choice == "auto" and is_evaluated_outside)


@dataclass(frozen=True)
class JvmOptions:
    """What a JVM must know at its start.

    Parameters
    ----------
    memory : str
        Its heap, as Spark writes it (``"2g"``).
    for_java : tuple of str
        Options of Java.
    """

    memory: str
    for_java: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """The settings of Spark that say so, but for Java's own options."""
        return {"spark.driver.memory": self.memory}
