"""An archive of the classes that Spark loads: with it a JVM is ready in half of the time, and of the CPU.

Java reads, checks and links some ten thousand classes of Spark at each start.  It can keep them as it has them in
memory (*class data sharing*, in every JVM since 13), and map that file at the next start.  The archive is made once for
each installation of Java and PySpark, by small pipelines in a process of its own at the lowest priority, some time
after the second run has begun; then it lies in the user's cache directory (about 180 MB).  Not beside the first: where
nothing is left of that directory at the next start (the home of a container that is thrown away, a temporary one), the
archive would be made each time, and never used.  It is never required: a JVM that finds it unfit (other jars, another
heap layout, wrong checksums) starts without it, and one that dies of it is started again without, and the archive is
removed.

What each crash leaves: the archive is written under another name and renamed, so that a part of one is never used; the
lock on that name goes with its process.  An attempt that failed or was killed is noted, and not repeated for a day.

It contains code: it is used only from a directory, and a file, that no other user can write.

References
----------
Java's class data sharing: JEP 310 and JEP 350.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.errors import present
from holdfast.spark.launch import jvm_options
from holdfast.spark.launch.jvm_classes import local_files
from holdfast.spark.launch.jvm_options import ONE_COLLECTOR, ONE_COMPILER, OPTIONS_OF_JAVA
from holdfast.store.paths import user_cache

log = logging.getLogger("holdfast.run")

MODULE = "holdfast.spark.launch.class_archive"
OFF = "off"
MAPPED = ("-XX:+UnlockDiagnosticVMOptions", "-XX:+VerifySharedSpaces", "-XX:ArchiveRelocationMode=0")
"""Each start compares the checksums (40 ms of CPU): classes of a damaged file would fail anywhere, and late.

It is mapped where it was made for, if that is free.  Elsewhere, which is what Java prefers, all pointers in it are
written: a tenth of a second of CPU, and most of its pages are then the process's own and no longer the file's."""
QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""A JVM that does not take the archive says so on stdout."""

_CHOSEN = "-XX:SharedArchiveFile"
"""A JVM takes one; the user's stands."""

MEMORY_BYTES = 3 << 30
"""What must be free: making it takes 1.3 GB, and what the kernel ends for lack of memory may be the run."""

HEAP = "512 MiB"

MAKE_TIMEOUT_S = 600
LATER_S = 30.0
"""The run has begun by then, and is not slowed down while it begins."""
RETRY_S = 86_400
UNUSED_S = 60 * 86_400
"""Archives that no start has used for so long belong to installations that are gone."""

_is_to_be_made = threading.Lock()


def path_for(environment: Mapping[str, str]) -> Path | None:
    """Return where the archive for this Java and this PySpark is, or would be; None where there cannot be one."""
    home, java = jvm_options.spark_home(), environment.get("JAVA_HOME")
    if home is None or not java:
        return None
    digest = hashlib.sha256(f"{Path(java).resolve()} {home}".encode())
    try:
        jars = (*sorted((home / "jars").glob("*.jar")), local_files.JAR)
        for path in (Path(java) / "release", Path(java) / "bin" / "java", *jars):
            if path.exists():
                found = path.stat()
                digest.update(f"{path.name} {found.st_size} {found.st_mtime_ns}".encode())
    except OSError:
        return None
    return user_cache(environment) / f"spark-classes-{digest.hexdigest()[:16]}.jsa"


