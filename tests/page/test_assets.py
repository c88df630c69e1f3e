"""What the page takes of others is what is pinned, and it takes nothing from elsewhere (design/0049, section 6)."""

from __future__ import annotations

import re

from hatchling.builders.wheel import WheelBuilder

from holdfast.page import layout
from holdfast.page.model import Asked
from tests.crash.processes import ROOT
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


def test_the_wheel_has_all_that_the_page_asks_for() -> None:
    """As the build backend lists what it packs: nothing is fetched where it is installed."""
    packed = {each.distribution_path for each in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {f"holdfast/page/assets/{path.name}" for path in ASSETS.iterdir()} <= packed
    asked_for = re.findall(r'(?:href|src)="/(assets/[^"]+)"', layout.document("", Asked(), []))
    assert len(asked_for) == 5
    assert {f"holdfast/page/{each}" for each in asked_for} <= packed
