"""Options of the JVM that Holdfast starts: for pipelines whose rows it does not evaluate, one that is ready sooner.

A JVM that plans epochs, writes Spark's logs and hands packets of Arrow on runs little code, and seldom: what its second
compiler would win is less than what it costs, in a start and (measured with state: ``design/0014``) after it.  One
compiler is enough for it, and on a small machine one collector thread.  Where the JVM evaluates rows, Spark's own
defaults stay; where it evaluates rows between operators with state alone, the second compiler is for what is hot for
good: what rows go through, and not what plans epochs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

ONE_COMPILER = "-XX:TieredStopAtLevel=1"
ONE_COLLECTOR = "-XX:+UseSerialGC"
SMALL_HEAP = "-Xms96m"
"""What it begins with, and grows from: Java's own choice, a 64th of the machine's memory, is touched before it is
collected for the first time, which is 80 MB more on a machine of 24 GiB (measured)."""

TRIM = ("-XX:+UnlockExperimentalVMOptions", "-XX:TrimNativeHeapInterval=60000") if sys.platform == "linux" else ()
"""What is freed outside of the heap goes back to the system each minute: the C library keeps what the compiler and
threads have used at the start for good.  A JVM without this option passes over it: Spark's own options say so.
Elsewhere a JVM warns of it."""

HOT_FROM = 100_000
"""Calls of a method, or turns of a loop, from which the second compiler compiles it; Java's own figures are 5000 and
40 000.  Rows bring that about within an epoch; what plans epochs takes hundreds of them."""

LATE_COMPILER = tuple(
    f"-XX:Tier4{what}Threshold={HOT_FROM}" for what in ("Invocation", "MinInvocation", "Compile", "BackEdge")
)

OPTIONS_OF_JAVA = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
"""Variables by which users give options to every JVM, or to Spark's."""

_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
_HEAP = re.compile(r"-Xm[sn]|-XX:\w*(HeapSize|RAMPercentage|NewSize)")
_TRIM = "TrimNativeHeap"
_COMPILER = re.compile(r"-XX:[+-]?Tier\w*|-Xint\b|-Xcomp\b")


class RowsInJvm(IntEnum):
    """Which rows a JVM evaluates; what several pipelines bring into one is the highest."""

    NONE = 0
    BETWEEN_STATE = 1
    ALL = 2


FEW_PROCESSORS = 4
"""Up to this number, one collector thread keeps up with the packets that pass through the JVM (measured with two)."""


def options_of_java(rows: RowsInJvm, environment: Mapping[str, str], processors: int) -> tuple[str, ...]:
    """Return options for a JVM by what rows it evaluates, apart from those that the user has chosen.

    Parameters
    ----------
    rows : RowsInJvm
        What it evaluates.
    environment : mapping of str to str
        The variables of the process.  A JVM does not start with two collectors.
    processors : int
        Of this machine.

    Examples
    --------
    >>> without_trim = {"JDK_JAVA_OPTIONS": "-XX:TrimNativeHeapInterval=0"}
    >>> options_of_java(RowsInJvm.NONE, without_trim, 2)
    ('-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-Xms96m')
    >>> options_of_java(RowsInJvm.NONE, {"JAVA_TOOL_OPTIONS": "-XX:+UseZGC", **without_trim}, 2)
    ('-XX:TieredStopAtLevel=1', '-Xms96m')
    >>> options_of_java(RowsInJvm.ALL, without_trim, 2)
    ()
    """
    given = " ".join(environment.get(name, "") for name in OPTIONS_OF_JAVA)
    trim = () if _TRIM in given else TRIM
    if rows is RowsInJvm.ALL:
        return trim
    wanted = (ONE_COMPILER,) if rows is RowsInJvm.NONE else LATE_COMPILER
    compiler = () if _COMPILER.search(given) else wanted
    collector = () if _COLLECTOR.search(given) or processors > FEW_PROCESSORS else (ONE_COLLECTOR,)
    heap = () if _HEAP.search(given) or rows is not RowsInJvm.NONE else (SMALL_HEAP,)
    return (*compiler, *collector, *heap, *trim)


def rows_to_expect(choice: str, rows: RowsInJvm) -> RowsInJvm:
    """Return for which rows a JVM is to be optimised.

    Parameters
    ----------
    choice : str
        The setting ``HOLDFAST_JVM``.
    rows : RowsInJvm
        What it will evaluate, as far as that is known.
    """
    return {"quick": RowsInJvm.NONE, "full": RowsInJvm.ALL}.get(choice, rows)


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
