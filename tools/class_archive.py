"""Makes an archive of the classes that Spark loads: with it, and one compiler, a JVM starts in half the time.

The tests start well over a hundred JVMs, each for a few seconds.  The archive is made once, by a small pipeline, and
kept below ``build/``.  Without it the tests do the same, only later: a JVM that cannot use it starts as usual.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[1]
FOR_SHORT_LIVES = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No time is spent on optimising what runs for seconds, nor on threads for a small heap."""
MAKE_TIMEOUT_S = 300


def options() -> str:
    """Return the options for the JVMs of tests, after making the archive if there is none."""
    archive = ROOT / "build" / f"spark-classes-{_version()}.jsa"
    if not archive.exists() and not _make(archive):
        return FOR_SHORT_LIVES
    return f"{FOR_SHORT_LIVES} -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def _version() -> str:
    """Return what the archive depends on: the JVM, Spark, and where its jars are, and since when (a JVM compares)."""
    java = Path(os.environ.get("JAVA_HOME", "")) / "bin" / "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    jars = Path(pyspark.__file__).parent / "jars"
    times = sorted(jar.stat().st_mtime_ns for jar in jars.glob("*.jar"))
    return hashlib.sha256(f"{said} {pyspark.__version__} {jars} {times}".encode()).hexdigest()[:16]


def _make(archive: Path) -> bool:
    print("making an archive of Spark's classes, once: build/", flush=True)
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        half_made = Path(directory) / "classes.jsa"
        done = subprocess.run(
            [sys.executable, __file__, directory],
            env={
                **os.environ,
                "SPARK_SUBMIT_OPTS": f"{FOR_SHORT_LIVES} -XX:ArchiveClassesAtExit={half_made}",
                "PYTHONPATH": str(ROOT / "src"),
                "PYSPARK_PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            timeout=MAKE_TIMEOUT_S,
            check=False,
        )
        if done.returncode or not half_made.exists():
            print(f"no archive was made; the tests take longer:\n{done.stdout[-500:]}{done.stderr[-500:]}", flush=True)
            return False
        # Into place by rename: two runs of the tests may make it at the same time.
        beside = archive.with_suffix(f".{os.getpid()}")
        beside.write_bytes(half_made.read_bytes())
        beside.replace(archive)
    for older in archive.parent.glob("spark-classes-*.jsa"):
        if older != archive:
            older.unlink(missing_ok=True)
    return True


def _load_classes(directory: Path) -> None:
    """Run a pipeline that touches what most of them touch; end its JVM in order, which writes the archive."""
    from pyspark import SparkContext

    import holdfast as hf

    rows = hf.read.rows([{"n": n} for n in range(10)], schema="n BIGINT", name="rows")
    doubled = rows | hf.map(lambda frame: frame.selectExpr("n", "n * 2 as twice"), name="doubled")
    pipeline = hf.Pipeline(
        "classes",
        doubled | hf.map_batches(lambda batch: batch, "n BIGINT, twice BIGINT") | hf.write.files(directory / "files"),
        doubled | hf.write.sqlite(directory / "classes.db", table="rows"),
    )
    pipeline.run(checkpoint=str(directory / "checkpoint"), trigger=hf.available_now(), master="local[2]")
    jvm = SparkContext._gateway.proc
    jvm.stdin.close()
    jvm.wait(timeout=MAKE_TIMEOUT_S)


if __name__ == "__main__":
    _load_classes(Path(sys.argv[1]))
