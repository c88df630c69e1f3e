"""A schema registry for tests: the three requests that Holdfast makes, answered as Confluent's registry answers them.

None of the real ones is to be had as a package.  What this one does not have: versions that are deleted, references,
modes, and of compatibility anything but one rule of ``BACKWARD``: a field that is new needs a default.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SchemaRegistry:
    """Ids are given once, for a text; a subject has its ids in the order of registration."""

    def __init__(self, first: int = 7, login: str | None = None) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.status: int | None = None
        """What is answered to everything, if anything is."""
        self._schemas: dict[int, str] = {}
        self._subjects: dict[str, list[int]] = {}
        self._next = first
        self._login = login
        self._lock = threading.Lock()

    def add(self, schema: Any, subject: str = "any") -> int:
        """Register a schema whatever the others of its subject are; return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        with self._lock:
            number = next((each for each, known in self._schemas.items() if known == text), None)
            if number is None:
                number, self._next = self._next, self._next + 1
                self._schemas[number] = text
            if number not in self._subjects.setdefault(subject, []):
                self._subjects[subject].append(number)
        return number

    def newest(self, subject: str) -> str | None:
        """Return the text of the newest schema of a subject."""
        numbers = self._subjects.get(subject)
        return self._schemas[numbers[-1]] if numbers else None

    def answer(self, method: str, path: str, body: bytes, authorization: str | None) -> tuple[int, Any]:
        """Return status and content."""
        self.asked.append(f"{method} {path}")
        if self.status is not None:
            return self.status, {"error_code": self.status * 100 + 1, "message": "as the test says"}
        if self._login and authorization != f"Basic {base64.b64encode(self._login.encode()).decode()}":
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        parts = path.partition("?")[0].strip("/").split("/")
        if method == "GET" and parts[:2] == ["schemas", "ids"]:
            text = self._schemas.get(int(parts[2]))
            return (200, {"schema": text}) if text else (404, {"error_code": 40403, "message": "Schema not found"})
        subject = parts[1]
        if method == "GET":
            text = self.newest(subject)
            if text is None:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            numbers = self._subjects[subject]
            return 200, {"subject": subject, "version": len(numbers), "id": numbers[-1], "schema": text}
        text = json.loads(body)["schema"]
        newest = self.newest(subject)
        if newest is not None and (new := _new_fields(newest, text)):
            return 409, {"error_code": 409, "message": f"Schema being registered is incompatible: {new}"}
        return 200, {"id": self.add(text, subject)}


def _new_fields(newest: str, text: str) -> list[str]:
    known = {field["name"] for field in json.loads(newest)["fields"]}
    return [each["name"] for each in json.loads(text)["fields"] if each["name"] not in known and "default" not in each]


@contextmanager
def schema_registry(**options: Any) -> Iterator[SchemaRegistry]:
    """Run a registry on loopback."""
    registry = SchemaRegistry(**options)

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, content = registry.answer(self.command, self.path, body, self.headers["Authorization"])
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
