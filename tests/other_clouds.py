"""Google Cloud Storage and Azure for tests: a stand-in of the one, and Azure's own emulator where it is installed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from urllib.error import URLError
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from holdfast.testing.servers.ports import free_port
from tests.http_servers import Quiet, serving_with

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the emulator: published, the same everywhere."""


@pytest.fixture
def google_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address in a stand-in of Google Cloud Storage: what its XML interface is documented to do, for one bucket."""
    objects: dict[str, tuple[bytes, str]] = {}
    lock = threading.Lock()

    class Handler(Quiet):
        def do_PUT(self) -> None:
            key, data, token = self._key(), self.body(), self.headers.get("x-goog-meta-holdfast", "")
            with lock:
                is_refused = self.headers.get("x-goog-if-generation-match") == "0" and key in objects
                if not is_refused:
                    objects[key] = (data, token)
            self._reply(*((412, b"<Error><Code>PreconditionFailed</Code></Error>") if is_refused else (200,)))

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            with lock:
                found = objects.get(self._key())
                listing = self._listing(query.get("prefix", [""])[0])
            if "list-type" in query:
                self._reply(200, listing)
            elif found is None:
                self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
            else:
                self._reply(200, found[0], {"x-goog-meta-holdfast": found[1]} if found[1] else {})

        def do_DELETE(self) -> None:
            with lock:
                is_there = objects.pop(self._key(), None) is not None
            self._reply(204 if is_there else 404)

        def _key(self) -> str:
            return unquote(urlsplit(self.path).path.removeprefix("/bucket/"))

        def _listing(self, prefix: str) -> bytes:
            meta = "<LastModified>2026-01-01T00:00:00Z</LastModified><ETag>1</ETag>"
            found = [(key, len(data)) for key, (data, _) in sorted(objects.items()) if key.startswith(prefix)]
            entries = [f"<Contents><Key>{escape(k)}</Key>{meta}<Size>{n}</Size></Contents>" for k, n in found]
            return f"<ListBucketResult>{''.join(entries)}</ListBucketResult>".encode()

        def _reply(self, status: int, data: bytes = b"", more: dict[str, str] | None = None) -> None:
            self.send_response(status)
            about = {"ETag": '"1"', "x-goog-generation": "1", "Last-Modified": format_datetime(_NOW, usegmt=True)}
            for name, value in {**about, **(more or {}), "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    with serving_with(Handler) as port:
        endpoint = f"http://127.0.0.1:{port}"
        account = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        (tmp_path / "account.json").write_text(json.dumps({**account, "private_key_id": ""}))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
        monkeypatch.setenv("GOOGLE_BASE_URL", endpoint)
        yield "gs://bucket/some/place"


@pytest.fixture
def azure_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address in Azurite, Azure's own emulator; skipped where that is not on the PATH."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not on the PATH: npm install -g azurite")
    with _azurite(program) as endpoint:
        for name, value in (("ACCOUNT_NAME", _ACCOUNT), ("ACCOUNT_KEY", _KEY), ("ENDPOINT", endpoint)):
            monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
        yield "az://checkpoints/some/place"


@contextmanager
def _azurite(program: str) -> Iterator[str]:
    port = free_port()
    options = ["--silent", "--inMemoryPersistence", "--disableTelemetry", "--blobPort", str(port)]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    try:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(_new_container(endpoint, "checkpoints"), timeout=10).close()
                break
            except (URLError, OSError):
                if process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.05)
        yield endpoint
    finally:
        process.kill()
        process.wait(timeout=60)


def _new_container(endpoint: str, name: str) -> urllib.request.Request:
    """Return the request that creates a container, signed."""
    about = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in about.items())]
    text = "\n".join([*lines, f"/{_ACCOUNT}/{_ACCOUNT}/{name}", "restype:container"])
    signed = base64.b64encode(hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers = {**about, "Authorization": f"SharedKey {_ACCOUNT}:{signed}", "Content-Type": "", "Content-Length": "0"}
    return urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT", data=b"", headers=headers)
