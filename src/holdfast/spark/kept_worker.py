"""The kept worker's own side: it is sent a callable once, and then the arguments of each call.

Started by :mod:`holdfast.spark.kept_worker` as ``python -m holdfast.spark.kept_worker``.  On stdin and on stdout:
*frames*, each a pickled value behind its length.  It is sent the driver's module path and the callable, then a tuple
for each call; it answers with its process id, then with ``(True, result)`` or ``(False, (error, trace))`` for each.
What a function prints goes to stderr.  It ends when stdin does, whatever is at work then, and when it cannot answer.

The driver's side of the kept worker: begun and ended with the run, and begun anew when it has died.

Invariant.  A worker's death is an error of the call that it died in, and of nothing else: the driver lives on, and what
was called has changed nothing that counts.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any, Generic, TypeVar

from pyspark.errors import PythonException

from holdfast.errors import HoldfastError, Unavailable
from holdfast.spark import private
from holdfast.spark.launch import forking, stacks
from holdfast.spark.launch.jvm import WITHOUT_SIGNALS, environment_of_workers
from holdfast.spark.launch.jvm_output import JvmOutput

LENGTH_BYTES = 8


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write one frame."""
    stream.write(len(data).to_bytes(LENGTH_BYTES, "little"))
    stream.write(data)
    stream.flush()


