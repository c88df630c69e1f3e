"""The command line of a driver's JVM, as Spark's scripts compose it, where nothing that they read was changed.

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
import shlex
from collections.abc import Mapping
from pathlib import Path

from holdfast.spark.launch.jvm_classes import local_files

SEEN_IN = "4.3"
"""The version of Spark whose launcher composes this command; see :data:`holdfast.spark.private.SEEN_IN`."""

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
    return (
        version.startswith(f"{SEEN_IN}.")
        and theirs <= _HARMLESS
        and any((home / "jars").glob(f"spark-core_*-{version}.jar"))
        and not (home / "conf").exists()
        and not (home / "spark-distribution").exists()
    )
