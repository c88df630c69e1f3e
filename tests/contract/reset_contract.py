"""What a sink must do whose ledger was removed, by hand or by a reset: it begins as if it had never been there."""

from __future__ import annotations

from typing import Protocol

from holdfast.ports import Explanation, Held, LedgerSpec, RunIdentity, Sink
from tests.contract.explaining_contract import epoch, kept, opened, told
from tests.contract.sink_contract import PIPELINE


class LosableTarget(Protocol):
    """A target whose ledger can be removed as somebody would who starts over."""

    spec: LedgerSpec

    def connect(self, name: str = "target", pipeline: str = PIPELINE) -> Sink:
        """Return a new runtime of the sink."""

    def lose_ledger(self) -> None:
        """Remove the row of the sink's ledger, and nothing else."""


class LostLedgerContract:
    """The promises."""

    def test_what_nobody_holds_explains_nothing(self, target: LosableTarget) -> None:
        """Positions of a ledger that is gone mean nothing: they are forgotten, and replaced (design/0018)."""
        sink = opened(target)
        sink.publish([epoch(1, told("lines", 1, 2), step_time=(1, 1_000))], Held())
        sink.close()
        target.lose_ledger()
        assert target.spec.ledger("target", PIPELINE) is None
        again = target.connect()
        assert kept(again) == {}, "asked before it is opened"
        held = again.open(RunIdentity(PIPELINE, 1))
        assert (held.epoch, held.explained, held.step_time) == (0, {}, None)
        other = (Explanation("lines", 1, '{"of": "another log"}'),)
        again.publish([epoch(1, other)], held)
        assert kept(again) == {"lines": ['{"of": "another log"}']}
        again.close()
        found = target.spec.ledger("target", PIPELINE)
        assert found is not None
        assert found.explanations == other
