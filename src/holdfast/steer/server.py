"""The socket of a live run: a thread that listens, and one for each caller.  Only this user and root are heard.

Whatever fails here leaves the run alone.
"""

from __future__ import annotations

import logging
import os
import socket
import socketserver
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.errors import REPORT, HoldfastError, InternalError
from holdfast.steer.place import is_own
from holdfast.steer.protocol import LINE_MAX, CallerGone, Command, failure, read_request, to_line, wrong_request

log = logging.getLogger("holdfast.run")


class SteerServer:
    """Listens for commands.

    Parameters
    ----------
    path : str
        Where the socket is created, in a directory that is closed to others.
    commands : mapping of str to Command
        What can be told.

    Raises
    ------
    OSError
        If it cannot be created there.
    """

    def __init__(self, path: str, commands: Mapping[str, Command]) -> None:
        self.path = path
        self._server = _Listening(path, commands)
        os.chmod(path, 0o600)
        self._thread = threading.Thread(target=self._server.serve_forever, name="holdfast-steer", daemon=True)
        self._thread.start()

    def hide(self) -> None:
        """Let nobody find it any more; returns at once."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def close(self) -> None:
        """Listen no more; callers that are heard go on."""
        self.hide()
        with suppress(OSError):  # wakes the thread, which otherwise looks twice a second whether it is to end
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Listening(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, path: str, commands: Mapping[str, Command]) -> None:
        self.commands = commands
        super().__init__(path, _Hearing)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        del client_address
        if is_own(request):
            return True
        log.warning("another user has tried to tell the run something, and was not heard")
        return False

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address
        log.debug("a caller of the run has gone", exc_info=True)


class _Hearing(socketserver.StreamRequestHandler):
    server: _Listening

    def handle(self) -> None:
        while line := self.rfile.readline(LINE_MAX + 1):
            rest = line  # of an overlong line: it is no request of its own
            while rest and not rest.endswith(b"\n"):
                rest = self.rfile.readline(LINE_MAX)
            self._tell(self._answer(line))

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            request = read_request(line)
            carry_out = self.server.commands.get(request.command)
            if carry_out is None:
                raise wrong_request(f"{request.command!r} is none of {', '.join(sorted(self.server.commands))}")
            self._tell({"answer": "accepted"})
            return {"answer": "done", "said": carry_out(request, self._progress)}
        except HoldfastError as error:
            return failure(error)
        except CallerGone:
            raise
        except Exception as error:
            log.exception("a command to the run has failed")
            what = f"the command has failed: {type(error).__name__}: {error}"
            return failure(InternalError(what, why="this is a mistake in Holdfast.", do=REPORT))

    def _progress(self, said: Mapping[str, Any]) -> None:
        self._tell({"answer": "progress", "said": said})

    def _tell(self, said: Mapping[str, Any]) -> None:
        try:
            self.wfile.write(to_line(said))
        except OSError as error:
            raise CallerGone from error
