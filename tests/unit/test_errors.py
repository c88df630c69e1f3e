"""Errors say what, why and what to do, and survive the way from an executor through the JVM."""

import pickle
import traceback
from typing import Any

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
    crossing,
    from_text,
    invariant,
    present,
    without_records,
)

FIELDS: dict[str, Any] = {"pipeline": "trips", "participant": "trips_table", "epoch": 42, "generation": 7}


def example(kind=InDoubt):
    return kind("epoch 42 is staged.", why="generation 7 stopped.", do="holdfast resolve", **FIELDS)


def test_a_message_says_what_why_and_what_to_do():
    assert str(example()) == "epoch 42 is staged.\n  Why: generation 7 stopped.\n  Do:  holdfast resolve"
    assert str(Fenced("stale.")) == "stale."


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_kind_survives_pickling_with_all_its_fields_and_notes(kind):
    error = example(kind)
    error.add_note("History of epoch 42")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)
    assert again.__notes__ == ["History of epoch 42"]


def in_a_worker(error, *, cause=None):
    """Return the text that PySpark's worker makes of an error that a task raised."""
    try:
        with crossing():
            raise error from cause
    except HoldfastError:
        return traceback.format_exc()


PARTS = ("what", "why", "do", "pipeline", "participant", "epoch", "generation", "errno")


def parts_of(error):
    return type(error), {name: getattr(error, name) for name in PARTS}


def full(kind):
    error = kind(
        "line 3 cannot be read:\n\u2028 Why: it says 'é', \"x\": {1}, Do: nothing \U0001f600 \x1e",
        why='path "C:\\new": 12\nof 30 bytes',
        do="mend it\n  Why: so",
        **FIELDS,
    )
    error.errno = 28
    return error


WRAPPED = {
    "as it is": "{}",
    "behind Spark's words": "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: {} SQLSTATE: 38000",
    "in a trace of Java": "org.apache.spark.SparkException: Job aborted: {}\n\tat org.apache.spark.X(X.scala:1)",
    "as a cause": "org.apache.spark.SparkException: {0}\n\tat x\nCaused by: org.apache.spark.Y: {0}\n\t... 3 more",
}


@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("kind", KINDS.values())
def test_every_kind_crosses_the_jvm_with_all_its_fields(kind, wrapped):
    text = wrapped.format(in_a_worker(full(kind)))
    assert parts_of(from_text(text)) == parts_of(full(kind))


@pytest.mark.parametrize("indent", ["    ", "\t", "> "])
def test_a_text_may_be_indented_on_the_way(indent):
    text = in_a_worker(full(InDoubt))
    assert parts_of(from_text("\n".join(f"{indent}{line}" for line in text.split("\n")))) == parts_of(full(InDoubt))


@pytest.mark.parametrize("name", ["is_decided", "is_isolated_later"])
def test_what_only_one_kind_has_crosses_too(name):
    error = BadRow("refused.")
    setattr(error, name, True)
    found = from_text(in_a_worker(error))
    assert [getattr(found, each) for each in ("is_decided", "is_isolated_later")] == [
        each == name for each in ("is_decided", "is_isolated_later")
    ]


def test_a_record_is_one_line_of_ascii_and_stands_behind_what_people_read():
    crossed = in_a_worker(example()).rstrip("\n").split("\n")
    assert crossed[-4:-1] == f"holdfast.errors.InDoubt: {example()}".split("\n")
    assert crossed[-1].startswith("  holdfast-error: {")
    record = full(BadRow).record()
    assert record.isascii()
    assert len(record.splitlines()) == 1


def test_of_a_cut_text_everything_that_is_left_is_read():
    error = example()
    text = in_a_worker(error)
    begin = text.index("InDoubt: ") + len("InDoubt: epoch 42 is staged.")
    seen = [from_text(text[:end]) for end in range(begin, len(text) + 1)]
    assert {type(found) for found in seen} == {InDoubt}
    assert {found.what for found in seen} == {error.what}
    for name in PARTS:
        values = [getattr(found, name) for found in seen]
        assert values[-1] == getattr(error, name)
        if name in ("pipeline", "participant", "epoch", "generation"):
            assert set(values) == {getattr(error, name), getattr(example().__class__(""), name)}, "whole, or not at all"
    # The record's own fields are there before its last one.
    behind = from_text(text[: text.index(', "what"') + 1])
    assert parts_of(behind) == parts_of(error)


