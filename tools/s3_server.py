"""An S3 server on loopback: moto's, in a process of its own.

Moto looks whether an object is there, and then writes it; it serves each request in a thread, so of two that create one
object both may be told that they have.  S3 lets one of them win: here such requests are served one after the other.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

from holdfast.testing.servers.ports import free_port

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
"""Variables with which the server is asked: it takes any."""


@contextmanager
def s3_server(bucket: str = "checkpoints") -> Iterator[dict[str, str]]:
    """Start a server with a bucket; yield the variables by which it is found."""
    endpoint = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", __name__, "-H", "127.0.0.1", "-p", str(port)]
    root = Path(__file__).resolve().parents[1]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                create_bucket(endpoint, bucket)
                break
            except (URLError, OSError):
                if process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.02)
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}
    finally:
        process.kill()
        process.wait(timeout=60)


def create_bucket(endpoint: str, name: str) -> None:
    """Create a bucket; it may be there."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=10).close()


def serve(arguments: list[str]) -> None:
    """Be the server: moto's, one after the other where an object is to be created."""
    from moto import server

    application, one_at_a_time = server.DomainDispatcherApplication, threading.Lock()

    class OneCreates(application):  # type: ignore[valid-type]
        def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
            if "HTTP_IF_NONE_MATCH" not in environ:
                return super().__call__(environ, start_response)
            with one_at_a_time:
                return super().__call__(environ, start_response)

    server.DomainDispatcherApplication = OneCreates
    server.main(arguments)


if __name__ == "__main__":
    serve(sys.argv[1:])
