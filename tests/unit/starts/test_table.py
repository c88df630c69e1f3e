"""The table of starts: one row for whatever is found."""

from __future__ import annotations

from collections import Counter

from holdfast.starts.table import CASES, StartWay, case_of, combinations


def test_everything_that_could_be_found_has_exactly_one_row() -> None:
    rows = Counter(len([case for case in CASES if case.is_met_by(found)]) for found in combinations())
    assert rows == {1: 7 * 6 * 3 * 6}


def test_every_row_has_a_letter_of_its_own_and_is_met_by_something() -> None:
    assert [case.letter for case in CASES] == [chr(ord("A") + number) for number in range(len(CASES))]
    assert {case_of(found).letter for found in combinations()} == {case.letter for case in CASES}


def test_every_way_is_taken_by_some_row_and_a_refusal_changes_nothing() -> None:
    assert {case.way for case in CASES} == set(StartWay)
    for case in CASES:
        texts = {case.keeps, case.reads, case.gives, case.numbers}
        assert (texts == {"nothing is changed"}) == (case.way is StartWay.REFUSE), case.letter
