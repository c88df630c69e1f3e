"""The port that Prometheus scrapes: one of each address in a process, for all runs that are to be seen there.

A port that cannot be opened, or a scrape that fails, leaves runs alone: it is logged.  Nothing of a run is asked
between scrapes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.metrics.families import StatusCollector
from holdfast.status import Status

log = logging.getLogger("holdfast.run")


class WatchedRun(Protocol):
    """What is asked of a run."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; raises why it failed."""

    def pictures(self) -> Sequence[Status]:
        """Return its status; of one in shards that of the whole first, then those of its shards."""


class MetricsPort:
    """One address at which metrics are served.

    Parameters
    ----------
    address : str
        ``host:port``; port 0 is any that is free.

    Raises
    ------
    OSError
        If it cannot be opened.
    """

    def __init__(self, address: str) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        host, _, port = address.rpartition(":")
        self.address = address
        self._runs: list[WatchedRun] = []
        self._lock = threading.Lock()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(StatusCollector(self._statuses))
        self._server, self._thread = start_http_server(int(port), host.strip("[]") or "0.0.0.0", registry)

    @property
    def number(self) -> int:
        """The number of the port."""
        return int(self._server.server_port)

    def show(self, run: WatchedRun) -> None:
        """Serve the metrics of a run, until it ends; with the last one the port is closed."""
        with self._lock:
            self._runs.append(run)
        threading.Thread(target=self._until_end, args=(run,), name="holdfast-metrics", daemon=True).start()

    def _until_end(self, run: WatchedRun) -> None:
        try:
            run.wait()
        except HoldfastError:
            log.debug("a run whose metrics are served has failed", exc_info=True)
        with _opening:
            with self._lock:
                self._runs.remove(run)
                is_last = not self._runs
            if is_last:
                _ports.pop(self.address, None)
                self.close()

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _statuses(self) -> list[Status]:
        with self._lock:
            runs = [*self._runs]
        found: list[Status] = []
        for run in runs:
            try:
                found += run.pictures()
            except Exception:  # of any kind, one that is ending: the others are served
                log.debug("a run gives no status to its metrics", exc_info=True)
        return found


_ports: dict[str, MetricsPort] = {}
_opening = threading.Lock()


def show_metrics(run: WatchedRun, address: str) -> None:
    """Serve the metrics of a run at an address of this process until it ends; if that cannot be, log why.

    Parameters
    ----------
    run : Run
        One that has begun.
    address : str
        ``host:port``.
    """
    with _opening:
        try:
            port = _ports.get(address) or MetricsPort(address)
        except OSError as error:
            log.warning("no metrics are served at %s, and the run goes on: %s", address, error)
            return
        if address not in _ports:
            _ports[address] = port
            log.info("metrics are served at port %d of %s", port.number, address.rpartition(":")[0] or "every address")
        port.show(run)


class _Replica:
    """What is served of a process that waits to take over."""

    def __init__(self, pipeline: str) -> None:
        self._status = Status(pipeline, doing="waiting to take over", is_replica=True)
        self._ended = threading.Event()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    def pictures(self) -> Sequence[Status]:
        return [self._status]

    def end(self) -> None:
        self._ended.set()


@contextmanager
def show_replica(pipeline: str, address: str) -> Iterator[None]:
    """Serve for the block that this process waits to take a pipeline over."""
    replica = _Replica(pipeline)
    show_metrics(replica, address)
    try:
        yield
    finally:
        replica.end()
