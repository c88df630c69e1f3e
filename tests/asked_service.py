"""A service over HTTP that is asked for twice a number, with faults; and a client for it of the standard library."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit


class AskedService:
    """Answers ``/twice?n=N`` in a thread of its own, and counts who asked.

    Parameters
    ----------
    delay_s : float
        Before each answer.
    fails : mapping of int to int, optional
        Number -> how many times it is answered with 503 first.
    hangs : set of int, optional
        Numbers that are not answered the first time.
    """

    def __init__(self, delay_s: float = 0.0, *, fails: Any = None, hangs: Any = None) -> None:
        self._delay_s = delay_s
        self._fails: dict[int, int] = dict(fails or {})
        self._hangs: set[int] = set(hangs or ())
        self.asked: Counter[int] = Counter()
        self.in_flight = 0
        self.in_flight_max = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> AskedService:
        """Listen."""
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """Stop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1000))
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            number = int(parse_qs(urlsplit(head.split()[1].decode()).query)["n"][0])
            self.asked[number] += 1
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
            try:
                status, body = await self._answered(number)
            finally:
                self.in_flight -= 1
            writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever asked was killed
        finally:
            writer.close()

    async def _answered(self, number: int) -> tuple[int, bytes]:
        if number in self._hangs:
            self._hangs.discard(number)
            await asyncio.sleep(3600)
        await asyncio.sleep(self._delay_s)
        if self._fails.get(number, 0) > 0:
            self._fails[number] -= 1
            return 503, b"busy"
        return 200, json.dumps({"twice": 2 * number}).encode()


async def twice(port: int, number: int) -> dict[str, Any]:
    """Ask for twice a number."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET /twice?n={number} HTTP/1.1\r\nHost: local\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"{head.split()[1].decode() if head else 'no answer'} {body.decode()}")
    answer: dict[str, Any] = json.loads(body)
    return answer
