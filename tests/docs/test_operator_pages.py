"""What the pages of operators, and those for users of other systems, show by a test is true."""

import pytest

from tests.docs.pages import ROOT, blocks

PAGES = sorted([*(ROOT / "docs/operators").glob("*.md"), *(ROOT / "docs").glob("coming-from-*.md")])
SHOWN = [block for page in PAGES for block in blocks(page, "python") if "\ndef test_" in block.text]


@pytest.mark.slow
@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_what_a_page_shows_by_a_test_is_true(block):
    names = {}
    exec(compile(block.text, str(block), "exec"), names)
    for test in [value for name, value in names.items() if name.startswith("test_")]:
        test()
