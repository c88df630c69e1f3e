"""An HTTP server during a run, on the driver.

Nothing is durable here: the server cannot be asked, so after a crash the last epoch is sent again, each row under its
id.  Within a process what was answered is not sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.http.bodies import Bodies, Request
from holdfast.connectors.http.posting import Posting
from holdfast.connectors.kit.handle_rows import HandleWriterFactory, batches_of
from holdfast.errors import BadRow
from holdfast.ports import Carried, Guarantee, Held, Outcome, Publication, RunIdentity, Sink
from holdfast.types.casting import fitted_table

_WINDOW = 16
"""Requests for each connection that are prepared ahead."""


class HttpSink:
    """One HTTP server during a run; see :class:`holdfast.ports.Sink`."""

    guarantee = Guarantee.AT_LEAST_ONCE
    staging = "rows in the handles"
    is_idempotent = True

    def __init__(self, name: str, schema: pa.Schema, bodies: Bodies, posting: Posting, *, at_once: int = 1) -> None:
        self.name = name
        self._schema = schema
        self._bodies = bodies
        self._posting = posting
        self._at_once = at_once
        self._epoch = 0
        self._answered: tuple[int, set[str]] = (0, set())
        """An epoch that is not finished, and the keys of its requests that the server has answered."""

    def open(self, run: RunIdentity) -> Held:
        """Return that nothing is held: the server cannot be asked."""
        return Held()

    def writer_factory(self) -> HandleWriterFactory:
        """Return the factory that executors call."""
        return HandleWriterFactory(self._schema)

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """See that the rows can be sent.  Whether the server takes them only it can say, and it cannot be tried."""
        for part in publication.parts:
            if isinstance(part, Carried):
                self._bodies.check(f"sink {self.name!r}", fitted_table(part.rows, self._schema))
        return False

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Send the epochs that this run has not sent yet."""
        for publication in publications:
            epoch = publication.record.epoch
            if epoch <= self._epoch:
                continue
            if self._answered[0] != epoch:
                self._answered = (epoch, set())
            rows = pa.Table.from_batches(batches_of(publication, self._schema), schema=self._schema)
            self._bodies.check(f"sink {self.name!r}", rows)
            try:
                self._send(self._bodies.requests(rows))
            except BadRow as refusal:
                refusal.epoch = epoch
                raise
            faults.reach("publish-uncommitted", epoch, publication.record.pipeline)
            self._epoch = epoch

    def outcome(self, epoch: int) -> Outcome:
        """Answer for this run alone."""
        return Outcome.PUBLISHED if epoch <= self._epoch else Outcome.ABSENT

    def sweep(self, *, below_epoch: int) -> int:
        """There are no orphans."""
        return 0

    def close(self) -> None:
        """Close the connections."""
        self._posting.close()

    def _send(self, requests: Iterable[Request]) -> None:
        missing = (request for request in requests if request.key not in self._answered[1])
        if self._at_once == 1:
            for request in missing:
                self._send_one(request)
            return
        with ThreadPoolExecutor(self._at_once, "holdfast-http") as threads:
            while several := list(islice(missing, _WINDOW * self._at_once)):
                sent = [threads.submit(self._send_one, request) for request in several]
                try:
                    for each in sent:
                        each.result()
                except BaseException:
                    for each in sent:
                        each.cancel()
                    raise

    def _send_one(self, request: Request) -> None:
        self._posting.post(request)
        self._answered[1].add(request.key)
