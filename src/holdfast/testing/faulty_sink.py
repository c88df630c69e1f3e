"""A wrapper around any sink that makes it fail: each of its calls is a place to die."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.capabilities import offers
from holdfast.ports import (
    Early,
    Expiring,
    Explaining,
    Explanation,
    Held,
    Outcome,
    Publication,
    Refused,
    Rejecting,
    RunIdentity,
    Sink,
    Staged,
    WriterFactory,
)
from holdfast.testing.failures import Failure, Failures, NoFailures, failing
from holdfast.testing.simulation.process import Process


class FaultySink:
    """Any sink, as one process sees it: its calls are places to die (before and after each), and can fail.

    Parameters
    ----------
    inner : Sink
        The real one.
    process : Process
        The life that uses it.
    failures : Failures, optional
        How calls fail.
    """

    def __init__(self, inner: Sink, process: Process, failures: Failures | None = None) -> None:
        self.name = inner.name
        self.guarantee = inner.guarantee
        self._inner = inner
        self._process = process
        self._failures: Failures = failures or NoFailures()

    @property
    def staging(self) -> str:
        """How large epochs are staged here."""
        return self._inner.staging

    def open(self, run: RunIdentity) -> Held:
        """Open the real one."""
        return failing(
            self._failures(self.name, "open"),
            self.name,
            "open",
            lambda: self._process.write(f"sink {self.name} open", lambda: self._inner.open(run)),
        )

    def writer_factory(self) -> WriterFactory:
        """Return the real one's."""
        return self._inner.writer_factory()

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Ask the real one."""
        self._process.check()
        real = [(sink._inner if isinstance(sink, FaultySink) else sink, theirs) for sink, theirs in earlier]
        return failing(
            self._failures(self.name, "admit"), self.name, "admit", lambda: self._inner.admit(publication, real)
        )

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, Sequence[Refused]]:
        """Ask the real one, if it can tell."""
        self._process.check()
        return self._inner.reject(publication, earlier) if offers(self._inner, Rejecting) else (publication, ())

    def expired(self, parts: Sequence[Staged]) -> Sequence[str]:
        """Ask the real one, if it keeps what is staged."""
        self._process.check()
        return self._inner.expired(parts) if offers(self._inner, Expiring) else ()

    @property
    def is_early(self) -> bool:
        """As the real one."""
        return offers(self._inner, Early) and self._inner.is_early

    def send(self, publication: Publication) -> None:
        """Send to the real one."""
        inner = self._inner
        assert offers(inner, Early)
        label = f"sink {self.name} send {publication.record.epoch}"
        failure = self._failures(self.name, "publish")
        failing(failure, self.name, "publish", lambda: self._process.write(label, lambda: inner.send(publication)))

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Publish in the real one."""
        label = f"sink {self.name} publish {publications[-1].record.epoch}"
        failing(
            self._failures(self.name, "publish"),
            self.name,
            "publish",
            lambda: self._process.write(label, lambda: self._inner.publish(publications, expected)),
        )

    def outcome(self, epoch: int) -> Outcome:
        """Ask the real one."""
        self._process.check()
        failure = self._failures(self.name, "outcome")
        if failure is Failure.UNKNOWN:
            return Outcome.UNKNOWN
        return failing(failure, self.name, "outcome", lambda: self._inner.outcome(epoch))

    def sweep(self, *, below_epoch: int) -> int:
        """Sweep the real one."""
        return failing(
            self._failures(self.name, "sweep"),
            self.name,
            "sweep",
            lambda: self._process.write(f"sink {self.name} sweep", lambda: self._inner.sweep(below_epoch=below_epoch)),
        )

    def explanations(self) -> Sequence[Explanation]:
        """Ask the real one, if it keeps any."""
        self._process.check()
        return self._inner.explanations() if offers(self._inner, Explaining) else ()

    def close(self) -> None:
        """Close the real one, also after the process's death: then its connections are gone."""
        self._inner.close()
