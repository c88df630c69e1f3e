"""The console sink: what it prints, how much, and that it promises no more than it can."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from holdfast.connectors.console import ConsoleSink, ConsoleSpec, console
from holdfast.errors import InvalidPipeline
from holdfast.ports import Carried, EpochRecord, Guarantee, Held, Outcome, Part, Publication, RunIdentity, Task

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def _sink(stream: io.StringIO, limit: int = 3) -> ConsoleSink:
    sink = ConsoleSink("shown", SCHEMA, limit, stream=stream)
    assert sink.open(RunIdentity("words", 1)) == Held()
    return sink


def _rows(*ids: int, word: str | None = "w") -> pa.Table:
    return pa.table({"id": ids, "word": [word] * len(ids)}, schema=SCHEMA)


def _publication(epoch: int, *parts: Part) -> Publication:
    return Publication(EpochRecord("words", epoch, 1, {}), parts)


def test_an_epoch_is_a_table_with_its_first_rows_and_all_counted(stream: io.StringIO) -> None:
    _sink(stream).publish([_publication(7, Carried(_rows(11, 12, 13, 14, 15)))], Held())
    text = stream.getvalue()
    assert "shown · epoch 7 · 3 of 5 rows" in text
    assert all(str(number) in text for number in (11, 12, 13))
    assert "14" not in text
    assert "word" in text


def test_staged_rows_travel_up_to_the_limit_and_are_all_counted(stream: io.StringIO) -> None:
    sink = _sink(stream)
    writer = sink.writer_factory()(Task("words", 1, 1, 0, 0))
    for start in range(0, 100, 2):
        writer.write(_rows(start, start + 1).to_batches()[0])
    handle = writer.stage()
    assert handle.row_count == 100
    assert len(handle.reference["arrow"]) < 2_000
    sink.publish([_publication(1, handle)], Held())
    assert "3 of 100 rows" in stream.getvalue()


def test_values_are_shown_as_they_are(stream: io.StringIO) -> None:
    """Rows may hold what looks like markup, and nulls."""
    _sink(stream).publish(
        [_publication(1, Carried(_rows(1, word="[red]x[/red]")), Carried(_rows(2, word=None)))], Held()
    )
    assert "[red]x[/red]" in stream.getvalue()
    assert "null" in stream.getvalue()


def test_an_epoch_without_rows_prints_nothing(stream: io.StringIO) -> None:
    sink = _sink(stream)
    sink.publish([_publication(1), _publication(2, Carried(_rows()))], Held())
    assert stream.getvalue() == ""
    assert sink.outcome(2) is Outcome.PUBLISHED


def test_a_run_prints_an_epoch_once_and_the_next_run_may_print_it_again(stream: io.StringIO) -> None:
    sink = _sink(stream)
    sink.publish([_publication(1, Carried(_rows(1)))], Held())
    sink.publish([_publication(1, Carried(_rows(1)))], Held())
    assert stream.getvalue().count("epoch 1") == 1
    again = _sink(stream)
    assert again.outcome(1) is Outcome.ABSENT
    again.publish([_publication(1, Carried(_rows(1)))], Held())
    assert stream.getvalue().count("epoch 1") == 2


def test_it_writes_to_standard_output_and_says_at_least_once(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSpec().connect("shown", "words", SCHEMA)
    assert sink.guarantee is console().guarantee is Guarantee.AT_LEAST_ONCE
    sink.open(RunIdentity("words", 1))
    sink.publish([_publication(1, Carried(_rows(1)))], Held())
    assert "shown · epoch 1 · 1 row" in capsys.readouterr().out


@pytest.mark.parametrize("limit", [0, -1, "20", True])
def test_a_limit_that_is_no_number_of_rows_is_refused(limit: int) -> None:
    with pytest.raises(InvalidPipeline, match="limit"):
        console(limit=limit)
