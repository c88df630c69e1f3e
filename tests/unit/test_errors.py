"""Errors say what, why and what to do, and survive the way from an executor through the JVM."""

import pickle

import pytest

from holdfast.errors import (
    KINDS,
    REPORT,
    BadRow,
    Fenced,
    HoldfastError,
    InDoubt,
    InternalError,
    Unavailable,
    from_text,
    invariant,
)

FIELDS = {"pipeline": "trips", "participant": "trips_table", "epoch": 42, "generation": 7}


def example(kind=InDoubt):
    return kind("epoch 42 is staged.", why="generation 7 stopped.", do="holdfast resolve", **FIELDS)


def test_a_message_says_what_why_and_what_to_do():
    assert str(example()) == "epoch 42 is staged.\n  Why: generation 7 stopped.\n  Do:  holdfast resolve"
    assert str(Fenced("stale.")) == "stale."


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_kind_survives_pickling_with_all_its_fields_and_notes(kind):
    error = example(kind)
    error.add_note("Story of epoch 42")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)
    assert again.__notes__ == ["Story of epoch 42"]


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_kind_is_found_again_in_a_text(kind):
    error = example(kind)
    text = f"py4j.Py4JException: ...\n  File ...\nholdfast.errors.{kind.__name__}: {error}\n\tat java.lang.Thread"
    found = from_text(text)
    assert type(found) is kind
    assert (found.what, found.why, found.do) == (error.what, error.why, error.do)


def test_a_text_without_an_error_of_ours_gives_none():
    assert from_text("java.lang.OutOfMemoryError: Java heap space") is None
    assert from_text("holdfast.errors.Nonsense: hm") is None
    assert from_text("") is None


def test_of_a_chain_the_error_that_was_raised_last_is_found():
    text = "holdfast.errors.Unavailable: away\n\nDuring handling ...\n\nholdfast.errors.InDoubt: unclear\n  Do:  ask"
    found = from_text(text)
    assert type(found) is InDoubt
    assert (found.what, found.why, found.do) == ("unclear", "", "ask")


def test_kinds_are_told_apart_by_what_to_do_about_them():
    assert not issubclass(InDoubt, Unavailable), "unknown is never failed"
    assert all(kind.__bases__ == (HoldfastError,) for kind in KINDS.values())


def test_an_error_is_an_exception_and_no_system_exit():
    with pytest.raises(HoldfastError):
        raise BadRow("line 3 is no JSON.")


def test_an_invariant_that_does_not_hold_stops_with_the_story():
    with pytest.raises(InternalError) as caught:
        invariant([], "epoch 42 comes twice.", why="it is there.", story=lambda: "Story of epoch 42", **FIELDS)
    error = caught.value
    assert (error.what, error.why, error.do) == ("epoch 42 comes twice.", "it is there.", REPORT)
    assert {name: getattr(error, name) for name in FIELDS} == FIELDS
    assert error.__notes__ == ["Story of epoch 42"]


def test_an_invariant_that_holds_asks_for_no_story():
    invariant([42], "epoch 42 is not there.", story=lambda: pytest.fail("nobody wants to know"))
    with pytest.raises(InternalError) as caught:
        invariant(False, "epoch 42 is not there.", story=lambda: "")
    assert not hasattr(caught.value, "__notes__")
