"""The simulated sink keeps the promises of the real ones."""

import pytest

from holdfast.testing import FaultySink, Process, SimulatedSink, SimulatedTarget
from tests.contract.explaining_contract import ExplainingContract
from tests.contract.reject_contract import RejectContract
from tests.contract.sink_contract import PIPELINE, SCHEMA, SinkContract

pytestmark = pytest.mark.slow

TestExplainingContract = ExplainingContract
TestRejectContract = RejectContract
TestSinkContract = SinkContract


class Target:
    def __init__(self, way, is_wrapped):
        self._target, self._way, self._is_wrapped = SimulatedTarget(), way, is_wrapped
        self._refused = set()

    def connect(self, name="target", pipeline=PIPELINE, schema=SCHEMA):
        sink = SimulatedSink(name, self._target, way=self._way)
        return FaultySink(sink, Process()) if self._is_wrapped else sink

    def rows(self):
        return [(row["id"], row["word"]) for table in self._target.tables for row in table.to_pylist()]

    def leftovers(self):
        return self._target.leftovers()

    def refuse(self, word):
        self._refused.add(word)
        self._target.refuses = lambda row: row["word"] in self._refused
        return True


@pytest.fixture(params=[("transaction", False), ("prepared", False), ("transaction", True)], ids=str)
def target(request):
    return Target(*request.param)


@pytest.fixture
def refusing(target):
    return target
