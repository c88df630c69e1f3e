"""Compiles the class that the JVM of a local master has from Holdfast: ``python -m tools.local_files``, with a JDK.

The jar is committed: an installation needs no compiler.  It has its source in it, and a test compares that with the
file, so that the two do not part; ``make dist`` compiles it anew and compares all of it.
"""

from __future__ import annotations

import io
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


def jar_bytes() -> bytes:
    """Compile the source; return the jar.

    Its entries are not compressed: what a compressor makes of them is not the same on every machine.
    """
    home = jvm_options.spark_home()
    written = io.BytesIO()
    with tempfile.TemporaryDirectory() as place:
        known = ("-cp", f"{home}/jars/*", "--release", RELEASE)
        subprocess.run(
            ["javac", *known, "-g:none", "-Xlint:all,-path", "-proc:none", "-d", place, str(SOURCE)], check=True
        )
        classes = sorted(Path(place).rglob("*.class"))
        with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as jar:
            for path, name in [(SOURCE, SOURCE.name), *((each, str(each.relative_to(place))) for each in classes)]:
                jar.writestr(zipfile.ZipInfo(name, WRITTEN), path.read_bytes(), zipfile.ZIP_STORED)
    return written.getvalue()


def compiler() -> str:
    """Return the version of the compiler: ``17.0.15``."""
    answer = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    return (answer.stdout or answer.stderr).split()[-1]


def main() -> None:
    """Write the jar beside its source."""
    require_java()
    local_files.JAR.write_bytes(jar_bytes())
    print(f"{local_files.JAR}: {local_files.JAR.stat().st_size} bytes")


if __name__ == "__main__":
    main()
