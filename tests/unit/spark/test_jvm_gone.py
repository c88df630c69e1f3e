"""A JVM that dies is told from one that answers with an error, wherever its connection breaks."""

from __future__ import annotations

import pytest
from py4j import protocol

from holdfast.errors import InternalError, Unavailable
from holdfast.spark.failure import translate


def failed(answer: str) -> protocol.Py4JError:
    """Return what py4j raises for an answer of the other side."""
    try:
        protocol.get_return_value(answer, None, "o206", "isActive")
    except protocol.Py4JError as error:
        return error
    raise AssertionError


def test_a_connection_that_breaks_within_a_call_is_the_death_of_the_jvm() -> None:
    found = translate(failed(protocol.ERROR), "trips", "the run")
    assert isinstance(found, Unavailable)
    assert "JVM has died" in found.what


@pytest.mark.parametrize("name", ["o206.isActive", "An error occurred while calling o206.isActive"])
def test_an_error_that_is_not_py4js_own_is_not(name: str) -> None:
    assert isinstance(translate(protocol.Py4JError(name), "trips", "the run"), InternalError)


def test_an_answer_with_a_trace_is_not() -> None:
    said = protocol.get_command_part("Method isActive([]) does not exist").strip()
    assert isinstance(translate(failed(f"{protocol.ERROR}{said}"), "trips", "the run"), InternalError)