def options(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options of a JVM that is to use the archive; none where there is no archive.

    Examples
    --------
    >>> options({})
    ()
    """
    if any(_CHOSEN in environment.get(name, "") for name in OPTIONS_OF_JAVA):
        return ()
    path = path_for(environment)
    if path is None or not path.exists() or not _is_ours(path.parent) or not _is_ours(path):
        return ()
    with suppress(OSError):  # another user's cache: its owner marks it as used
        if time.time() - path.stat().st_mtime > RETRY_S:
            os.utime(path)
    return (f"-XX:SharedArchiveFile={path}", *MAPPED, *QUIET)


def _is_ours(path: Path) -> bool:
    """Return whether no other user can have written a file or directory: an archive is code for our JVM."""
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def forget(for_java: Iterable[str]) -> None:
    """Remove the archive that options of Java name: a JVM did not start with them."""
    for option in for_java:
        name, _, path = option.partition("=")
        if name == _CHOSEN:
            with suppress(OSError):
                Path(path).unlink(missing_ok=True)


def make_later() -> None:
    """Have the archive made in the background, once this process has been at work for a while, or ends.

    Beside the second process that finds none: the first one leaves a note where the archive would be.
    """
    path = path_for(os.environ)
    if path is None or path.exists() or not _is_to_be_made.acquire(blocking=False) or not _is_missed_again(path):
        return
    begun = threading.Lock()

    def begin() -> None:
        if begun.acquire(blocking=False):
            _begin(path)

    timer = threading.Timer(LATER_S, begin)
    timer.daemon = True
    timer.start()
    atexit.register(begin)


_makers: list[subprocess.Popen[bytes]] = []
"""Processes that make an archive: they outlive the call, and one that nobody holds is warned of while it runs."""


def _is_missed_again(path: Path) -> bool:
    """Tell whether an earlier process has noted that there is no archive; note it otherwise."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _is_ours(path.parent):
            os.close(os.open(path.with_suffix(".missed"), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return True
    except OSError as error:
        log.debug("no archive of Spark's classes will be made: %s", error)
    return False


def _begin(path: Path) -> None:
    """Start the process that makes it; whatever stands in the way, nothing depends on it."""
    failed = path.with_suffix(".failed")
    try:
        if path.exists() or (failed.exists() and time.time() - failed.stat().st_mtime < RETRY_S):
            return
        if available_bytes() < MEMORY_BYTES:
            log.debug("no archive of Spark's classes is made: the run may need the memory")
            return
        if not _is_ours(path.parent):
            log.debug("no archive of Spark's classes is made: others may write %s", path.parent)
            return
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, os.fspath(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            cwd="/",
        )
        _makers.append(process)
    except OSError as error:
        log.debug("no archive of Spark's classes is made: %s", error)
        return
    log.info("an archive of Spark's classes is made in the background, for quicker starts: %s", path)


def _environment() -> dict[str, str]:
    # A port that an option of Java names (of an agent, of a debugger) is the run's.
    others = ("HOLDFAST_", "SPARK_", "PYSPARK_", *OPTIONS_OF_JAVA)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    roots = [entry for entry in sys.path if entry and Path(entry, "holdfast", "__init__.py").exists()]
    return {**kept, "PYTHONPATH": os.pathsep.join(roots), "HOLDFAST_CLASS_ARCHIVE": OFF}


_UNKNOWN = 1 << 62
"""Where the system does not say (macOS): much."""


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how much memory this process could take: of the machine's, and of its container's (cgroup v2).

    Parameters
    ----------
    proc, cgroup : Path
        Where the kernel reports it.
    """
    return min(_of_machine(proc), _of_container(cgroup))


def _of_machine(proc: Path) -> int:
    with suppress(OSError, ValueError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return _UNKNOWN


def _of_container(cgroup: Path) -> int:
    with suppress(OSError, ValueError):  # "max": no limit
        return int((cgroup / "memory.max").read_text()) - int((cgroup / "memory.current").read_text())
    return _UNKNOWN


# --- the process that makes it ----------------------------------------------------------------------------------------


def make(path: Path) -> bool:
    """Make the archive, verify it, and put it in its place; return whether it is there.

    Parameters
    ----------
    path : Path
        Where it is to be.  Another process that makes the same one is not waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_ours(path.parent):
        return False
    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path.with_suffix(".lock"), flags, 0o600), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        if path.exists():
            return True
        # Noted beforehand: one that is killed (for its memory, mostly) is not repeated at each start either.
        failed = path.with_suffix(".failed")
        failed.unlink(missing_ok=True)
        failed.write_text("it was begun, and has not ended")
        with tempfile.TemporaryDirectory(prefix="holdfast-classes-") as place:
            # Beside its place: a rename does not cross file systems.
            made = path.with_suffix(".new")
            made.unlink(missing_ok=True)
            try:
                why = _run_pipeline(Path(place), made) or _verify(made)
            except (OSError, subprocess.SubprocessError) as error:  # it takes too long, or there is no Java any more
                why = str(error)
        if why:
            made.unlink(missing_ok=True)
            failed.write_text(why)
            return False
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(path)
        failed.unlink(missing_ok=True)
        path.with_suffix(".missed").unlink(missing_ok=True)
    _remove_unused(path.parent)
    return True


def _run_pipeline(place: Path, archive: Path) -> str:
    """Run a pipeline in a process whose JVM writes the archive when it ends; return why there is none."""
    # Not in this process: what HotSpot loads is what is kept, and nothing else shall be loaded.
    given = f"{ONE_COMPILER} {ONE_COLLECTOR} -XX:ArchiveClassesAtExit={archive}"
    done = subprocess.run(
        [sys.executable, "-c", f"from {MODULE} import _load_classes; _load_classes()", os.fspath(place)],
        env={**os.environ, "SPARK_SUBMIT_OPTS": given, "HOLDFAST_CLASS_ARCHIVE": OFF},  # one is made here
        capture_output=True,
        text=True,
        timeout=MAKE_TIMEOUT_S,
        check=False,
    )
    return "" if done.returncode == 0 and archive.exists() else f"{done.stdout[-2000:]}{done.stderr[-2000:]}" or "none"


def _load_classes() -> None:
    """Run pipelines that touch what most of them touch; end their JVM in order, which writes the archive."""
    import holdfast as hf
    from holdfast.config import Settings
    from holdfast.spark import private

    rows = hf.read.rows([{"n": n} for n in range(10)], schema="n BIGINT", name="rows")
    doubled = rows | hf.map(lambda frame: frame.selectExpr("n", "n * 2 as twice"), name="doubled")
    counted = rows | hf.reduce(by="n", many=hf.count(), name="counted")
    for carry_max in ("1 B", "1 MB"):  # by executors, and by the driver
        place = Path(sys.argv[1], carry_max)
        place.mkdir()
        for pipeline in (
            hf.Pipeline("through", doubled | hf.write.files(place / "files"), doubled | _table(place, "through")),
            hf.Pipeline("beside", rows | hf.filter("n > 1", name="some") | _table(place, "beside")),
            hf.Pipeline("state", counted | _table(place, "state")),
        ):
            checkpoint = place / pipeline.name
            settings = Settings(carry_max=carry_max, driver_memory=HEAP)
            pipeline.run(checkpoint=str(checkpoint), trigger=hf.available_now(), master="local[2]", settings=settings)
    private.end_jvm(MAKE_TIMEOUT_S)


def _table(place: Path, name: str) -> Any:
    import holdfast as hf

    return hf.write.sqlite(place / f"{name}.db", table="rows", name=f"table_{name}")


def _verify(archive: Path) -> str:
    """Return why a JVM does not take an archive; empty where it does, and its checksums are right."""
    home = present(jvm_options.spark_home(), "Spark's home is unknown.", why="a pipeline has just run.")
    done = subprocess.run(
        [
            *(f"{os.environ['JAVA_HOME']}/bin/java", "-Xshare:on", ONE_COLLECTOR, *MAPPED),
            *(f"-XX:SharedArchiveFile={archive}", "-cp", jvm_options.class_path(home), "-version"),
        ],
        cwd=archive.parent,  # a file that is too short kills it, and it leaves a report where it is
        capture_output=True,
        text=True,
        timeout=MAKE_TIMEOUT_S,
        check=False,
    )
    return "" if done.returncode == 0 else f"java does not take it: {done.stdout[-1000:]}{done.stderr[-1000:]}"


def _remove_unused(cache: Path) -> None:
    for path in cache.glob("spark-classes-*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > UNUSED_S:
                path.unlink()


def _step_back() -> None:
    """Give every other process precedence: this one is not urgent, and ends with the run if that is killed."""
    os.nice(19)
    with suppress(OSError):  # on Linux: the first to be ended where memory is short, with what it starts
        Path("/proc/self/oom_score_adj").write_text("1000")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    from holdfast.spark.launch.java import require_java

    _step_back()
    require_java()
    sys.exit(0 if make(Path(sys.argv[1])) else 1)
