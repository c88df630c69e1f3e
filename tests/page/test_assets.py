"""What the page takes of others is what is pinned, and it takes nothing from elsewhere (design/0049, section 6)."""

from __future__ import annotations

import re

from tools.vendor import ASSETS, differing

OWN = ("page.js", "page.css", "icon.svg")


def test_what_is_taken_of_others_is_what_is_pinned() -> None:
    assert differing() == []


def test_nothing_is_fetched_from_elsewhere() -> None:
    texts = {name: (ASSETS / name).read_text() for name in OWN}
    known = "http://www.w3.org/2000/svg"
    assert {name: re.findall(r"https?://[^\"' )]+", text.replace(known, "")) for name, text in texts.items()} == {
        name: [] for name in OWN
    }
    assert "eval(" not in texts["page.js"]
