"""``holdfast video import`` in a process that dies by SIGKILL before a change of a file, or within a write."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from holdfast.connectors.byte_stream import append
from holdfast.connectors.byte_stream.staging import write_all
from holdfast.footage import importing

_CHANGES = {"os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def mortal(directory: str, left: int) -> None:
    """Die at a change of a file below a directory, counted from 0; writes of messages and index are cut in half."""

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
            if writes and isinstance(path, str) and path.startswith(directory):
                count()
        elif event in _CHANGES and str(arguments[0]).startswith(directory):
            count()

    def torn(fd: int, views: Sequence[memoryview | bytes]) -> None:
        if left <= 0:
            data = b"".join(views)
            os.write(fd, data[: len(data) // 2])
        count()
        write_all(fd, views)

    vars(append)["write_all"] = torn
    sys.addaudithook(audit)


def main(store: str, left: str, *files: str) -> None:
    """Import files into the stream ``cam1``."""
    mortal(store, int(left))
    with importing.VideoImport(store, "cam1", batch_bytes=1500) as each:
        for number, file in enumerate(files):
            each.add(file, None if number else 1_767_225_600 * 10**9)


if __name__ == "__main__":
    main(*sys.argv[1:])
