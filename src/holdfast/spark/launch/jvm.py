"""The JVM of this process: begun as soon as a pipeline is known, taken by PySpark when it asks for one.

It is started by its own command line where that is known (:mod:`holdfast.spark.launch.jvm_options`), at once: while it
comes up, this process imports the rest of Holdfast and asks the checkpoint and the sinks.  Otherwise Spark's scripts
start it, when a session is asked for.

A JVM that is never taken ends with this process, which holds its standard input.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkConf

import holdfast
from holdfast.spark import private
from holdfast.spark.launch import class_archive, forking, jvm_options, stacks, stop_directory
from holdfast.spark.launch.java import require_java
from holdfast.spark.launch.jvm_options import OPTIONS_OF_JAVA, JvmOptions, RowsInJvm, options_of_java
from holdfast.spark.launch.jvm_output import JvmOutput
from holdfast.store import encodings

log = logging.getLogger("holdfast.run")

POLL_S = 0.005
READY_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 30.0

TEMPORARY_FILES = "java.io.tmpdir"
"""Java's property; what is Spark's stands there too, unless ``SPARK_LOCAL_DIRS`` or ``spark.local.dir`` is set."""

_ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "1000", "MIMALLOC_ALLOW_THP": "0"}
"""For the allocator of Arrow.  In milliseconds: a page that is free is used again by the next batch; given back after
its default of 10, it comes back empty, and clearing pages is a tenth of the work of large state.  And pages of 4 KiB:
the kernel clears 2 MiB for what may need little of it, which took more than a fourth of the time of such state."""

WITHOUT_SIGNALS = 'trap "" INT TERM; exec "$@"'
"""A shell's script: its program is stopped by the driver alone, also where all processes of a run get a signal."""


