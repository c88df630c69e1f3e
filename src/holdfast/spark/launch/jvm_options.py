"""Options of the JVM that Holdfast starts: for pipelines whose rows it does not evaluate, one that is ready sooner.

A JVM that plans epochs, writes Spark's logs and hands packets of Arrow on runs little code, and seldom: what its second
compiler would win is less than what it costs, in a start and (measured with state: ``design/0014``) after it.  One
compiler is enough for it, and on a small machine one collector thread.  Where the JVM evaluates rows, Spark's own
defaults stay; where it evaluates rows between operators with state alone, the second compiler is for what is hot for
good: what rows go through, and not what plans epochs.

The command line of a driver's JVM, as Spark's scripts compose it, where nothing that they read was changed.

``bin/spark-submit`` runs three shell scripts and a JVM of its own (``org.apache.spark.launcher.Main``) before it
becomes the JVM that was asked for: a third of a second or more.  Their result depends on files and variables
that an installed PySpark does not have unless a user has made them.  Where there are none, the command is composed
here; where there is one, or Spark is another version than the one this was compared with, the scripts are run.

``tests/spark/test_command.py`` compares the command
with what Spark's launcher prints.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from holdfast.spark.launch.jvm_classes import local_files
from holdfast.spark.spark_versions import VERSIONS, minor_of

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


MAIN = "org.apache.spark.deploy.SparkSubmit"
"""What becomes the gateway to Python when it is given :data:`SHELL`."""

SHELL = "pyspark-shell"

CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Names the file in which the JVM says, when it is ready, where it listens and its secret."""

MODULES = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
            *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
            *("sun.security.action", "sun.util.calendar"),
        )
    ),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
"""What Spark opens of Java for itself: ``JavaModuleOptions``, and what its ``submit`` adds."""

_OF_SPARK = ("SPARK_", "PYSPARK_", "_PYSPARK_", "HADOOP_", "YARN_", "HIVE_", "MESOS_")
_HARMLESS = frozenset(
    {
        *("SPARK_SUBMIT_OPTS", "SPARK_LOCAL_IP", "SPARK_LOCAL_DIRS", "SPARK_USER", "SPARK_LOCAL_HOSTNAME"),
        *("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PIN_THREAD"),
    }
)
"""Variables of Spark's that its scripts do not look at, or that are heeded here."""


def composed(environment: Mapping[str, str], options: Mapping[str, str], jvm_options: tuple[str, ...]) -> list[str]:
    """Return the command line of a driver's JVM; empty where only Spark's scripts know it.

    Parameters
    ----------
    environment : mapping of str to str
        The variables of the process; ``JAVA_HOME`` is set.
    options : mapping of str to str
        Settings of Spark that must be known when the JVM starts, ``spark.driver.memory`` among them.
    jvm_options : tuple of str
        Options of the JVM, as ``spark.driver.extraJavaOptions`` has them.
    """
    home = spark_home()
    if home is None or os.name != "posix" or not _is_as_installed(home, environment):
        return []
    try:
        given = shlex.split(environment.get("SPARK_SUBMIT_OPTS", ""))
    except ValueError:  # an open quotation mark: let Spark say so
        return []
    settings = {**options, "spark.driver.extraJavaOptions": shlex.join(jvm_options)}
    return [
        f"{environment['JAVA_HOME']}/bin/java",
        "-cp",
        class_path(home),
        *given,
        f"-Xmx{options['spark.driver.memory']}",
        *jvm_options,
        *MODULES,
        MAIN,
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        SHELL,
    ]


def class_path(home: Path) -> str:
    """Return where the JVM's classes are looked for: Spark's launcher puts one jar before the others.

    Ours is the last: an archive of classes is of use for every class path that begins like its own.
    """
    first = sorted((home / "jars").glob("slf4j-api-*.jar"))
    return ":".join([f"{home}/conf", *map(str, first), f"{home}/jars/*", str(local_files.JAR)])


def environment_of_scripts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Spark's scripts hand to the JVM: Python's hashes must be equal in all workers."""
    home = spark_home()
    added = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "SPARK_ENV_LOADED": "1"}
    return {**environment, **added, "SPARK_CONF_DIR": f"{home}/conf", "SPARK_CONNECT_MODE": "0", "PYTHONHASHSEED": "0"}


def spark_home() -> Path | None:
    """Return where PySpark is installed, without importing it; None where it is not."""
    found = importlib.util.find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _is_as_installed(home: Path, environment: Mapping[str, str]) -> bool:
    """Tell whether Spark's scripts have nothing to read: no configuration, and no variable that they know."""
    theirs = {name for name in environment if name.startswith(_OF_SPARK)}
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:  # Spark's own directory is on the path
        return False
    row = VERSIONS.get(minor_of(version))
    return (
        row is not None
        and row.has_our_launcher
        and theirs <= _HARMLESS
        and any((home / "jars").glob(f"spark-core_*-{version}.jar"))
        and not (home / "conf").exists()
        and not (home / "spark-distribution").exists()
    )
