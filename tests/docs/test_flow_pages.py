"""What the pages on flowgraphs show is true: their blocks run from top to bottom, without Spark."""

from typing import Any

import pytest

import holdfast as hf
from tests.docs.pages import ROOT, blocks, play, prose, shown

PAGES = [ROOT / "docs/operators/flow.md", ROOT / "docs/coming-from-mediapipe.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_the_blocks_of_a_page_run_one_after_the_other(page):
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block.text, str(block), "exec"), names)


@pytest.mark.slow
def test_the_camera_graph_does_what_its_page_shows(tmp_path):
    play(ROOT / "docs/camera-graph.md", tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_calculator_of_the_library_is_on_the_page(page):
    text = prose(page)
    known = [getattr(hf.flow.calculators, name) for name in dir(hf.flow.calculators)]
    calculators = [each.__name__ for each in known if isinstance(each, type) and issubclass(each, hf.flow.Calculator)]
    assert len(calculators) >= 4
    assert [name for name in calculators if f"| `{name}` |" not in text] == []


def test_every_policy_that_a_flowgraph_follows_has_its_rules_on_the_page():
    from holdfast.flow.policy_table import POLICIES

    text = prose(PAGES[0])
    assert [kind for kind in POLICIES if f"\n**{kind}.** " not in text] == []
