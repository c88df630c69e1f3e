"""An S3 server on loopback: moto's, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError

from tools.ports import free_port

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
"""Variables with which the server is asked: it takes any."""


@contextmanager
def s3_server(bucket: str = "checkpoints") -> Iterator[dict[str, str]]:
    """Start a server with a bucket; yield the variables by which it is found."""
    endpoint = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