def frames(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield frames until the stream ends."""
    while len(head := stream.read(LENGTH_BYTES)) == LENGTH_BYTES:
        length = int.from_bytes(head, "little")
        data = stream.read(length)
        if len(data) < length:
            return
        yield data


def main() -> None:
    """Answer calls until stdin ends."""
    stacks.register()
    for each in (signal.SIGINT, signal.SIGTERM):  # a run that is told to stop finishes the epoch at work
        signal.signal(each, signal.SIG_IGN)
    given, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what a function prints is no answer
    received: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_end_after, args=(lambda: _listen(given, received),), daemon=True).start()
    _end_after(lambda: _answer_calls(received, answers))


def _end_after(work: Callable[[], None]) -> None:
    """End the process when some work is done or fails: Python would wait for the threads of functions, and the driver
    for an answer.
    """
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _listen(given: IO[bytes], received: SimpleQueue[bytes]) -> None:
    """Receive until the driver is gone, or needs no further answer."""
    for data in frames(given):
        received.put(data)


def _answer_calls(received: SimpleQueue[bytes], answers: IO[bytes]) -> None:
    write_frame(answers, pickle.dumps(os.getpid()))
    path: list[str] = pickle.loads(received.get())
    sys.path += [entry for entry in path if entry not in sys.path]
    loaded, call = _answer(pickle.loads, received.get())
    while True:
        request = received.get()
        # What cannot be imported here is the answer to every call.
        answer = _answer(lambda given: call(*pickle.loads(given)), request) if loaded else (False, call)
        write_frame(answers, pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))


def _answer(call: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Return what a call gives: true with its result, or false with what it raised and the trace of it.

    Errors of others are left out: many cannot be pickled, or not be made anew from that.
    """
    try:
        return True, call(*arguments)
    except Exception as error:
        return False, (error if isinstance(error, HoldfastError) else None, traceback.format_exc())


T = TypeVar("T")

LONG_S = 0.5
"""A call that takes longer is for a job: its workers, which work at the same time, are worth what it costs."""

LEAST_TIMES = 1 / 64
"""Calls up to this size are made whatever they take, in a job they would be one task: quick ones raise the size."""

LOOK_S = 0.5
"""How often it is checked whether the worker lives: a process that a function has started may hold its pipe open."""


class _InWorkerError(Exception):
    """The cause of an error that came from the kept worker: its traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class KeptWorker(Generic[T]):
    """A callable in a process of its own.  One thread calls; any thread may end it.

    Parameters
    ----------
    target : callable
        What is called there.  Picklable, functions of the user included; it is sent once, and keeps what it holds from
        call to call.
    most : float
        How many times the usual size a call is given at most.
    now_s : callable
        Time that only grows, seconds.
    """

    def __init__(
        self, target: Callable[..., T], most: float = 1.0, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._most = most
        self._now_s = now_s
        self._process: _Process | None = None
        self._calling = threading.Lock()
        self.times = 1.0
        """How many times the usual size a call should be given, so that it does not take long."""

    def __call__(self, *arguments: Any) -> T:
        """Return what the callable returns.

        Raises
        ------
        Unavailable
            If the worker dies of it, or is ended.
        HoldfastError
            That the callable has raised.
        PythonException
            For everything else that it has raised.
        """
        with self._calling:
            process = self._begun()
            is_first, began = not process.has_answered, self._now_s()
            try:
                done, result = process.asked(arguments)
            except (OSError, EOFError) as error:
                how = process.end()
                self._forget()
                raise Unavailable(
                    "the Python process that calls functions of the pipeline has died.",
                    why=f"{how}; a function may have ended it, or the kernel for want of memory.",
                    do="nothing was changed: it is retried; see what the function printed, and the system's log.",
                ) from error
            took_s = self._now_s() - began
        if not is_first:  # it sets up, and imports
            self._note(took_s)
        if done:
            found: T = result
            return found
        raised, trace = result
        if isinstance(raised, HoldfastError):
            raise raised from _InWorkerError(trace)
        raise PythonException(message=trace)

    def begin_worker(self) -> None:
        """Let the process begin, beside whatever else is done: the first call would wait for it."""
        with self._calling:
            self._begun()

    def end_worker(self) -> None:
        """End the process, whatever it does; a later call begins another one."""
        if (process := self._process) is not None:
            process.end()
            with self._calling:
                if self._process is process:
                    self._forget()

    def _begun(self) -> _Process:
        if self._process is None:
            self._process = _Process.begun(self._target)
        return self._process

    def _forget(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None

    def _note(self, took_s: float) -> None:
        if took_s > LONG_S:
            self.times = max(LEAST_TIMES, self.times * LONG_S / took_s)
        elif took_s < LONG_S / 2:
            self.times = min(self._most, 2 * self.times)


class _Process:
    """One process: what it is asked, and how it ends."""

    def __init__(self, process: subprocess.Popen[bytes], given: IO[bytes], answers: int) -> None:
        self._process = process
        self._given = given
        self._answers = answers
        self.has_answered = False
        self._number: int | None = None
        """The worker's process: what was started may only stand for it (:mod:`holdfast.spark.launch.forked_python`)."""

    @staticmethod
    def begun(target: Callable[..., Any]) -> _Process:
        """Begin a process, and send it what it is to call."""
        output = JvmOutput(os.pipe())
        output.has_started()
        with environment_of_workers(is_local=True):
            process = subprocess.Popen(
                ["/bin/sh", "-c", WITHOUT_SIGNALS, "sh", forking.python(), "-m", "holdfast.spark.kept_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output.write_end,
                env=forking.environment(),
            )
        output.is_launched()
        assert process.stdin is not None
        assert process.stdout is not None
        begun = _Process(process, process.stdin, process.stdout.fileno())
        with suppress(OSError):  # it has died: the first call says so
            write_frame(process.stdin, pickle.dumps(sys.path))
            write_frame(process.stdin, private.pickled(target))
        return begun

    def asked(self, arguments: tuple[Any, ...]) -> Any:
        """Return the answer to a call; OSError or EOFError when there is none."""
        if self._number is None:
            self._number = pickle.loads(self._answer())
        write_frame(self._given, private.pickled(arguments))
        answer = pickle.loads(self._answer())
        self.has_answered = True
        return answer

    def end(self) -> str:
        """End it; return how it ended."""
        if self._number is None:
            self._process.kill()
        elif self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._number, signal.SIGKILL)  # a function may hold Python's lock, and never see its input end
        code = self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def __del__(self) -> None:
        """End what nobody has: an evaluation that outlives its run, because the query was stopped, begins one more."""
        if self._process.returncode is None:
            self.close()
            self.end()

    def close(self) -> None:
        """Close its pipes, with which what was started ends."""
        for pipe in (self._given, self._process.stdout):
            with suppress(OSError):  # what was written last has no reader
                assert pipe is not None
                pipe.close()

    def _answer(self) -> bytes:
        return self._read(int.from_bytes(self._read(LENGTH_BYTES), "little"))

    def _read(self, size: int) -> bytes:
        data = bytearray()
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while len(data) < size:
            if poll.poll(LOOK_S * 1000):
                more = os.read(self._answers, size - len(data))
                if not more:
                    raise EOFError
                data += more
            elif self._process.poll() is not None:  # its pipe is held open by a process that it has started
                raise EOFError
        return bytes(data)


if __name__ == "__main__":
    main()
