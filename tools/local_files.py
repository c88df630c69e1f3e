"""Compiles the class that the JVM of a local master has from Holdfast: ``python -m tools.local_files``, with a JDK.

The jar is committed: an installation needs no compiler.  It has its source in it, and a test compares that with the
file, so that the two do not part.
"""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

from holdfast.spark.launch import jvm_options
from holdfast.spark.launch.java import require_java
from holdfast.spark.launch.jvm_classes import local_files

SOURCE = local_files.JAR.with_name("LocalFiles.java")
RELEASE = "17"
WRITTEN = (2026, 1, 1, 0, 0, 0)
"""The time of all entries: the jar depends on the source and the compiler alone."""


def main() -> None:
    """Write the jar beside its source."""
    require_java()
    home = jvm_options.spark_home()
    with tempfile.TemporaryDirectory() as place:
        known = ("-cp", f"{home}/jars/*", "--release", RELEASE)
        subprocess.run(
            ["javac", *known, "-g:none", "-Xlint:all,-path", "-proc:none", "-d", place, str(SOURCE)], check=True
        )
        classes = sorted(Path(place).rglob("*.class"))
        with zipfile.ZipFile(local_files.JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            for path, name in [(SOURCE, SOURCE.name), *((each, str(each.relative_to(place))) for each in classes)]:
                jar.writestr(zipfile.ZipInfo(name, WRITTEN), path.read_bytes(), zipfile.ZIP_DEFLATED)
    print(f"{local_files.JAR}: {local_files.JAR.stat().st_size} bytes")


if __name__ == "__main__":
    main()
