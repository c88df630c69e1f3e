"""What a class offers is found once, and a misspelled name is an error and not a weaker guarantee."""

from __future__ import annotations

from typing import Protocol

import pytest

from holdfast.capabilities import capabilities, members, offers, optional
from holdfast.connectors.memory import MemorySpec
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.ports import Evolving, Expiring, Explaining, ResettableSpec, Volatile
from holdfast.testing.sink import SimulatedSink, SimulatedTarget


def a_sink(kind=SimulatedSink):
    return kind("table", SimulatedTarget())


def test_a_sink_offers_what_it_has():
    assert offers(a_sink(), Expiring)
    assert offers(a_sink(), Explaining)
    assert not offers(a_sink(), Evolving)
    assert isinstance(capabilities(a_sink()), frozenset)


def test_a_misspelled_method_of_a_sink_is_an_error_whatever_is_asked():
    class Misspelled(SimulatedSink):
        def add_colums(self):
            return ()

    with pytest.raises(InvalidPipeline, match="Misspelled offers a part") as caught:
        offers(a_sink(Misspelled), Volatile)
    assert "'add_colums' is nearly 'add_columns', by which it would be a Evolving" in caught.value.why
    assert "holdfast.ports.sinks.Evolving" in caught.value.do


def test_a_part_of_what_can_only_be_done_together_is_an_error():
    class Half(SimulatedSink):
        def content(self):
            raise NotImplementedError

    with pytest.raises(InvalidPipeline, match="Half offers a part") as caught:
        capabilities(a_sink(Half))
    assert caught.value.why == "to be a Comparable it lacks 'repair'."


def test_a_declaration_is_checked_where_the_graph_is_built():
    class Misspelled(MemorySpec):
        def resett(self):
            return None

    with pytest.raises(InvalidPipeline, match="'resett' is nearly 'reset', by which it would be a ResettableSpec"):
        nodes.sink(Misspelled("m"), name="m")


def test_a_method_that_a_class_withdraws_is_not_offered():
    class Withdrawn(SimulatedSink):
        expired = None  # type: ignore[assignment]

    assert not offers(a_sink(Withdrawn), Expiring)


def test_names_of_its_own_that_are_like_none_may_be_public():
    class Talkative(SimulatedSink):
        def brokers(self):
            return ()

    assert offers(a_sink(Talkative), Expiring)


def test_a_protocol_that_is_imported_later_is_found_by_what_was_checked_before():
    class Singing(SimulatedSink):
        def sing(self):
            return "la"

    sink = a_sink(Singing)
    before = capabilities(sink)

    @optional(SimulatedSink)
    class Musical(Protocol):
        def sing(self) -> str: ...

    assert offers(sink, Musical)
    assert capabilities(sink) == before | {Musical}


def test_a_protocol_consists_of_its_methods_and_its_values():
    assert members(ResettableSpec) == {"reset"}
    assert members(Volatile) == {"is_volatile"}
