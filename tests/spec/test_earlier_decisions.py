"""What an earlier version decided and did not publish is published, by what it has staged, and its ledgers are read.

The half of a start that needs no Java; ``tests/spark/test_earlier_sinks.py`` has the whole.
"""

from __future__ import annotations

import pytest

from holdfast.cli.resolve import Resolving
from holdfast.config import Settings
from holdfast.store.local import LocalStore
from tests.spark.earlier import targets
from tests.spark.earlier.left import KINDS, Left, left
from tests.spark.earlier.pipeline import FILES, pipeline

__all__ = ["left"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_decision_of_an_earlier_version_is_resolved_and_its_next_start_continues(left: Left) -> None:
    store = LocalStore(str(left.root / "checkpoint"))
    resolved = Resolving(pipeline(left.root, left.kind), store, left.root / "checkpoint", Settings()).do()
    assert resolved.refusal is None
    assert resolved.case is not None
    assert resolved.case.letter == "J"
    targets.check(left.kind, left.root, left.server, FILES)
    for name, ledger in left.ledgers().items():
        assert (name, ledger.held.epoch, ledger.held.generation) == (name, FILES, resolved.resumption.generation)
        explained = [each.source for each in ledger.explanations]
        # What the log of files is of, and one for each of them.
        assert (name, *map(explained.count, ("left", "right"))) == (name, 1 + FILES, 1 + FILES)