class JvmEnded(Exception):
    """The JVM has ended before it was ready.

    Parameters
    ----------
    lines : list of str
        The last lines that it printed, masked.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def plain_options(memory: str) -> JvmOptions:
    """Return the options of a JVM as Java and Spark have it, with a heap of this size.

    Parameters
    ----------
    memory : str
        As Spark writes it (``"2g"``).
    """
    # A file of our own instead of Spark's default, which greets with five lines and prints every stack trace.
    own_log = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
    return JvmOptions(memory, (own_log, *_temporary_files()))


def options_for(memory: str, *, rows: RowsInJvm, has_archive: bool) -> JvmOptions:
    """Return the options of a JVM of ours.

    Parameters
    ----------
    memory : str
        Its heap.
    rows : RowsInJvm
        For which rows it is to be optimised.
    has_archive : bool
        Whether it may use the archive of Spark's classes.
    """
    plain = plain_options(memory)
    chosen = options_of_java(rows, os.environ, os.cpu_count() or 1)
    archive = class_archive.options(os.environ) if has_archive else ()
    return JvmOptions(memory, (*plain.for_java, *chosen, *archive))


def _temporary_files() -> tuple[str, ...]:
    """Return where a JVM puts what it removes only when it ends in order, unless the user has said where.

    Spark's blocks, files of its driver, native libraries: those of a killed run are swept with its directory.
    """
    given = " ".join(os.environ.get(name, "") for name in OPTIONS_OF_JAVA)
    return () if TEMPORARY_FILES in given else (f"-D{TEMPORARY_FILES}={stop_directory.of_process()}",)


@dataclass(frozen=True)
class _Begun:
    """A JVM that comes up."""

    line: list[str]
    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    output: JvmOutput
    place: Path

    @property
    def connection(self) -> Path:
        return self.place / "connection"

    def is_started_like(self, line: list[str], environment: dict[str, str]) -> bool:
        """Tell whether it is what these would start: variables may have been set since, for Spark or for workers."""
        return (self.line, self.environment) == (line, environment)


_begun: list[_Begun] = []
"""At most one."""

_adopted: list[subprocess.Popen[bytes]] = []
"""The one that PySpark was given; at most one."""

_composed_here: list[subprocess.Popen[bytes]] = []
"""That one again, if its command line was composed here: it has the classes of ours."""

_lock = threading.Lock()


def begin(options: JvmOptions) -> None:
    """Start the JVM that :func:`launch` will ask for, if its command line is known; does not wait for it.

    One that was begun for a start that was refused is used, unless it would be started differently now.

    Parameters
    ----------
    options : JvmOptions
        What it must know at its start.

    Raises
    ------
    InvalidPipeline
        If no Java 17 or newer is found.
    """
    require_java()
    with private.jvm_is_to_be_launched() as is_ours, _lock:
        with environment_of_workers(is_local=True):
            line, environment = _composed(options)
        if not is_ours or not (_begun and _begun[0].is_started_like(line, environment)):
            _discard_begun()
            if is_ours and line:
                _begun.append(_start(line, environment))


def discard() -> None:
    """End a JVM that was begun: none will be asked for."""
    with _lock:
        _discard_begun()


def has_begun() -> bool:
    """Tell whether a JVM was begun and is not taken yet."""
    return bool(_begun)


def _composed(options: JvmOptions) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the variables of a JVM: what it starts by itself as Python is forked, too."""
    line = jvm_options.composed(os.environ, options.settings, options.for_java)
    if not line:
        return line, {}
    python = forking.workers().python
    forked = {} if python is None else {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    return line, jvm_options.environment_of_scripts(os.environ) | forked


def _start(line: list[str], environment: dict[str, str]) -> _Begun:
    place = Path(tempfile.mkdtemp(prefix="jvm-", dir=stop_directory.of_process()))
    output = JvmOutput()
    process = subprocess.Popen(
        ["/bin/sh", "-c", WITHOUT_SIGNALS, "sh", *line],
        stdin=subprocess.PIPE,
        stdout=output.write_end,
        stderr=output.write_end,
        env={**environment, jvm_options.CONNECTION: str(place / "connection")},
    )
    output.is_launched()
    begun = _Begun(line, environment, process, output, place)
    atexit.register(_discard, begun)
    return begun


def launch(conf: SparkConf, options: JvmOptions) -> JvmOutput | None:
    """Give PySpark the JVM of this process: the one that was begun, or a new one by Spark's scripts.

    Parameters
    ----------
    conf : SparkConf
        What a new one must know at its start.
    options : JvmOptions
        With which one that was begun must have been started.

    Returns
    -------
    JvmOutput, optional
        What it prints; None if there is a JVM already: it is its owner's, and so is what it prints.

    Raises
    ------
    JvmEnded
        If it ends before it is ready.
    """
    with private.jvm_is_to_be_launched() as is_ours, _lock:
        if not is_ours or not (_begun and _begun[0].is_started_like(*_composed(options))):
            _discard_begun()
        if not is_ours:
            return None
        return _connect(_begun.pop()) if _begun else _launched_by_scripts(conf)


def _connect(begun: _Begun) -> JvmOutput:
    try:
        end = time.monotonic() + READY_TIMEOUT_S
        while not begun.connection.exists():
            if begun.process.poll() is not None or time.monotonic() > end:
                begun.process.kill()
                raise JvmEnded(begun.output.last_lines())
            time.sleep(POLL_S)
        _adopt(private.connected_jvm(begun.connection, begun.process))
        _composed_here[:] = _adopted
    except BaseException:  # an interruption, too: nothing else would end it
        _discard(begun)
        raise
    atexit.unregister(_discard)
    shutil.rmtree(begun.place, ignore_errors=True)
    return begun.output


def _adopt(gateway: Any) -> None:
    private.adopt_jvm(gateway)
    _adopted[:] = [gateway.proc]


def has_our_classes() -> bool:
    """Tell whether the JVM that PySpark was given here knows :mod:`holdfast.spark.launch.jvm_classes`."""
    return bool(_adopted) and _composed_here == _adopted


def has_ended() -> bool:
    """Tell whether the JVM that PySpark was given here has ended; false where it was given none."""
    return any(process.poll() is not None for process in _adopted)


def end() -> None:
    """End the JVM that was begun here, with its session; a later start begins another.  Nothing where there is none."""
    discard()
    if _adopted and not has_ended():
        if (context := private.active_context()) is not None:
            context.stop()
        private.end_jvm(_END_TIMEOUT_S)
    _adopted.clear()


def _discard_begun() -> None:
    while _begun:
        _discard(_begun.pop())


def _discard(begun: _Begun) -> None:
    begun.process.kill()
    begun.process.wait()
    shutil.rmtree(begun.place, ignore_errors=True)


def _launched_by_scripts(conf: SparkConf) -> JvmOutput:
    output = JvmOutput()
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of the fork in PySpark's way to start a process, now that there is a second thread.
            warnings.simplefilter("ignore", DeprecationWarning)
            # stdout too: it belongs to our --json, and Java prints its warnings there.
            gateway = private.launch_jvm(conf, _Surviving(stdout=output.write_end, stderr=output.write_end))
    except Exception as error:
        output.is_launched()
        raise JvmEnded(output.last_lines()) from error
    output.is_launched()
    _adopt(gateway)
    return output


class _Surviving(dict[str, Any]):
    """Arguments of the process that becomes the JVM, which SIGTERM does not end.

    A service manager sends it to every process of a run at once.  A stop is the driver's to carry out, with the JVM:
    the epoch at work is finished first.  Ignored signals stay ignored in a program that is executed: Java then installs
    no handler, and what Java starts ignores it too, but for the process that forks Spark's workers.  When the driver
    ends, whatever ends it, the JVM does too: it reads a pipe that the driver holds.

    What PySpark has done before the program is executed, to ignore SIGINT, is done, and SIGTERM ignored as well.
    """

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _also_without_sigterm(value) if key == private.BEFORE_EXEC else value)


def _also_without_sigterm(before_exec: Callable[[], object]) -> Callable[[], None]:
    def prepare() -> None:
        before_exec()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    return prepare


@contextmanager
def environment_of_workers(*, is_local: bool) -> Iterator[None]:
    """Set what the JVM that is started meanwhile hands on to every Python process it starts.

    Parameters
    ----------
    is_local : bool
        Whether all of them run on this machine.
    """
    # Workers must run the interpreter that has Holdfast; "python3" of the PATH often is another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        # One machine: no other address than its own is needed, whatever its host name resolves to.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Installed packages are there anyway; a source tree on sys.path is not, in another process.
    root = str(Path(holdfast.__file__).parents[1])
    if root not in paths and "site-packages" not in root:
        paths.insert(0, root)
    python_path = os.pathsep.join([str(Path(__file__).parent / "startup"), *paths])
    changed = {"PYTHONPATH": python_path, **encodings.variables_of_jvm()}
    changed |= {name: value for name, value in _ALLOCATOR.items() if name not in os.environ}
    if is_local:
        changed[stacks.VARIABLE] = str(stacks.directory())
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
