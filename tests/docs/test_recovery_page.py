"""The documentation's diagrams are those of the tables."""

from pathlib import Path

from holdfast.commit.recovery import CASES
from holdfast.commit.transaction import TRANSITIONS
from holdfast.starts import table
from tools.recovery_page import PARTS, current, main, start_table, state_diagram, verdict_table

PAGE = Path(__file__).resolve().parents[2] / "docs/how-recovery-works.md"


def test_the_page_on_recovery_is_current():
    """Renew it with ``python -m tools.recovery_page docs/how-recovery-works.md``."""
    page = PAGE.read_text(encoding="utf-8")
    assert current(page) == page


def test_the_page_shows_every_made_part():
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- made from {name} -->" in page for name in PARTS)


def test_the_diagram_has_one_arrow_per_legal_transition():
    legal = [following for following in TRANSITIONS.values() if following]
    arrows = [line for line in state_diagram().splitlines() if "-->" in line and "[*]" not in line]
    assert len(arrows) == len(legal)


def test_the_table_has_one_row_per_case():
    assert len(verdict_table().splitlines()) == len(CASES) + 2


def test_the_table_of_starts_has_one_row_per_case():
    assert len(start_table().splitlines()) == len(table.CASES) + 2


def test_a_stale_page_is_renewed_and_the_rest_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- made from recovery.py, verdicts -->\nstale\n<!-- end -->\nafter\n")
    main([str(page)])
    text = page.read_text()
    assert "stale" not in text
    assert text.startswith("before\n<!-- made")
    assert text.endswith("<!-- end -->\nafter\n")
    assert current(text) == text
