"""``holdfast video import`` in a process that dies by SIGKILL before a change of a file, or within a write."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from itertools import count

from holdfast.connectors.byte_stream import append
from holdfast.connectors.byte_stream.staging import write_all
from holdfast.footage import importing

_CHANGES = {"os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def mortal(directory: str, left: int) -> None:
    """Die at a change of a file below a directory, counted from 0; writes of messages and index are cut in half."""

    def change() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
            if writes and isinstance(path, str) and path.startswith(directory):
                change()
        elif event in _CHANGES and str(arguments[0]).startswith(directory):
            change()

    def torn(fd: int, views: Sequence[memoryview | bytes]) -> None:
        if left <= 0:
            data = b"".join(views)
            os.write(fd, data[: len(data) // 2])
        change()
        write_all(fd, views)

    vars(append)["write_all"] = torn
    sys.addaudithook(audit)


def main(store: str, left: str, *files: str) -> None:
    """Import files into the stream ``cam1``."""
    mortal(store, int(left))
    with importing.VideoImport(store, "cam1", batch_bytes=1500) as each:
        for number, file in enumerate(files):
            each.add(file, None if number else 1_767_225_600 * 10**9)


def every(directory: str, *files: str) -> None:
    """Import into a store for each change, in processes that are killed there, and again in ones that are not."""
    for left in count():
        store = os.path.join(directory, f"store-{left}")
        was_killed = _forked(store, left, files)
        if was_killed and _forked(store, 10**6, files):
            raise AssertionError(store)
        if not was_killed:
            break


def _forked(store: str, left: int, files: Sequence[str]) -> bool:
    child = os.fork()
    if not child:
        main(store, str(left), *files)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


if __name__ == "__main__":
    {"once": main, "every": every}[sys.argv[1]](*sys.argv[2:])
