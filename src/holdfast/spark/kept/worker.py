"""The kept worker's own side: it is sent a callable once, and then the arguments of each call.

Started by :mod:`holdfast.spark.kept.process` as ``python -m holdfast.spark.kept.worker``.  On stdin and on stdout:
*frames*, each a pickled value behind its length.  It is sent the driver's module path and the callable, then a tuple
for each call; it answers with its process id, then with ``(True, result)`` or ``(False, (error, trace))`` for each.
What a function prints goes to stderr.  It ends when stdin does, whatever is at work then, and when it cannot answer.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import IO, Any

from holdfast.errors import HoldfastError

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


if __name__ == "__main__":
    main()