def test_of_a_record_alone_that_was_cut_before_it_says_what_nothing_is_made():
    record = example().record()
    assert from_text(record[: record.index(', "do"') + 1]).what == example().what
    assert from_text(record[: record.index('"what"')]) is None


def test_of_a_chain_the_record_of_the_error_that_was_raised_last_is_read():
    inner = Unavailable("away", participant="db")
    with pytest.raises(Unavailable), crossing():
        raise inner
    found = from_text(in_a_worker(InDoubt("unclear", epoch=3), cause=inner))
    assert parts_of(found) == parts_of(InDoubt("unclear", epoch=3))


def test_a_record_that_an_error_quotes_is_not_taken_for_its_own():
    quoted = Fenced("stop", generation=9).record()
    error = BadRow(f"line 3 cannot be read: {quoted}", why=f"it says\n{quoted}")
    assert parts_of(from_text(in_a_worker(error))) == parts_of(error)


@pytest.mark.parametrize("forged", ["[1, 2]", '{"kind": "Nonsense", "what": "hm"}', '{"kind": 7}', "{", ""])
def test_what_is_no_record_is_none(forged):
    assert from_text(f"holdfast-error: {forged}") is None


def test_a_field_of_another_type_is_left_out():
    found = from_text('holdfast-error: {"kind": "Fenced", "what": "stop", "epoch": "7", "errno": true, "args": 1}')
    assert parts_of(found) == parts_of(Fenced("stop"))


def test_people_read_what_they_always_read():
    error = full(BadRow)
    plain = traceback.format_exception_only(error)
    text = in_a_worker(error)
    assert without_records(text).rstrip("\n").endswith("".join(plain).rstrip("\n"))
    assert "holdfast-error" not in without_records(f"{text} SQLSTATE: 38000\n{text[:-9]}")
    assert without_records(f"a\n{example().record()}\nb") == "a\nb"
    assert without_records("nothing\n of it ") == "nothing\n of it "


def test_an_error_that_is_pickled_on_its_way_on_is_for_people_again():
    error = example()
    in_a_worker(error)
    assert "holdfast-error" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == again.message == error.message


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_kind_is_found_again_where_only_the_printed_message_is_left(kind):
    error = example(kind)
    text = f"py4j.Py4JException: ...\n  File ...\nholdfast.errors.{kind.__name__}: {error}\n\tat java.lang.Thread"
    found = from_text(text)
    assert type(found) is kind
    assert (found.what, found.why, found.do) == (error.what, error.why, error.do)


def test_a_text_without_an_error_of_ours_gives_none():
    assert from_text("java.lang.OutOfMemoryError: Java heap space") is None
    assert from_text("holdfast.errors.Nonsense: hm") is None
    assert from_text("") is None


def test_of_a_chain_that_is_only_printed_the_error_that_was_raised_last_is_found():
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
        invariant([], "epoch 42 comes twice.", why="it is there.", story=lambda: "History of epoch 42", **FIELDS)
    error = caught.value
    assert (error.what, error.why, error.do) == ("epoch 42 comes twice.", "it is there.", REPORT)
    assert {name: getattr(error, name) for name in FIELDS} == FIELDS
    assert error.__notes__ == ["History of epoch 42"]


def test_a_value_that_must_be_there_is_returned_or_stops_with_what_is_missing():
    assert present(0, "there is no epoch.") == 0
    with pytest.raises(InternalError, match=r"(?s)there is no epoch\..*it was decided\.") as caught:
        present(None, "there is no epoch.", why="it was decided.", pipeline="trips", epoch=42)
    assert (caught.value.pipeline, caught.value.epoch) == ("trips", 42)


def test_an_invariant_that_holds_asks_for_no_story():
    invariant([42], "epoch 42 is not there.", story=lambda: pytest.fail("nobody wants to know"))
    with pytest.raises(InternalError) as caught:
        invariant(False, "epoch 42 is not there.", story=lambda: "")
    assert not hasattr(caught.value, "__notes__")


def test_a_kind_of_the_users_own_crosses_as_the_one_it_is_of():
    class Torn(BadRow):
        """A user's."""

    wrong: Any = b"bytes"
    found = from_text(f"PythonException: {Torn('row 7 is torn', participant=wrong).record()}")
    assert (type(found), found.what) == (BadRow, "row 7 is torn")
