"""The page of damaged checkpoints shows the table that the tests on Spark hold to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.damages import BASES, DAMAGES, HANDFUL, OUTCOMES, TABLE, table_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "damaged-checkpoints.md"


@pytest.mark.parametrize("base", BASES)
def test_the_page_shows_the_table(base: str) -> None:
    assert table_of(base) in PAGE.read_text()


def test_every_cell_has_an_outcome_and_every_row_a_cure() -> None:
    for row in TABLE.values():
        assert row.means
        for how in DAMAGES:
            assert row.words(how)
            assert row.words(how) <= OUTCOMES


def test_the_handful_is_in_the_table() -> None:
    assert all((base, kind) in TABLE for base, kind, _ in HANDFUL)
    assert {base for base, _, _ in HANDFUL} == set(BASES)
