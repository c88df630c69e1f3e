"""What a sink's declaration must say that can be asked without a schema: what an opening finds, and nothing changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pytest

from holdfast.capabilities import offers
from holdfast.connectors.kit.kept_explanations import KeptExplanations
from holdfast.ports import Held, Inspectable, LedgerSpec, RunIdentity, Sink
from tests.contract.explaining_contract import epoch, told
from tests.contract.sink_contract import PIPELINE


class AskedTarget(Protocol):
    """A target, and the declaration of the sink that writes it."""

    spec: LedgerSpec

    def connect(self, name: str = "target", pipeline: str = PIPELINE) -> Sink:
        """Return a new runtime of the sink."""

    def is_there(self) -> bool:
        """Tell whether anything of it exists."""


class LedgerContract:
    """The promises."""

    def test_where_nothing_was_written_there_is_no_ledger_and_none_is_made(self, target: AskedTarget) -> None:
        assert offers(target.spec, LedgerSpec)
        assert target.spec.ledger("target", PIPELINE) is None
        assert not target.is_there()

    def test_an_explanation_counts_from_its_entry_on(
        self, target: AskedTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A copy beside the log may come later."""
        sink = target.connect()
        held = sink.open(RunIdentity(PIPELINE, 3))
        sink.publish([epoch(1, told("lines", 1), generation=3)], held)
        monkeypatch.setattr(KeptExplanations, "keep", lambda *_, **__: None)
        sink.publish([epoch(2, told("lines", 2), generation=3)], Held())
        assert offers(target.spec, LedgerSpec)
        found = target.spec.ledger("target", PIPELINE)
        assert found is not None
        assert found.explanations == told("lines", 1, 2)
        sink.close()

    def test_it_says_what_an_opening_finds_and_what_is_explained(self, target: AskedTarget) -> None:
        sink = target.connect()
        held = sink.open(RunIdentity(PIPELINE, 3))
        sink.publish([epoch(1, told("lines", 1, 2), generation=3)], held)
        sink.publish([epoch(2, told("lines", 3), told("marks", 1), generation=3)], Held())
        for _ in range(2):
            found = target.spec.ledger("target", PIPELINE)
            assert found is not None
            assert found.explanations == (*told("lines", 1, 2, 3), *told("marks", 1))
            assert found.held == Held(2, 3, {"lines": {"log": 20}}, None)
            assert offers(sink, Inspectable)
            assert sink.inspect()[0] == found.held
        sink.publish([epoch(3, generation=3)], Held())  # it was not fenced
        sink.close()
        found = target.spec.ledger("target", PIPELINE)
        again = target.connect()
        assert found is not None
        assert again.open(RunIdentity(PIPELINE, 4)) == replace(found.held, generation=3)
        again.close()

    def test_another_sink_and_another_pipeline_have_a_ledger_of_their_own(self, target: AskedTarget) -> None:
        sink = target.connect()
        sink.open(RunIdentity(PIPELINE, 1))
        sink.close()
        assert target.spec.ledger("other", PIPELINE) is None
        assert target.spec.ledger("target", "others") is None
